//! References of the snapshots of a loop. `refs/tachikoma/<loop>/<iteration>` is a commit of the work tree before that iteration,
//! `before-rollback-<n>` one of the work tree before a rollback.

use std::collections::BTreeMap;
use std::path::Path;

use tachikoma_core::LoopId;

use super::program::{CancelToken, Git, GitError};
use super::repository::Repository;

/// Prefix of all references of this program.
const REFS: &str = "refs/tachikoma";

/// Prefix of references that contain the work tree before a rollback.
const BEFORE_ROLLBACK: &str = "before-rollback-";

/// Name of the author of snapshot commits.
const AUTHOR: &str = "tachikoma";
const EMAIL: &str = "tachikoma@localhost";

/// When a snapshot was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// Before the iteration with this number.
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
            // Other spellings of the number, such as `01`, are rejected.
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

/// A moment and the commit of its snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptSnapshot {
    /// When the snapshot was made.
    pub moment: Moment,
    /// The commit with the work tree.
    pub commit: String,
}

impl From<u32> for Moment {
    fn from(iteration: u32) -> Self {
        Self::Iteration(iteration)
    }
}

/// Returns the prefix of all references of a loop.
#[must_use]
pub fn below(loop_id: LoopId) -> String {
    format!("{REFS}/{loop_id}")
}

/// Returns the name of the reference for a moment.
#[must_use]
pub fn name(loop_id: LoopId, moment: impl Into<Moment>) -> String {
    format!("{REFS}/{loop_id}/{}", moment.into())
}

/// Lists the snapshots of a loop: iterations first, sorted by number.
///
/// # Errors
/// A git command fails.
pub fn list(
    git: &Git,
    loop_id: LoopId,
    cancel: &CancelToken,
) -> Result<Vec<KeptSnapshot>, GitError> {
    let refs = refs_of(git, loop_id, cancel)?.into_iter();
    let mut kept: Vec<KeptSnapshot> = refs
        .filter_map(|(commit, name)| {
            let moment = name.parse().ok()?;
            Some(KeptSnapshot { moment, commit })
        })
        .collect();
    kept.sort();
    Ok(kept)
}

/// Lists the references of a loop: the commit of each, and its name without the prefix of the loop.
pub(crate) fn refs_of(
    git: &Git,
    loop_id: LoopId,
    cancel: &CancelToken,
) -> Result<Vec<(String, String)>, GitError> {
    let below = format!("{}/", below(loop_id));
    let command = git.command("for-each-ref --format=%(objectname)%20%(refname)");
    let output = command.arg(&below).stdout(cancel)?;
    let output = String::from_utf8_lossy(&output);
    let refs = output.lines().filter_map(|line| {
        let (commit, name) = line.split_once(' ')?;
        Some((commit.to_owned(), name.strip_prefix(&below)?.to_owned()))
    });
    Ok(refs.collect())
}

/// Changes references, either all or none. `commands` are lines for `git update-ref --stdin`.
pub(crate) fn update_refs(git: &Git, commands: &str, cancel: &CancelToken) -> Result<(), GitError> {
    if commands.is_empty() {
        return Ok(());
    }
    let command = git.command("update-ref --no-deref --stdin");
    command.stdin(commands.as_bytes()).stdout(cancel).map(drop)
}

/// Creates a commit of a tree. No branch points to the commit. The author is fixed, because the user may have no git identity.
///
/// # Errors
/// A git command fails or is canceled.
pub fn commit_tree(
    git: &Git,
    tree: &str,
    parent: Option<&str>,
    message: &str,
    cancel: &CancelToken,
) -> Result<String, GitError> {
    let mut command = git.command("commit-tree").arg(tree).arg("-F").arg("-");
    if let Some(parent) = parent {
        command = command.arg("-p").arg(parent);
    }
    command
        .stdin(message.as_bytes())
        .config("i18n.commitEncoding=UTF-8")
        .env("GIT_AUTHOR_NAME", AUTHOR)
        .env("GIT_AUTHOR_EMAIL", EMAIL)
        .env("GIT_COMMITTER_NAME", AUTHOR)
        .env("GIT_COMMITTER_EMAIL", EMAIL)
        .stdout_line(cancel)
}

/// Finds the snapshot for a moment. An iteration without its own snapshot has the same work tree as the last snapshot before it:
/// references of equal snapshots are written late, or not at all if the runner dies.
#[must_use]
pub fn resolve(kept: &[KeptSnapshot], moment: Moment) -> Option<&KeptSnapshot> {
    match moment {
        Moment::Rollback(_) => kept.iter().find(|kept| kept.moment == moment),
        Moment::Iteration(_) => kept
            .iter()
            .rev()
            .find(|kept| matches!(kept.moment, Moment::Iteration(_)) && kept.moment <= moment),
    }
}

/// Returns the moment of the last rollback; `None` if there was none.
#[must_use]
pub fn last_rollback(kept: &[KeptSnapshot]) -> Option<Moment> {
    last_number(kept).map(Moment::Rollback)
}

/// Returns the moment of the next rollback.
#[must_use]
pub fn next_rollback(kept: &[KeptSnapshot]) -> Moment {
    Moment::Rollback(last_number(kept).unwrap_or(0).saturating_add(1))
}

fn last_number(kept: &[KeptSnapshot]) -> Option<u32> {
    let numbers = kept.iter().filter_map(|kept| match kept.moment {
        Moment::Rollback(number) => Some(number),
        Moment::Iteration(_) => None,
    });
    numbers.max()
}

/// Removes all references of a loop.
///
/// # Errors
/// Git fails, and no reference is removed.
pub fn delete_all(git: &Git, loop_id: LoopId) -> Result<(), GitError> {
    let cancel = CancelToken::new();
    let below = below(loop_id);
    let refs = refs_of(git, loop_id, &cancel)?.into_iter();
    let commands: String = refs
        .map(|(_, name)| format!("delete {below}/{name}\n"))
        .collect();
    update_refs(git, &commands, &cancel)
}

/// Prefix of references that a restore has renamed.
const BEFORE_RESTORE: &str = "before-restore-";

/// Renames the snapshots after iteration `last`, because a restored loop repeats the later iterations.
///
/// # Errors
/// Git fails, and no reference is renamed.
pub fn rename_later(git: &Git, loop_id: LoopId, last: u32) -> Result<(), GitError> {
    keep_as(git, loop_id, |name, commit| match name.parse() {
        Ok(Moment::Iteration(iteration)) if iteration > last => {
            Some(format!("delete {REFS}/{loop_id}/{iteration} {commit}\n"))
        }
        Ok(Moment::Iteration(_) | Moment::Rollback(_)) | Err(_) => None,
    })
}

/// Adds a second name to references that a bundle replaces. `theirs` are the references of the bundle: a commit and a name in
/// each line.
///
/// # Errors
/// Git fails, and no reference is added.
pub fn keep_replaced(git: &Git, loop_id: LoopId, theirs: &str) -> Result<(), GitError> {
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

/// Adds a second name to each reference for which `also` returns further `update-ref` commands.
fn keep_as(
    git: &Git,
    loop_id: LoopId,
    also: impl Fn(&str, &str) -> Option<String>,
) -> Result<(), GitError> {
    let cancel = CancelToken::new();
    let refs = refs_of(git, loop_id, &cancel)?;
    let number = |name: &str| {
        let (number, _) = name.strip_prefix(BEFORE_RESTORE)?.split_once('/')?;
        number.parse::<u32>().ok()
    };
    let taken = refs.iter().filter_map(|(_, name)| number(name)).max();
    let aside = taken.unwrap_or(0).saturating_add(1);
    let aside = format!("{}/{BEFORE_RESTORE}{aside}", below(loop_id));
    let mut commands = String::new();
    for (commit, name) in refs {
        if let Some(also) = also(&name, &commit) {
            commands.push_str(&format!("create {aside}/{name} {commit}\n{also}"));
        }
    }
    update_refs(git, &commands, &cancel)
}

/// Renames the snapshots after an iteration in the repository of a directory, if there is one.
///
/// # Errors
/// Git fails, or cannot use the repository.
pub fn rename_later_in(dir: &Path, loop_id: LoopId, last: u32) -> Result<(), String> {
    in_repository_of(dir, |git| rename_later(git, loop_id, last))
}

/// Removes all references of a loop from the repository of a directory, if there is one.
///
/// # Errors
/// Git fails, or cannot use the repository.
pub fn delete_all_in(dir: &Path, loop_id: LoopId) -> Result<(), String> {
    in_repository_of(dir, |git| delete_all(git, loop_id))
}

fn in_repository_of(
    dir: &Path,
    act: impl FnOnce(&Git) -> Result<(), GitError>,
) -> Result<(), String> {
    match Repository::find(dir, None, &CancelToken::new())? {
        Some(repository) => {
            act(&repository.git).map_err(|error| tachikoma_core::error_chain(&error))
        }
        None => Ok(()),
    }
}
