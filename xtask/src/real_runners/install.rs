//! Installs the real test runners into the target directory: pinned versions from npm and PyPI, with checksums. cargo, nextest,
//! node and perl are those of the machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::npm;
use crate::product::{Live, text};

const MANIFEST: &str = include_str!("pinned/package.json");
const LOCK: &str = include_str!("pinned/package-lock.json");
const REQUIREMENTS: &str = include_str!("pinned/requirements.txt");

/// Time limit of an installation. Go alone has 75 MB.
const INSTALL_PATIENCE: Duration = Duration::from_secs(600);

/// Required programs, with a hint if one is missing.
const NEEDED: [(&str, &[&str], &str); 5] = [
    (
        "cargo",
        &["nextest", "--version"],
        "cargo install cargo-nextest --locked",
    ),
    ("node", &["--version"], "Debian: apt-get install nodejs"),
    ("npm", &["--version"], "Debian: apt-get install npm"),
    (
        "python3",
        &["-c", "import venv, ensurepip"],
        "Debian: apt-get install python3-venv",
    ),
    ("prove", &["--version"], "Debian: apt-get install perl"),
];

/// Returns the directory of all installations.
pub fn home() -> Result<PathBuf, String> {
    Ok(npm::target_dir()?.join("real-runners"))
}

/// The installed programs.
#[derive(Debug)]
pub struct Installed {
    /// The directory for caches.
    pub cache: PathBuf,
    python: PathBuf,
    go: PathBuf,
    modules: PathBuf,
}

impl Installed {
    /// Installs missing programs.
    pub fn below(home: &Path) -> Result<Self, String> {
        for (program, words, advice) in NEEDED {
            let mut command = Command::new(program);
            command
                .args(words)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if !command.status().is_ok_and(|status| status.success()) {
                let line = format!("{program} {}", words.join(" "));
                return Err(format!(
                    "`{line}` does not work here; install it ({advice})"
                ));
            }
        }
        let js = once(&home.join("js"), &[MANIFEST, LOCK], |dir| {
            fs::write(dir.join("package.json"), MANIFEST).map_err(text)?;
            fs::write(dir.join("package-lock.json"), LOCK).map_err(text)?;
            npm::install(dir)
        })?;
        let python = once(&home.join("python"), &[REQUIREMENTS], |dir| {
            let list = dir.join("requirements.txt");
            fs::write(&list, REQUIREMENTS).map_err(text)?;
            let (dir, list) = (dir.to_string_lossy(), list.to_string_lossy());
            succeeds(Command::new("python3").args(["-m", "venv", &dir]))?;
            let pip = [
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ];
            let words = ["--require-hashes", "--only-binary=:all:", "-r", &list];
            succeeds(
                Command::new(format!("{dir}/bin/python"))
                    .args(pip)
                    .args(words),
            )
        })?;
        let python = python.join("bin/python");
        let mut ask = Command::new(&python);
        ask.args([
            "-c",
            "import sysconfig; print(sysconfig.get_paths()['purelib'], end='')",
        ]);
        let packages = ask.output().map_err(text)?.stdout;
        let go = Path::new(&*String::from_utf8_lossy(&packages)).join("go/bin/go");
        Ok(Self {
            cache: home.join("cache"),
            python,
            go,
            modules: js.join("node_modules"),
        })
    }

    /// Replaces the names of installed programs in an argument.
    pub fn fill_in(&self, word: &str) -> String {
        let places = [
            ("{PYTHON}", &self.python),
            ("{GO}", &self.go),
            ("{JS}", &self.modules),
        ];
        places.iter().fold(word.to_owned(), |word, (place, path)| {
            word.replace(place, &path.to_string_lossy())
        })
    }

    /// Links the packages of npm into `dir`, so that projects below it find them.
    pub fn link_into(&self, dir: &Path) -> Result<(), String> {
        symlink(&self.modules, dir.join("node_modules")).map_err(text)
    }
}

/// Sets variables so that the output is always the same and caches are outside of the home directory. `cache` is shared, because
/// Go would otherwise compile its standard library each time.
pub fn set_environment(command: &mut Command, ground: &Path, cache: &Path) {
    for (name, _) in std::env::vars_os() {
        let foreign = [
            "CARGO", "RUST", "NEXTEST", "PYTEST", "PYTHON", "GO", "NODE", "NPM", "npm_",
        ];
        let name_bytes = name.as_encoded_bytes();
        let keep = ["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];
        let keeps = keep.iter().any(|kept| name == *kept);
        if !keeps
            && foreign
                .iter()
                .any(|prefix| name_bytes.starts_with(prefix.as_bytes()))
        {
            command.env_remove(&name);
        }
    }
    command
        .env("CARGO_TARGET_DIR", ground.join("target"))
        .env("GOCACHE", cache.join("go"))
        .env("GOPATH", ground.join("gopath"))
        .env("GOTOOLCHAIN", "local")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("CI")
        .env_remove("COLUMNS");
}

/// Installs into `dir`, unless that was done with the same arguments before.
fn once(
    dir: &Path,
    words: &[&str],
    install: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let (stamp, words) = (dir.join("installed"), words.concat());
    if fs::read_to_string(&stamp).is_ok_and(|said| said == words) {
        return Ok(dir.to_owned());
    }
    println!("installing below {}", dir.display());
    // An interrupted installation may have left the directory.
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(|error| format!("remove {}: {error}", dir.display()))?;
    }
    fs::create_dir_all(dir).map_err(|error| format!("make {}: {error}", dir.display()))?;
    install(dir)?;
    fs::write(stamp, words).map_err(text)?;
    Ok(dir.to_owned())
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    let line = format!("{command:?}");
    let code = Live::start(command.stdin(Stdio::null()))?
        .wait(INSTALL_PATIENCE)
        .map_err(|_| format!("{line} did not end within {INSTALL_PATIENCE:?}"))?;
    match code {
        Some(0) => Ok(()),
        _ => Err(format!("{line} failed; its words are above")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_installed_package_is_pinned_with_a_checksum() {
        let lock: Value = serde_json::from_str(LOCK).expect("JSON");
        let manifest: Value = serde_json::from_str(MANIFEST).expect("JSON");
        let packages = lock["packages"].as_object().expect("packages");
        for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
            assert!(package["integrity"].is_string(), "{name} has no checksum");
        }
        for (name, version) in manifest["dependencies"].as_object().expect("dependencies") {
            assert_eq!(
                packages[&format!("node_modules/{name}")]["version"],
                *version,
                "{name}"
            );
        }
        let pinned = REQUIREMENTS.replace("\\\n", "");
        for line in pinned.lines().filter(|line| !line.starts_with('#')) {
            assert!(
                line.contains("==") && line.contains("--hash=sha256:"),
                "{line}"
            );
        }
    }

    #[test]
    fn an_installation_stays_until_its_arguments_change() {
        let scratch = tachikoma_testkit::Scratch::new();
        let dir = scratch.path().join("a");
        let mut times = 0;
        for (words, expected) in [(["1"], 1), (["1"], 1), (["2"], 2)] {
            once(&dir, &words, |_| {
                times += 1;
                Ok(())
            })
            .expect("installed");
            assert_eq!(times, expected);
        }
        let failed = once(&dir, &["3"], |_| Err("no".into()));
        assert_eq!(failed, Err("no".into()));
        once(&dir, &["2"], |_| {
            times += 1;
            Ok(())
        })
        .expect("installed");
        assert_eq!(times, 3, "an interrupted installation is repeated");
    }
}
