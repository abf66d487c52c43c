//! Keeping the work: a look at the work tree and a commit behind an iteration, before a reboot and at the end.

use std::time::Duration;

use super::Stepper;
use crate::autocommit::{
    Autocommit, AutocommitPurpose, AutocommitResult, CommitOrder, CommitStatus, LoopChanges,
};
use crate::effect::Effect;
use crate::event::LoopEvent;
use crate::exit::{Exit, Leftover};
use crate::input::Urgency;
use crate::ladder::{Ladder, Rung};
use crate::outcome::{Outcome, Stop};
use crate::policy::AutocommitRules;
use crate::time::Timestamp;
use crate::wait::Wait;

/// For a look at the work tree, and for the end of a commit whose own time is over: a large tree on a slow disk takes
/// seconds.
const LOOK_TIMEOUT: Duration = Duration::from_secs(60);

/// For all of it when nothing is to be waited for: what was done by an agent that is gone must still be told from what a
/// person does next, and that takes milliseconds as a rule.
const URGENT_TIMEOUT: Duration = Duration::from_secs(5);

impl Stepper<'_> {
    /// Keeps what an attempt did, then asks what comes next.
    pub(super) fn autocommit_iteration(
        &mut self,
        status: Option<CommitStatus>,
        then: Option<Wait>,
    ) {
        let Some(rules) = self.policy.autocommit else {
            return self.check(then);
        };
        let commit = status.filter(|status| *status != CommitStatus::Failed || rules.on_failure);
        self.begin_autocommit(rules, AutocommitPurpose::Iteration, commit, then, None);
    }

    /// Keeps what the old session did, if there is where to. The next one stands on it, whatever became of its last
    /// iteration.
    pub(super) fn autocommit_checkpoint(&mut self) -> bool {
        let Some(rules) = self.policy.autocommit.filter(|rules| rules.repository) else {
            return false;
        };
        let commit = Some(CommitStatus::Checkpoint);
        self.begin_autocommit(rules, AutocommitPurpose::Checkpoint, commit, None, None);
        true
    }

    /// Ends the loop, after a commit of what is left to be committed. An agent that is up ends first, and may change files until it has.
    pub(super) fn finish(&mut self, outcome: Outcome) {
        let failed = matches!(outcome, Outcome::Error { .. });
        let rules = self.policy.autocommit;
        let rules = rules.filter(|rules| rules.commit && (rules.on_failure || !failed));
        let may_be_more = self.state.may_have_left_work() || self.state.agent.is_some();
        match rules {
            Some(rules) if may_be_more && !self.state.stop_urgent => {
                let commit = Some(CommitStatus::End);
                self.begin_autocommit(rules, AutocommitPurpose::End, commit, None, Some(outcome));
            }
            Some(_) | None => self.close(outcome),
        }
    }

    fn begin_autocommit(
        &mut self,
        rules: AutocommitRules,
        purpose: AutocommitPurpose,
        commit: Option<CommitStatus>,
        then: Option<Wait>,
        outcome: Option<Outcome>,
    ) {
        let urgent = self.state.stop_urgent;
        let commit = commit.filter(|_| rules.commit && !urgent);
        let limit = match commit {
            Some(_) if rules.timeout.is_zero() => None,
            Some(_) => Some(rules.timeout + LOOK_TIMEOUT),
            None if urgent => Some(URGENT_TIMEOUT),
            None => Some(LOOK_TIMEOUT),
        };
        let graces = &self.policy.ladder;
        let agent = self
            .state
            .agent
            .filter(|_| purpose == AutocommitPurpose::End);
        let closing = agent.map(|_| Ladder {
            rung: Rung::Interrupt,
            until: self.now.after(graces.interrupt),
        });
        let closes_within = match closing {
            Some(_) => graces.interrupt + graces.terminate + graces.reap,
            None => Duration::ZERO,
        };
        self.record(LoopEvent::AutocommitStarted(Autocommit {
            purpose,
            commit,
            until: limit.map(|limit| self.now.after(limit + closes_within)),
            closing,
            since: closing.map(|_| self.now),
            called_off: false,
            then,
            outcome,
        }));
        match agent {
            Some(agent) => self.emit(Effect::Close {
                generation: agent.generation,
            }),
            None => self.order_autocommit(commit, None),
        }
    }

    fn order_autocommit(&mut self, commit: Option<CommitStatus>, since: Option<Timestamp>) {
        let purpose = self.state.autocommit().map(|autocommit| autocommit.purpose);
        let changes = match (purpose, since) {
            (_, Some(since)) => LoopChanges::Since(since),
            (Some(AutocommitPurpose::End), None) => LoopChanges::None,
            (Some(AutocommitPurpose::Iteration | AutocommitPurpose::Checkpoint) | None, None) => {
                LoopChanges::All
            }
        };
        let session = &self.state.session;
        let commit = commit.map(|status| CommitOrder {
            iteration: self.state.iteration,
            status,
            session: session.number,
            context: session.context,
        });
        self.emit(Effect::Autocommit {
            number: self.state.kept.number,
            commit,
            changes,
        });
    }

    /// The agent's process has ended between two turns. Work that waited for it is kept now.
    pub(super) fn gone_between_turns(&mut self, exit: Exit, leftovers: Vec<Leftover>) {
        let waits = self
            .state
            .autocommit()
            .is_some_and(|autocommit| autocommit.closing.is_some());
        self.agent_exited(exit, leftovers);
        if let Some(autocommit) = self.state.autocommit().filter(|_| waits) {
            let (commit, since) = (autocommit.commit, autocommit.since);
            self.order_autocommit(commit, since);
        }
    }

    /// The agent's process does not end by itself.
    pub(super) fn closing_overdue(&mut self, ladder: Ladder) {
        match ladder.rung {
            Rung::Interrupt => self.signal_closing(Rung::Terminate),
            Rung::Terminate => self.signal_closing(Rung::Kill),
            Rung::Kill => self.unkillable(self.state.agent.and_then(|agent| agent.pid)),
        }
    }

    /// Takes up what the death of a runner cut. What was to be the end is decided anew.
    pub(super) fn resume_autocommit(&mut self, autocommit: &Autocommit) {
        match (self.policy.autocommit, autocommit.purpose) {
            (Some(rules), AutocommitPurpose::Iteration) => {
                self.begin_autocommit(
                    rules,
                    autocommit.purpose,
                    autocommit.commit,
                    autocommit.then,
                    None,
                );
            }
            (Some(_), AutocommitPurpose::Checkpoint | AutocommitPurpose::End) | (None, _) => {
                self.check(autocommit.then);
            }
        }
    }

    /// The work tree before an iteration was kept.
    pub(super) fn snapshot(&mut self, iteration: u32, commit: String, uncommitted: u32) {
        let kept = &self.state.kept;
        let known = kept.snapshot.as_ref().is_some_and(|s| s.commit == commit);
        if !known || kept.uncommitted != uncommitted {
            self.record(LoopEvent::SnapshotTaken {
                iteration,
                commit,
                uncommitted,
            });
        }
    }

    /// The work was committed, or could not be.
    pub(super) fn kept(&mut self, number: u64, kept: Result<AutocommitResult, String>) {
        // The one place where an answer is dropped that is no longer awaited.
        let awaited = self
            .state
            .autocommit()
            .filter(|autocommit| autocommit.closing.is_none());
        let Some(autocommit) = awaited.cloned() else {
            return;
        };
        if number != self.state.kept.number {
            return;
        }
        let purpose = autocommit.purpose;
        match kept {
            Ok(kept) => {
                if kept != self.state.kept.as_before() {
                    let iteration = self.state.iteration;
                    self.record(LoopEvent::AutocommitFinished {
                        purpose,
                        iteration,
                        kept,
                    });
                }
            }
            Err(reason) => self.record(LoopEvent::AutocommitGivenUp { purpose, reason }),
        }
        self.after_autocommit(autocommit);
    }

    pub(super) fn autocommit_overdue(&mut self, autocommit: Autocommit) {
        if !autocommit.called_off {
            self.emit(Effect::CancelAutocommit);
        }
        self.give_up_autocommit(autocommit, "it did not end in time");
    }

    fn give_up_autocommit(&mut self, autocommit: Autocommit, reason: &str) {
        self.record(LoopEvent::AutocommitGivenUp {
            purpose: autocommit.purpose,
            reason: reason.to_owned(),
        });
        self.after_autocommit(autocommit);
    }

    fn after_autocommit(&mut self, autocommit: Autocommit) {
        match (autocommit.purpose, autocommit.outcome) {
            (AutocommitPurpose::Checkpoint, _) => match self.state.stop.clone() {
                // Asked for meanwhile: nothing else of the reboot is worth its while.
                Some(stop) => self.close(stop.into()),
                None => self.open_new(),
            },
            (AutocommitPurpose::End, Some(outcome)) if self.holds(&outcome) => self.close(outcome),
            (AutocommitPurpose::Iteration | AutocommitPurpose::End, _) => {
                self.check(autocommit.then);
            }
        }
    }

    /// Wants the end of the loop while its work is being kept: the commit is seen through, unless that is too long.
    pub(super) fn stop_during_autocommit(
        &mut self,
        autocommit: Autocommit,
        stop: Stop,
        urgency: Urgency,
    ) {
        self.want_stop(stop, urgency);
        if urgency == Urgency::Kill && autocommit.called_off {
            return self.give_up_autocommit(autocommit, "it was told to end, and did not at once");
        }
        if urgency >= Urgency::Now && autocommit.closing.is_some() {
            return self.give_up_autocommit(autocommit, "the agent had not ended yet");
        }
        if urgency >= Urgency::Now {
            self.cancel_autocommit(autocommit.then);
        }
    }

    /// Has the commit under way end at once. What was done stays in the work tree, and the next commit takes it.
    pub(super) fn cancel_autocommit(&mut self, then: Option<Wait>) {
        let Some(autocommit) = self
            .state
            .autocommit()
            .filter(|autocommit| !autocommit.called_off)
        else {
            return;
        };
        let soon = self.now.after(URGENT_TIMEOUT);
        let until = autocommit.until.map_or(soon, |until| until.min(soon));
        self.record(LoopEvent::AutocommitCanceled { until, then });
        self.emit(Effect::CancelAutocommit);
    }
}
