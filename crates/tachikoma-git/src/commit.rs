//! Commits of what the loop changed, by the user's own git with its hooks, and of nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use super::change_owner::ChangeOwner;
use super::differences::Side;
use super::fingerprint::What;
use super::head::verify;
use super::index::entries;
use super::intent::{forget_intended, intend, take_back_intended};
use super::path::{RepoPath, ancestors, at, ended_by_nul, list, parts};
use super::program::{CancelToken, GitError};
use super::user_index::{CommitError, locking, specs};
use super::walk::is_nested;
use super::work_tracker::{Survey, WorkTracker};

/// What is in the repository's own directory while something is under way that a commit would end up in.
const UNDERWAY: [(&str, &str); 7] = [
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("sequencer", "a cherry-pick or revert"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase"),
    ("BISECT_LOG", "a bisection"),
];

/// A commit that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its full name.
    pub id: String,
    /// How many files it changed.
    pub files: usize,
}

/// Commits what the loop changed and has not committed, as of the last survey; none if there is nothing. Blocks; `limit` is
/// for git and the hooks it runs, none is for as long as they like.
///
/// # Errors
/// Nothing was committed.
pub fn commit(
    tracker: &mut WorkTracker,
    message: &str,
    limit: Option<Duration>,
    cancel: &CancelToken,
) -> Result<Option<Commit>, CommitError> {
    let mut files: Vec<RepoPath> = tracker
        .uncommitted()
        .filter(|path| tracker.dirty.contains_key(*path))
        .filter(|path| !tracker.loop_index.leaves_out(path.bytes()))
        .filter(|path| !became_directory(tracker, path) && !is_behind_file(tracker, path))
        .cloned()
        .collect();
    if files.is_empty() {
        return Ok(None);
    }
    if let Some(what) = underway(tracker) {
        return Err(CommitError::Underway { what });
    }
    drop_refused(tracker, &mut files, cancel)?;
    if files.is_empty() {
        return Ok(None);
    }
    intend(tracker, &files, cancel)?;
    let committed = commit_files(tracker, &files, message, limit, cancel);
    match committed {
        Ok(()) => after_commit(tracker, &files, cancel).map(Some),
        // What was cut was a hook behind it. If this cannot be found out, the next survey sees the commit.
        Err(_) if was_made(tracker, &files).unwrap_or(false) => {
            after_commit(tracker, &files, cancel).map(Some)
        }
        Err(error) => {
            // Whoever called off the commit still wants the index to be what it was. If this fails, the next runner tries it.
            let _ = take_back_intended(tracker, &CancelToken::new());
            tracker
                .watched
                .follow_users_index(&tracker.loop_index.repository);
            // A hook may have changed files, and that is the loop's doing. If this fails too, the next survey sees them.
            let looked = look_again(tracker, cancel).is_ok();
            let over = looked
                && (are_clean(tracker, &files)
                    || matches!(error, CommitError::Nothing)
                        && are_clean_anew(tracker, &files, cancel));
            if over { Ok(None) } else { Err(error) }
        }
    }
}

/// Git commits no file by name that became a directory: its end comes with what is in there.
fn became_directory(tracker: &WorkTracker, path: &RepoPath) -> bool {
    let there = tracker.loop_index.repository.top.join(path.as_path());
    let known = tracker.known.as_ref();
    let known = known.and_then(|known| known.root.at(path.bytes()));
    !matches!(known, Some(What::Submodule(_)))
        && there.symlink_metadata().is_ok_and(|there| there.is_dir())
}

/// What was in a directory that became a link or a file goes with what comes in its place. By name git would look for it
/// behind the link.
fn is_behind_file(tracker: &WorkTracker, path: &RepoPath) -> bool {
    let top = &tracker.loop_index.repository.top;
    ancestors(path.bytes()).any(|above| {
        let there = at(top, above).symlink_metadata();
        there.is_ok_and(|there| !there.is_dir())
            && tracker.work.mine.contains(above)
            && !tracker.work.theirs.contains(above)
    })
}

/// Takes out what git will not take, so that it does not keep the rest from being committed: new files that are ignored by
/// now, or in a directory that became a repository of its own.
fn drop_refused(
    tracker: &mut WorkTracker,
    files: &mut Vec<RepoPath>,
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    let came = |path: &&RepoPath| tracker.dirty.get(*path).is_some_and(Side::is_nothing);
    let new: Vec<&RepoPath> = files.iter().filter(came).collect();
    let new_bytes = new.iter().map(|path| path.bytes());
    let mut refused = tracker.loop_index.ignored(new_bytes, true, cancel)?;
    let top = &tracker.loop_index.repository.top;
    let in_another = |path: &&&RepoPath| {
        ancestors(path.bytes())
            .any(|dir| is_nested(rustix::fs::CWD, at(top, dir).as_os_str().as_encoded_bytes()))
    };
    refused.extend(new.iter().filter(in_another).map(|path| (*path).clone()));
    if !refused.is_empty() {
        // Who has added an ignored file means it.
        let users = tracker.loop_index.users_entries(cancel)?;
        for entry in entries(&users) {
            refused.remove(entry.path);
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    files.retain(|path| !refused.contains(path));
    let names: Vec<&RepoPath> = refused.iter().collect();
    tracker.unsaid.push(format!(
        "not committed, because git does not take it any more (ignored, or in a repository of its own): {}",
        list(&names)
    ));
    forget_work_tree(tracker)?;
    look_again(tracker, cancel)?;
    Ok(())
}

fn are_clean(tracker: &WorkTracker, files: &[RepoPath]) -> bool {
    !files.iter().any(|path| tracker.dirty.contains_key(path))
}

/// The same as git sees it now: attributes may have changed since a file was taken in, and with them what it comes to.
fn are_clean_anew(tracker: &mut WorkTracker, files: &[RepoPath], cancel: &CancelToken) -> bool {
    let looked = forget_work_tree(tracker).and_then(|()| look_again(tracker, cancel));
    looked.is_ok() && are_clean(tracker, files)
}

/// Makes the next survey look at everything anew, as the user's index has it.
fn forget_work_tree(tracker: &mut WorkTracker) -> Result<(), GitError> {
    tracker.known = None;
    tracker.index_mark = None;
    tracker.loop_index.drop_index()
}

/// Surveys for itself; what there is to say is left to the next one.
fn look_again(tracker: &mut WorkTracker, cancel: &CancelToken) -> Result<Survey, GitError> {
    let mut survey = tracker.survey(ChangeOwner::Loop, cancel)?;
    tracker.unsaid.append(&mut survey.warnings);
    Ok(survey)
}

fn underway(tracker: &WorkTracker) -> Option<&'static str> {
    let git_dir = &tracker.loop_index.repository.git_dir;
    let found = UNDERWAY
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
    let specs = specs(files);
    let words = [
        "commit",
        "--only",
        "--quiet",
        "--pathspec-from-file=-",
        "--pathspec-file-nul",
        "--cleanup=whitespace",
        "-m",
        message,
    ];
    let git = &tracker.loop_index.repository.git;
    let order = git.order(&words).stdin(&specs).limit(limit);
    locking(tracker, &order.in_the_users_name(), cancel)
}

/// Whether the work tree stands on a commit of these files that was not there before.
fn was_made(tracker: &WorkTracker, files: &[RepoPath]) -> Result<bool, GitError> {
    let cancel = CancelToken::new();
    let git = &tracker.loop_index.repository.git;
    let head = verify(git, "HEAD^{commit}", &cancel)?;
    if head.is_none() || head == tracker.head {
        return Ok(false);
    }
    if verify(git, "HEAD^1^{commit}", &cancel)? != tracker.head {
        return Ok(false);
    }
    let committed = files_of(tracker, "HEAD", &cancel)?;
    Ok(files.iter().any(|path| committed.contains(path)))
}

/// The files that a commit changed.
fn files_of(
    tracker: &WorkTracker,
    commit: &str,
    cancel: &CancelToken,
) -> Result<BTreeSet<RepoPath>, GitError> {
    let words = [
        "diff-tree",
        "--root",
        "--no-commit-id",
        "--name-only",
        "--no-renames",
        "-r",
        "-z",
        commit,
    ];
    let answer = tracker
        .loop_index
        .repository
        .git
        .order(&words)
        .ask(cancel)?;
    Ok(parts(&answer).map(RepoPath::new).collect())
}

/// What is to be known after a commit.
fn after_commit(
    tracker: &mut WorkTracker,
    files: &[RepoPath],
    cancel: &CancelToken,
) -> Result<Commit, CommitError> {
    forget_intended(tracker)?;
    // Its own changes of the user's index are no news.
    tracker
        .watched
        .follow_users_index(&tracker.loop_index.repository);
    let uncommitted = tracker.dirty.len();
    let surveyed = look_again(tracker, cancel);
    // Then the commit has them and nothing else.
    let is_plain = surveyed
        .as_ref()
        .is_ok_and(|survey| survey.changed.is_empty())
        && are_clean(tracker, files)
        && uncommitted == tracker.dirty.len() + files.len();
    if surveyed.is_ok() && !are_clean(tracker, files) {
        // A hook changed them, or they were taken in by other attributes than the commit. If this fails, so will the next.
        let _ = are_clean_anew(tracker, files, cancel);
    }
    if let Ok(survey) = &surveyed {
        follow_hook(tracker, files, &survey.changed, cancel);
    }
    let id = match (&surveyed, &tracker.head) {
        (Ok(_), Some(id)) => id.clone(),
        // Whoever called off wants to go on, and the commit is there all the same.
        (Ok(_) | Err(_), _) => {
            let git = &tracker.loop_index.repository.git;
            verify(git, "HEAD^{commit}", &CancelToken::new())?.ok_or(GitError::Odd {
                what: "commit",
                answer: "nothing that can be found".to_owned(),
            })?
        }
    };
    let mut count = files.len();
    if !is_plain && let Ok(changed) = files_of(tracker, &id, &CancelToken::new()) {
        count = changed.len();
    }
    Ok(Commit { id, files: count })
}

/// What a hook changes and adds goes into the commit, but git leaves the user's index with what was there before: as if
/// somebody had staged to undo it.
fn follow_hook(
    tracker: &mut WorkTracker,
    files: &[RepoPath],
    changed: &[RepoPath],
    cancel: &CancelToken,
) {
    let clean = changed
        .iter()
        .filter(|path| files.contains(path) && !tracker.dirty.contains_key(*path));
    let paths = ended_by_nul(clean.map(RepoPath::bytes));
    if paths.is_empty() {
        return;
    }
    let git = &tracker.loop_index.repository.git;
    let order = git.order(&["update-index", "--add", "--remove", "-z", "--stdin"]);
    // Of no harm to the work if it fails: the next commit of these files puts it right.
    let _ = order.stdin(&paths).ask(cancel);
    tracker
        .watched
        .follow_users_index(&tracker.loop_index.repository);
}
