//! Installs packages from npm into the target directory: pinned versions, with the checksums of a lock file, without install scripts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::product::{Live, text};

/// Time limit of an installation. An agent has 100 MB.
const INSTALL_PATIENCE: Duration = Duration::from_secs(600);

/// Returns the target directory: the parent of the directory of this program.
pub fn target_dir() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(text)?;
    let target = this.parent().and_then(Path::parent);
    let target = target.ok_or("this program is not below a target directory")?;
    Ok(target.to_path_buf())
}

/// Installs exactly the packages of the lock file in `dir`.
pub fn ci(dir: &Path) -> Result<(), String> {
    run(dir, "ci")
}

/// Installs the packages of the lock file in `dir`, and packages for other platforms that the lock file does not contain.
pub fn install(dir: &Path) -> Result<(), String> {
    run(dir, "install")
}

fn run(dir: &Path, how: &str) -> Result<(), String> {
    let mut npm = Command::new("npm");
    npm.args([how, "--ignore-scripts", "--no-audit", "--no-fund"])
        .args(["--loglevel", "error"])
        .current_dir(dir)
        .stdin(Stdio::null());
    let code = Live::start(&mut npm)
        .map_err(|error| {
            format!(
                "{error}; this chore needs npm: install it (Debian: apt-get install nodejs npm)"
            )
        })?
        .wait(INSTALL_PATIENCE)
        .map_err(|_| format!("`npm {how}` did not end within {INSTALL_PATIENCE:?}"))?;
    match code {
        Some(0) => Ok(()),
        _ => Err(format!(
            "`npm {how}` in {} failed; its words are above",
            dir.display()
        )),
    }
}
