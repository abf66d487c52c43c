//! What is known of a loop's work: surveys find what changed since the last one, and whose it is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tachikoma_core::LoopId;
use tachikoma_runtime::clock;

use super::change_owner::{Before, ChangeOwner, Since, attribute, is_changed_by};
use super::differences::{Differences, Dirty, differences, empty_tree, follow};
use super::head::{self, mark};
use super::index::{LeftOut, LoopIndex};
use super::path::{RepoPath, list};
use super::program::{CancelToken, GitError};
use super::repository::Repository;
use super::scan::{self, KnownTree};
use super::signature::{Digest, of_file};
use super::walk_result::WalkResult;
use super::work_record::WorkRecord;

/// What a survey found.
#[derive(Debug, Default)]
pub struct Survey {
    /// The files whose content is another than at the last survey, that came or that went; in order.
    pub changed: Vec<RepoPath>,
    /// How many files the loop changed and has not committed.
    pub uncommitted: usize,
    /// Whether the work tree stands on a commit with other content than at the last survey.
    pub head_moved: bool,
    /// What somebody should know.
    pub warnings: Vec<String>,
}

/// What is looked at besides the work tree.
#[derive(Debug)]
pub struct Watched {
    /// Files with rules about what is ignored that are not in the work tree.
    rules: Vec<PathBuf>,
    marks: Marks,
}

/// What all of it looked like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Marks {
    head: u64,
    users_index: u64,
    rules: u64,
}

impl Watched {
    pub fn new(repository: &Repository, cancel: &CancelToken) -> Result<Self, GitError> {
        let mut rules = vec![repository.common_dir.join("info/exclude")];
        let words = [
            "config",
            "--type=path",
            "--default",
            "~/.config/git/ignore",
            "--get",
            "core.excludesFile",
        ];
        let answer = repository.git.order(&words).run(cancel)?;
        if answer.code == Some(0) {
            let line = answer.bytes.strip_suffix(b"\n").unwrap_or(&answer.bytes);
            rules.push(repository.top.join(RepoPath::new(line).as_path()));
        }
        Ok(Self {
            rules,
            marks: Marks::default(),
        })
    }

    /// Takes the user's index for known as it is.
    pub fn follow_users_index(&mut self, repository: &Repository) {
        self.marks.users_index = of_file(&repository.index);
    }

    fn look(&self, repository: &Repository) -> Marks {
        let mut rules = Digest::default();
        for file in &self.rules {
            rules.add(of_file(file));
        }
        Marks {
            head: mark(&repository.git_dir, &repository.common_dir),
            users_index: of_file(&repository.index),
            rules: rules.finish(),
        }
    }
}

/// Keeps the work of a loop in its repository.
#[derive(Debug)]
pub struct WorkTracker {
    pub(crate) loop_id: LoopId,
    pub(crate) loop_index: LoopIndex,
    pub(crate) work_path: PathBuf,
    pub(crate) work: WorkRecord,
    /// Whether nothing is remembered, and all that is uncommitted is somebody else's.
    pub fresh: bool,
    /// When the last survey of this runner began, by the clock that stamps files.
    pub surveyed: Option<i64>,
    /// Whether what is uncommitted is known.
    pub judged: bool,
    /// What is known of the work tree; none if it has to be found out anew.
    pub known: Option<KnownTree>,
    /// What the index of the loop's own looked like when it was last written; none before.
    pub index_mark: Option<u64>,
    pub(crate) watched: Watched,
    /// The commit that the work tree stands on; none on a branch without commits.
    pub head: Option<String>,
    /// A tree that is that of this commit.
    pub equals_head: Option<String>,
    /// What differs from that commit.
    pub dirty: Dirty,
    /// Whether that is known since the work tree stands on that commit.
    pub dirty_follows: bool,
    /// Protected files that changed since that was last looked into.
    pub protected_changed: Vec<RepoPath>,
    /// What was said already.
    pub said: BTreeSet<RepoPath>,
    /// What the next survey is to say.
    pub unsaid: Vec<String>,
    /// Snapshots that have no reference yet: that of the last commit.
    pub owed: BTreeSet<u32>,
    /// Whether the commit of the last snapshot is known to be there.
    pub snapshot_checked: bool,
    /// Iterations whose snapshots have references; none before they were asked for.
    pub referenced: Option<BTreeSet<u32>>,
    /// Whether git was seen to keep the loop's references as files.
    pub refs_are_files: bool,
}

impl WorkTracker {
    /// Returns how many files the loop changed and has not committed.
    #[must_use]
    pub fn left(&self) -> usize {
        self.uncommitted().count()
    }

    /// Returns how many files the loop changed and does not commit, because somebody else had changed them before.
    #[must_use]
    pub fn withheld(&self) -> usize {
        self.work.withheld.len()
    }

    /// Returns the top of the work tree.
    #[must_use]
    pub fn top(&self) -> &Path {
        &self.loop_index.repository.top
    }

    /// Returns the work tree as it was last looked at, by the name of its tree.
    #[must_use]
    pub fn tree(&self) -> &str {
        &self.work.tree
    }

    /// Looks at the work tree. Starts no process if nothing changed. Blocks.
    ///
    /// # Errors
    /// Git fails or is called off. Nothing is lost: what changed is found by the next survey.
    pub fn survey(&mut self, owner: ChangeOwner, cancel: &CancelToken) -> Result<Survey, GitError> {
        let surveyed = match self.try_survey(owner, cancel) {
            Err(error) if !error.is_final() => {
                // The index of the loop's own may be what is wrong, or an object that it names is gone.
                self.known = None;
                self.loop_index.drop_index()?;
                self.try_survey(owner, cancel)
            }
            surveyed => surveyed,
        };
        if surveyed.is_err() {
            // What a walk saw and nobody took in must be seen again.
            self.known = None;
        }
        surveyed
    }

    fn try_survey(&mut self, owner: ChangeOwner, cancel: &CancelToken) -> Result<Survey, GitError> {
        // Looked at before the work tree: what changes meanwhile is seen the next time.
        let marks = self.watched.look(&self.loop_index.repository);
        let began = clock::file_time();
        self.check_index()?;
        let mut survey = Survey::default();
        let head_looks_other = marks.head != self.watched.marks.head;
        if let Some((seen, before)) = self.look(marks, cancel)? {
            let left_out = self.loop_index.take_in(&seen, cancel)?;
            self.say_left_out(&left_out, &mut survey);
            let tree = self.loop_index.write_tree(cancel)?;
            self.loop_index.keep_index_private();
            self.index_mark = Some(of_file(&self.loop_index.index));
            let head_moved = head_looks_other && self.ask_head(cancel)?;
            let since = Since {
                owner,
                before,
                began,
            };
            self.judge(tree, head_moved, &since, &mut survey, cancel)?;
            self.attribute_left_out(&left_out, owner)?;
        } else if head_looks_other && self.ask_head(cancel)? {
            let tree = self.work.tree.clone();
            let since = Since {
                owner,
                before: Before::Watched,
                began,
            };
            self.judge(tree, true, &since, &mut survey, cancel)?;
        }
        self.say_protected(owner, &mut survey, cancel)?;
        self.watched.marks = marks;
        self.surveyed = Some(began);
        survey.uncommitted = self.uncommitted().count();
        survey.warnings.append(&mut self.unsaid);
        Ok(survey)
    }

    /// What is known of the work tree goes with the index that has it: if somebody removed or replaced that, nothing is.
    fn check_index(&mut self) -> Result<(), GitError> {
        let now = of_file(&self.loop_index.index);
        if self.index_mark.is_some_and(|mark| mark != now) {
            self.index_mark = None;
            self.known = None;
            self.loop_index.drop_index()?;
        }
        Ok(())
    }

    /// Walks, or makes everything known anew; none if nothing changed.
    fn look(
        &mut self,
        marks: Marks,
        cancel: &CancelToken,
    ) -> Result<Option<(WalkResult, Before)>, GitError> {
        let before = self.watched.marks;
        let mut known = self.known.take();
        // What a commit has needs no room any more.
        let may_look = |known: &&mut KnownTree| {
            marks.rules == before.rules && !(known.crowded && marks.head != before.head)
        };
        if let Some(known_now) = known.as_mut().filter(may_look) {
            let follow = marks.users_index != before.users_index;
            if let Some(mut seen) = scan::look(&self.loop_index, known_now, follow, cancel)? {
                self.known = known;
                self.protected_changed.append(&mut seen.protected);
                return Ok(Some((seen, Before::Watched)).filter(|(seen, _)| !seen.is_empty()));
            }
        }
        let (now, seen) = scan::scan(&self.loop_index, cancel)?;
        self.known = Some(now);
        let since = self.surveyed.or(self.work.surveyed);
        let before = match known {
            Some(known) if known.rules || marks.rules != before.rules => Before::Known {
                root: known.root,
                since,
            },
            // The user's index is another: who adds a file that is ignored has a reason.
            Some(_) => Before::Watched,
            None => Before::Unknown { since },
        };
        Ok(Some((seen, before)))
    }

    /// Asks what the work tree stands on; returns whether that is something else than before.
    fn ask_head(&mut self, cancel: &CancelToken) -> Result<bool, GitError> {
        let head = head::commit(&self.loop_index.repository, cancel)?;
        if head != self.head {
            self.head = head;
            self.dirty_follows = false;
        }
        // A survey that failed behind this point has not found out what that means.
        Ok(!self.dirty_follows)
    }

    /// Finds out what changed and what is uncommitted, and whose it is.
    fn judge(
        &mut self,
        tree: String,
        head_moved: bool,
        since: &Since,
        survey: &mut Survey,
        cancel: &CancelToken,
    ) -> Result<(), GitError> {
        if tree == self.work.tree && !head_moved && self.judged {
            return Ok(());
        }
        let known = !self.fresh && !self.work.tree.is_empty() && tree != self.work.tree;
        let changed = if known {
            differences(&self.loop_index, &self.work.tree, &tree, cancel)
        } else {
            Ok(Differences::default())
        };
        // The tree of the last survey may be gone from the repository: then nobody knows what changed since.
        let (changed, lost) = match changed {
            Ok(changed) => (changed.files, false),
            Err(error) if error.is_final() => return Err(error),
            Err(_) => (BTreeMap::new(), true),
        };
        let (dirty, equals_head) = if head_moved || lost || !self.judged {
            let head = self.head.as_deref().unwrap_or_else(|| empty_tree(&tree));
            let from_head = differences(&self.loop_index, head, &tree, cancel)?;
            let equals_head = from_head.none.then(|| tree.clone());
            (from_head.uncommitted(), equals_head)
        } else {
            (follow(&self.dirty, &changed), self.equals_head.clone())
        };
        // A commit without a change is none: then what is uncommitted is what it would be on the old one.
        survey.head_moved =
            head_moved && self.judged && (lost || dirty != follow(&self.dirty, &changed));
        // First all that is to be known then, and only when it is written down is it known: else a failure would pass for a
        // survey that found nothing.
        let mut work = self.work.clone();
        work.tree = tree;
        work.surveyed = Some(since.began);
        if self.fresh {
            work.theirs.extend(dirty.keys().cloned());
        }
        let not_ours = attribute(
            &mut work,
            &self.loop_index.repository.top,
            &changed,
            &dirty,
            since,
        );
        if work != self.work {
            work.write(&self.work_path)?;
        }
        self.work = work;
        self.dirty = dirty;
        self.dirty_follows = true;
        self.equals_head = equals_head;
        self.fresh = false;
        self.say_not_ours(&not_ours, survey);
        survey.changed = changed.into_keys().collect();
        self.judged = true;
        Ok(())
    }

    fn say_left_out(&mut self, left_out: &[LeftOut], survey: &mut Survey) {
        let max = self.loop_index.max_file_bytes;
        let (mut large, mut unreadable, mut crowded) = (Vec::new(), Vec::new(), Vec::new());
        for file in left_out {
            if self.said.insert(file.path().clone()) {
                match file {
                    LeftOut::Large(path) => large.push(path),
                    LeftOut::Unreadable(path) => unreadable.push(path),
                    LeftOut::Crowded(path) => crowded.push(path),
                }
            }
        }
        let mut say = |paths: &[&RepoPath], why: &str| {
            if !paths.is_empty() {
                let warning = format!("left out of snapshots and commits: {}, {why}", list(paths));
                survey.warnings.push(warning);
            }
        };
        say(&large, &format!("above git.max_file_bytes = {max}"));
        say(&unreadable, "which git cannot read");
        say(
            &crowded,
            "because new files have more than 1 GiB together; let git ignore what need not be kept",
        );
    }

    /// Names what the loop changed and does not commit, once.
    pub fn say_not_ours(&mut self, not_ours: &[RepoPath], survey: &mut Survey) {
        let new: Vec<&RepoPath> = not_ours
            .iter()
            .filter(|path| self.said.insert((*path).clone()))
            .collect();
        if !new.is_empty() {
            survey.warnings.push(format!(
                "not committed, because somebody else had changed it before: {}",
                list(&new),
            ));
        }
    }

    /// Names protected files that the loop changed, once. Those that are ignored as well are nobody's concern.
    pub fn say_protected(
        &mut self,
        owner: ChangeOwner,
        survey: &mut Survey,
        cancel: &CancelToken,
    ) -> Result<(), GitError> {
        let changed = std::mem::take(&mut self.protected_changed);
        let is_news = |path: &RepoPath| owner == ChangeOwner::Loop && !self.said.contains(path);
        let changed: BTreeSet<RepoPath> = changed.into_iter().filter(is_news).collect();
        let paths = changed.iter().map(RepoPath::bytes);
        let ignored = self.loop_index.ignored(paths, false, cancel)?;
        let new: Vec<&RepoPath> = changed
            .iter()
            .filter(|path| !ignored.contains(*path))
            .collect();
        if !new.is_empty() {
            survey.warnings.push(format!(
                "left out of snapshots and commits: {}, which `git.protected` names",
                list(&new)
            ));
        }
        self.said.extend(changed);
        Ok(())
    }

    /// What is left out now and somebody else's stays so, should it ever be taken in.
    pub fn attribute_left_out(
        &mut self,
        left_out: &[LeftOut],
        owner: ChangeOwner,
    ) -> Result<(), GitError> {
        let top = &self.loop_index.repository.top;
        let is_theirs = |path: &&RepoPath| match owner {
            ChangeOwner::Others => true,
            ChangeOwner::Loop => false,
            ChangeOwner::LoopUntil(death) => !is_changed_by(&top.join(path.as_path()), death),
            ChangeOwner::LoopSince(start) => is_changed_by(&top.join(path.as_path()), start),
        };
        let theirs = left_out.iter().map(LeftOut::path).filter(is_theirs);
        let new: Vec<&RepoPath> = theirs
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

    /// What the loop changed and may commit.
    pub fn uncommitted(&self) -> impl Iterator<Item = &RepoPath> {
        self.work.mine.difference(&self.work.theirs)
    }
}
