//! The supervisor of `opencode serve`: starts it, sees how it ends, and starts it again by the rules of the core.
//!
//! One task owns the state. The server runs under a guard of the supervisor's own, so that neither its end nor ours leaves
//! anything behind that it had started, and its death is seen by waiting for it.

mod actor;
mod command_line;
mod control;
mod handle;
mod http;
mod journal;
mod launch;
mod log;
mod output;
mod probe;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tachikoma_core::supervise::{
    RestartBackoff, RestartPolicy, ServerInput, ServerPolicy, StartedBy, StopSignals,
};
use tachikoma_core::{Generation, LoopId};
use tachikoma_fs::atomic_file;

use tachikoma_config::{OpenCodeSettings, Secret};
use tachikoma_process::control_socket::ListenError;
use tachikoma_process::{Adoption, GuardError};
use tachikoma_store::StoreError;
use tachikoma_store::lock::Holder;

pub use actor::Supervisor;
pub use command_line::words as command_line;
pub use control::{Asked, Caller, CallerError};
pub use handle::{Ended, SettingsReader, SupervisorHandle};
pub use journal::read_records;
pub use log::files as log_files;

/// What a supervisor's directory is called below `.ralph`, unless a loop has its own.
pub const DIR: &str = "opencode";

/// Returns whether a file of this name in a supervisor's directory is one of its own.
pub fn is_ours(name: &str) -> bool {
    let known = [
        ".gitignore",
        "lock",
        super::server_file::NAME,
        super::login_file::NAME,
    ];
    known.contains(&name)
        || journal::is_ours(name)
        || log::is_ours(name)
        || atomic_file::is_temporary(name)
}

/// What a supervisor is told before it begins. The library reads no environment: whoever uses it does.
#[derive(Clone, Debug)]
pub struct SupervisorSettings {
    /// The server's settings.
    pub opencode: OpenCodeSettings,
    /// Where the server works.
    pub working_dir: PathBuf,
    /// Where the supervisor keeps its lock, journal, log and the server file.
    pub dir: PathBuf,
    /// Where its control socket goes: a directory of the user's own.
    pub runtime_dir: PathBuf,
    /// The program whose main is [`serve`](tachikoma_process::serve), with the arguments that make it one.
    pub guard: Vec<OsString>,
    /// Whether to hold the server's processes together by a control group where one can be had.
    pub cgroup: bool,
    /// Which children of this process are the server's if the guard is killed.
    pub adoption: Adoption,
    /// By what the server's processes are known: the id of the loop it works for, or one of its own.
    pub id: LoopId,
    /// Variables of the server, on top of this process's own.
    pub env: Vec<(OsString, OsString)>,
    /// The password that the user chose. Without one, a new one is made and kept for our own clients, unless
    /// `opencode.require_password` is false.
    pub password: Option<Secret>,
    /// The user that goes with the password; `opencode` unless set.
    pub user: Option<String>,
    /// What SIGINT or SIGTERM to the server means.
    pub signals: StopSignals,
    /// Who started the supervisor.
    pub by: StartedBy,
    /// Whether it is told when nobody works in the server, so that the server need not be asked: between two questions a turn may
    /// begin.
    pub told_when_idle: bool,
    /// Variables of this process that the server and its tools do not get.
    pub hidden: Vec<OsString>,
    /// Whether what the server prints is written to its log. It may have words of the conversations in it.
    pub keeps_log: bool,
    /// How its settings are read again, where they can be.
    pub reader: Option<SettingsReader>,
}

/// Why a supervisor did not begin, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Another one has the directory.
    #[error("another supervisor runs in {}{}", dir.display(), holder.as_ref().map_or_else(String::new, |holder| format!(": pid {}, since {}", holder.pid, holder.since)))]
    Held {
        /// The directory.
        dir: PathBuf,
        /// Who, if its file could be read.
        holder: Option<Holder>,
    },
    /// The settings cannot be used.
    #[error("{0}")]
    Settings(String),
    /// Something on disk could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no guard to hold the server's processes together.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// A part of it panicked.
    #[error("{0}")]
    Broken(String),
    /// There is no control socket.
    #[error(transparent)]
    Control(#[from] ListenError),
}

/// What the tasks of a supervisor tell it.
#[derive(Debug)]
enum SupervisorEvent {
    /// Something for the core.
    Input(ServerInput),
    /// The server says where it listens.
    Listening { generation: Generation, port: u16 },
}

/// Returns the rules that the settings mean.
fn policy(settings: &OpenCodeSettings, signals: StopSignals) -> ServerPolicy {
    ServerPolicy {
        signals,
        restart: RestartPolicy::of(settings.auto_restart, settings.restart_on_normal_exit),
        backoff: RestartBackoff {
            base: Duration::from_millis(settings.restart_delay_ms),
        },
        max_restart_attempts: settings.max_restart_attempts,
        health_interval: settings.health_interval.get(),
        health_failures: settings.health_failures,
        max_rss_bytes: settings.max_rss_bytes,
        ..ServerPolicy::default()
    }
}

/// Checks what can be checked before anything is started.
fn check(settings: &OpenCodeSettings, has_password: bool) -> Result<(), SupervisorError> {
    command_line::words(settings).map_err(SupervisorError::Settings)?;
    let host = &settings.serve_hostname;
    if !has_password && !command_line::is_loopback(host) {
        return Err(SupervisorError::Settings(format!(
            "`opencode.serve_hostname` is {host:?}, which others than this machine may reach: set OPENCODE_SERVER_PASSWORD, or \
             use \"localhost\""
        )));
    }
    Ok(())
}
