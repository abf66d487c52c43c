//! Autocommits: a survey of the work tree and a commit after an iteration, before a reboot and at the end.

use std::time::Duration;

use super::{HELD, PASSED, RebootStep, Stage, StageResult, Stepper};
use crate::policy::AutocommitRules;
use crate::{
    Autocommit, AutocommitPurpose, AutocommitResult, CommitOrder, CommitStatus, Effect, Escalation,
    Exit, Leftover, LoopChanges, LoopEvent, Outcome, Stop, StopSignal, Timestamp, Urgency, Wait,
};

/// Timeout of a survey of the work tree, and extra time for a commit to end after its own timeout.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout of a survey during an urgent stop. The survey separates the agent's changes from later ones of the user.
const URGENT_TIMEOUT: Duration = Duration::from_secs(5);

impl Stepper<'_> {
    /// Surveys the work tree after an attempt, and commits what the attempt changed.
    pub(super) fn commit_iteration(
        &mut self,
        status: Option<CommitStatus>,
        then: Option<Wait>,
    ) -> StageResult {
        let Some(rules) = self.policy.autocommit else {
            return PASSED;
        };
        let commit = status.filter(|status| *status != CommitStatus::Failed || rules.on_failure);
        self.begin_autocommit(rules, AutocommitPurpose::Iteration, commit, then, None);
        HELD
    }

    /// Commits the work of the old session, also if its last iteration failed: the new session continues it.
    pub(super) fn commit_checkpoint(&mut self) -> StageResult {
        let Some(rules) = self.policy.autocommit.filter(|rules| rules.repository) else {
            return PASSED;
        };
        let commit = Some(CommitStatus::Checkpoint);
        self.begin_autocommit(rules, AutocommitPurpose::Checkpoint, commit, None, None);
        HELD
    }

    /// Commits the remaining changes, then ends the loop. A running agent ends first, because it may still change files.
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
            Some(_) => Some(rules.timeout + SURVEY_TIMEOUT),
            None if urgent => Some(URGENT_TIMEOUT),
            None => Some(SURVEY_TIMEOUT),
        };
        let graces = &self.policy.stop_timeouts;
        let agent = self
            .state
            .agent
            .filter(|_| purpose == AutocommitPurpose::End);
        let closing = agent.map(|_| Escalation {
            signal: StopSignal::Interrupt,
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
            canceled: false,
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
            number: self.state.tracked_work.number,
            commit,
            changes,
        });
    }

    /// The agent's process has ended between two turns. A commit that waited for that starts now.
    pub(super) fn exited_between_turns(&mut self, exit: Exit, leftovers: Vec<Leftover>) {
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

    /// The agent's process did not exit in time, so it gets the next signal.
    pub(super) fn closing_overdue(&mut self, escalation: Escalation) {
        match escalation.signal {
            StopSignal::Interrupt => self.signal_closing(StopSignal::Terminate),
            StopSignal::Terminate => self.signal_closing(StopSignal::Kill),
            StopSignal::Kill => self.unkillable(self.state.agent.and_then(|agent| agent.pid)),
        }
    }

    /// Resumes an autocommit after the death of a runner. An end of the loop is decided again.
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
                self.advance(Stage::Check, autocommit.then);
            }
        }
    }

    /// A snapshot of the work tree before an iteration was taken.
    pub(super) fn snapshot_taken(&mut self, iteration: u32, commit: String, uncommitted: u32) {
        let tracked = &self.state.tracked_work;
        let known = tracked
            .snapshot
            .as_ref()
            .is_some_and(|s| s.commit == commit);
        if !known || tracked.uncommitted != uncommitted {
            self.record(LoopEvent::SnapshotTaken {
                iteration,
                commit,
                uncommitted,
            });
        }
    }

    /// An autocommit ended.
    pub(super) fn autocommit_finished(
        &mut self,
        number: u64,
        result: Result<AutocommitResult, String>,
    ) {
        // An answer that is no longer awaited is dropped.
        let awaited = self
            .state
            .autocommit()
            .filter(|autocommit| autocommit.closing.is_none());
        let Some(autocommit) = awaited.cloned() else {
            return;
        };
        if number != self.state.tracked_work.number {
            return;
        }
        let purpose = autocommit.purpose;
        match result {
            Ok(result) => {
                if result != self.state.tracked_work.as_before() {
                    let iteration = self.state.iteration;
                    self.record(LoopEvent::AutocommitFinished {
                        purpose,
                        iteration,
                        result,
                    });
                }
            }
            Err(reason) => self.record(LoopEvent::AutocommitGivenUp { purpose, reason }),
        }
        self.after_autocommit(autocommit);
    }

    pub(super) fn autocommit_overdue(&mut self, autocommit: Autocommit) {
        if !autocommit.canceled {
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
                // A stop was requested during the commit, so the reboot is not continued.
                Some(stop) => self.close(stop.into()),
                None => self.advance_reboot(RebootStep::OpenNew),
            },
            (AutocommitPurpose::End, Some(outcome)) if self.still_applies(&outcome) => {
                self.close(outcome);
            }
            (AutocommitPurpose::Iteration | AutocommitPurpose::End, _) => {
                self.advance(Stage::Check, autocommit.then);
            }
        }
    }

    /// A stop is requested during a commit: the commit is finished first, unless the stop is urgent.
    pub(super) fn stop_during_autocommit(
        &mut self,
        autocommit: Autocommit,
        stop: Stop,
        urgency: Urgency,
    ) {
        self.request_stop(stop, urgency);
        if urgency == Urgency::Kill && autocommit.canceled {
            return self.give_up_autocommit(autocommit, "it was canceled, and did not end at once");
        }
        if urgency >= Urgency::Now && autocommit.closing.is_some() {
            return self.give_up_autocommit(autocommit, "the agent had not ended yet");
        }
        if urgency >= Urgency::Now {
            self.cancel_autocommit(autocommit.then);
        }
    }

    /// Cancels the commit in progress. The changes stay in the work tree, and the next commit contains them.
    pub(super) fn cancel_autocommit(&mut self, then: Option<Wait>) {
        let Some(autocommit) = self
            .state
            .autocommit()
            .filter(|autocommit| !autocommit.canceled)
        else {
            return;
        };
        let soon = self.now.after(URGENT_TIMEOUT);
        let until = autocommit.until.map_or(soon, |until| until.min(soon));
        self.record(LoopEvent::AutocommitCanceled { until, then });
        self.emit(Effect::CancelAutocommit);
    }
}
