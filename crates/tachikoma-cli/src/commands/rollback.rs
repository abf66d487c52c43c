//! `tachikoma rollback`: restores the work tree from before an iteration. The current work tree is saved first.

use std::process::ExitCode;

use tachikoma_loop_runner::git::rollback::{PerformError, Rollback, RollbackError, some};
use tachikoma_loop_runner::git::rollback_backup::RollbackBackup;
use tachikoma_loop_runner::git::snapshots::{self as git_snapshots, Moment};
use tachikoma_loop_runner::git::{CancelToken, ChangeOwner};
use tachikoma_loop_runner::offline;
use tachikoma_loop_runner::process::Deferred;
use tachikoma_loop_runner::store::layout::is_archived;

use super::snapshots;
use super::state::refuse_live;
use crate::args::RollbackArgs;
use crate::confirm::{agree, can_ask, no_terminal};
use crate::failure::{Failure, chain};
use crate::out;
use crate::runtime::runtime;
use crate::workspace::Workspace;

/// Restores the work tree.
pub fn rollback(workspace: &Workspace, args: &RollbackArgs) -> Result<ExitCode, Failure> {
    workspace.remove_secrets_from_environment()?;
    let found = snapshots::find(workspace, args.loop_id)?;
    refuse_live(&found.current.working_dir)?;
    if let Moment::Iteration(iteration) = args.to {
        found.check(iteration)?;
    }
    let snapshot = found.at(args.to)?;
    let current = &found.current;
    let rules = found.rules(workspace)?;
    let store_config = workspace.store_config(&current.working_dir)?;
    if !args.yes && !can_ask() {
        return Err(no_terminal(
            "this replaces files in the work tree, and there is no terminal to ask for confirmation",
        ));
    }
    // The lock prevents a loop from starting meanwhile.
    let lock = runtime()?.block_on(offline::alone(&current.working_dir))?;
    let repository = found.repository.clone();
    let cancel = CancelToken::new();
    let plan = Rollback::plan(repository, &current.dir, &rules, snapshot, &cancel)
        .map_err(|error| refused(&error))?;
    if !plan.left.is_empty() {
        out::note(&format!("note: left as they are: {}", some(&plan.left)));
    }
    let to = described(args.to);
    if plan.is_nothing() {
        out::line(&format!("the work tree already equals its state {to}"));
        return Ok(ExitCode::SUCCESS);
    }
    let (present, target) = plan.trees();
    let shown = snapshots::diff(
        &found.repository.git,
        false,
        Some("--stat"),
        present,
        target,
    )
    .status();
    shown.map_err(|error| Failure::new(format!("git cannot be started: {error}")))?;
    if !args.yes {
        agree(&format!("roll the work tree back to its state {to}?"))?;
    }
    // The survey records which changes belong to the user, so that the loop commits only the rollback.
    let tracker = is_archived(&current.dir).then_some(None);
    let mut tracker = tracker.unwrap_or_else(|| found.tracker(workspace, &rules, &lock));
    // Signals are blocked until the work tree is completely restored.
    let _whole = Deferred::new()
        .map_err(|error| Failure::new(format!("signals cannot be blocked: {error}")))?;
    let moment = git_snapshots::next_rollback(&found.kept);
    let name = plan
        .keep(current.loop_id, moment, &cancel)
        .map_err(|error| {
            snapshots::failed("the current work tree cannot be saved", &error)
                .hint("nothing was changed")
        })?;
    let tell = |what: &str| {
        let note = format!(
            "The operator {what} the work tree back to its state {to}. The earlier content is saved as {name}."
        );
        if let Err(error) = offline::note(&lock, &store_config, current.loop_id, note) {
            out::note(&format!(
                "warning: the rollback was not recorded in the journal: {}",
                chain(&error)
            ));
        }
    };
    // After a killed rollback, the snapshot from before it is kept. A partially restored work tree is never saved as a target.
    if let Some(stale) = RollbackBackup::left_behind(&current.dir, args.to) {
        stale.remove();
    }
    tell("starts to roll");
    plan.perform(args.to, &cancel).map_err(|error| {
        let failure = snapshots::failed("the work tree could not be rolled back", &error);
        match error {
            PerformError::NotBegun(_) | PerformError::Undone(_) => {
                tell("could not roll");
                failure.hint("nothing was changed")
            }
            PerformError::Half { .. } => failure.hint(format!(
                "the earlier content is saved as {name}: `tachikoma rollback {moment}`"
            )),
        }
    })?;
    if let Some(tracker) = &mut tracker
        && let Err(error) = tracker.survey(ChangeOwner::Loop, &CancelToken::new())
    {
        out::note(&format!(
            "warning: the changes of this rollback could not be recorded, so the loop will not commit them: {}",
            chain(&error)
        ));
    }
    // A note tells the next session that work was removed.
    tell("rolled");
    out::line(&format!(
        "the work tree is restored to its state {to}; branch, commits and index are unchanged"
    ));
    out::line(&format!("the earlier content is saved as {name}"));
    let of = args
        .loop_id
        .map_or_else(String::new, |loop_id| format!(" --loop {loop_id}"));
    out::line(&format!("`tachikoma rollback {moment}{of}` restores it"));
    Ok(ExitCode::SUCCESS)
}

fn described(moment: Moment) -> String {
    match moment {
        Moment::Iteration(number) => format!("before iteration {number}"),
        Moment::Rollback(number) => format!("before rollback {number}"),
    }
}

fn refused(error: &RollbackError) -> Failure {
    let failure = Failure::new(format!("refusing to roll back: {}", chain(error)));
    match error {
        RollbackError::InTheWay(_) => {
            failure.hint("nothing was changed; move them away, and try again")
        }
        RollbackError::Git(_) => failure.hint("nothing was changed"),
    }
}
