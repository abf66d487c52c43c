//! Tracks the work of a loop. Each survey finds the changes since the last survey, and which of them the loop made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tachikoma_core::LoopId;
use tachikoma_runtime::clock;

use super::change_owner::{Before, ChangeOwner, Since, attribute};
use super::differences::{Differences, Dirty, differences, empty_tree, follow};
use super::head::{self, head_stamp};
use super::index::{Changes, LeftOut, LeftOutReason, LoopIndex};
use super::known_tree::KnownTree;
use super::path::{RepoPath, list};
use super::program::{CancelToken, GitError};
use super::repository::Repository;
use super::stamp::stamp_of;
use super::work_record::WorkRecord;

/// Result of a survey.
#[derive(Debug, Default)]
pub struct Survey {
    /// The files that were added, changed or removed since the last survey, sorted.
    pub changed: Vec<RepoPath>,
    /// Number of files that the loop changed and has not committed.
    pub uncommitted: usize,
    /// Whether HEAD is a commit with other content than at the last survey.
    pub head_moved: bool,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Tracks and commits the work of a loop in its repository.
#[derive(Debug)]
pub struct WorkTracker {
    pub(crate) loop_id: LoopId,
    pub(crate) loop_index: LoopIndex,
    pub(crate) work_path: PathBuf,
    pub(crate) work: WorkRecord,
    /// Whether there is no usable record of the last runner, so that all uncommitted files belong to others.
    pub(crate) fresh: bool,
    /// When the last survey of this runner began, in nanoseconds of the clock for file times; `None` before the first one.
    pub(crate) surveyed: Option<i64>,
    pub(crate) detector: Detector,
    pub(crate) head: HeadState,
    pub(crate) warnings: Warnings,
    pub(crate) refs: SnapshotRefs,
}

/// State of the change detection.
#[derive(Debug, Default)]
pub struct Detector {
    /// The work tree as the last survey found it; `None` if the whole work tree has to be read again.
    pub known: Option<KnownTree>,
    /// Stamp of the loop's index when it was last written; `None` before that.
    pub index_stamp: Option<u64>,
    /// Protected files that changed and are not reported yet.
    pub protected_changed: Vec<RepoPath>,
    /// Paths of ignore files outside of the work tree.
    ignore_files: Vec<PathBuf>,
    stamps: Stamps,
}

/// Stamps of files outside of the work tree that a survey depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stamps {
    head: u64,
    user_index: u64,
    ignore_files: Vec<u64>,
}

/// The commit that is checked out, and how the work tree differs from it.
#[derive(Debug, Default)]
pub struct HeadState {
    /// The commit of HEAD; `None` on a branch without commits.
    pub commit: Option<String>,
    /// Id of a tree with the same content as the commit; `None` if not known.
    pub equal_tree: Option<String>,
    /// The files that differ from the commit.
    pub dirty: Dirty,
    /// Whether `dirty` was computed for this commit.
    pub dirty_is_current: bool,
    /// Whether the work tree was compared with the commit yet.
    pub compared: bool,
}

/// Warnings about files. Each file is named in one warning only.
#[derive(Debug, Default)]
pub struct Warnings {
    /// Files that were named in a warning already.
    pub reported: BTreeSet<RepoPath>,
    /// Warnings that the next survey returns.
    pub pending: Vec<String>,
}

impl Warnings {
    /// Lists the files that were not named in a warning yet, as text; `None` if there are none.
    fn list_new<'a>(&mut self, files: impl Iterator<Item = &'a RepoPath>) -> Option<String> {
        let mut new: Vec<_> = files
            .filter(|path| self.reported.insert((*path).clone()))
            .collect();
        new.sort();
        (!new.is_empty()).then(|| list(&new))
    }
}

/// References of the loop's snapshots.
#[derive(Debug, Default)]
pub struct SnapshotRefs {
    /// Iterations that use the last snapshot and have no reference yet.
    pub pending: BTreeSet<u32>,
    /// Whether the commit of the last snapshot is known to exist.
    pub commit_verified: bool,
    /// Iterations that have references; `None` before git was asked.
    pub existing: Option<BTreeSet<u32>>,
}

impl Detector {
    pub fn new(repository: &Repository, cancel: &CancelToken) -> Result<Self, GitError> {
        let mut ignore_files = vec![repository.common_dir.join("info/exclude")];
        let args = "config --type=path --default ~/.config/git/ignore --get core.excludesFile";
        let output = repository.git.command(args).run(cancel)?;
        if output.code == Some(0) {
            let line = output.stdout.strip_suffix(b"\n").unwrap_or(&output.stdout);
            ignore_files.push(repository.top.join(RepoPath::new(line).as_path()));
        }
        Ok(Self {
            ignore_files,
            ..Self::default()
        })
    }

    fn read_stamps(&self, repository: &Repository) -> Stamps {
        let ignore_files = self.ignore_files.iter();
        Stamps {
            head: head_stamp(&repository.git_dir, &repository.common_dir),
            user_index: stamp_of(&repository.index),
            ignore_files: ignore_files.map(|file| stamp_of(file)).collect(),
        }
    }
}

impl WorkTracker {
    /// Returns the number of files that the loop changed and has not committed.
    #[must_use]
    pub fn left(&self) -> usize {
        self.uncommitted().count()
    }

    /// Returns the number of files that the loop changed and does not commit, because others had changed them before.
    #[must_use]
    pub fn withheld(&self) -> usize {
        self.work.withheld.len()
    }

    /// Returns the top of the work tree.
    #[must_use]
    pub fn top(&self) -> &Path {
        &self.loop_index.repository.top
    }

    /// Returns the id of the git tree that the last survey wrote.
    #[must_use]
    pub fn tree(&self) -> &str {
        &self.work.tree
    }

    /// Finds the changes since the last survey. Starts no process if nothing changed. Blocks.
    ///
    /// # Errors
    /// Git fails or is canceled. The next survey finds the same changes.
    pub fn survey(&mut self, owner: ChangeOwner, cancel: &CancelToken) -> Result<Survey, GitError> {
        let surveyed = match self.try_survey(owner, cancel) {
            Err(error) if !error.is_final() => {
                // The loop's index may be damaged, or an object in it is missing, so the survey is repeated with a new index.
                self.detector.known = None;
                self.loop_index.drop_index()?;
                self.try_survey(owner, cancel)
            }
            surveyed => surveyed,
        };
        if surveyed.is_err() {
            // The detector may have noticed changes that are not in the index yet.
            self.detector.known = None;
        }
        surveyed
    }

    fn try_survey(&mut self, owner: ChangeOwner, cancel: &CancelToken) -> Result<Survey, GitError> {
        // The stamps are read before the work tree, so that the next survey notices changes that are made meanwhile.
        let stamps = self.detector.read_stamps(&self.loop_index.repository);
        let began = clock::file_time();
        self.check_index()?;
        let mut survey = Survey::default();
        let head_may_differ = stamps.head != self.detector.stamps.head;
        let since = |before| Since {
            owner,
            before,
            began,
        };
        if let Some((changes, before)) = self.find_changes(&stamps, cancel)? {
            let left_out = self.loop_index.add_changes(&changes, cancel)?;
            self.warn_left_out(&left_out, &mut survey);
            let tree = self.loop_index.write_tree(cancel)?;
            self.loop_index.keep_index_private();
            self.detector.index_stamp = Some(stamp_of(&self.loop_index.index));
            let head_moved = head_may_differ && self.read_head(cancel)?;
            self.compare(tree, head_moved, &since(before), &mut survey, cancel)?;
            self.attribute_left_out(&left_out, owner)?;
        } else if head_may_differ && self.read_head(cancel)? {
            let tree = self.work.tree.clone();
            self.compare(tree, true, &since(Before::SameRules), &mut survey, cancel)?;
        }
        self.warn_protected(owner, &mut survey);
        self.detector.stamps = stamps;
        self.surveyed = Some(began);
        survey.uncommitted = self.uncommitted().count();
        survey.warnings.append(&mut self.warnings.pending);
        Ok(survey)
    }

    /// Forces a full read of the work tree if the loop's index was removed or replaced.
    fn check_index(&mut self) -> Result<(), GitError> {
        let now = stamp_of(&self.loop_index.index);
        if self.detector.index_stamp.is_some_and(|stamp| stamp != now) {
            self.forget_work_tree()?;
        }
        Ok(())
    }

    /// Makes the next survey read the whole work tree again.
    pub fn forget_work_tree(&mut self) -> Result<(), GitError> {
        self.detector.known = None;
        self.detector.index_stamp = None;
        self.loop_index.drop_index()
    }

    /// Finds the files that may have changed. `None` if nothing changed.
    fn find_changes(
        &mut self,
        now: &Stamps,
        cancel: &CancelToken,
    ) -> Result<Option<(Changes, Before)>, GitError> {
        let before = &self.detector.stamps;
        let same_rules = now.ignore_files == before.ignore_files;
        let same_index = now.user_index == before.user_index;
        let same_head = now.head == before.head;
        let mut known = self.detector.known.take();
        // A commit makes room in the budget for new files.
        let is_usable =
            |known: &&mut KnownTree| same_rules && same_index && (same_head || !known.over_budget);
        if let Some(usable) = known.as_mut().filter(is_usable)
            && let Some(mut changes) = usable.update(&self.loop_index, cancel)?
        {
            self.detector.known = known;
            let protected_changed = &mut self.detector.protected_changed;
            protected_changed.append(&mut changes.protected);
            return Ok(Some((changes, Before::SameRules)).filter(|(found, _)| !found.is_empty()));
        }
        let (tree, changes) = KnownTree::read(&self.loop_index, cancel)?;
        self.detector.known = Some(tree);
        let since = self.surveyed.or(self.work.surveyed);
        let before = match known {
            Some(known) if known.rules_changed || !same_rules => Before::OtherRules {
                hidden: known.hidden,
                since,
            },
            // The user's index changed. If the user added an ignored file, it is included in commits.
            Some(_) => Before::SameRules,
            None => Before::Unknown { since },
        };
        Ok(Some((changes, before)))
    }

    /// Reads HEAD. Returns whether the work tree has to be compared with it again.
    fn read_head(&mut self, cancel: &CancelToken) -> Result<bool, GitError> {
        let commit = head::commit(&self.loop_index.repository, cancel)?;
        if commit != self.head.commit {
            self.head.commit = commit;
            self.head.dirty_is_current = false;
        }
        // HEAD is unchanged, but the last survey may have failed before it compared the work tree with HEAD.
        Ok(!self.head.dirty_is_current)
    }

    /// Finds the changed and the uncommitted files, and the owner of each change.
    fn compare(
        &mut self,
        tree: String,
        head_moved: bool,
        since: &Since,
        survey: &mut Survey,
        cancel: &CancelToken,
    ) -> Result<(), GitError> {
        let was_compared = self.head.compared;
        if tree == self.work.tree && !head_moved && was_compared {
            return Ok(());
        }
        let known = !self.fresh && !self.work.tree.is_empty() && tree != self.work.tree;
        let changed = match known {
            true => differences(&self.loop_index, &self.work.tree, &tree, cancel),
            false => Ok(Differences::default()),
        };
        // The tree of the last survey may be missing in the repository. Then the changes since are unknown.
        let (changed, lost) = match changed {
            Ok(changed) => (changed.files, false),
            Err(error) if error.is_final() => return Err(error),
            Err(_) => (BTreeMap::new(), true),
        };
        let (dirty, equal_tree) = if head_moved || lost || !was_compared {
            let commit = self.head.commit.as_deref();
            let commit = commit.unwrap_or_else(|| empty_tree(&tree));
            let from_head = differences(&self.loop_index, commit, &tree, cancel)?;
            let equal_tree = from_head.none.then(|| tree.clone());
            (from_head.uncommitted(), equal_tree)
        } else {
            let dirty = follow(&self.head.dirty, &changed);
            (dirty, self.head.equal_tree.clone())
        };
        // An empty commit does not count as a moved HEAD, because the same files stay uncommitted.
        survey.head_moved =
            head_moved && was_compared && (lost || dirty != follow(&self.head.dirty, &changed));
        // The state in memory changes only after the record is written, so that a failed survey can be repeated.
        let mut work = self.work.clone();
        work.tree = tree;
        work.surveyed = Some(since.began);
        if self.fresh {
            work.theirs.extend(dirty.keys().cloned());
        }
        let top = &self.loop_index.repository.top;
        let not_ours = attribute(&mut work, top, &changed, &dirty, since);
        if work != self.work {
            work.write(&self.work_path)?;
        }
        self.work = work;
        self.fresh = false;
        self.head.dirty = dirty;
        self.head.equal_tree = equal_tree;
        self.head.dirty_is_current = true;
        self.head.compared = true;
        self.warn_not_committed(&not_ours, survey);
        survey.changed = changed.into_keys().collect();
        Ok(())
    }

    fn warn_left_out(&mut self, left_out: &[LeftOut], survey: &mut Survey) {
        let max = self.loop_index.rules.max_file_bytes;
        for (reason, which) in [
            (
                LeftOutReason::Large,
                format!("larger than `git.max_file_bytes` ({max} bytes)"),
            ),
            (LeftOutReason::Unreadable, "that git cannot read".to_owned()),
            (
                LeftOutReason::OverBudget,
                "beyond 1 GiB of new files (add files that need not be committed to .gitignore)"
                    .to_owned(),
            ),
        ] {
            let files = left_out.iter().filter(|file| file.reason == reason);
            if let Some(paths) = self.warnings.list_new(files.map(|file| &file.path)) {
                let warning =
                    format!("files {which} are left out of snapshots and commits: {paths}");
                survey.warnings.push(warning);
            }
        }
    }

    fn warn_not_committed(&mut self, not_ours: &[RepoPath], survey: &mut Survey) {
        if let Some(paths) = self.warnings.list_new(not_ours.iter()) {
            survey.warnings.push(format!(
                "files with uncommitted changes that the loop did not make are not committed: {paths}"
            ));
        }
    }

    fn warn_protected(&mut self, owner: ChangeOwner, survey: &mut Survey) {
        let changed = std::mem::take(&mut self.detector.protected_changed);
        if owner == ChangeOwner::Loop
            && let Some(paths) = self.warnings.list_new(changed.iter())
        {
            survey.warnings.push(format!(
                "files that match a pattern in `git.protected` are left out of snapshots and commits: {paths}"
            ));
        }
    }

    /// Records which left-out files belong to others, because they may be tracked later.
    fn attribute_left_out(
        &mut self,
        left_out: &[LeftOut],
        owner: ChangeOwner,
    ) -> Result<(), GitError> {
        let top = &self.loop_index.repository.top;
        let new: Vec<&RepoPath> = left_out
            .iter()
            .map(|file| &file.path)
            .filter(|path| !owner.is_loop(&top.join(path.as_path())))
            .filter(|path| !self.work.theirs.contains(*path) && !self.work.mine.contains(*path))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut work = self.work.clone();
        for path in new {
            work.theirs.insert(path.clone());
            work.resting.insert(path.clone());
        }
        work.write(&self.work_path)?;
        self.work = work;
        Ok(())
    }

    /// Records the current user's index as known, so that the next survey does not read the whole work tree again.
    pub fn accept_user_index(&mut self) {
        self.detector.stamps.user_index = stamp_of(&self.loop_index.repository.index);
    }

    /// Returns the files that the loop changed and may commit.
    pub fn uncommitted(&self) -> impl Iterator<Item = &RepoPath> {
        self.work.mine.difference(&self.work.theirs)
    }
}
