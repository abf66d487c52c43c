//! Commits the changes of the loop, and no others, with the user's git and hooks.

use std::collections::BTreeSet;
use std::time::Duration;

use super::change_owner::ChangeOwner;
use super::differences::Side;
use super::fingerprint::is_repository;
use super::head::verify;
use super::index::entries;
use super::intent::{clear_intent_to_add, mark_intent_to_add, undo_intent_to_add};
use super::path::{RepoPath, ancestors, at, join_nul, list, split_nul};
use super::program::{CancelToken, GitError};
use super::user_index::{CommitError, pathspecs, run_with_index_lock};
use super::work_tracker::{Survey, WorkTracker};

/// Files in the git directory during a merge, rebase or similar operation. The loop does not commit then.
const OPERATIONS: [(&str, &str); 7] = [
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("sequencer", "a cherry-pick or revert"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase"),
    ("BISECT_LOG", "a bisection"),
];

/// A commit that the loop made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Full object id of the commit.
    pub id: String,
    /// Number of files that the commit changed.
    pub files: usize,
    /// Names the files that a git hook added to the commit; `None` if there are none.
    pub warning: Option<String>,
}

/// Commits the changes of the loop that the last survey found. `None` if there are none. Blocks. `limit` is the timeout for git
/// and its hooks; `None` = no timeout.
///
/// # Errors
/// The commit failed, and nothing was committed.
pub fn commit(
    tracker: &mut WorkTracker,
    message: &str,
    limit: Option<Duration>,
    cancel: &CancelToken,
) -> Result<Option<Commit>, CommitError> {
    let mut files: Vec<RepoPath> = tracker
        .uncommitted()
        .filter(|path| tracker.head.dirty.contains_key(*path))
        .filter(|path| !tracker.loop_index.is_left_out(path.bytes()))
        .filter(|path| {
            !became_directory(tracker, path) && !is_below_replaced_directory(tracker, path)
        })
        .cloned()
        .collect();
    if files.is_empty() {
        return Ok(None);
    }
    if let Some(what) = operation_in_progress(tracker) {
        return Err(CommitError::InProgress { what });
    }
    drop_refused(tracker, &mut files, cancel)?;
    if files.is_empty() {
        return Ok(None);
    }
    let expected: BTreeSet<RepoPath> = tracker.uncommitted().cloned().collect();
    mark_intent_to_add(tracker, &files, cancel)?;
    let committed = commit_files(tracker, &files, message, limit, cancel);
    match committed {
        Ok(()) => after_commit(tracker, &files, &expected, cancel).map(Some),
        // The commit was made, and a later hook failed. If `was_made` fails, the next survey finds the commit.
        Err(_) if was_made(tracker, &files).unwrap_or(false) => {
            after_commit(tracker, &files, &expected, cancel).map(Some)
        }
        Err(error) => {
            // The user's index is restored even if the commit was canceled. If this fails, the next runner tries again.
            let _ = undo_intent_to_add(tracker, &CancelToken::new());
            tracker.accept_user_index();
            // A hook may have changed files. These changes belong to the loop. If this survey fails, the next one finds them.
            let surveyed = resurvey(tracker, cancel).is_ok();
            let nothing_left = surveyed
                && (are_clean(tracker, &files)
                    || matches!(error, CommitError::Nothing)
                        && are_clean_after_reset(tracker, &files, cancel));
            if nothing_left { Ok(None) } else { Err(error) }
        }
    }
}

/// Returns whether a directory replaced a file. Git cannot commit the removal of such a file by its path; it is committed with the
/// files in the directory.
fn became_directory(tracker: &WorkTracker, path: &RepoPath) -> bool {
    let there = tracker.loop_index.repository.top.join(path.as_path());
    let known = tracker.detector.known.as_ref();
    !known.is_some_and(|known| known.fingerprint.is_repository(path.bytes()))
        && there.symlink_metadata().is_ok_and(|there| there.is_dir())
}

/// Returns whether a path is below a directory that became a file or link. Its removal is committed with that file. Git would
/// follow the link to find the path.
fn is_below_replaced_directory(tracker: &WorkTracker, path: &RepoPath) -> bool {
    let top = &tracker.loop_index.repository.top;
    ancestors(path.bytes()).any(|above| {
        let there = at(top, above).symlink_metadata();
        there.is_ok_and(|there| !there.is_dir())
            && tracker.work.mine.contains(above)
            && !tracker.work.theirs.contains(above)
    })
}

/// Drops files that git would refuse, so that the others can be committed: new files that are ignored now, or are in a directory
/// that became a repository.
fn drop_refused(
    tracker: &mut WorkTracker,
    files: &mut Vec<RepoPath>,
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    let came = |path: &&RepoPath| tracker.head.dirty.get(*path).is_some_and(Side::is_nothing);
    let new: Vec<&RepoPath> = files.iter().filter(came).collect();
    let new_bytes = new.iter().map(|path| path.bytes());
    let mut refused = tracker.loop_index.ignored(new_bytes, cancel)?;
    let top = &tracker.loop_index.repository.top;
    let in_another = |path: &&&RepoPath| {
        ancestors(path.bytes())
            .any(|dir| is_repository(rustix::fs::CWD, at(top, dir).as_os_str().as_encoded_bytes()))
    };
    refused.extend(new.iter().filter(in_another).map(|path| (*path).clone()));
    if !refused.is_empty() {
        // An ignored file in the user's index was added by the user on purpose, so it is committed.
        let users = tracker.loop_index.user_entries(cancel)?;
        for entry in entries(&users) {
            refused.remove(entry.path);
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    files.retain(|path| !refused.contains(path));
    let names: Vec<&RepoPath> = refused.iter().collect();
    tracker.warnings.pending.push(format!(
        "files that git refuses to add (ignored, or in a nested repository) are not committed: {}",
        list(&names)
    ));
    tracker.forget_work_tree()?;
    resurvey(tracker, cancel)?;
    Ok(())
}

fn are_clean(tracker: &WorkTracker, files: &[RepoPath]) -> bool {
    !files
        .iter()
        .any(|path| tracker.head.dirty.contains_key(path))
}

/// Compares the files again with a new index, because their git attributes may have changed.
fn are_clean_after_reset(
    tracker: &mut WorkTracker,
    files: &[RepoPath],
    cancel: &CancelToken,
) -> bool {
    let surveyed = tracker
        .forget_work_tree()
        .and_then(|()| resurvey(tracker, cancel));
    surveyed.is_ok() && are_clean(tracker, files)
}

/// Runs a survey and stores its warnings for the next survey.
fn resurvey(tracker: &mut WorkTracker, cancel: &CancelToken) -> Result<Survey, GitError> {
    let mut survey = tracker.survey(ChangeOwner::Loop, cancel)?;
    tracker.warnings.pending.append(&mut survey.warnings);
    Ok(survey)
}

fn operation_in_progress(tracker: &WorkTracker) -> Option<&'static str> {
    let git_dir = &tracker.loop_index.repository.git_dir;
    let found = OPERATIONS
        .iter()
        .find(|(file, _)| git_dir.join(file).exists());
    found.map(|(_, what)| *what)
}

fn commit_files(
    tracker: &WorkTracker,
    files: &[RepoPath],
    message: &str,
    limit: Option<Duration>,
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    let pathspecs = pathspecs(files);
    let args =
        "commit --only --quiet --pathspec-from-file=- --pathspec-file-nul --cleanup=whitespace -m";
    let command = tracker.loop_index.repository.git.command(args);
    let command = command.arg(message).stdin(&pathspecs).timeout(limit);
    run_with_index_lock(tracker, &command.as_user(), cancel)
}

/// Returns whether HEAD is a new commit of these files.
fn was_made(tracker: &WorkTracker, files: &[RepoPath]) -> Result<bool, GitError> {
    let cancel = CancelToken::new();
    let git = &tracker.loop_index.repository.git;
    let head = verify(git, "HEAD^{commit}", &cancel)?;
    if head.is_none() || head == tracker.head.commit {
        return Ok(false);
    }
    if verify(git, "HEAD^1^{commit}", &cancel)? != tracker.head.commit {
        return Ok(false);
    }
    let committed = files_of(tracker, "HEAD", &cancel)?;
    Ok(files.iter().any(|path| committed.contains(path)))
}

/// Returns the files that a commit changed.
fn files_of(
    tracker: &WorkTracker,
    commit: &str,
    cancel: &CancelToken,
) -> Result<BTreeSet<RepoPath>, GitError> {
    let args = "diff-tree --root --no-commit-id --name-only --no-renames -r -z";
    let command = tracker.loop_index.repository.git.command(args);
    let output = command.arg(commit).stdout(cancel)?;
    Ok(split_nul(&output).map(RepoPath::new).collect())
}

/// Updates the tracker after a commit of `files`. `expected` are all files that the loop changed.
fn after_commit(
    tracker: &mut WorkTracker,
    files: &[RepoPath],
    expected: &BTreeSet<RepoPath>,
    cancel: &CancelToken,
) -> Result<Commit, CommitError> {
    clear_intent_to_add(tracker)?;
    // The commit changed the user's index, so this change needs no new scan.
    tracker.accept_user_index();
    let surveyed = resurvey(tracker, cancel);
    if surveyed.is_ok() && !are_clean(tracker, files) {
        // A hook changed these files, or their attributes changed. If this fails, the next survey fails, too.
        let _ = are_clean_after_reset(tracker, files, cancel);
    }
    if let Ok(survey) = &surveyed {
        follow_hook(tracker, files, &survey.changed, cancel);
    }
    let id = match (&surveyed, &tracker.head.commit) {
        (Ok(_), Some(id)) => id.clone(),
        // The commit exists even if the survey was canceled.
        (Ok(_) | Err(_), _) => {
            let git = &tracker.loop_index.repository.git;
            let head = verify(git, "HEAD^{commit}", &CancelToken::new())?;
            head.ok_or_else(|| GitError::unexpected("commit", "no commit"))?
        }
    };
    let Ok(committed) = files_of(tracker, &id, &CancelToken::new()) else {
        let (files, warning) = (files.len(), None);
        return Ok(Commit { id, files, warning });
    };
    let added: Vec<&RepoPath> = committed.difference(expected).collect();
    let warning = (!added.is_empty()).then(|| {
        let names = list(&added);
        format!("a git hook added files to the commit, which the loop did not change or has to leave out: {names}")
    });
    let files = committed.len();
    Ok(Commit { id, files, warning })
}

/// Updates the user's index with files that a hook changed and added to the commit. Git leaves the old content in the index.
fn follow_hook(
    tracker: &mut WorkTracker,
    files: &[RepoPath],
    changed: &[RepoPath],
    cancel: &CancelToken,
) {
    let clean = changed
        .iter()
        .filter(|path| files.contains(path) && !tracker.head.dirty.contains_key(*path));
    let paths = join_nul(clean.map(RepoPath::bytes));
    if paths.is_empty() {
        return;
    }
    let git = &tracker.loop_index.repository.git;
    let command = git.command("update-index --add --remove -z --stdin");
    // A failure is harmless: the next commit of these files updates the index.
    let _ = command.stdin(&paths).stdout(cancel);
    tracker.accept_user_index();
}
