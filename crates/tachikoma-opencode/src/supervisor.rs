//! The supervisor of `opencode serve`: starts the server, and restarts it as the core decides.
//!
//! One task owns the state. The server runs below a guard process, so that no process of it survives the server or the supervisor.

mod actor;
mod command_line;
mod control;
mod handle;
mod journal;
mod log;
mod server_process;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tachikoma_core::LoopId;
use tachikoma_core::supervise::{
    RestartBackoff, RestartPolicy, ServerPolicy, StartedBy, StopSignals,
};
use tachikoma_fs::atomic_file;

use tachikoma_config::{OpenCodeSettings, Secret};
use tachikoma_process::control_socket::ListenError;
use tachikoma_process::{Adoption, GuardError};
use tachikoma_store::StoreError;
use tachikoma_store::lock::Holder;

pub use actor::Supervisor;
pub use command_line::argv as command_line;
pub use control::{SupervisorClient, SupervisorClientError, SupervisorRequest};
pub use handle::{Ended, SettingsReader, SupervisorHandle};
pub use journal::read_records;
pub use log::files as log_files;

/// Name of the shared supervisor's directory below `.ralph`. The server of a loop has its own directory.
pub const DIR: &str = "opencode";

/// Returns whether a file name in a supervisor's directory belongs to the supervisor.
pub fn is_supervisor_file(name: &str) -> bool {
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

/// Settings of a supervisor. The caller reads environment variables; this library does not.
#[derive(Clone, Debug)]
pub struct SupervisorSettings {
    /// The server's settings.
    pub opencode: OpenCodeSettings,
    /// Working directory of the server.
    pub working_dir: PathBuf,
    /// Directory of the lock, the journal, the log and the server file.
    pub dir: PathBuf,
    /// Directory of the control socket. It must belong to this user.
    pub runtime_dir: PathBuf,
    /// Command line of the guard process, which calls [`serve`](tachikoma_process::serve).
    pub guard: Vec<OsString>,
    /// Whether to put the server's processes into a cgroup, if one is available.
    pub cgroup: bool,
    /// Which children of this process belong to the server if the guard is killed.
    pub adoption: Adoption,
    /// Id that marks the server's processes: that of its loop, or a new one for a shared server.
    pub id: LoopId,
    /// Environment variables of the server, in addition to those of this process.
    pub env: Vec<(OsString, OsString)>,
    /// Password that the user set. If it is `None` and `opencode.require_password` is true, the supervisor generates one and
    /// writes it to the login file.
    pub password: Option<Secret>,
    /// User name for the password; `opencode` if `None`.
    pub user: Option<String>,
    /// How SIGINT and SIGTERM that end the server are interpreted.
    pub signals: StopSignals,
    /// How the supervisor was started.
    pub by: StartedBy,
    /// Whether the loop calls [`SupervisorHandle::report_idle`] when no session is busy. Otherwise the supervisor asks the server.
    pub idle_is_reported: bool,
    /// Environment variables that are removed for the server and its tools.
    pub hidden: Vec<OsString>,
    /// Whether the output of the server is written to a log. It may contain parts of conversations.
    pub keeps_log: bool,
    /// Function that reads the settings again for `reload`; `None` if they cannot change.
    pub reader: Option<SettingsReader>,
}

/// Why a supervisor cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Another supervisor holds the lock of the directory.
    #[error("another supervisor runs in {}{}", dir.display(), holder.as_ref().map_or_else(String::new, |holder| format!(": pid {}, since {}", holder.pid, holder.since)))]
    Held {
        /// The supervisor's directory.
        dir: PathBuf,
        /// The other supervisor; `None` if its lock file could not be read.
        holder: Option<Holder>,
    },
    /// The settings are not valid.
    #[error("{0}")]
    Settings(String),
    /// A file cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The guard cannot be started.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// A task of the supervisor panicked.
    #[error("{0}")]
    Broken(String),
    /// The control socket cannot be created.
    #[error(transparent)]
    Control(#[from] ListenError),
}

/// Returns the restart policy for the core.
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

/// Checks the settings before the server is started.
fn check(settings: &OpenCodeSettings, has_password: bool) -> Result<(), SupervisorError> {
    command_line::argv(settings).map_err(SupervisorError::Settings)?;
    let host = &settings.serve_hostname;
    if !has_password && !command_line::is_loopback(host) {
        return Err(SupervisorError::Settings(format!(
            "`opencode.serve_hostname` is {host:?}, which other machines may reach: set OPENCODE_SERVER_PASSWORD, or \
             use \"localhost\""
        )));
    }
    Ok(())
}
