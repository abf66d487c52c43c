//! Runs a coding agent in a supervised loop. This library never prints, never reads the environment and never exits:
//! what it needs is handed in, what it finds is handed back.

#[cfg(windows)]
compile_error!(
    "Tachikoma does not run on Windows: it needs Unix signals and process groups. Use it inside WSL."
);

mod advice;
pub mod clock;
pub mod cloud;
pub mod config;
pub mod control;
mod error;
mod gates;
pub mod git;
mod handle;
pub mod hooks;
pub mod journal_reader;
pub mod launch_rules;
mod notice;
pub mod notify;
pub mod offline;
pub mod opencode;
pub mod process;
pub mod prompt;
mod runner;
pub mod session;
pub mod settings;
mod shell;
pub mod store;
mod task;
pub mod worktree;

pub use config::LoopConfig;
pub use error::chain;
pub use handle::{COMMANDS_MAX, Gone, LoopHandle, ReloadedSettings, SettingsReader};
pub use hooks::{HookEvent, RebootHook};
pub use notice::Notice;
pub use runner::{FoundLoop, LoopRunner, OpenError, RunError, StateOrigin};
pub use tachikoma_core::{LoopCommand, LoopEvent, LoopState, LoopStats};
