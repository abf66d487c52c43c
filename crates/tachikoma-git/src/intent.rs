//! Runs `git add --intent-to-add` for new files before a commit, and undoes it if the commit fails. No other entry of the user's
//! index is changed, because the user may have staged files meanwhile.

use std::collections::{BTreeSet, HashSet};

use super::differences::Side;
use super::index::entries;
use super::path::{RepoPath, ancestors, join_nul};
use super::program::{CancelToken, GitError};
use super::user_index::{CommitError, pathspecs, run_with_index_lock};
use super::work_record::Displaced;
use super::work_tracker::WorkTracker;

/// Runs `git add --intent-to-add` for the files that are not in the user's index.
pub fn mark_intent_to_add(
    tracker: &mut WorkTracker,
    files: &[RepoPath],
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    let came = |path: &&RepoPath| tracker.head.dirty.get(*path).is_some_and(Side::is_nothing);
    let mut new: Vec<RepoPath> = files.iter().filter(came).cloned().collect();
    if new.is_empty() {
        return Ok(());
    }
    let users = tracker.loop_index.user_entries(cancel)?;
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
        // Git may have written the index before it was killed. If the undo fails, the next runner tries again.
        let _ = undo_intent_to_add(tracker, &CancelToken::new());
    }
    made
}

fn make_known(
    tracker: &WorkTracker,
    new: &[RepoPath],
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    let repository = &tracker.loop_index.repository;
    let pathspecs = pathspecs(new);
    let args = "add --intent-to-add --pathspec-from-file=- --pathspec-file-nul";
    let mut command = repository.git.command(args).stdin(&pathspecs);
    if repository.git_dir.join("info/sparse-checkout").exists() {
        // The loop wrote a file outside of the sparse checkout, which git adds only with `--sparse`.
        command = command.arg("--sparse");
    }
    run_with_index_lock(tracker, &command.as_user(), cancel)
}

/// Records that the user's index has no intent-to-add entry of the loop.
pub fn clear_intent_to_add(tracker: &mut WorkTracker) -> Result<(), GitError> {
    if tracker.work.intended.is_empty() {
        return Ok(());
    }
    tracker.work.intended.clear();
    tracker.work.displaced.clear();
    tracker.work.write(&tracker.work_path)
}

/// Removes the intent-to-add entries that a failed commit left in the user's index. Entries that were committed are updated.
pub fn undo_intent_to_add(
    tracker: &mut WorkTracker,
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    if tracker.work.intended.is_empty() {
        return Ok(());
    }
    let intended: Vec<&RepoPath> = tracker.work.intended.iter().collect();
    let left = tracker.loop_index.intent_to_add_only(&intended, cancel)?;
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
        let paths = join_nul(paths.into_iter().map(RepoPath::bytes));
        if !paths.is_empty() {
            // Git requires `--stdin` to be the last argument.
            let command = git
                .command("update-index")
                .arg(word)
                .arg("-z")
                .arg("--stdin");
            run_with_index_lock(tracker, &command.stdin(&paths), cancel)?;
        }
    }
    if !back.is_empty() {
        let command = git.command("update-index -z --index-info");
        run_with_index_lock(tracker, &command.stdin(&back), cancel)?;
    }
    clear_intent_to_add(tracker)?;
    Ok(())
}

/// Finds the index entries that new files replace, because a directory became a file or a file became a directory.
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

/// Returns whether one path is an ancestor directory of the other, so that both cannot be files in one index.
fn exclude_each_other(one: &RepoPath, other: &RepoPath) -> bool {
    let is_above = |above: &RepoPath, below: &RepoPath| {
        ancestors(below.bytes()).any(|dir| dir == above.bytes())
    };
    is_above(one, other) || is_above(other, one)
}
