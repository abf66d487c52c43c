//! New files are made known to git before a commit can name them, and unknown again if it fails. No other entry of the user's
//! index is touched: somebody else may have staged something meanwhile.

use std::collections::{BTreeSet, HashSet};

use super::differences::Side;
use super::index::entries;
use super::path::{RepoPath, ancestors, ended_by_nul};
use super::program::{CancelToken, GitError};
use super::user_index::{CommitError, locking, specs};
use super::work_record::Displaced;
use super::work_tracker::WorkTracker;

/// Makes those of the files known that are not.
pub fn intend(
    tracker: &mut WorkTracker,
    files: &[RepoPath],
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    let came = |path: &&RepoPath| tracker.dirty.get(*path).is_some_and(Side::is_nothing);
    let mut new: Vec<RepoPath> = files.iter().filter(came).cloned().collect();
    if new.is_empty() {
        return Ok(());
    }
    let users = tracker.loop_index.users_entries(cancel)?;
    let known: HashSet<&[u8]> = entries(&users).map(|entry| entry.path).collect();
    new.retain(|path| !known.contains(path.bytes()));
    if new.is_empty() {
        return Ok(());
    }
    tracker.work.intended = new.iter().cloned().collect();
    tracker.work.displaced = displaced(&users, &tracker.work.intended);
    tracker.work.write(&tracker.work_path)?;
    let made = make_known(tracker, &new, cancel);
    if made.is_err() {
        // It may have written the index before it was ended. If this fails, the next runner tries it.
        let _ = take_back_intended(tracker, &CancelToken::new());
    }
    made
}

fn make_known(
    tracker: &WorkTracker,
    new: &[RepoPath],
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    let repository = &tracker.loop_index.repository;
    let specs = specs(new);
    let mut words = vec!["add", "--intent-to-add", "--pathspec-from-file=-"];
    words.push("--pathspec-file-nul");
    if repository.git_dir.join("info/sparse-checkout").exists() {
        // Who asks for a sparse work tree and then writes outside of it means it.
        words.push("--sparse");
    }
    let order = repository.git.order(&words).stdin(&specs);
    locking(tracker, &order.in_the_users_name(), cancel)
}

/// Nothing is intended any more.
pub fn forget_intended(tracker: &mut WorkTracker) -> Result<(), GitError> {
    if tracker.work.intended.is_empty() {
        return Ok(());
    }
    tracker.work.intended.clear();
    tracker.work.displaced.clear();
    tracker.work.write(&tracker.work_path)
}

/// Makes files unknown that a commit has left known which was not made. Those that it has after all are taken for what they are.
pub fn take_back_intended(
    tracker: &mut WorkTracker,
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    if tracker.work.intended.is_empty() {
        return Ok(());
    }
    let intended: Vec<&RepoPath> = tracker.work.intended.iter().collect();
    let left = tracker.loop_index.only_intended(&intended, cancel)?;
    let committed = tracker.loop_index.committed(&left, cancel)?;
    let (there, unknown): (Vec<&RepoPath>, Vec<&RepoPath>) =
        left.into_iter().partition(|path| committed.contains(*path));
    let git = &tracker.loop_index.repository.git;
    let mut back = Vec::new();
    for entry in &tracker.work.displaced {
        if unknown
            .iter()
            .any(|path| exclude_each_other(path, &entry.path))
        {
            back.extend_from_slice(format!("{} {}\t", entry.mode, entry.object).as_bytes());
            back.extend_from_slice(entry.path.bytes());
            back.push(0);
        }
    }
    for (word, paths) in [("--force-remove", unknown), ("--add", there)] {
        let paths = ended_by_nul(paths.into_iter().map(RepoPath::bytes));
        if !paths.is_empty() {
            let order = git.order(&["update-index", word, "-z", "--stdin"]);
            locking(tracker, &order.stdin(&paths), cancel)?;
        }
    }
    if !back.is_empty() {
        let order = git.order(&["update-index", "-z", "--index-info"]);
        locking(tracker, &order.stdin(&back), cancel)?;
    }
    forget_intended(tracker)?;
    Ok(())
}

/// Finds the entries of an index that files take the place of.
fn displaced(users: &[u8], new: &BTreeSet<RepoPath>) -> Vec<Displaced> {
    let above_new: HashSet<&[u8]> = new
        .iter()
        .flat_map(|path| ancestors(path.bytes()))
        .collect();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    entries(users)
        .filter(|entry| {
            above_new.contains(entry.path) || ancestors(entry.path).any(|above| new.contains(above))
        })
        .map(|entry| Displaced {
            mode: text(entry.mode),
            object: text(entry.object),
            path: RepoPath::new(entry.path),
        })
        .collect()
}

/// Whether one would have to be a directory for the other to be there.
fn exclude_each_other(one: &RepoPath, other: &RepoPath) -> bool {
    let is_above = |above: &RepoPath, below: &RepoPath| {
        ancestors(below.bytes()).any(|dir| dir == above.bytes())
    };
    is_above(one, other) || is_above(other, one)
}
