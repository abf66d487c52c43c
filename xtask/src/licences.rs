//! `cargo xtask licences`: checks licenses, bans and sources with `deny.toml`.

use std::path::Path;
use std::process::Stdio;

use crate::cargo;
use crate::check::succeeds;

/// Runs cargo-deny; advisories are left out because their database is fetched from the network.
pub fn run(root: &Path) -> Result<(), String> {
    let mut version = cargo(root);
    version.args(["deny", "--version"]);
    let version = version.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        return Err("cargo-deny is missing; `cargo install cargo-deny --locked` brings it".into());
    }
    let checks = ["deny", "check", "licenses", "bans", "sources"];
    succeeds(cargo(root).args(checks))
}
