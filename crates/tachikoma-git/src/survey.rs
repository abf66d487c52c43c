//! What changed since the last look, and whose it is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::differences::{Differences, empty_tree, follow};
use super::head::{self, mark};
use super::index::LeftOut;
use super::keeper::Keeper;
use super::path::RepoPath;
use super::program::{CallOff, GitError};
use super::repository::Repository;
use super::scan::Known;
use super::seen::Seen;
use super::signature::{Digest, of_file};
use super::whose::{Before, Since, Whose, list};
use tachikoma_runtime::clock;

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
    pub fn new(repository: &Repository, call_off: &CallOff) -> Result<Self, GitError> {
        let mut rules = vec![repository.common_dir.join("info/exclude")];
        let words = [
            "config",
            "--type=path",
            "--default",
            "~/.config/git/ignore",
            "--get",
            "core.excludesFile",
        ];
        let answer = repository.git.order(&words).run(call_off)?;
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

impl Keeper {
    /// Looks at the work tree. Starts no process if nothing changed. Blocks.
    ///
    /// # Errors
    /// Git fails or is called off. Nothing is lost: what changed is found by the next survey.
    pub fn survey(&mut self, whose: Whose, call_off: &CallOff) -> Result<Survey, GitError> {
        let surveyed = match self.try_survey(whose, call_off) {
            Err(error) if !error.is_final() => {
                // The index of the loop's own may be what is wrong, or an object that it names is gone.
                self.known = None;
                self.ground.drop_index()?;
                self.try_survey(whose, call_off)
            }
            surveyed => surveyed,
        };
        if surveyed.is_err() {
            // What a walk saw and nobody took in must be seen again.
            self.known = None;
        }
        surveyed
    }

    fn try_survey(&mut self, whose: Whose, call_off: &CallOff) -> Result<Survey, GitError> {
        // Looked at before the work tree: what changes meanwhile is seen the next time.
        let marks = self.watched.look(&self.ground.repository);
        let began = clock::file_time();
        self.check_index()?;
        let mut survey = Survey::default();
        let head_looks_other = marks.head != self.watched.marks.head;
        if let Some((seen, before)) = self.look(marks, call_off)? {
            let left_out = self.ground.take_in(&seen, call_off)?;
            self.say_left_out(&left_out, &mut survey);
            let tree = self.ground.write_tree(call_off)?;
            self.ground.keep_index_private();
            self.index_mark = Some(of_file(&self.ground.index));
            let head_moved = head_looks_other && self.ask_head(call_off)?;
            let since = Since {
                whose,
                before,
                began,
            };
            self.judge(tree, head_moved, &since, &mut survey, call_off)?;
            self.attribute_left_out(&left_out, whose)?;
        } else if head_looks_other && self.ask_head(call_off)? {
            let tree = self.work.tree.clone();
            let since = Since {
                whose,
                before: Before::Watched,
                began,
            };
            self.judge(tree, true, &since, &mut survey, call_off)?;
        }
        self.say_protected(whose, &mut survey, call_off)?;
        self.watched.marks = marks;
        self.surveyed = Some(began);
        survey.uncommitted = self.uncommitted().count();
        survey.warnings.append(&mut self.unsaid);
        Ok(survey)
    }

    /// What is known of the work tree goes with the index that has it: if somebody removed or replaced that, nothing is.
    fn check_index(&mut self) -> Result<(), GitError> {
        let now = of_file(&self.ground.index);
        if self.index_mark.is_some_and(|mark| mark != now) {
            self.index_mark = None;
            self.known = None;
            self.ground.drop_index()?;
        }
        Ok(())
    }

    /// Walks, or makes everything known anew; none if nothing changed.
    fn look(
        &mut self,
        marks: Marks,
        call_off: &CallOff,
    ) -> Result<Option<(Seen, Before)>, GitError> {
        let before = self.watched.marks;
        let mut known = self.known.take();
        // What a commit has needs no room any more.
        let may_look = |known: &&mut Known| {
            marks.rules == before.rules && !(known.crowded && marks.head != before.head)
        };
        if let Some(known_now) = known.as_mut().filter(may_look) {
            let follow = marks.users_index != before.users_index;
            if let Some(mut seen) = self.ground.look(known_now, follow, call_off)? {
                self.known = known;
                self.protected_changed.append(&mut seen.protected);
                return Ok(Some((seen, Before::Watched)).filter(|(seen, _)| !seen.is_empty()));
            }
        }
        let (now, seen) = self.ground.scan(call_off)?;
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
    fn ask_head(&mut self, call_off: &CallOff) -> Result<bool, GitError> {
        let head = head::commit(&self.ground.repository, call_off)?;
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
        call_off: &CallOff,
    ) -> Result<(), GitError> {
        if tree == self.work.tree && !head_moved && self.judged {
            return Ok(());
        }
        let known = !self.fresh && !self.work.tree.is_empty() && tree != self.work.tree;
        let changed = if known {
            self.ground.differences(&self.work.tree, &tree, call_off)
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
            let from_head = self.ground.differences(head, &tree, call_off)?;
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
        let not_ours = work.attribute(&self.ground.repository.top, &changed, &dirty, since);
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
        let max = self.ground.max_file_bytes;
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
}
