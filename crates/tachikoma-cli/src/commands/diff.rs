//! `tachikoma diff`: runs git to show what an iteration changed. Work tree, index and branches stay unchanged.

use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use tachikoma_loop_runner::git::CancelToken;
use tachikoma_loop_runner::git::snapshots::Moment;
use tachikoma_loop_runner::git::worktree_tree;

use super::snapshots;
use crate::args::DiffArgs;
use crate::failure::Failure;
use crate::out;
use crate::workspace::Workspace;

/// Shows the changes between the snapshot before an iteration and the snapshot before the next one, or the current work tree.
pub fn diff(workspace: &Workspace, args: &DiffArgs) -> Result<ExitCode, Failure> {
    workspace.remove_secrets_from_environment()?;
    let found = snapshots::find(workspace, args.loop_id)?;
    if args.list {
        for kept in &found.kept {
            out::line(&format!("{} {}", kept.commit, kept.moment));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let iteration = args.iteration.unwrap_or(found.last).max(1);
    found.check(iteration)?;
    let from = found.at(Moment::Iteration(iteration))?;
    let to = if iteration < found.last {
        found.at(Moment::Iteration(iteration + 1))?.commit.clone()
    } else {
        let rules = found.rules(workspace)?;
        let present = worktree_tree::worktree_tree(
            found.repository.clone(),
            &found.current.dir,
            &rules,
            &from.commit,
            &CancelToken::new(),
        );
        present
            .map_err(|error| snapshots::failed("the work tree cannot be read", &error))?
            .tree
            .clone()
    };
    let how = match (args.stat, args.name_only) {
        (true, _) => Some("--stat"),
        (false, true) => Some("--name-only"),
        (false, false) => None,
    };
    // Git replaces this process, so that git and its pager get the terminal and its signals.
    let error = snapshots::diff(&found.repository.git, true, how, &from.commit, &to).exec();
    Err(Failure::new(format!("git cannot be started: {error}")))
}
