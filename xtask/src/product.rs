//! Runs the release binary in its own directories.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tachikoma_testkit::NOBODY;
use tempfile::TempDir;

use crate::cargo;

/// Interval between checks: short compared to all waits, long compared to the cost of a check.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Prefixes of environment variables that would bring in settings of the machine.
const FOREIGN_PREFIXES: [&str; 3] = ["TACHIKOMA_", "XDG_", "GIT_"];

/// Name of the prompt file in every `Ground`.
pub const PROMPT: &str = "prompt.md";

/// Mount point of a `tmpfs` on Linux.
pub const MEMORY: &str = "/dev/shm";

/// Builds the release binary and returns its path.
pub fn build(root: &Path) -> Result<PathBuf, String> {
    let output = cargo(root)
        .args(["build", "--release", "--package", "tachikoma-cli"])
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("start cargo: {error}"))?;
    if !output.status.success() {
        return Err("the release binary does not build".into());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    executable(&text).ok_or_else(|| "cargo does not say where the binary is".into())
}

/// Returns the path of the binary from the messages of cargo.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let path = message.get("executable")?.as_str().map(PathBuf::from)?;
        (path.file_name()? == "tachikoma").then_some(path)
    })
}

/// A new directory with a prompt, beside a runtime directory and a home. All are removed when dropped.
#[derive(Debug)]
pub struct Ground {
    product: PathBuf,
    dir: TempDir,
    runtime: TempDir,
    home: TempDir,
}

impl Ground {
    /// Creates the directories below `parent`. The path of the runtime directory is short, because it contains sockets.
    pub fn new(product: &Path, parent: &Path) -> Result<Self, String> {
        let make = |parent: &Path| {
            let made = tempfile::Builder::new().prefix("tk").tempdir_in(parent);
            made.map_err(|error| format!("make a directory in {}: {error}", parent.display()))
        };
        let dir = make(parent)?;
        let home = make(parent)?;
        let runtime = match Path::new(MEMORY) {
            memory if memory.is_dir() => make(memory)?,
            _ => make(&std::env::temp_dir())?,
        };
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).map_err(text)?;
        fs::write(dir.path().join(PROMPT), "do the next thing\n").map_err(text)?;
        Ok(Self {
            product: product.to_owned(),
            dir,
            runtime,
            home,
        })
    }

    /// Returns the working directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes the configuration and trusts it.
    pub fn configure(&self, settings: &str) -> Result<(), String> {
        fs::write(self.path().join("tachikoma.toml"), settings).map_err(text)?;
        let trusted = self.tachikoma(&["trust"]).status().map_err(text)?;
        trusted
            .success()
            .then_some(())
            .ok_or_else(|| "`tachikoma trust` failed".to_owned())
    }

    /// Makes the user `nobody` the owner of all files, with a copy of the binary that this user can run.
    pub fn hand_to_nobody(&mut self) -> Result<(), String> {
        let copy = self.path().join("tachikoma");
        fs::copy(&self.product, &copy).map_err(text)?;
        let prompt = self.path().join(PROMPT);
        for path in [self.path(), self.runtime.path(), self.home.path(), &prompt] {
            chown(path, Some(NOBODY), Some(NOBODY)).map_err(text)?;
        }
        self.product = copy;
        Ok(())
    }

    /// Returns the path of the binary.
    pub fn product(&self) -> &Path {
        &self.product
    }

    /// Returns a `tachikoma` command that prints nothing.
    pub fn tachikoma(&self, words: &[&str]) -> Command {
        self.quietly(&self.product, words)
    }

    /// Returns a command of another program in the same environment, which prints nothing.
    pub fn quietly(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let foreign = |prefix: &&str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
            if FOREIGN_PREFIXES.iter().any(foreign) {
                command.env_remove(&name);
            }
        }
        command
            .args(words)
            .current_dir(self.path())
            .env("HOME", self.home.path())
            .env("XDG_RUNTIME_DIR", self.runtime.path())
            // The agents of soaks and benchmarks may be started without a limit.
            .env("TACHIKOMA_MAX_ITERATIONS", "0")
            .env("TACHIKOMA_STOP_CONDITIONS__MAX_NO_PROGRESS_ITERATIONS", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Returns whether the agent has created this file.
    pub fn has(&self, name: &str) -> bool {
        self.path().join(name).exists()
    }

    /// Stops a running loop and waits for its end.
    pub fn stop(&self, runner: Live) -> Result<(), String> {
        self.tachikoma(&["stop", "--now"]).status().map_err(text)?;
        runner.wait(Duration::from_secs(20)).map(|_| ())
    }
}

/// A running process that is killed when dropped.
#[derive(Debug)]
pub struct Live(Child);

impl Live {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Result<Self, String> {
        let program = command.get_program().to_owned();
        let started = command.spawn();
        let child = started.map_err(|error| format!("start {}: {error}", program.display()))?;
        Ok(Self(child))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns the stdout of the process if it is piped. Only the first call returns it.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Returns whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Kills the process with SIGKILL and reaps it.
    pub fn kill(mut self) -> Result<(), String> {
        self.0.kill().map_err(text)?;
        self.0.wait().map(|_| ()).map_err(text)
    }

    /// Waits for the end of the process and returns its exit code.
    pub fn wait(mut self, patience: Duration) -> Result<Option<i32>, String> {
        let mut ended = None;
        await_that("the runner's end", patience, || {
            ended = self.0.try_wait().ok().flatten();
            ended.is_some()
        })?;
        Ok(ended.and_then(|status| status.code()))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Both calls fail only if the process was reaped before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a condition is true. The error names the condition if it is not true in time.
pub fn await_that(
    what: &str,
    patience: Duration,
    mut holds: impl FnMut() -> bool,
) -> Result<(), String> {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > patience {
            return Err(format!("timed out after {patience:?} waiting for {what}"));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Returns an error as text, for `map_err`.
#[expect(clippy::needless_pass_by_value, reason = "used as a function value")]
pub fn text(error: std::io::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_found_in_the_messages_of_cargo() {
        let messages = concat!(
            "not json\n",
            "{\"reason\":\"compiler-artifact\",\"executable\":null}\n",
            "{\"reason\":\"compiler-artifact\",\"executable\":\"/t/release/build-script\"}\n",
            "{\"reason\":\"compiler-artifact\",\"executable\":\"/t/release/tachikoma\"}\n",
        );
        assert_eq!(executable(messages), Some("/t/release/tachikoma".into()));
        assert_eq!(executable("{}"), None);
    }

    #[test]
    fn a_condition_that_never_holds_is_named() {
        let waited = await_that("rain", Duration::ZERO, || false);
        assert_eq!(waited, Err("timed out after 0ns waiting for rain".into()));
    }
}
