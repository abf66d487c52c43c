//! `pause`, `resume`, `stop`, `skip`, `reboot`: requests to a running loop.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tachikoma_core::{Answer, LoopCommand};
use tachikoma_loop_runner::control::{Client, ClientError, ControlRequest, Response};
use tachikoma_loop_runner::store::lock;

use crate::failure::{Failure, chain};
use crate::out;
use crate::runtime::runtime;
use crate::workspace::Workspace;

/// Sends a command to the running loop and prints its answer.
pub fn send(workspace: &Workspace, command: LoopCommand) -> Result<ExitCode, Failure> {
    ask_live(workspace, &ControlRequest::Command { command })
}

/// Sends a request to the running loop and prints its answer.
pub fn ask_live(workspace: &Workspace, request: &ControlRequest) -> Result<ExitCode, Failure> {
    let no_live_loop = || {
        Failure::new(format!("no loop runs in {}", workspace.directory.display()))
            .hint("`tachikoma run` starts one, or continues the last one")
    };
    let working_dir = workspace.working_dir()?.ok_or_else(no_live_loop)?;
    let socket = live_socket(&working_dir).ok_or_else(no_live_loop)?;
    let response = ask(&socket, request)?;
    answered(response.map_err(|error| unreachable_runner(&error))?)
}

/// Sends a request to the runner that listens at `socket`.
pub fn ask(
    socket: &Path,
    request: &ControlRequest,
) -> Result<Result<Response, ClientError>, Failure> {
    Ok(runtime()?.block_on(async { Client::connect(socket).await?.ask(request).await }))
}

/// Prints the answer to a command.
pub fn answered(response: Response) -> Result<ExitCode, Failure> {
    match response {
        Response::Answer {
            answer: Answer::Accepted { note },
        } => {
            out::line(&note);
            Ok(ExitCode::SUCCESS)
        }
        Response::Answer {
            answer: Answer::Refused { current, reason },
        } => Err(Failure::new(format!("{reason} (the loop is {current})"))),
        Response::Refused { reason } => Err(Failure::new(reason)),
        Response::Status { .. }
        | Response::Following
        | Response::Record { .. }
        | Response::Behind => Err(Failure::new("the runner sent an unexpected answer")),
    }
}

/// Returns the control socket of the running loop in a working directory; `None` if no runner holds the lock.
pub fn live_socket(working_dir: &Path) -> Option<PathBuf> {
    if !lock::is_held(working_dir) {
        return None;
    }
    Some(lock::holder(working_dir)?.socket)
}

/// Explains why a runner that holds the lock cannot be reached.
pub fn unreachable_runner(error: &ClientError) -> Failure {
    let failure = Failure::new(chain(error));
    match error {
        ClientError::Protocol { .. } => {
            failure.hint("use the version that started it, or stop it with a signal")
        }
        ClientError::NotListening { .. } => failure.hint(
            "the runner was just killed, or its socket was removed; try again, or send it SIGTERM",
        ),
        ClientError::Foreign { .. } => failure.hint(
            "nothing was sent; `.ralph/lock` names a socket of another user: check the owners of both",
        ),
        ClientError::Silent { .. } => {
            failure.hint("it may be stopped (Ctrl-Z); send it SIGCONT, or SIGTERM")
        }
    }
}
