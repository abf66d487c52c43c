//! The thread of the git worker. It owns the state of the work tree and runs one order after another.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use tachikoma_core::{AutocommitResult, Committed};
use tokio::sync::mpsc;

use super::{
    Commit, GitOrder, GitReply, GitWorkerOptions, RollbackFailure, RollbackOrder, SnapshotError,
    SnapshotTaken,
};
use crate::git::rollback::{PerformError, Rollback};
use crate::git::rollback_backup::RollbackBackup;
use crate::git::snapshots::{self, Moment};
use crate::git::{
    self, CancelToken, ChangeOwner, CommitError, GitError, PlainDirectory, PlainDirectoryError,
    RepoPath, Repository, TrackerOptions, WorkTracker, relative_to,
};
use tachikoma_core::error_chain as chain;

/// Maximum number of changed files that a record names. Further files are only counted.
const FILES_NAMED_MAX: usize = 20;

/// Maximum length of each file name in a record.
const FILE_NAME_BYTES_MAX: usize = 200;

/// Timeout of the survey after an iteration. It is independent of the commit timeout. Even a large tree on a slow disk needs less.
#[cfg(not(test))]
const SURVEY_TIMEOUT: Duration = Duration::from_secs(300);

/// The timeout is short in tests, so that they do not wait long.
#[cfg(test)]
const SURVEY_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of all steps of a rollback before the first file is changed: surveys of a large work tree on a slow disk. Together with the
/// change itself and the survey after it, this is less than the core's timeout.
const PLAN_TIMEOUT: Duration = Duration::from_secs(300);

/// Error message of a canceled commit.
const COMMIT_CANCELED: &str =
    "it was canceled; the changes stay in the work tree, and the next commit includes them";

/// The files that the worker surveys.
enum WorkTree {
    /// A repository.
    Tracked(TrackedTree),
    /// A directory that is not in a repository.
    Plain(Box<PlainDirectory>),
    /// No files, because they cannot be read.
    Unobserved,
}

/// A work tree in a repository.
struct TrackedTree {
    tracker: Box<WorkTracker>,
    /// The working directory of the loop.
    working_dir: PathBuf,
    /// Whether the loop itself made changes that no survey has covered yet.
    owes_survey: bool,
}

/// State of the thread that runs the git operations of a loop.
pub(super) struct GitThread {
    replies: mpsc::UnboundedSender<GitReply>,
}

impl GitThread {
    pub fn new(replies: mpsc::UnboundedSender<GitReply>) -> Self {
        Self { replies }
    }

    /// Executes git orders until all senders are dropped.
    pub fn serve(
        &self,
        options: GitWorkerOptions,
        owner: ChangeOwner,
        cancel: &CancelToken,
        waiting: &Receiver<GitOrder>,
    ) {
        let repository = options.tracker.clone();
        let mut tree = self.open(options, owner, cancel);
        self.reply(GitReply::Opened);
        for order in waiting {
            match order {
                GitOrder::Snapshot {
                    iteration,
                    only_survey,
                    cancel,
                } => {
                    let result = match &mut tree {
                        WorkTree::Tracked(tree) => {
                            self.take_snapshot(tree, iteration, only_survey, &cancel)
                        }
                        WorkTree::Plain(plain) => accept_changes(plain, &cancel),
                        WorkTree::Unobserved => Err(SnapshotError::Canceled),
                    };
                    self.reply(GitReply::Snapshot { iteration, result });
                }
                GitOrder::Commit {
                    number,
                    commit,
                    owner,
                    survey,
                    cancel,
                } => {
                    let result = match &mut tree {
                        WorkTree::Tracked(tree) => {
                            self.commit(tree, commit, owner, &survey, &cancel)
                        }
                        WorkTree::Plain(plain) => self.survey_plain(plain, &survey),
                        // Surveys fail, because the files cannot be read. A warning was recorded when the worker started.
                        WorkTree::Unobserved => Err("changes cannot be tracked here".to_owned()),
                    };
                    self.reply(GitReply::Committed { number, result });
                }
                GitOrder::RollBack { rollback, cancel } => {
                    let iteration = rollback.iteration;
                    let result = match (&mut tree, &repository) {
                        (WorkTree::Tracked(tree), Some(options)) => {
                            self.roll_back(tree, options, rollback, &cancel)
                        }
                        _ => Err("there is no repository to restore it from"
                            .to_owned()
                            .into()),
                    };
                    self.reply(GitReply::RolledBack { iteration, result });
                }
                GitOrder::OweSurvey => {
                    if let WorkTree::Tracked(tree) = &mut tree {
                        tree.owes_survey = true;
                    }
                }
                GitOrder::Settle { keep, cancel } => {
                    if let WorkTree::Tracked(tree) = &mut tree {
                        // Errors are ignored: an iteration without a reference has the snapshot before it. Leftover ones are harmless.
                        let _ = if keep {
                            git::write_pending_refs(&mut tree.tracker, &cancel)
                        } else {
                            git::delete_refs(&mut tree.tracker)
                        };
                    }
                }
            }
        }
    }

    /// Opens the repository. If there is none, surveys the plain files instead.
    fn open(
        &self,
        options: GitWorkerOptions,
        owner: ChangeOwner,
        cancel: &CancelToken,
    ) -> WorkTree {
        if let Some(tracker) = options.tracker {
            let why = match git::open(tracker, owner, cancel) {
                Ok(Some((tracker, survey))) => {
                    self.warn(survey.warnings);
                    return WorkTree::Tracked(TrackedTree {
                        tracker,
                        // The path must not have symbolic links, because git reports the top of the work tree without them.
                        working_dir: options.working_dir.canonicalize().unwrap_or_default(),
                        owes_survey: false,
                    });
                }
                // This is an error, because a repository is only requested if there is a `.git`.
                Ok(None) => "git finds no repository here".to_owned(),
                Err(reason) => reason,
            };
            self.reply(GitReply::NoRepository(why));
        }
        match PlainDirectory::open(&options.working_dir, &options.runtime_files, cancel) {
            Ok(plain) => WorkTree::Plain(Box::new(plain)),
            Err(error) => {
                self.reply(GitReply::NoChangeDetection(chain(&error)));
                WorkTree::Unobserved
            }
        }
    }

    fn reply(&self, reply: GitReply) {
        // The send fails if the actor was dropped, which does not matter.
        let _ = self.replies.send(reply);
    }

    fn warn(&self, warnings: Vec<String>) {
        for warning in warnings {
            self.reply(GitReply::Warning(warning));
        }
    }

    fn take_snapshot(
        &self,
        tree: &mut TrackedTree,
        iteration: u32,
        only_survey: bool,
        cancel: &CancelToken,
    ) -> Result<SnapshotTaken, SnapshotError> {
        if tree.owes_survey {
            self.survey(tree, ChangeOwner::Loop, cancel)?;
        }
        let commit = if only_survey {
            self.survey(tree, ChangeOwner::Others, cancel)?;
            None
        } else {
            let taken = git::snapshot(&mut tree.tracker, iteration, cancel)?;
            self.warn(taken.warnings);
            Some(taken.commit)
        };
        Ok(SnapshotTaken {
            commit,
            uncommitted: count(tree.tracker.left()),
        })
    }

    /// Surveys the work tree and attributes the changes since the last survey to `owner`.
    fn survey(
        &self,
        tree: &mut TrackedTree,
        owner: ChangeOwner,
        cancel: &CancelToken,
    ) -> Result<AutocommitResult, GitError> {
        let of_loop = owner != ChangeOwner::Others;
        tree.owes_survey |= of_loop;
        let survey = tree.tracker.survey(owner, cancel)?;
        tree.owes_survey &= !of_loop;
        self.warn(survey.warnings);
        Ok(AutocommitResult {
            changed: count(survey.changed.len()),
            files: first_names(
                &survey.changed,
                |path| tree.tracker.top().join(path.as_path()),
                &tree.working_dir,
            ),
            head_moved: survey.head_moved,
            uncommitted: count(survey.uncommitted),
            withheld: count(tree.tracker.withheld()),
            ..AutocommitResult::default()
        })
    }

    fn survey_plain(
        &self,
        plain: &mut PlainDirectory,
        cancel: &CancelToken,
    ) -> Result<AutocommitResult, String> {
        let surveyed = plain.find_changes(cancel);
        if let Err(error @ PlainDirectoryError::TooMany { .. }) = &surveyed {
            self.reply(GitReply::NoChangeDetection(chain(error)));
        }
        let changed = surveyed.map_err(|error| chain(&error))?;
        Ok(AutocommitResult {
            changed: count(changed.len()),
            files: first_names(&changed, |path| path.as_path().to_owned(), Path::new("")),
            ..AutocommitResult::default()
        })
    }

    fn commit(
        &self,
        tree: &mut TrackedTree,
        commit: Option<Commit>,
        owner: ChangeOwner,
        survey: &CancelToken,
        cancel: &CancelToken,
    ) -> Result<AutocommitResult, String> {
        let survey = survey.within(SURVEY_TIMEOUT);
        let owner = match tree.owes_survey {
            true => ChangeOwner::Loop,
            false => owner,
        };
        let before = tree.tracker.tree().to_owned();
        let surveyed = self.survey(tree, owner, &survey);
        let mut result = surveyed.map_err(|error| match survey.is_overdue() {
            true => format!(
                "the survey of the work tree took more than {} s; the next one includes the changes",
                SURVEY_TIMEOUT.as_secs()
            ),
            false => chain(&error),
        })?;
        let files = usize::try_from(result.changed).unwrap_or(usize::MAX);
        result.lines = git::lines_since(&tree.tracker, &before, files, &survey);
        let Some(commit) = commit.filter(|_| result.uncommitted > 0) else {
            return Ok(result);
        };
        match git::commit(&mut tree.tracker, &commit.message, commit.limit, cancel) {
            Ok(Some(made)) => {
                self.warn(made.warning.into_iter().collect());
                result.commit = Some(Committed {
                    id: made.id,
                    files: count(made.files),
                });
            }
            Ok(None) => {}
            Err(CommitError::Git(GitError::Canceled { .. })) => {
                result.error = Some(COMMIT_CANCELED.to_owned());
            }
            Err(error) => result.error = Some(chain(&error)),
        }
        result.uncommitted = count(tree.tracker.left());
        Ok(result)
    }

    /// Restores the work tree to its state before an iteration, after saving a snapshot of the present state. Can be canceled. If it fails, the
    /// changes
    /// of an earlier runner that died during the same rollback are undone too. Returns a note for the agent.
    fn roll_back(
        &self,
        tree: &mut TrackedTree,
        options: &TrackerOptions,
        rollback: RollbackOrder,
        cancel: &CancelToken,
    ) -> Result<String, RollbackFailure> {
        let begun =
            RollbackBackup::left_behind(&options.loop_dir, Moment::Iteration(rollback.iteration));
        let begun = match (begun, rollback.again) {
            (Some(stale), false) => {
                stale.remove();
                None
            }
            (begun, _) => begun,
        };
        let result = self.restore(tree, options, rollback, cancel);
        let Some(begun) = begun else {
            return result;
        };
        let result = match result {
            Ok(note) => Ok(note),
            Err(RollbackFailure::Unchanged(why) | RollbackFailure::Partial(why)) => {
                tree.owes_survey = true;
                match begun.put_back() {
                    Ok(()) => Err(RollbackFailure::Unchanged(format!(
                        "{why}; what was begun before the runner died is undone"
                    ))),
                    Err(error) => Err(RollbackFailure::Partial(format!(
                        "{why}; what was begun before the runner died could not be undone: {}",
                        chain(&error)
                    ))),
                }
            }
        };
        if !matches!(result, Err(RollbackFailure::Partial(_))) {
            begun.remove();
        }
        result
    }

    fn restore(
        &self,
        tree: &mut TrackedTree,
        options: &TrackerOptions,
        rollback: RollbackOrder,
        cancel: &CancelToken,
    ) -> Result<String, RollbackFailure> {
        let RollbackOrder { iteration, again } = rollback;
        let text = |error: &dyn std::error::Error| chain(error);
        let planning = cancel.within(PLAN_TIMEOUT);
        let unless_canceled = || match (planning.is_canceled(), planning.is_overdue()) {
            (false, _) => Ok(()),
            (true, false) => Err("it was canceled, and nothing was changed".to_owned()),
            (true, true) => Err(format!(
                "git took more than {} s to plan the rollback, and nothing was changed",
                PLAN_TIMEOUT.as_secs()
            )),
        };
        let or_canceled = |error: &dyn std::error::Error| match unless_canceled() {
            Ok(()) => text(error),
            Err(why) => why,
        };
        git::write_pending_refs(&mut tree.tracker, &planning)
            .map_err(|error| or_canceled(&error))?;
        // Changes that others made since the last survey do not belong to the loop. If a runner died during a rollback, its changes
        // cannot be distinguished from changes of others.
        let owner = if again {
            ChangeOwner::Loop
        } else {
            ChangeOwner::Others
        };
        self.survey(tree, owner, &planning)
            .map_err(|error| or_canceled(&error))?;
        let found = Repository::find(
            &options.working_dir,
            options.search_path.as_deref(),
            &planning,
        );
        unless_canceled()?;
        let repository =
            found?.ok_or("the working directory is not in a git repository".to_owned())?;
        let git = repository.git.clone();
        let taken = snapshots::list(&git, options.loop_id, &planning)
            .map_err(|error| or_canceled(&error))?;
        let snapshot = snapshots::resolve(&taken, Moment::Iteration(iteration))
            .ok_or_else(|| format!("there is no snapshot before iteration {iteration}"))?;
        let (dir, rules) = (&options.loop_dir, &options.rules);
        let plan = Rollback::plan(repository, dir, rules, snapshot, &planning)
            .map_err(|error| or_canceled(&error))?;
        let before = snapshots::last_rollback(&taken);
        match (plan.is_nothing(), again, before) {
            // The earlier runner completed the rollback, but died before it recorded it.
            (true, true, Some(before)) => {
                let name = snapshots::name(options.loop_id, before);
                return Ok(rolled_back_note(iteration, &name));
            }
            (true, _, _) => {
                let already =
                    format!("the work tree already equals its state before iteration {iteration}");
                return Err(already.into());
            }
            (false, _, _) => {}
        }
        let moment = snapshots::next_rollback(&taken);
        let name = plan
            .keep(options.loop_id, moment, &planning)
            .map_err(|error| or_canceled(&error))?;
        unless_canceled()?;
        // The rollback changes files from here on. The next survey must attribute these changes to the loop.
        tree.owes_survey = true;
        let performed = plan.perform(Moment::Iteration(iteration), cancel);
        performed.map_err(|error| match error {
            PerformError::NotBegun(_) => RollbackFailure::Unchanged(text(&error)),
            PerformError::Undone(_) => RollbackFailure::Unchanged(or_canceled(&error)),
            PerformError::Half { .. } => RollbackFailure::Partial(format!(
                "{}; the earlier content is saved as {name}",
                text(&error)
            )),
        })?;
        // The rollback succeeds even if this survey fails. The next survey then covers the changes.
        let survey = CancelToken::new().within(SURVEY_TIMEOUT);
        if let Err(error) = self.survey(tree, ChangeOwner::Loop, &survey) {
            self.warn(vec![format!(
                "the work tree was not surveyed after the rollback: {}",
                text(&error)
            )]);
        }
        Ok(match before.filter(|_| again) {
            // The rollback was repeated after a crash, so the earlier snapshot may contain a partial rollback. The note names both snapshots.
            Some(before) => rolled_back_note(
                iteration,
                &format!("{name} and {}", snapshots::name(options.loop_id, before)),
            ),
            None => rolled_back_note(iteration, &name),
        })
    }
}

/// Surveys changes that others made between two iterations, so that they are not attributed to the loop.
fn accept_changes(
    plain: &mut PlainDirectory,
    cancel: &CancelToken,
) -> Result<SnapshotTaken, SnapshotError> {
    match plain.find_changes(cancel) {
        Ok(_) => Ok(SnapshotTaken {
            commit: None,
            uncommitted: 0,
        }),
        // The error is reported by the survey after the iteration, where it has an effect.
        Err(_) => Err(SnapshotError::Canceled),
    }
}

/// Returns the text that tells the agent about a rollback.
fn rolled_back_note(iteration: u32, name: &str) -> String {
    format!(
        "The operator rolled the work tree back to its state before iteration {iteration}. The earlier content is saved as {name}."
    )
}

/// Returns the names of the first files, relative to a directory.
fn first_names(
    files: &[RepoPath],
    place: impl Fn(&RepoPath) -> PathBuf,
    dir: &Path,
) -> Vec<String> {
    let first = files.iter().take(FILES_NAMED_MAX);
    let names = first.map(|file| relative_to(dir, &place(file)));
    let cut = |mut name: String| {
        name.truncate(name.floor_char_boundary(FILE_NAME_BYTES_MAX));
        name
    };
    names.map(cut).collect()
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
