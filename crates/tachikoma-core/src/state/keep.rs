//! How keeping the work changes the state.

use std::time::Duration;

use super::State;
use crate::keep::{Keep, KeepPurpose, Kept, PastCommit, Snapshot};
use crate::phase::{Phase, RebootStage, Wait};
use crate::time::Timestamp;

impl Keep {
    pub(super) fn postpone(&mut self, duration: Duration) {
        self.until = self.until.map(|until| until.after(duration));
    }
}

impl State {
    /// Returns whether the loop itself may have changed the work tree since it was last looked at: its runner died in the
    /// middle of something.
    #[must_use]
    pub fn owes_a_look(&self) -> bool {
        let in_between = match &self.phase {
            Phase::Keeping { .. } | Phase::Rebooting { .. } => true,
            // What a runner found and has not taken up yet.
            Phase::Hooking { hooking } => hooking.over.as_deref().is_some_and(|over| {
                matches!(over, Phase::Keeping { .. } | Phase::Rebooting { .. })
            }),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Checking { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => false,
        };
        in_between || self.operator.rolling_back.is_some() || self.kept.unseen || self.kept.checked
    }

    /// Returns whether there may be work that is not committed: some is known of, or gates have run.
    pub(crate) fn may_have_left_work(&self) -> bool {
        self.kept.uncommitted > 0 || self.kept.checked
    }

    /// Returns what is being kept at the moment.
    #[must_use]
    pub fn keep(&self) -> Option<&Keep> {
        match &self.phase {
            Phase::Keeping { keep } => Some(keep),
            Phase::Rebooting { reboot } => match &reboot.stage {
                RebootStage::Keeping { keep } => Some(keep),
                RebootStage::Begun
                | RebootStage::HandOff { .. }
                | RebootStage::Hooks { .. }
                | RebootStage::Closing { .. }
                | RebootStage::Opening { .. } => None,
            },
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => None,
        }
    }

    pub(super) fn snapshot_taken(&mut self, iteration: u32, commit: &str, uncommitted: u32) {
        self.kept.uncommitted = uncommitted;
        if self
            .kept
            .snapshot
            .as_ref()
            .is_none_or(|s| s.commit != commit)
        {
            self.kept.snapshot = Some(Snapshot {
                iteration,
                commit: commit.to_owned(),
            });
        }
    }

    pub(super) fn keep_started(&mut self, keep: Keep) {
        self.kept.number += 1;
        self.kept.unseen = false;
        self.kept.checked = false;
        match keep.purpose {
            KeepPurpose::Iteration => {
                self.kept.files_changed = Some(0);
                self.progress.looked = true;
                self.phase = Phase::Keeping { keep };
            }
            KeepPurpose::End => self.phase = Phase::Keeping { keep },
            KeepPurpose::Checkpoint => {
                self.reboot(|reboot| reboot.stage = RebootStage::Keeping { keep });
            }
        }
    }

    pub(super) fn keep_called_off(&mut self, until: Timestamp, then: Option<Wait>) {
        let hurry = |keep: &mut Keep| {
            keep.until = Some(until);
            keep.called_off = true;
            keep.then = then;
        };
        if let Phase::Keeping { keep } = &mut self.phase {
            hurry(keep);
        }
        self.reboot(|reboot| {
            if let RebootStage::Keeping { keep } = &mut reboot.stage {
                hurry(keep);
            }
        });
    }

    pub(super) fn work_kept(
        &mut self,
        purpose: KeepPurpose,
        iteration: u32,
        kept: &Kept,
        time: Timestamp,
    ) {
        self.completion.seen_in_the_tree(kept);
        self.kept.uncommitted = kept.uncommitted;
        self.kept.withheld = kept.withheld;
        let called_off = self.keep().is_some_and(|keep| keep.called_off);
        self.kept.refused = kept.error.clone().filter(|_| !called_off);
        if purpose == KeepPurpose::Iteration {
            self.kept.files_changed = Some(kept.changed);
            self.progress.seen_in_the_tree(kept);
        }
        if let Some(commit) = &kept.commit {
            self.kept.commits = self.kept.commits.saturating_add(1);
            self.kept.last_commit = Some(PastCommit {
                time,
                iteration,
                commit: commit.clone(),
            });
        }
        self.keep_over(purpose);
    }

    pub(super) fn keep_given_up(&mut self, purpose: KeepPurpose) {
        self.kept.unseen = true;
        // Nobody knows any more that nothing was done.
        self.completion.idle = false;
        if purpose == KeepPurpose::Iteration {
            self.kept.files_changed = None;
            self.progress.missed();
        }
        self.keep_over(purpose);
    }

    /// What follows is recorded right behind it.
    fn keep_over(&mut self, purpose: KeepPurpose) {
        match purpose {
            KeepPurpose::Iteration | KeepPurpose::End => self.phase = Phase::Idle,
            KeepPurpose::Checkpoint => self.reboot(|reboot| reboot.stage = RebootStage::Begun),
        }
    }
}
