//! One file per command.

mod agents;
mod answer;
mod checkpoint;
mod completions;
mod config;
mod context;
mod control;
mod demo;
mod detach;
mod diff;
mod doctor;
mod done;
mod events;
mod explain;
mod history;
mod init;
mod known_agents;
pub mod launch;
mod logs;
mod note;
mod notify;
mod opencode;
mod overview;
mod records;
mod replay;
mod repository;
mod rollback;
mod run;
mod service;
mod snapshots;
mod state;
mod status;
mod trust;

use std::process::ExitCode;

use tachikoma_core::{LoopCommand, Urgency};

use tachikoma_loop_runner::control::ControlRequest;

use crate::args::{Args, Command, NotifyCommand, ServiceCommand, Switch};
use crate::diagnostics;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// First argument with which this program acts as the guard of a loop.
pub const GUARD: &str = "guard";
/// First argument with which this program acts as the scripted demo agent.
pub const DEMO_AGENT: &str = "demo-agent";
/// First argument with which this program acts as the bridge to an OpenCode server.
pub const BRIDGE: &str = "opencode-bridge";

/// Runs the command.
pub fn dispatch(args: Args) -> Result<ExitCode, Failure> {
    let urgency = |now: bool| if now { Urgency::Now } else { Urgency::Graceful };
    let workspace = Workspace::current()?;
    let runs_loop = matches!(&args.command, Some(Command::Run(run)) if !run.dry_run);
    diagnostics::install(
        args.verbose,
        workspace.variable("TACHIKOMA_LOG").as_deref(),
        runs_loop,
    )?;
    let Some(command) = args.command else {
        return overview::overview(&workspace);
    };
    match command {
        Command::Init { yes } => init::init(&workspace, yes),
        Command::Doctor { json } => doctor::doctor(&workspace, json),
        Command::Run(run) if run.new => {
            run::run(&workspace, &run).map_err(Failure::suggest_new_loop)
        }
        Command::Run(run) => run::run(&workspace, &run),
        Command::Demo(demo) => demo::demo(&workspace, &demo),
        Command::Status { json } => status::status(&workspace, json),
        Command::Pause { now } => control::send(&workspace, LoopCommand::Pause(urgency(now))),
        Command::Resume => control::send(&workspace, LoopCommand::Resume),
        Command::Stop { now } => control::send(&workspace, LoopCommand::Stop(urgency(now))),
        Command::Skip => control::send(&workspace, LoopCommand::SkipIteration),
        Command::Reboot => control::send(&workspace, LoopCommand::ForceReboot),
        Command::Answer(args) => answer::answer(&workspace, &args),
        Command::Attend { switch } => {
            let on = switch == Switch::On;
            control::ask_live(&workspace, &ControlRequest::Attend { on })
        }
        Command::Tell { words } => answer::tell(&workspace, &words),
        Command::Reload => control::ask_live(&workspace, &ControlRequest::Reload),
        Command::Events { follow, json } => events::events(&workspace, follow, json),
        Command::Logs { iteration } => logs::logs(&workspace, iteration),
        Command::Context { session, json } => context::context(&workspace, session, json),
        Command::History { reboots, json } => history::history(&workspace, reboots, json),
        Command::Explain {
            iteration,
            loop_id,
            json,
        } => explain::explain(&workspace, iteration, loop_id.as_deref(), json),
        Command::Replay(replay) => replay::replay(&workspace, &replay),
        Command::Diff(diff) => diff::diff(&workspace, &diff),
        Command::Rollback(rollback) => rollback::rollback(&workspace, &rollback),
        Command::Checkpoint { command } => checkpoint::checkpoint(&workspace, &command),
        Command::Note { words } => note::note(&workspace, &words),
        Command::Done { reason } => done::done(&workspace, reason),
        Command::State { command } => state::state(&workspace, command),
        Command::Trust { revoke } => trust::trust(&workspace, revoke),
        Command::Config { command } => config::config(&workspace, &command),
        Command::Notify {
            command: NotifyCommand::Test { number },
        } => notify::test(&workspace, number),
        Command::Agents { command } => agents::agents(&command),
        Command::Opencode { command } => opencode::opencode(&workspace, &command),
        Command::Service { command } => match command {
            ServiceCommand::Print { kind } => service::print(&workspace, kind),
        },
        Command::Completions { shell } => Ok(completions::completions(shell)),
    }
}
