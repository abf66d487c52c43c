//! One file per command.

mod agents;
mod answer;
mod checkpoint;
mod completions;
mod config;
pub mod confirm;
mod context;
mod control;
mod demo;
mod detach;
mod diff;
mod done;
mod events;
mod explain;
mod history;
mod kept;
pub mod launch;
mod logs;
mod note;
mod notify;
mod opencode;
mod records;
mod replay;
mod repository;
mod rollback;
mod run;
mod service;
mod state;
mod status;
mod trust;

use std::process::ExitCode;

use tachikoma_core::{LoopCommand, Urgency};

use tachikoma_loop_runner::control::Request;

use crate::args::{Args, Command, NotifyCommand, ServiceCommand, Switch};
use crate::failure::Failure;
use crate::place::Place;

/// The first word that makes this program the guard of a loop.
pub const GUARD: &str = "guard";
/// The first word that makes this program the scripted agent.
pub const DEMO_AGENT: &str = "demo-agent";
/// The first word that makes this program the bridge to a server of OpenCode.
pub const BRIDGE: &str = "opencode-bridge";

/// Does what was asked.
pub fn dispatch(args: Args) -> Result<ExitCode, Failure> {
    let urgency = |now: bool| if now { Urgency::Now } else { Urgency::Graceful };
    let place = Place::here()?;
    match args.command {
        Command::Run(run) if run.new => {
            run::run(&place, &run).map_err(Failure::for_a_new_beginning)
        }
        Command::Run(run) => run::run(&place, &run),
        Command::Demo(demo) => demo::demo(&place, &demo),
        Command::Status { json } => status::status(&place, json),
        Command::Pause { now } => control::tell(&place, LoopCommand::Pause(urgency(now))),
        Command::Resume => control::tell(&place, LoopCommand::Resume),
        Command::Stop { now } => control::tell(&place, LoopCommand::Stop(urgency(now))),
        Command::Skip => control::tell(&place, LoopCommand::SkipIteration),
        Command::Reboot => control::tell(&place, LoopCommand::ForceReboot),
        Command::Answer(args) => answer::answer(&place, &args),
        Command::Attend { switch } => {
            let on = switch == Switch::On;
            control::ask_live(&place, &Request::Attend { on })
        }
        Command::Tell { words } => answer::tell(&place, &words),
        Command::Reload => control::ask_live(&place, &Request::Reload),
        Command::Events { follow, json } => events::events(&place, follow, json),
        Command::Logs { iteration } => logs::logs(&place, iteration),
        Command::Context { session, json } => context::context(&place, session, json),
        Command::History { reboots, json } => history::history(&place, reboots, json),
        Command::Explain {
            iteration,
            loop_id,
            json,
        } => explain::explain(&place, iteration, loop_id.as_deref(), json),
        Command::Replay(replay) => replay::replay(&place, &replay),
        Command::Diff(diff) => diff::diff(&place, &diff),
        Command::Rollback(rollback) => rollback::rollback(&place, &rollback),
        Command::Checkpoint { command } => checkpoint::checkpoint(&place, &command),
        Command::Note { words } => note::note(&place, &words),
        Command::Done { reason } => done::done(&place, reason),
        Command::State { command } => state::state(&place, command),
        Command::Trust { revoke } => trust::trust(&place, revoke),
        Command::Config { command } => config::config(&place, &command),
        Command::Notify {
            command: NotifyCommand::Test { number },
        } => notify::test(&place, number),
        Command::Agents { command } => agents::agents(&command),
        Command::Opencode { command } => opencode::opencode(&place, &command),
        Command::Service { command } => match command {
            ServiceCommand::Print { kind } => service::print(&place, kind),
        },
        Command::Completions { shell } => Ok(completions::completions(shell)),
    }
}

/// Runs a future to its end. A name lookup that hangs in a background thread does not delay the end of the program.
pub fn block_on<F: Future>(future: F) -> Result<F::Output, Failure> {
    let runtime = runtime()?;
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(output)
}

/// Returns a runtime for one thread: all that any command needs.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("no runtime: {error}")))
}
