//! Checks the git repository at the start of a run.

use std::path::{Path, PathBuf};

use tachikoma_loop_runner::LoopConfig;
use tachikoma_loop_runner::git::rollback::some;
use tachikoma_loop_runner::git::start::{self, RepositoryState};

use crate::failure::Failure;
use crate::out;
use crate::sanitize::sanitize;

/// The state of the repository before a run.
#[derive(Debug)]
pub struct Repository {
    standing: Result<RepositoryState, String>,
    commits: bool,
}

impl Repository {
    /// Reads the repository of a working directory, if git is to commit there. `inputs` are the files that the user edits to
    /// control the loop: their changes do not prevent a start, and the loop does not commit them.
    pub fn of(config: &LoopConfig, inputs: &[PathBuf]) -> Self {
        let commits = config.settings.git.auto_commit;
        let search_path = config.search_path.as_deref();
        let mut standing = start::repository_state(&config.working_dir, search_path, commits);
        if let Ok(standing) = &mut standing {
            let inputs = inputs.iter().filter_map(|path| path.canonicalize().ok());
            let inputs: Vec<PathBuf> = inputs.collect();
            let top = standing.top.clone();
            standing
                .dirty
                .retain(|file| !inputs.contains(&top.join(file)));
        }
        Self { standing, commits }
    }

    /// Refuses a run in an incomplete work tree, in one in which commits are impossible, or in one with uncommitted changes that
    /// the first commit could not attribute to an owner.
    pub fn check(&self, first: bool, allow_dirty: bool) -> Result<(), Failure> {
        if let Ok(RepositoryState {
            half_restored: Some(mark),
            ..
        }) = &self.standing
        {
            let what = "the work tree is incomplete: `tachikoma state restore` was interrupted";
            return Err(Failure::usage(what).hint(format!(
                "run the same `tachikoma state restore` again to complete it; to continue with the present work tree, delete {}",
                mark.display()
            )));
        }
        let Some(standing) = self.standing.as_ref().ok().filter(|_| self.commits) else {
            return Ok(());
        };
        if let Some(words) = &standing.no_identity {
            return Err(no_identity(words));
        }
        if first && !allow_dirty && !standing.dirty.is_empty() {
            return Err(uncommitted_changes(&standing.dirty));
        }
        Ok(())
    }

    /// Warns about another loop in the same repository, and about commits without a branch.
    pub fn warn(&self, working_dir: &Path) {
        if self.commits
            && self
                .standing
                .as_ref()
                .is_ok_and(|standing| standing.detached)
        {
            out::note(
                "note: the repository has a detached HEAD: the loop's commits will be on no branch; \
                 `git switch -c NAME` before or after it gives them one",
            );
        }
        let around = self
            .standing
            .as_ref()
            .ok()
            .and_then(|standing| start::live_around(working_dir, &standing.top));
        if let Some(around) = around {
            out::note(&format!(
                "warning: another loop works in {}, in the same repository: each loop commits the other's changes as its own; \
                 `git worktree add` gives one of them a work tree of its own",
                around.display()
            ));
        }
    }

    /// Describes how the run will use git.
    pub fn purpose(&self) -> String {
        const KEEPS: &str = "git stores a snapshot of the work tree before each iteration";
        match &self.standing {
            Err(reason) => format!("git is not used: {}", sanitize(reason)),
            Ok(_) if self.commits => {
                format!("{KEEPS}, and the loop's changes are committed after it")
            }
            Ok(_) => format!("{KEEPS}, and nothing is committed (git.auto_commit)"),
        }
    }
}

fn no_identity(words: &str) -> Failure {
    Failure::usage(format!(
        "git has no identity for commits: {}",
        sanitize(words)
    ))
    .hint(
        "`git config user.name \"Your Name\"` and `git config user.email you@example.org`, or `--no-auto-commit`",
    )
}

fn uncommitted_changes(files: &[String]) -> Failure {
    let named: Vec<String> = files
        .iter()
        .map(|file| sanitize(file).into_owned())
        .collect();
    let count = match files.len() {
        1 => "a tracked file has changes".to_owned(),
        count => format!("{count} tracked files have changes"),
    };
    Failure::usage(format!(
        "refusing to start: {count} that are not committed: {}",
        some(&named)
    ))
    .hint(
        "commit or stash them; or `--allow-dirty` leaves them as they are and never commits these files; or `--no-auto-commit`",
    )
}
