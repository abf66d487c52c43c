//! Snapshots of the work tree, one before each iteration, kept as references that nobody but the loop uses.

use std::collections::BTreeSet;

use super::head::verify;
use super::keeper::Keeper;
use super::loose;
use super::program::{CallOff, GitError};
use super::snapshots::{self, Moment};
use super::whose::Whose;
use super::work::Kept;

/// How many snapshots of a loop are kept: two nights of iterations that take a minute.
pub const SNAPSHOTS_KEPT: usize = 1000;

/// References that are written without a process: each is synced alone, and git is faster with many.
const BY_HAND_MAX: usize = 4;

/// Whose the commits of snapshots are; they are on no branch.
const NAME: &str = "tachikoma";
const ADDRESS: &str = "tachikoma@localhost";

/// The work tree as it was before an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit that has it.
    pub commit: String,
    /// What somebody should know.
    pub warnings: Vec<String>,
}

impl Keeper {
    /// Keeps the work tree as it is before an iteration; what changed since the last survey is somebody else's. Starts no
    /// process if nothing did. A later attempt at the same iteration leaves the snapshot before the first one. Blocks.
    ///
    /// # Errors
    /// Git fails or is called off.
    pub fn snapshot(&mut self, iteration: u32, call_off: &CallOff) -> Result<Snapshot, GitError> {
        let warnings = self.survey(Whose::Others, call_off)?.warnings;
        if let Some(commit) = self.equal_snapshot(call_off)? {
            self.owe(iteration);
            return Ok(Snapshot { commit, warnings });
        }
        if let Some(commit) = self.kept_before(iteration, call_off)? {
            return Ok(Snapshot { commit, warnings });
        }
        let commit = match &self.head {
            // Nothing is uncommitted: the commit that the work tree stands on is the snapshot.
            Some(head) if self.equals_head.as_ref() == Some(&self.work.tree) => head.clone(),
            Some(_) | None => {
                let message = format!("before iteration {iteration} of {}\n", self.loop_id);
                self.commit_tree(&message, call_off)?
            }
        };
        self.reference(Some((iteration, commit.as_str())), call_off)?;
        self.work.snapshot = Some(Kept {
            tree: self.work.tree.clone(),
            commit: commit.clone(),
        });
        self.snapshot_checked = true;
        self.work.write(&self.work_path)?;
        Ok(Snapshot { commit, warnings })
    }

    /// The commit of the last snapshot, if that has the same work tree. One of an earlier runner may have been removed since.
    fn equal_snapshot(&mut self, call_off: &CallOff) -> Result<Option<String>, GitError> {
        let last = self.work.snapshot.as_ref();
        let Some(last) = last.filter(|last| last.tree == self.work.tree) else {
            return Ok(None);
        };
        let commit = last.commit.clone();
        if !self.snapshot_checked {
            let git = &self.ground.repository.git;
            let object = format!("{commit}^{{commit}}");
            if verify(git, &object, call_off)?.is_none() {
                self.work.snapshot = None;
                return Ok(None);
            }
            self.snapshot_checked = true;
        }
        Ok(Some(commit))
    }

    /// Makes the references that are still owed: at the end of a run. Blocks.
    ///
    /// # Errors
    /// Git fails or is called off.
    pub fn settle_refs(&mut self, call_off: &CallOff) -> Result<(), GitError> {
        if self.owed.is_empty() {
            return Ok(());
        }
        self.reference(None, call_off)
    }

    /// Removes all references of the loop: nothing of it is to be left. Blocks.
    ///
    /// # Errors
    /// Git fails.
    pub fn forget_refs(&mut self) -> Result<(), GitError> {
        self.owed.clear();
        self.referenced = None;
        snapshots::delete_all(&self.ground.repository.git, self.loop_id)
    }

    /// The last snapshot serves one more iteration, whose reference can wait.
    fn owe(&mut self, iteration: u32) {
        self.owed.insert(iteration);
        if self.owed.len() > SNAPSHOTS_KEPT {
            self.owed.pop_first();
        }
    }

    /// Makes a commit of the work tree as it was last surveyed, on no branch.
    pub fn commit_tree(&self, message: &str, call_off: &CallOff) -> Result<String, GitError> {
        let git = &self.ground.repository.git;
        let mut order = git.order(&["commit-tree", &self.work.tree, "-F", "-"]);
        if let Some(head) = &self.head {
            order = order.word("-p").word(head);
        }
        order
            .stdin(message.as_bytes())
            .config("i18n.commitEncoding=UTF-8")
            .env("GIT_AUTHOR_NAME", NAME)
            .env("GIT_AUTHOR_EMAIL", ADDRESS)
            .env("GIT_COMMITTER_NAME", NAME)
            .env("GIT_COMMITTER_EMAIL", ADDRESS)
            .ask_line(call_off)
    }

    /// The snapshot that an iteration has already.
    fn kept_before(
        &mut self,
        iteration: u32,
        call_off: &CallOff,
    ) -> Result<Option<String>, GitError> {
        let referenced = self.take_referenced(call_off)?;
        let known = referenced.contains(&iteration);
        self.referenced = Some(referenced);
        if !known {
            return Ok(None);
        }
        let name = snapshots::name(self.loop_id, iteration);
        verify(&self.ground.repository.git, &name, call_off)
    }

    fn take_referenced(&mut self, call_off: &CallOff) -> Result<BTreeSet<u32>, GitError> {
        if let Some(referenced) = self.referenced.take() {
            return Ok(referenced);
        }
        let kept = snapshots::list(&self.ground.repository.git, self.loop_id, call_off)?;
        let iterations = kept.into_iter().filter_map(|kept| match kept.moment {
            Moment::Iteration(iteration) => Some(iteration),
            Moment::Rollback(_) => None,
        });
        Ok(iterations.collect())
    }

    /// Makes the references that are owed and a new one, and removes those that are too old.
    fn reference(&mut self, new: Option<(u32, &str)>, call_off: &CallOff) -> Result<(), GitError> {
        let mut referenced = self.take_referenced(call_off)?;
        let git = &self.ground.repository.git;
        let mut made: Vec<(u32, &str)> = Vec::new();
        if let Some(last) = &self.work.snapshot {
            let owed = self.owed.iter();
            made.extend(owed.map(|iteration| (*iteration, last.commit.as_str())));
        }
        made.extend(new);
        referenced.extend(made.iter().map(|(iteration, _)| *iteration));
        let too_old = too_old(&mut referenced);
        made.retain(|(iteration, _)| !too_old.contains(iteration));
        let made: Vec<(String, &str)> = made
            .into_iter()
            .map(|(iteration, commit)| (snapshots::name(self.loop_id, iteration), commit))
            .collect();
        let common_dir = &self.ground.repository.common_dir;
        let by_hand = self.refs_are_files
            && too_old.is_empty()
            && made.len() <= BY_HAND_MAX
            && made
                .iter()
                .all(|(name, commit)| loose::write(common_dir, name, commit).is_ok());
        if !by_hand {
            let mut orders = String::new();
            for (name, commit) in &made {
                orders.push_str(&format!("update {name} {commit}\n"));
            }
            for iteration in too_old {
                let name = snapshots::name(self.loop_id, iteration);
                orders.push_str(&format!("delete {name}\n"));
            }
            let order = git.order(&["update-ref", "--stdin"]);
            order.stdin(orders.as_bytes()).ask(call_off)?;
            let last = made.last();
            self.refs_are_files =
                last.is_some_and(|(name, commit)| loose::is_loose(common_dir, name, commit));
        }
        self.owed.clear();
        self.referenced = Some(referenced);
        Ok(())
    }
}

/// Takes out the oldest of more snapshots than are kept.
fn too_old(referenced: &mut BTreeSet<u32>) -> BTreeSet<u32> {
    let mut old = BTreeSet::new();
    while referenced.len() > SNAPSHOTS_KEPT {
        old.extend(referenced.pop_first());
    }
    old
}
