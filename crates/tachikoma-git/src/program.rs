//! Runs the `git` program. Each run has a timeout and an output limit, has its own process group, and can be canceled.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tachikoma_core::LoopId;

use tachikoma_core::{PASSPHRASE_VARIABLE, TRUST_VARIABLE};
use tachikoma_fs::{FsError, printable};
use tachikoma_process::{Attended, INSIDE, MARKER, in_a_session_of_its_own, is_executable};
use tachikoma_runtime::clock;

mod running;

/// Environment variable that keeps git from fetching missing objects of a partial clone. A fetch would run commands from the
/// repository's configuration.
const NO_LAZY_FETCH: (&str, &str) = ("GIT_NO_LAZY_FETCH", "1");

/// Default timeout of a git command. A query in a large repository on a slow disk takes seconds.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Default limit for stdout in bytes. It is enough for the names of a million files.
const STDOUT_BYTES_MAX: usize = 256 << 20;

/// Maximum length in bytes of the end of stderr in an error, which states the cause.
const STDERR_BYTES_MAX: usize = 4096;

/// Environment variables that make git use another repository, or change the meaning of pathspecs.
const REDIRECTING_VARIABLES: [&str; 18] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_DIR",
    "GIT_GLOB_PATHSPECS",
    "GIT_GRAFT_FILE",
    "GIT_ICASE_PATHSPECS",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_LITERAL_PATHSPECS",
    "GIT_NAMESPACE",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// Cancels the running git process and later ones. Clones of a token share their state.
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    canceled: Arc<AtomicBool>,
    /// Time at which the token is canceled automatically; `None` = never.
    until: Option<Instant>,
}

impl CancelToken {
    /// Returns a token that is not canceled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a token that is also canceled when `canceled` becomes true.
    pub fn with(canceled: Arc<AtomicBool>) -> Self {
        Self {
            canceled,
            until: None,
        }
    }

    /// Cancels the token. Does not wait for the git process to end.
    pub fn cancel(&self) {
        self.canceled.store(true, Ordering::Relaxed);
    }

    /// Returns a clone that is also canceled after `time`.
    pub fn within(&self, time: Duration) -> Self {
        Self {
            canceled: Arc::clone(&self.canceled),
            until: Some(clock::monotonic() + time),
        }
    }

    /// Returns whether the time given to [`CancelToken::within`] is over.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.until.is_some_and(|until| clock::monotonic() >= until)
    }

    /// Returns whether the token was canceled.
    #[must_use]
    pub fn is_canceled(&self) -> bool {
        self.canceled.load(Ordering::Relaxed) || self.is_overdue()
    }
}

/// A failed git command.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The program could not be started.
    #[error("git cannot be started ({program})")]
    NotStarted {
        /// Path of the program.
        program: String,
        /// The I/O error.
        #[source]
        source: io::Error,
    },
    /// The command was canceled.
    #[error("git {command} was canceled")]
    Canceled {
        /// Name of the subcommand.
        command: String,
    },
    /// The command exceeded its timeout and was killed.
    #[error("git {command} did not end within {}", humantime::format_duration(*timeout))]
    TimedOut {
        /// Name of the subcommand.
        command: String,
        /// The timeout.
        timeout: Duration,
    },
    /// The command failed.
    #[error("git {command} failed ({status}): {stderr}")]
    Failed {
        /// Name of the subcommand.
        command: String,
        /// The exit status, as text.
        status: String,
        /// The end of stderr.
        stderr: String,
    },
    /// The output of the command cannot be parsed.
    #[error("git {command} printed unexpected output: {output}")]
    UnexpectedOutput {
        /// Name of the subcommand.
        command: &'static str,
        /// The part that cannot be parsed.
        output: String,
    },
    /// A file could not be written or synced.
    #[error(transparent)]
    File(#[from] FsError),
    /// A file could not be read or written.
    #[error("{action} {}", path.display())]
    Io {
        /// Name of the operation that failed.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The I/O error.
        #[source]
        source: io::Error,
    },
}

impl GitError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    pub(crate) fn unexpected(command: &'static str, output: impl Into<String>) -> Self {
        let output = output.into();
        Self::UnexpectedOutput { command, output }
    }

    /// Returns whether another attempt would fail in the same way.
    pub fn is_final(&self) -> bool {
        match self {
            Self::NotStarted { .. } | Self::Canceled { .. } | Self::TimedOut { .. } => true,
            Self::Failed { .. }
            | Self::UnexpectedOutput { .. }
            | Self::File(_)
            | Self::Io { .. } => false,
        }
    }
}

/// The `git` program in one directory.
#[must_use]
#[derive(Clone, Debug)]
pub struct Git {
    program: OsString,
    dir: PathBuf,
    /// Value of the environment variable that identifies the processes of a loop; `None` outside of a loop.
    marker: Option<String>,
    /// Environment variables that are removed for git.
    hidden: Vec<OsString>,
}

impl Git {
    /// Uses the program that a shell would find in `search_path`; if it is `None`, in the `PATH` of this process.
    pub fn new(dir: &Path, search_path: Option<&OsStr>) -> Self {
        let found = search_path.and_then(|path| {
            std::env::split_paths(path)
                .map(|place| dir.join(place).join("git"))
                .find(|program| is_executable(program).unwrap_or(false))
        });
        Self {
            program: found.map_or_else(|| "git".into(), PathBuf::into_os_string),
            dir: dir.to_owned(),
            marker: None,
            hidden: Vec::new(),
        }
    }

    /// Marks git processes as processes of a loop, and removes the environment variables in `hidden` from them.
    pub fn of_loop(mut self, loop_id: LoopId, hidden: Vec<OsString>) -> Self {
        self.marker = Some(loop_id.to_string());
        self.hidden = hidden;
        self
    }

    /// Returns the same program in another directory.
    pub fn in_dir(mut self, dir: &Path) -> Self {
        dir.clone_into(&mut self.dir);
        self
    }

    /// Returns a command that writes to the terminal, with the user's pager and colors.
    #[must_use]
    pub fn terminal_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.dir);
        for name in REDIRECTING_VARIABLES {
            command.env_remove(name);
        }
        command.env_remove(PASSPHRASE_VARIABLE);
        command.env(NO_LAZY_FETCH.0, NO_LAZY_FETCH.1);
        command
    }

    /// Builds a command. `args` are the subcommand and its fixed arguments, separated by spaces. [`GitCommand::arg`] adds other arguments.
    pub fn command(&self, args: &'static str) -> GitCommand<'_> {
        GitCommand {
            git: self,
            args: args.split(' ').map(OsStr::new).collect(),
            config: Vec::new(),
            env: Vec::new(),
            stdin: &[],
            timeout: Some(COMMAND_TIMEOUT),
            stdout_max: STDOUT_BYTES_MAX,
            as_user: false,
            ends_with_caller: false,
        }
    }
}

/// A git command to run.
#[must_use]
#[derive(Clone, Debug)]
pub struct GitCommand<'a> {
    git: &'a Git,
    args: Vec<&'a OsStr>,
    config: Vec<&'a str>,
    env: Vec<(&'a str, &'a OsStr)>,
    stdin: &'a [u8],
    timeout: Option<Duration>,
    stdout_max: usize,
    as_user: bool,
    ends_with_caller: bool,
}

/// Result of a git command that was not killed by a timeout or a cancellation.
#[derive(Debug)]
pub struct Output {
    /// The exit code; `None` if a signal ended git.
    pub code: Option<i32>,
    /// The exit status, as text.
    pub status: String,
    /// Bytes that git wrote to stdout.
    pub stdout: Vec<u8>,
    /// Whether stdout exceeded its limit, so that git was killed.
    pub truncated: bool,
    /// The end of stderr.
    pub stderr: String,
}

impl<'a> GitCommand<'a> {
    /// Adds an argument. It may contain spaces and need not be UTF-8.
    pub fn arg(mut self, arg: &'a (impl AsRef<OsStr> + ?Sized)) -> Self {
        self.args.push(arg.as_ref());
        self
    }

    /// Adds paths as arguments.
    pub fn args(mut self, paths: impl Iterator<Item = &'a Path>) -> Self {
        self.args.extend(paths.map(Path::as_os_str));
        self
    }

    /// Sets a git configuration value (`name=value`) for this command.
    pub fn config(mut self, setting: &'a str) -> Self {
        self.config.push(setting);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &'a str, value: &'a (impl AsRef<OsStr> + ?Sized)) -> Self {
        self.env.push((name, value.as_ref()));
        self
    }

    /// Uses the given index file instead of the user's index, without optional index extensions.
    pub fn index(self, path: &'a Path) -> Self {
        self.env("GIT_INDEX_FILE", path)
            .config("core.splitIndex=false")
            .config("core.untrackedCache=false")
            .config("index.sparse=false")
            // The checksum of the private index is never verified.
            .config("index.skipHash=true")
            // Warnings about line ends are only useful in the user's own commits.
            .config("core.safecrlf=false")
    }

    /// Sets the input of the command.
    pub fn stdin(mut self, bytes: &'a [u8]) -> Self {
        self.stdin = bytes;
        self
    }

    /// Sets the timeout; `None` = no timeout.
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the limit for stdout in bytes. A command that prints more is killed, and its output up to the limit is returned.
    pub fn stdout_max(mut self, bytes: usize) -> Self {
        self.stdout_max = bytes;
        self
    }

    /// Runs the command as the user would: it takes locks and runs hooks. It has no terminal to ask questions.
    pub fn as_user(mut self) -> Self {
        self.as_user = true;
        self
    }

    /// Kills the command when the thread that runs it ends, so that it does not continue to change the work tree.
    pub fn ends_with_caller(mut self) -> Self {
        self.ends_with_caller = true;
        self
    }

    /// Runs the command to its end, whether it succeeds or fails. Blocks.
    ///
    /// # Errors
    /// The command cannot be started, exceeds its timeout or is canceled.
    pub fn run(&self, cancel: &CancelToken) -> Result<Output, GitError> {
        let command = || self.subcommand();
        if cancel.is_canceled() {
            return Err(GitError::Canceled { command: command() });
        }
        let started =
            Attended::spawn(&mut self.build()).map_err(|source| GitError::NotStarted {
                program: self.git.program.to_string_lossy().into_owned(),
                source,
            })?;
        let begun = clock::monotonic();
        let running = running::RunningGit::new(started, self.stdin, self.stdout_max);
        let ended = running.wait(self.timeout, cancel);
        let code = ended.as_ref().ok().and_then(|output| output.code);
        tracing::debug!(command = command(), code, elapsed = ?begun.elapsed(), "git ended");
        ended.map_err(|stopped| match stopped {
            running::Stopped::Canceled => GitError::Canceled { command: command() },
            running::Stopped::TimedOut => GitError::TimedOut {
                command: command(),
                timeout: self.timeout.unwrap_or_default(),
            },
            running::Stopped::Broken(source) => GitError::Io {
                action: "communicate with",
                path: PathBuf::from("git"),
                source,
            },
        })
    }

    /// Runs the command and returns its stdout. The command must succeed. Blocks.
    ///
    /// # Errors
    /// The command fails, cannot be started, exceeds its timeout or is canceled.
    pub fn stdout(&self, cancel: &CancelToken) -> Result<Vec<u8>, GitError> {
        let output = self.run(cancel)?;
        if output.code == Some(0) || output.truncated {
            return Ok(output.stdout);
        }
        Err(self.failure(&output))
    }

    /// Runs the command and returns its stdout as one line of text.
    ///
    /// # Errors
    /// The same errors as [`GitCommand::stdout`].
    pub fn stdout_line(&self, cancel: &CancelToken) -> Result<String, GitError> {
        let bytes = self.stdout(cancel)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }

    /// Runs a command that answers a question by its exit code: 0 for yes, 1 for no.
    ///
    /// # Errors
    /// The command exits with another code, cannot be started, exceeds its timeout or is canceled.
    pub fn is_true(&self, cancel: &CancelToken) -> Result<bool, GitError> {
        let output = self.run(cancel)?;
        match output.code {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            Some(_) | None => Err(self.failure(&output)),
        }
    }

    /// Returns the error for a git command that exited unsuccessfully.
    #[must_use]
    pub fn failure(&self, output: &Output) -> GitError {
        GitError::Failed {
            command: self.subcommand(),
            status: output.status.clone(),
            stderr: match output.stderr.is_empty() {
                true => "no reason given".to_owned(),
                false => output.stderr.clone(),
            },
        }
    }

    fn subcommand(&self) -> String {
        let is_option = |arg: &&&OsStr| arg.as_encoded_bytes().starts_with(b"-");
        let name = self.args.iter().find(|arg| !is_option(arg));
        let name = name.map(|name| name.to_string_lossy()).unwrap_or_default();
        printable(&name).into_owned()
    }

    fn build(&self) -> Command {
        let mut command = Command::new(&self.git.program);
        // Git must not start background processes or programs from the repository's configuration.
        command.args(["-c", "core.fsmonitor=false"]);
        command.args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"]);
        if !self.as_user {
            command.args(["-c", "core.hooksPath=/dev/null"]);
        }
        for setting in &self.config {
            command.args(["-c", setting]);
        }
        command.args(&self.args).current_dir(&self.git.dir);
        for name in REDIRECTING_VARIABLES {
            command.env_remove(name);
        }
        command.env_remove(PASSPHRASE_VARIABLE);
        command.env_remove(TRUST_VARIABLE);
        if let Some(marker) = &self.git.marker {
            command.env(MARKER, marker);
        }
        // Hooks and filters may be written by an agent, so they are marked as processes of the loop.
        let inside = self.git.marker.as_deref().unwrap_or("git");
        command.env(INSIDE, inside);
        for name in &self.git.hidden {
            command.env_remove(name);
        }
        command.env("GIT_TERMINAL_PROMPT", "0");
        command.env(NO_LAZY_FETCH.0, NO_LAZY_FETCH.1);
        if self.as_user {
            // The message is given by `-m`. If a hook starts an editor, it gets one that does nothing.
            command.env("GIT_EDITOR", ":").env("LANGUAGE", "C");
        } else {
            // The agent may use the same repository at the same time, so optional locks are not taken.
            command.env("GIT_OPTIONAL_LOCKS", "0").env("LC_ALL", "C");
        }
        if self.as_user || self.ends_with_caller {
            in_a_session_of_its_own(&mut command);
        } else {
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
        }
        command.envs(self.env.iter().copied());
        let stdin = match self.stdin.is_empty() {
            true => Stdio::null(),
            false => Stdio::piped(),
        };
        command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// Returns the end of stderr, starting at the beginning of a line.
fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(STDERR_BYTES_MAX);
    let text = String::from_utf8_lossy(&bytes[start..]);
    let text = match (start, text.split_once('\n')) {
        (0, _) | (_, None) => text.trim(),
        (_, Some((_, rest))) => rest.trim(),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests;
