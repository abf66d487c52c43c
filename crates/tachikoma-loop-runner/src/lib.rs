//! Runs a coding agent in a supervised loop, as a library: it never prints and never exits, and only the builder reads the environment.
//!
//! [`LoopRunner::builder`] needs a directory and a prompt. Everything else has a default. The loop starts the embedding program a second
//! time, as the guard of its agents, so `main` calls [`run_guard`] first. A [`LoopHandle`] watches and commands the loop while it runs.
//! `examples/embed.rs` is a longer program.
//!
//! ```standalone_crate
//! use std::process::ExitCode;
//! use tachikoma_loop_runner::{LoopRunner, LoopState, Outcome};
//!
//! fn main() -> ExitCode {
//!     if let Some(code) = tachikoma_loop_runner::run_guard(std::env::args_os()) {
//!         return code;
//!     }
//!     let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
//!     runtime.expect("a runtime").block_on(run())
//! }
//!
//! async fn run() -> ExitCode {
//!     let directory = tempfile::tempdir().expect("a directory");
//!     let mut runner = LoopRunner::builder(directory.path(), "Fix the failing test.")
//!         .command(["sh", "-c", "cat >prompt.txt"]) // the default agent is Claude Code
//!         .max_iterations(1)
//!         .open()
//!         .await
//!         .expect("a loop");
//!     let handle = runner.handle();
//!     assert_eq!(handle.state(), LoopState::Idle);
//!     let outcome = runner.run().await.expect("a journal");
//!     runner.close().await;
//!     assert_eq!(outcome, Outcome::LimitReached { iterations: 1 });
//!     assert_eq!(handle.stats().iterations, 1);
//!     ExitCode::SUCCESS
//! }
//! ```

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
pub mod log_files;
pub mod loop_files;
mod notice;
pub mod notify;
pub mod offline;
mod output_tail;
pub mod prompt;
mod request;
mod runner;
pub mod session;
mod shell;

pub use config::LoopConfig;
pub use handle::{COMMANDS_MAX, Gone, LoopHandle, ReloadedSettings, SettingsReader};
pub use hooks::{HookEvent, RebootHook};
pub use notice::Notice;
pub use runner::{FoundLoop, LoopBuilder, LoopRunner, OpenError, RunError, StateOrigin, run_guard};
pub use tachikoma_config as settings;
pub use tachikoma_config::{AgentName, Settings};
pub use tachikoma_core::error_chain as chain;
pub use tachikoma_core::{
    Answer, LoopCommand, LoopEvent, LoopState, LoopStats, Outcome, PromptSource, RebootEntry,
    Record, State, Status, Urgency,
};
pub use tachikoma_git as git;
pub use tachikoma_git::worktree;
pub use tachikoma_opencode as opencode;
pub use tachikoma_process as process;
pub use tachikoma_runtime::clock;
use tachikoma_runtime::task;
pub use tachikoma_store as store;
