//! The real agent: a pinned version from npm, with the checksums of a lock file, below the target directory. It is never
//! part of the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::npm;
use crate::product::{Live, text};

/// What is installed. The lock file beside this one has the same.
pub const VERSION: &str = "2.1.325";

const MANIFEST: &str = include_str!("npm/package.json");
const LOCK: &str = include_str!("npm/package-lock.json");

/// It takes 0.03 s.
const VERSION_PATIENCE: Duration = Duration::from_secs(30);

/// Returns where the agent is, and installs it first where it is not.
pub fn claude() -> Result<PathBuf, String> {
    let home = npm::target_dir()?.join("real-agents");
    let dir = home.join(format!("claude-code-{VERSION}"));
    if let Some(program) = program_in(&dir)
        && expect_version(&program).is_ok()
    {
        return Ok(program);
    }
    println!(
        "installing @anthropic-ai/claude-code {VERSION} below {}",
        home.display()
    );
    let new = home.join(format!("claude-code-{VERSION}.new"));
    // Both may be left of an installation that was cut off.
    for path in [&new, &dir] {
        if path.exists() {
            fs::remove_dir_all(path)
                .map_err(|error| format!("remove {}: {error}", path.display()))?;
        }
    }
    fs::create_dir_all(&new).map_err(|error| format!("make {}: {error}", new.display()))?;
    fs::write(new.join("package.json"), MANIFEST).map_err(text)?;
    fs::write(new.join("package-lock.json"), LOCK).map_err(text)?;
    npm::ci(&new)?;
    let program = program_in(&new).ok_or("npm installed no program for this machine")?;
    expect_version(&program)?;
    fs::rename(&new, &dir).map_err(|error| format!("rename {}: {error}", new.display()))?;
    program_in(&dir).ok_or_else(|| format!("{} is gone again", dir.display()))
}

/// The native program: it needs no node to run, and npm none of the package's scripts to place it.
fn program_in(dir: &Path) -> Option<PathBuf> {
    let packages = fs::read_dir(dir.join("node_modules/@anthropic-ai")).ok()?;
    let native = |name: &str| name.starts_with("claude-code-");
    packages
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_str().is_some_and(native))
        .map(|entry| entry.path().join("claude"))
        .find(|program| program.is_file())
}

fn expect_version(program: &Path) -> Result<(), String> {
    let output = tempfile::NamedTempFile::new().map_err(text)?;
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(output.reopen().map_err(text)?)
        .stderr(Stdio::null());
    Live::start(&mut command)?
        .wait(VERSION_PATIENCE)
        .map_err(|_| format!("{} does not tell its version", program.display()))?;
    let said = fs::read_to_string(output.path()).map_err(text)?;
    if said.split_whitespace().next() == Some(VERSION) {
        return Ok(());
    }
    Err(format!(
        "{} is not {VERSION} but says {said:?}",
        program.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn manifest_and_lock_have_the_version() {
        let parsed = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let manifest = parsed(MANIFEST);
        assert_eq!(
            manifest["dependencies"]["@anthropic-ai/claude-code"],
            VERSION
        );
        let lock = parsed(LOCK);
        let packages = lock["packages"].as_object().expect("packages");
        for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
            assert_eq!(package["version"], VERSION, "{name}");
            assert!(package["integrity"].is_string(), "{name} has no checksum");
        }
        assert!(packages.len() > 2, "the native programs are in it");
    }
}
