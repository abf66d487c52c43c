//! Runs a binary in a scratch directory. Returns its exit code and its output as one text, or a live process that cannot outlive its test.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::awaiting::comes_true;
use crate::{Scratch, drop_to_nobody, mask};

/// Timeout of a command. A command that takes longer hangs.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// Prefixes of environment variables that would bring settings of the machine into a test.
const FOREIGN_PREFIXES: [&str; 3] = ["TACHIKOMA_", "XDG_", "GIT_"];

/// A binary that runs in one scratch directory.
#[derive(Debug)]
pub struct Tool<'a> {
    program: PathBuf,
    scratch: &'a Scratch,
    dir: PathBuf,
    env: Vec<(OsString, OsString)>,
    unprivileged: bool,
}

impl<'a> Tool<'a> {
    /// Sets up `program` to run in the work tree of `scratch`, with its own home and runtime
    /// directory and without the caller's `TACHIKOMA_*`, `XDG_*` and `GIT_*`.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, scratch: &'a Scratch) -> Self {
        Self {
            program: program.into(),
            scratch,
            dir: scratch.path(),
            env: Vec::new(),
            unprivileged: false,
        }
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the current directory to one below the work tree.
    #[must_use]
    pub fn in_dir(mut self, name: &str) -> Self {
        self.dir = self.scratch.path().join(name);
        self
    }

    /// Runs as `nobody` if the tests run as root. The scratch directory must belong to `nobody` then.
    #[must_use]
    pub const fn unprivileged(mut self) -> Self {
        self.unprivileged = true;
        self
    }

    /// Returns the command of [`Self::run`] and [`Self::spawn`], for tests that use their own pipes.
    pub fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(&self.dir);
        for (name, _) in std::env::vars_os() {
            let foreign = |prefix: &&str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
            if FOREIGN_PREFIXES.iter().any(foreign) {
                command.env_remove(&name);
            }
        }
        command
            .env("HOME", self.scratch.home())
            .env("XDG_RUNTIME_DIR", self.scratch.runtime_dir())
            .env("TZ", "UTC")
            // The configuration of a test is trusted. Tests of trust itself clear this variable.
            .env("TACHIKOMA_TRUST", "1")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        if self.unprivileged {
            drop_to_nobody(&mut command);
        }
        command
    }

    /// Runs the binary to its end.
    ///
    /// # Panics
    ///
    /// If it cannot be started or does not end.
    #[track_caller]
    pub fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Ran {
        self.spawn(args).wait(RUN_TIMEOUT)
    }

    /// Starts the binary and returns at once. Its output goes to files, so that neither a full pipe nor a grandchild that keeps a
    /// pipe open can block the test.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[track_caller]
    pub fn spawn(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Live {
        let (stdout, stderr) = self.scratch.output_files();
        let create = |path| File::create(path).expect("the scratch directory is ours");
        let child = self
            .command(args)
            .stdout(create(&stdout))
            .stderr(create(&stderr))
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}", self.program.display()));
        Live {
            child,
            stdout,
            stderr,
            hidden: vec![
                (text_of(&self.scratch.path()), "[DIR]".into()),
                (text_of(&self.scratch.runtime_dir()), "[RUNTIME]".into()),
                (text_of(&self.scratch.home()), "[HOME]".into()),
            ],
        }
    }
}

/// A running process. When dropped, it is killed and reaped, but its children are not, because tests check those.
#[derive(Debug)]
pub struct Live {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    hidden: Vec<(String, String)>,
}

impl Live {
    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns stdout so far.
    ///
    /// # Panics
    ///
    /// If its output file is gone.
    #[must_use]
    pub fn stdout(&self) -> String {
        contents(&self.stdout)
    }

    /// Returns stderr so far.
    ///
    /// # Panics
    ///
    /// If its output file is gone.
    #[must_use]
    pub fn stderr(&self) -> String {
        contents(&self.stderr)
    }

    /// Sends a signal to the process. Does nothing if it has ended.
    pub fn signal(&mut self, signal: Signal) {
        if self.is_running() {
            // The process is not reaped yet, so its id is still valid.
            let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
            let sent = kill_process(pid.expect("process ids are positive"), signal);
            sent.expect("the process is ours");
        }
    }

    /// Returns whether the process is running.
    ///
    /// # Panics
    ///
    /// If it cannot be waited for.
    pub fn is_running(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("the test started this process")
            .is_none()
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    ///
    /// If the process is still running at the deadline. The message contains its output.
    #[track_caller]
    pub fn wait(mut self, deadline: Duration) -> Ran {
        let ended = comes_true(deadline, || !self.is_running());
        let (stdout, stderr) = (self.stdout(), self.stderr());
        assert!(
            ended,
            "still running after {deadline:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}"
        );
        Ran {
            status: self.child.wait().expect("it has ended"),
            stdout,
            stderr,
            hidden: self.hidden.clone(),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Both calls fail only if the process was reaped before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Result of a process.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Exit status of the process.
    pub status: ExitStatus,
    /// Stdout of the process.
    pub stdout: String,
    /// Stderr of the process.
    pub stderr: String,
    hidden: Vec<(String, String)>,
}

impl Ran {
    /// Returns the exit code; `None` after a signal.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Parses stdout as one JSON value.
    ///
    /// # Panics
    ///
    /// If it is not JSON.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("not JSON ({error}):\n{}", self.stdout))
    }

    /// Replaces `text` by `name` in the snapshot, in addition to the usual replacements.
    #[must_use]
    pub fn hide(mut self, text: impl Into<String>, name: impl Into<String>) -> Self {
        self.hidden.push((text.into(), name.into()));
        self
    }

    /// Returns exit code, stdout and stderr as one text that is the same in every run: paths of the
    /// scratch directory are `[DIR]`, `[RUNTIME]` and `[HOME]`, the rest as in [`mask`].
    #[must_use]
    pub fn snapshot(&self) -> String {
        let exit = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit: {code}"),
            (None, Some(signal)) => format!("signal: {signal}"),
            (None, None) => "exit: unknown".into(),
        };
        let stdout = with_line_end(&self.stdout);
        let stderr = with_line_end(&self.stderr);
        let mut text = format!("{exit}\n--- stdout\n{stdout}--- stderr\n{stderr}");
        for (from, to) in self.hidden.iter().filter(|(from, _)| !from.is_empty()) {
            text = text.replace(from, to);
        }
        mask(&text)
    }
}

fn contents(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Marks a missing line end at the end of a text.
fn with_line_end(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') {
        text.into()
    } else {
        format!("{text}[no newline]\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{await_until, processes_with, unique};

    const SOON: Duration = Duration::from_secs(10);

    fn shell(scratch: &Scratch) -> Tool<'_> {
        Tool::new("/bin/sh", scratch)
    }

    #[test]
    fn snapshot_replaces_varying_parts_by_names() {
        let scratch = Scratch::new();
        let script = "pwd; echo \"pid $$ took 1.5 s\"; printf bad >&2; exit 3";
        let ran = shell(&scratch).run(["-c", script]);
        assert_eq!(ran.code(), Some(3));
        assert_eq!(
            ran.snapshot(),
            "exit: 3\n--- stdout\n[DIR]\npid [PID] took [DURATION]\n--- stderr\nbad[no newline]\n"
        );
    }

    #[test]
    fn output_of_a_run_can_be_parsed_as_json() {
        let scratch = Scratch::new();
        let ran = shell(&scratch).run(["-c", "echo '{\"loop_id\": null}'"]);
        assert!(ran.json()["loop_id"].is_null());
    }

    #[test]
    fn hide_replaces_additional_text_in_the_snapshot() {
        let scratch = Scratch::new();
        let ran = shell(&scratch).run(["-c", "echo token-77"]);
        let snapshot = ran.hide("token-77", "[TOKEN]").snapshot();
        assert_eq!(snapshot, "exit: 0\n--- stdout\n[TOKEN]\n--- stderr\n");
    }

    #[test]
    fn tool_runs_with_the_environment_of_the_scratch_directory() {
        let scratch = Scratch::new();
        scratch.write("below/file", "");
        let tool = shell(&scratch).in_dir("below").env("TACHIKOMA_X", "set");
        let script = "pwd; echo $HOME $XDG_RUNTIME_DIR ${XDG_CONFIG_HOME-none} $TACHIKOMA_X";
        let snapshot = tool.run(["-c", script]).snapshot();
        assert_eq!(
            snapshot,
            "exit: 0\n--- stdout\n[DIR]/below\n[HOME] [RUNTIME] none set\n--- stderr\n"
        );
    }

    #[test]
    fn tool_does_not_inherit_the_environment_of_the_caller() {
        let this = std::env::current_exe().expect("tests know their own program");
        let output = Command::new(this)
            .args([
                "--exact",
                "tool::tests::tool_runs_with_the_environment_of_the_scratch_directory",
            ])
            .env("XDG_CONFIG_HOME", "/foreign")
            .output()
            .expect("the tests start");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.contains("1 passed"), "{stdout}");
    }

    #[test]
    fn a_grandchild_that_keeps_the_output_open_does_not_block_the_run() {
        let scratch = Scratch::new();
        let marker = unique();
        // The named pipe has no writer, so the grandchild blocks until it is killed.
        let script = format!("mkfifo f; sh -c 'read x <f' {marker} & echo $!");
        let ran = shell(&scratch).run(["-c", &script]);
        assert_eq!(ran.code(), Some(0));

        let pid: i32 = ran.stdout.trim().parse().expect("the shell printed the id");
        let pid = Pid::from_raw(pid).expect("process ids are positive");
        kill_process(pid, Signal::KILL).expect("the grandchild is still there");
        await_until("no process left", SOON, || {
            processes_with(&marker).is_empty()
        });
    }

    #[test]
    fn a_live_process_takes_signals_and_shows_its_output() {
        let scratch = Scratch::new();
        let script = "mkfifo f; echo ready; read x <f";
        let mut live = shell(&scratch).spawn(["-c", script]);
        await_until("the first line", SOON, || live.stdout() == "ready\n");
        assert!(live.is_running());

        live.signal(Signal::KILL);
        let ran = live.wait(SOON);
        assert_eq!(ran.snapshot(), "signal: 9\n--- stdout\nready\n--- stderr\n");
    }

    #[test]
    fn a_dropped_process_is_killed() {
        let scratch = Scratch::new();
        let marker = unique();
        let script = "mkfifo f; echo ready; read x <f";
        let live = shell(&scratch).spawn(["-c", script, &marker]);
        // After its first line, the process no longer has a child, which would have the marker, too.
        await_until("the first line", SOON, || live.stdout() == "ready\n");
        assert_eq!(processes_with(&marker), [live.pid()]);
        drop(live);
        assert!(processes_with(&marker).is_empty(), "it outlived its test");
    }

    #[test]
    #[should_panic(expected = "still running")]
    fn wait_panics_at_the_deadline() {
        let scratch = Scratch::new();
        let live = shell(&scratch).spawn(["-c", "mkfifo f; read x <f"]);
        live.wait(Duration::from_millis(50));
    }

    #[test]
    fn unprivileged_tool_does_not_run_as_root() {
        let scratch = Scratch::new();
        scratch.hand_to_nobody();
        let ran = shell(&scratch).unprivileged().run(["-c", "id -u"]);
        assert_ne!(ran.stdout.trim(), "0");
        assert_eq!(ran.code(), Some(0), "{}", ran.stderr);
    }
}
