//! Runs a coding agent in a supervised loop. This library never prints, never reads the environment and never exits:
//! what it needs is handed in, what it finds is handed back.

#[cfg(windows)]
compile_error!(
    "Tachikoma does not run on Windows: it needs Unix signals and process groups. Use it inside WSL."
);

pub mod admin;
mod advice;
pub mod cloud;
pub mod config;
pub mod control;
mod gates;
mod handle;
pub mod hooks;
pub mod journal_reader;
pub mod launch_rules;
pub mod loop_files;
mod notice;
pub mod notify;
pub mod offline;
pub mod prompt;
mod runner;
pub mod session;
mod shell;

pub use config::LoopConfig;
pub use handle::{COMMANDS_MAX, Gone, LoopHandle, ReloadedSettings, SettingsReader};
pub use hooks::{HookEvent, RebootHook};
pub use notice::Notice;
pub use runner::{FoundLoop, LoopRunner, OpenError, RunError, StateOrigin};
pub use tachikoma_config as settings;
pub use tachikoma_core::error_chain as chain;
pub use tachikoma_core::{LoopCommand, LoopEvent, LoopState, LoopStats};
pub use tachikoma_git as git;
pub use tachikoma_git::worktree;
pub use tachikoma_opencode as opencode;
pub use tachikoma_process as process;
pub use tachikoma_runtime::clock;
use tachikoma_runtime::task;
pub use tachikoma_store as store;
