//! What changed since the last look, and whose it is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::differences::{Differences, Side, empty_tree};
use super::head::{self, mark};
use super::index::LeftOut;
use super::keeper::Keeper;
use super::path::RepoPath;
use super::program::{CallOff, GitError};
use super::repository::Repository;
use super::seen::Seen;
use super::signature::{Digest, of_file};

/// Files that one warning names.
const NAMED_MAX: usize = 5;

/// Whose the changes are that a survey finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The loop's: an iteration or something else of it ran since the last survey.
    Loop,
    /// Somebody else's.
    Others,
}

/// What a survey found.
#[derive(Debug, Default)]
pub struct Survey {
    /// The files whose content is another than at the last survey, that came or that went; in order.
    pub changed: Vec<RepoPath>,
    /// How many files the loop changed and has not committed.
    pub uncommitted: usize,
    /// Whether the work tree stands on another commit than at the last survey.
    pub head_moved: bool,
    /// What somebody should know.
    pub warnings: Vec<String>,
}

/// What is looked at besides the work tree.
#[derive(Debug)]
pub(super) struct Watched {
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
        self.check_index()?;
        let mut survey = Survey::default();
        let head_looks_other = marks.head != self.watched.marks.head;
        if let Some(seen) = self.look(marks, call_off)? {
            let left_out = self.ground.take_in(&seen, call_off)?;
            self.say_left_out(&left_out, &mut survey);
            let tree = self.ground.write_tree(call_off)?;
            self.index_mark = Some(of_file(&self.ground.index));
            let head_moved = head_looks_other && self.ask_head(call_off)?;
            survey.head_moved = head_moved && self.judged;
            self.judge(tree, head_moved, whose, &mut survey, call_off)?;
        } else if head_looks_other && self.ask_head(call_off)? {
            survey.head_moved = true;
            let tree = self.work.tree.clone();
            self.judge(tree, true, whose, &mut survey, call_off)?;
        }
        self.watched.marks = marks;
        survey.uncommitted = self.uncommitted().count();
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
    fn look(&mut self, marks: Marks, call_off: &CallOff) -> Result<Option<Seen>, GitError> {
        let before = self.watched.marks;
        if let Some(mut known) = self.known.take().filter(|_| marks.rules == before.rules) {
            let follow = marks.users_index != before.users_index;
            if let Some(seen) = self.ground.look(&mut known, follow, call_off)? {
                self.known = Some(known);
                return Ok(Some(seen).filter(|seen| !seen.is_empty()));
            }
        }
        let (known, seen) = self.ground.scan(call_off)?;
        self.known = Some(known);
        Ok(Some(seen))
    }

    /// Asks what the work tree stands on; returns whether that is something else than before.
    fn ask_head(&mut self, call_off: &CallOff) -> Result<bool, GitError> {
        let head = head::commit(&self.ground.repository, call_off)?;
        let moved = head != self.head;
        self.head = head;
        Ok(moved)
    }

    /// Finds out what changed and what is uncommitted, and whose it is.
    fn judge(
        &mut self,
        tree: String,
        head_moved: bool,
        whose: Whose,
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
        if head_moved || lost || !self.judged {
            let head = self.head.as_deref().unwrap_or_else(|| empty_tree(&tree));
            let from_head = self.ground.differences(head, &tree, call_off)?;
            self.equals_head = from_head.none.then(|| tree.clone());
            self.dirty = from_head
                .files
                .into_iter()
                .map(|(path, [head, _])| (path, head))
                .collect();
        } else {
            self.follow(&changed);
        }
        let before = self.work.clone();
        self.work.tree = tree;
        if self.fresh {
            self.work.theirs.extend(self.dirty.keys().cloned());
            self.fresh = false;
        }
        self.attribute(&changed, whose, survey);
        survey.changed = changed.into_keys().collect();
        if self.work != before {
            self.work.write(&self.work_path)?;
        }
        self.judged = true;
        Ok(())
    }

    /// What is uncommitted after a change follows from what was before, as long as the work tree stands on the same commit.
    fn follow(&mut self, changed: &BTreeMap<RepoPath, [Side; 2]>) {
        for (path, [before, now]) in changed {
            // Who was not uncommitted was what the commit has.
            let committed = self.dirty.get(path).unwrap_or(before);
            if committed == now {
                self.dirty.remove(path);
            } else {
                let committed = committed.clone();
                self.dirty.insert(path.clone(), committed);
            }
        }
    }

    /// Every uncommitted file is the loop's or somebody else's: those that changed, and those that became uncommitted because
    /// the work tree stands on another commit.
    fn attribute(
        &mut self,
        changed: &BTreeMap<RepoPath, [Side; 2]>,
        whose: Whose,
        survey: &mut Survey,
    ) {
        let work = &mut self.work;
        let dirty = &self.dirty;
        work.mine.retain(|path| dirty.contains_key(path));
        work.theirs.retain(|path| dirty.contains_key(path));
        let mut not_ours = Vec::new();
        for path in dirty.keys() {
            let known = work.mine.contains(path) || work.theirs.contains(path);
            if known && !changed.contains_key(path) {
                continue;
            }
            match whose {
                Whose::Others => {
                    work.theirs.insert(path.clone());
                }
                Whose::Loop if work.theirs.contains(path) => {
                    if self.said.insert(path.clone()) {
                        not_ours.push(path);
                    }
                }
                Whose::Loop => {
                    work.mine.insert(path.clone());
                }
            }
        }
        if !not_ours.is_empty() {
            survey.warnings.push(format!(
                "not committed, because somebody else had changed it before: {}",
                list(&not_ours),
            ));
        }
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

    /// What the loop changed and may commit.
    pub(super) fn uncommitted(&self) -> impl Iterator<Item = &RepoPath> {
        self.work.mine.difference(&self.work.theirs)
    }
}

fn list(paths: &[&RepoPath]) -> String {
    let names: Vec<String> = paths
        .iter()
        .take(NAMED_MAX)
        .map(ToString::to_string)
        .collect();
    let more = paths.len().saturating_sub(NAMED_MAX);
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
