//! `tachikoma checkpoint`: shows the hand-offs of earlier sessions and of the next one. Only reads.

use std::process::ExitCode;

use tachikoma_core::{SessionNo, checkpoint_now};
use tachikoma_loop_runner::store::checkpoints;
use tachikoma_loop_runner::store::recover::{self, Loss};
use tachikoma_loop_runner::worktree;

use crate::args::CheckpointCommand;
use crate::failure::Failure;
use crate::out;
use crate::sanitize::sanitize;
use crate::workspace::{Current, Workspace};

/// Runs the command.
pub fn checkpoint(workspace: &Workspace, command: &CheckpointCommand) -> Result<ExitCode, Failure> {
    let current = workspace.current_loop()?;
    let text = match command {
        CheckpointCommand::Show { now: true, .. } => now(workspace, &current)?,
        CheckpointCommand::Show { session, .. } => {
            checkpoint_text(&current, session.map(SessionNo))?
        }
    };
    for line in text.trim_end().lines() {
        out::line(&sanitize(line));
    }
    Ok(ExitCode::SUCCESS)
}

fn checkpoint_text(current: &Current, wanted: Option<SessionNo>) -> Result<String, Failure> {
    let path = checkpoints::dir(&current.dir);
    let unreadable = |error| Failure::unreadable(&path, &error);
    let listed = checkpoints::list(&current.dir).map_err(unreadable)?;
    let Some(session) = wanted.or_else(|| listed.last().copied()) else {
        return Err(
            Failure::new("this loop has had no reboot yet, so there is no hand-off")
                .hint("`tachikoma checkpoint show --now` prints the hand-off that a new session would get now"),
        );
    };
    let text = checkpoints::read(&current.dir, session, &current.encryption).map_err(unreadable)?;
    text.ok_or_else(|| {
        let failure = Failure::new(format!("there is no hand-off for session {session}"));
        let numbers: Vec<String> = listed.iter().map(ToString::to_string).collect();
        match numbers.len() {
            0 => failure.hint("this loop has had no reboot yet"),
            1.. => failure.hint(format!("these sessions have one: {}", numbers.join(", "))),
        }
    })
}

fn now(workspace: &Workspace, current: &Current) -> Result<String, Failure> {
    let store_config = workspace.store_config_for_reading(&current.working_dir, &current.root);
    let found = recover::read(
        &current.dir,
        &store_config.copies(),
        current.loop_id,
        Loss::Refuse,
    )?;
    let settings = workspace.layers_of(&current.working_dir)?.load()?.settings;
    let max_bytes = usize::try_from(settings.reboot.handoff_max_bytes).unwrap_or(usize::MAX);
    let start = found.state.launch.start_commit.as_deref();
    let tree = worktree::since(&current.working_dir, start);
    Ok(checkpoint_now(&found.state, &tree, max_bytes))
}
