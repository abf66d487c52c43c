//! Failures of commands: the problem, the affected object, the next step, and the exit code.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use tachikoma_fs::{FsError, RALPH_DIR};
pub use tachikoma_loop_runner::chain;
use tachikoma_loop_runner::offline::OfflineError;
use tachikoma_loop_runner::settings::{AgentName, SettingsError};
use tachikoma_loop_runner::store::StoreError;
use tachikoma_loop_runner::store::is_locked;
use tachikoma_loop_runner::store::lock::{self, LockError};
use tachikoma_loop_runner::{OpenError, RunError};

use crate::out;

/// Hint for files that cannot be decrypted: where keys are searched.
const KEYS_HINT: &str = "nothing was changed; check `state.encrypt_identity_file`, `state.encrypt_passphrase_file` and the \
     variable TACHIKOMA_STATE_PASSPHRASE (`~` is not expanded in these paths)";

/// Addition to [`KEYS_HINT`] for a user who wants to start a new loop.
const LOST_HINT: &str =
    "; if a key is lost, the files cannot be decrypted: move `.ralph/` away, or delete it";

/// Hint for a damaged journal while its loop is running.
pub const RUN_HINT: &str = "its runner has the whole state in memory and continues: with its next backup it starts a new segment with the whole state; \
     `tachikoma status` asks it";

/// The exit code of a failure.
pub const ERROR: u8 = 1;
/// The exit code of bad usage and configuration.
pub const USAGE: u8 = 2;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// Description of the problem and the affected object.
    pub what: String,
    /// What the user can do next; `None` if there is no hint.
    pub hint: Option<String>,
    /// The exit code.
    pub code: u8,
}

impl Failure {
    /// Returns a failure with the exit code [`ERROR`].
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: None,
            code: ERROR,
        }
    }

    /// Returns a failure with the exit code [`USAGE`].
    pub fn usage(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: None,
            code: USAGE,
        }
    }

    /// Adds a hint.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// Returns the same failure with a hint for a user who wants to start a new loop.
    pub fn suggest_new_loop(mut self) -> Self {
        if let Some(hint) = self.hint.as_mut().filter(|hint| *hint == KEYS_HINT) {
            hint.push_str(LOST_HINT);
        }
        self
    }

    /// Prints the failure, and returns its exit code.
    pub fn report(&self) -> ExitCode {
        out::note(&format!("error: {}", self.what));
        if let Some(hint) = &self.hint {
            out::note(&format!("hint: {hint}"));
        }
        ExitCode::from(self.code)
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self::usage(error.to_string())
    }
}

impl Failure {
    /// Returns the failure for a file that cannot be read, because its key is missing or for another reason.
    pub fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        let what = format!("read {}: {error}", path.display());
        match is_locked(error) {
            true => Self::usage(what).hint(KEYS_HINT),
            false => Self::new(what),
        }
    }
}

/// Returns whether the loop that a file belongs to is running.
pub fn is_run(path: &Path) -> bool {
    path.ancestors()
        .find(|dir| dir.ends_with(RALPH_DIR))
        .and_then(Path::parent)
        .is_some_and(lock::is_held)
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        StoreError::from(error).into()
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let what = chain(&error);
        match error {
            StoreError::File(FsError::Io { source, path, .. }) => Self::new(what).hint(match source.kind() {
                ErrorKind::PermissionDenied => {
                    "check its owner and mode: it must belong to you".to_owned()
                }
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                    "free some space; `tachikoma run` continues when there is space".to_owned()
                }
                ErrorKind::ReadOnlyFilesystem => "the file system is mounted read-only".to_owned(),
                ErrorKind::NotFound => {
                    "it is gone; `tachikoma run` continues with the rest of the loop".to_owned()
                }
                // The path is a journal or a snapshot, so `.ralph` itself is a usable directory.
                _ if path.extension().is_some() => {
                    format!("check {}: it must be a file that belongs to you, on a readable disk", path.display())
                }
                _ => "`.ralph` must be a directory that belongs to you: move the existing file away"
                    .to_owned(),
            }),
            StoreError::File(FsError::Sync { .. }) => Self::new(what)
                .hint("check the disk: after a failed sync its content is unknown"),
            StoreError::Damaged { path, .. } if is_run(&path) => Self::new(what).hint(RUN_HINT),
            StoreError::Damaged { .. } | StoreError::DamagedSnapshot { .. } => Self::new(what).hint(
                "nothing was changed; `tachikoma run --accept-loss` continues from the last good record, `--new` starts a new loop beside it",
            ),
            StoreError::DamagedBackup { .. } => Self::new(what).hint(
                "nothing was changed; `tachikoma state backups` lists them all and says which are good",
            ),
            StoreError::Locked { .. } => Self::usage(what).hint(KEYS_HINT),
            StoreError::NewerBackup { .. } => Self::new(what)
                .hint("nothing was changed; use the version that wrote it, or another backup"),
            StoreError::Newer { .. } | StoreError::NewerSnapshot { .. } => Self::new(what).hint(
                "nothing was changed; use the version that wrote it, or `tachikoma run --new` starts a new loop beside it",
            ),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let what = chain(&error);
        match error {
            OpenError::WorkingDir { .. } | OpenError::OwnProgram(_) => Self::usage(what),
            OpenError::Prompt(_) => {
                Self::usage(what).hint("write one, name another file (`tachikoma run FILE`), or use `--prompt-text`")
            }
            OpenError::Program { agent, .. } => Self::usage(what).hint(match agent {
                AgentName::Claude => {
                    "install it with `npm install -g @anthropic-ai/claude-code`, or set `session.claude_command`"
                }
                AgentName::OpenCode => {
                    "install it with `npm install -g opencode-ai`, or set `opencode.serve_command`"
                }
                _ => "name another program after `--`, or set `agents.command.program`",
            }),
            OpenError::Agent(_) => Self::usage(what)
                .hint("`--agent command` with `-- PROGRAM ARGS...` runs any program; `tachikoma demo` needs none"),
            OpenError::Lock(LockError::Held { .. }) => {
                Self::new(format!("refusing to run: {what}"))
                    .hint("`tachikoma status` shows what it does, `tachikoma stop` ends it; after a stop, its last backup and upload may take another minute")
            }
            OpenError::Lock(LockError::Store(error)) | OpenError::Store(error) => error.into(),
            OpenError::Control(_) => {
                Self::new(what).hint("set XDG_RUNTIME_DIR to a short path that only you can write to")
            }
        }
    }
}

impl From<OfflineError> for Failure {
    fn from(error: OfflineError) -> Self {
        let what = chain(&error);
        match error {
            OfflineError::Lock(LockError::Held { .. }) => Self::new(what)
                .hint("nothing was changed; stop the loop with `tachikoma stop` and try again"),
            OfflineError::Lock(LockError::Store(error)) | OfflineError::Store(error) => {
                error.into()
            }
            OfflineError::NoLoop(_) => Self::new(what).hint("`tachikoma run` starts one"),
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let what = chain(&error);
        let hint = match error {
            RunError::Lock(_) => {
                "`tachikoma status` shows what the other one does; if it started another loop, `tachikoma stop` and \
                 `tachikoma state clear` archive that, and then `tachikoma run` continues this one"
            }
            RunError::InvalidState(_)
            | RunError::Journal(_)
            | RunError::NoRoom { .. }
            | RunError::Unwritten
            | RunError::Guard(_)
            | RunError::Server(_) => {
                "fix the cause, then `tachikoma run` continues where it stopped"
            }
        };
        Self::new(what).hint(hint)
    }
}
