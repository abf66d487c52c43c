//! `opencode restart`, `stop` and `reload`: requests to the supervisor.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tachikoma_loop_runner::opencode::server_file::{Condition, ServerFile};
use tachikoma_loop_runner::opencode::supervisor::{
    SupervisorClient, SupervisorClientError, SupervisorRequest,
};
use tachikoma_loop_runner::store::lock;

use super::status::sentence;
use crate::failure::{Failure, chain};
use crate::out;
use crate::runtime::runtime;
use crate::workspace::Workspace;

/// Maximum wait for a request. Stopping a server with all grace periods and starting it takes less.
const PATIENCE: Duration = Duration::from_secs(75);

/// Interval between checks of the server's state.
const TICK: Duration = Duration::from_millis(20);

/// Restarts the server, and waits until the new one is ready.
pub fn restart(workspace: &Workspace) -> Result<ExitCode, Failure> {
    let dir = super::dir_here(workspace)?;
    let before = ServerFile::read(&dir)?.map_or(0, |file| file.generation);
    ask(workspace, &dir, SupervisorRequest::Restart)?;
    let is_over = |file: &ServerFile| match file.state {
        Condition::Starting | Condition::Restarting => false,
        Condition::Ready | Condition::Stopped | Condition::GaveUp => file.generation > before,
    };
    let file = wait(|| ServerFile::read(&dir).ok().flatten().filter(is_over))?;
    if file.state != Condition::Ready {
        return Err(
            Failure::new(sentence(&file)).hint("`tachikoma opencode logs` shows its last output")
        );
    }
    out::line(&sentence(&file));
    Ok(ExitCode::SUCCESS)
}

/// Stops the server and its supervisor, and waits until both have ended.
pub fn stop(workspace: &Workspace) -> Result<ExitCode, Failure> {
    let dir = super::dir_here(workspace)?;
    ask(workspace, &dir, SupervisorRequest::Stop)?;
    wait(|| (!lock::is_held_in(&dir)).then_some(()))?;
    out::line("OpenCode is stopped");
    Ok(ExitCode::SUCCESS)
}

/// Reloads the settings of the server.
pub fn reload(workspace: &Workspace) -> Result<ExitCode, Failure> {
    out::line(&ask(
        workspace,
        &super::dir_here(workspace)?,
        SupervisorRequest::Reload,
    )?);
    Ok(ExitCode::SUCCESS)
}

fn ask(workspace: &Workspace, dir: &Path, asked: SupervisorRequest) -> Result<String, Failure> {
    let caller = SupervisorClient::find(dir).map_err(|_| super::no_supervisor(workspace))?;
    let answer = runtime()?.block_on(caller.ask(asked));
    answer.map_err(|error| {
        let failure = Failure::new(chain(&error));
        match error {
            SupervisorClientError::NotRunning(_) => super::no_supervisor(workspace),
            SupervisorClientError::Silent { .. } => {
                failure.hint("it may be stopped (Ctrl-Z); send it SIGCONT, or SIGTERM")
            }
            SupervisorClientError::Refused(_) => failure,
        }
    })
}

fn wait<T>(mut look: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if began.elapsed() > PATIENCE {
            return Err(
                Failure::new("no answer in time; the request may still be carried out")
                    .hint("`tachikoma opencode status` shows the current state"),
            );
        }
        std::thread::sleep(TICK);
    }
}
