//! Installs the real agents: pinned versions from npm, with the checksums of lock files, in the target directory. They are never
//! part of the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::npm;
use crate::product::{Live, text};

/// Version of Claude Code. The lock file beside this file has the same version.
pub const VERSION: &str = "2.1.325";

/// Time limit for printing a version. It takes a second at most on an idle machine.
const VERSION_PATIENCE: Duration = Duration::from_secs(30);

/// A program from npm.
struct Package {
    /// Name of the package in npm.
    name: &'static str,
    version: &'static str,
    manifest: &'static str,
    lock: &'static str,
    /// Function that installs the package with npm.
    fetch: fn(&Path) -> Result<(), String>,
    /// Name of the directory of the package.
    dir: &'static str,
    /// Possible paths of the native programs, which run without node and need no install scripts.
    programs: fn(&Path) -> Vec<PathBuf>,
}

const CLAUDE: Package = Package {
    name: "@anthropic-ai/claude-code",
    version: VERSION,
    manifest: include_str!("npm/package.json"),
    lock: include_str!("npm/package-lock.json"),
    fetch: npm::ci,
    dir: "claude-code",
    programs: |dir| {
        native(
            &dir.join("node_modules/@anthropic-ai"),
            "claude-code-",
            "claude",
        )
    },
};

const OPENCODE: Package = Package {
    name: "opencode-ai",
    version: "1.18.33",
    manifest: include_str!("npm-opencode/package.json"),
    lock: include_str!("npm-opencode/package-lock.json"),
    // The lock file has the programs for Linux only, so others are installed without it.
    fetch: npm::install,
    dir: "opencode",
    programs: |dir| native(&dir.join("node_modules"), "opencode-", "bin/opencode"),
};

/// Returns the path of Claude Code, and installs it if necessary.
pub fn claude() -> Result<PathBuf, String> {
    CLAUDE.installed()
}

/// Returns the path of OpenCode, and installs it if necessary.
pub fn opencode() -> Result<PathBuf, String> {
    OPENCODE.installed()
}

impl Package {
    fn installed(&self) -> Result<PathBuf, String> {
        let (name, version) = (self.name, self.version);
        let home = npm::target_dir()?.join("real-agents");
        let dir = home.join(format!("{}-{version}", self.dir));
        if let Ok(program) = self.program_in(&dir) {
            return Ok(program);
        }
        println!("installing {name} {version} below {}", home.display());
        let new = home.join(format!("{}-{version}.new", self.dir));
        // An interrupted installation may have left both directories.
        for path in [&new, &dir] {
            if path.exists() {
                fs::remove_dir_all(path)
                    .map_err(|error| format!("remove {}: {error}", path.display()))?;
            }
        }
        fs::create_dir_all(&new).map_err(|error| format!("make {}: {error}", new.display()))?;
        fs::write(new.join("package.json"), self.manifest).map_err(text)?;
        fs::write(new.join("package-lock.json"), self.lock).map_err(text)?;
        (self.fetch)(&new)?;
        self.program_in(&new)?;
        fs::rename(&new, &dir).map_err(|error| format!("rename {}: {error}", new.display()))?;
        self.program_in(&dir)
    }

    /// Returns the first program that runs here and has the right version.
    fn program_in(&self, dir: &Path) -> Result<PathBuf, String> {
        let mut why = "npm installed no program for this machine".to_owned();
        for program in (self.programs)(dir) {
            match expect_version(&program, self.version) {
                Ok(()) => return Ok(program),
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

fn native(packages: &Path, prefix: &str, program: &str) -> Vec<PathBuf> {
    let Ok(packages) = fs::read_dir(packages) else {
        return Vec::new();
    };
    let is_native = |name: &str| name.starts_with(prefix);
    let mut programs: Vec<PathBuf> = packages
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_str().is_some_and(is_native))
        .map(|entry| entry.path().join(program))
        .filter(|program| program.is_file())
        .collect();
    programs.sort();
    programs
}

fn expect_version(program: &Path, version: &str) -> Result<(), String> {
    let output = tempfile::NamedTempFile::new().map_err(text)?;
    let home = tempfile::tempdir().map_err(text)?;
    let mut command = Command::new(program);
    command
        .arg("--version")
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .stdout(output.reopen().map_err(text)?)
        .stderr(Stdio::null());
    Live::start(&mut command)?
        .wait(VERSION_PATIENCE)
        .map_err(|_| format!("{} does not tell its version", program.display()))?;
    let said = fs::read_to_string(output.path()).map_err(text)?;
    if said.split_whitespace().next() == Some(version) {
        return Ok(());
    }
    Err(format!(
        "{} is not {version} but says {said:?}",
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
        for package in [CLAUDE, OPENCODE] {
            let manifest = parsed(package.manifest);
            assert_eq!(manifest["dependencies"][package.name], package.version);
            let lock = parsed(package.lock);
            let packages = lock["packages"].as_object().expect("packages");
            for (name, locked) in packages.iter().filter(|(name, _)| !name.is_empty()) {
                assert_eq!(locked["version"], package.version, "{name}");
                assert!(locked["integrity"].is_string(), "{name} has no checksum");
            }
            assert!(packages.len() > 2, "the native programs are in it");
        }
    }
}
