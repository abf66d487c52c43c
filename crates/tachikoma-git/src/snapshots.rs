//! The snapshots of a loop: `refs/tachikoma/<loop>/<iteration>`, each a commit of the work tree as it was before that iteration,
//! and `before-rollback-<n>` beside them.

use std::collections::BTreeMap;
use std::path::Path;

use tachikoma_core::LoopId;

use super::program::{CancelToken, Git, GitError};
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
pub fn list(git: &Git, loop_id: LoopId, cancel: &CancelToken) -> Result<Vec<Kept>, GitError> {
    let below = format!("{REFS}/{loop_id}/");
    let order = git.order(&["for-each-ref", "--format=%(objectname) %(refname)"]);
    let answer = order.word(&below).ask(cancel)?;
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
    let orders = order.word(&below).ask(&CancelToken::new())?;
    if orders.is_empty() {
        return Ok(());
    }
    let order = git.order(&["update-ref", "--no-deref", "--stdin"]);
    order.stdin(&orders).ask(&CancelToken::new()).map(drop)
}

/// What a ref says before the number of an iteration that is of the loop before it was restored.
const BEFORE_RESTORE: &str = "before-restore-";

/// Gives the snapshots of iterations behind one other names: the loop comes to these iterations again, from another work tree.
///
/// # Errors
/// Git fails; then all have the names that they had.
pub fn set_aside(git: &Git, loop_id: LoopId, behind: u32) -> Result<(), GitError> {
    keep_as(git, loop_id, |name, commit| match name.parse() {
        Ok(Moment::Iteration(iteration)) if iteration > behind => {
            Some(format!("delete {REFS}/{loop_id}/{iteration} {commit}\n"))
        }
        Ok(Moment::Iteration(_) | Moment::Rollback(_)) | Err(_) => None,
    })
}

/// Gives other names, besides the ones that they have, to references that others are to replace: those of a bundle, a commit and a name in
/// a line.
///
/// # Errors
/// Git fails; then none has another name.
pub fn keep_others(git: &Git, loop_id: LoopId, theirs: &str) -> Result<(), GitError> {
    let theirs: BTreeMap<&str, &str> = theirs
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(commit, name)| (name, commit))
        .collect();
    keep_as(git, loop_id, |name, commit| {
        let name = format!("{REFS}/{loop_id}/{name}");
        let is_other = theirs
            .get(name.as_str())
            .is_some_and(|their| *their != commit);
        is_other.then(String::new)
    })
}

/// Gives references other names, for which there is more to be done: `also`.
fn keep_as(
    git: &Git,
    loop_id: LoopId,
    also: impl Fn(&str, &str) -> Option<String>,
) -> Result<(), GitError> {
    let below = format!("{REFS}/{loop_id}/");
    let order = git.order(&["for-each-ref", "--format=%(objectname) %(refname)"]);
    let answer = order.word(&below).ask(&CancelToken::new())?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let refs = answer.lines().filter_map(|line| {
        let (commit, name) = line.split_once(' ')?;
        Some((commit, name.strip_prefix(&below)?))
    });
    let number = |name: &str| {
        let (number, _) = name.strip_prefix(BEFORE_RESTORE)?.split_once('/')?;
        number.parse::<u32>().ok()
    };
    let taken = refs.clone().filter_map(|(_, name)| number(name)).max();
    let aside = format!("{BEFORE_RESTORE}{}", taken.unwrap_or(0).saturating_add(1));
    let mut orders = String::new();
    for (commit, name) in refs {
        if let Some(also) = also(name, commit) {
            orders.push_str(&format!("create {below}{aside}/{name} {commit}\n{also}"));
        }
    }
    if orders.is_empty() {
        return Ok(());
    }
    let order = git.order(&["update-ref", "--no-deref", "--stdin"]);
    order
        .stdin(orders.as_bytes())
        .ask(&CancelToken::new())
        .map(drop)
}

/// Does the same for a loop that works in a directory, where that is in a repository.
///
/// # Errors
/// Git fails, or cannot use the repository.
pub fn set_aside_around(dir: &Path, loop_id: LoopId, behind: u32) -> Result<(), String> {
    around(dir, |git| set_aside(git, loop_id, behind))
}

/// Removes all references of a loop that worked in a directory, where that is in a repository.
///
/// # Errors
/// Git fails, or cannot use the repository.
pub fn delete_all_around(dir: &Path, loop_id: LoopId) -> Result<(), String> {
    around(dir, |git| delete_all(git, loop_id))
}

fn around(dir: &Path, act: impl FnOnce(&Git) -> Result<(), GitError>) -> Result<(), String> {
    match Repository::find(dir, None, &CancelToken::new()) {
        Found::Repository(repository) => {
            act(&repository.git).map_err(|error| tachikoma_core::error_chain(&error))
        }
        Found::NoRepository => Ok(()),
        Found::Unusable { reason } => Err(reason),
    }
}
