//! The snapshots of a loop: `refs/tachikoma/<loop>/<iteration>`, each a commit of the work tree as it was before that iteration,
//! and `before-rollback-<n>` beside them.

use std::path::Path;

use tachikoma_core::LoopId;

use super::program::{CallOff, Git, GitError};
use super::repository::{Found, Repository};

/// Below this all refs of ours lie.
const REFS: &str = "refs/tachikoma";

/// What a ref says instead of an iteration when it keeps what a rollback has replaced.
const BEFORE_ROLLBACK: &str = "before-rollback-";

/// A moment of the work tree that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// Before an iteration.
    Iteration(u32),
    /// Before the n-th rollback, from 1.
    Rollback(u32),
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Iteration(number) => number.fmt(f),
            Self::Rollback(number) => write!(f, "{BEFORE_ROLLBACK}{number}"),
        }
    }
}

impl std::str::FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| -> Option<u32> {
            let number: u32 = text.parse().ok().filter(|number| *number > 0)?;
            // In the one way that we write it.
            (number.to_string() == text).then_some(number)
        };
        match text.strip_prefix(BEFORE_ROLLBACK) {
            Some(rest) => number(rest).map(Self::Rollback),
            None => number(text).map(Self::Iteration),
        }
        .ok_or_else(|| {
            format!("it must be the number of an iteration, from 1, or `{BEFORE_ROLLBACK}` with a number")
        })
    }
}

/// A moment, and the commit that keeps it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept {
    /// The moment.
    pub moment: Moment,
    /// The commit.
    pub commit: String,
}

impl From<u32> for Moment {
    fn from(iteration: u32) -> Self {
        Self::Iteration(iteration)
    }
}

/// Returns what the references of a loop are below.
#[must_use]
pub fn below(loop_id: LoopId) -> String {
    format!("{REFS}/{loop_id}")
}

/// Names the reference of a moment.
#[must_use]
pub fn name(loop_id: LoopId, moment: impl Into<Moment>) -> String {
    format!("{REFS}/{loop_id}/{}", moment.into())
}

/// Lists what is kept of a loop, iterations first, by number.
///
/// # Errors
/// Git fails.
pub fn list(git: &Git, loop_id: LoopId) -> Result<Vec<Kept>, GitError> {
    let below = format!("{REFS}/{loop_id}/");
    let order = git.order(&["for-each-ref", "--format=%(objectname) %(refname)"]);
    let answer = order.word(&below).ask(&CallOff::new())?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let mut kept: Vec<Kept> = answer
        .lines()
        .filter_map(|line| {
            let (commit, name) = line.split_once(' ')?;
            Some(Kept {
                moment: name.strip_prefix(&below)?.parse().ok()?,
                commit: commit.to_owned(),
            })
        })
        .collect();
    kept.sort();
    Ok(kept)
}

/// Finds what the work tree was at a moment. Before an iteration that has no snapshot of its own it was what the last one before
/// that has: snapshots that would be alike are made late or, when the runner dies, not at all.
#[must_use]
pub fn resolve(kept: &[Kept], moment: Moment) -> Option<&Kept> {
    match moment {
        Moment::Rollback(_) => kept.iter().find(|kept| kept.moment == moment),
        Moment::Iteration(_) => kept
            .iter()
            .rev()
            .find(|kept| matches!(kept.moment, Moment::Iteration(_)) && kept.moment <= moment),
    }
}

/// Returns the moment that the last rollback has kept.
#[must_use]
pub fn last_rollback(kept: &[Kept]) -> Option<Moment> {
    last_number(kept).map(Moment::Rollback)
}

/// Returns the moment that the next rollback keeps.
#[must_use]
pub fn next_rollback(kept: &[Kept]) -> Moment {
    Moment::Rollback(last_number(kept).unwrap_or(0).saturating_add(1))
}

fn last_number(kept: &[Kept]) -> Option<u32> {
    let numbers = kept.iter().filter_map(|kept| match kept.moment {
        Moment::Rollback(number) => Some(number),
        Moment::Iteration(_) => None,
    });
    numbers.max()
}

/// Removes all references of a loop: its snapshots, and what was kept before a rollback.
///
/// # Errors
/// Git fails; then none is removed.
pub fn delete_all(git: &Git, loop_id: LoopId) -> Result<(), GitError> {
    let below = format!("{REFS}/{loop_id}/");
    let order = git.order(&["for-each-ref", "--format=delete %(refname)"]);
    let orders = order.word(&below).ask(&CallOff::new())?;
    if orders.is_empty() {
        return Ok(());
    }
    let order = git.order(&["update-ref", "--no-deref", "--stdin"]);
    order.stdin(&orders).ask(&CallOff::new()).map(drop)
}

/// Removes all references of a loop that worked in a directory, where that is in a repository.
///
/// # Errors
/// Git fails, or cannot use the repository.
pub(crate) fn delete_all_around(dir: &Path, loop_id: LoopId) -> Result<(), String> {
    match Repository::find(dir, None, &CallOff::new()) {
        Found::Repository(repository) => {
            delete_all(&repository.git, loop_id).map_err(|error| crate::chain(&error))
        }
        Found::NoRepository => Ok(()),
        Found::Unusable { reason } => Err(reason),
    }
}
