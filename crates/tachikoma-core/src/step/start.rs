//! A runner starts or resumes the loop.

use super::{PASSED, Stage, Stepper};
use crate::policy::stop::{self};
use crate::{Effect, HookPoint, Launch, LoopEvent, Outcome, Phase, Resumption, Runner};

impl Stepper<'_> {
    /// Ends the loop at once. The current attempt is cut.
    pub(super) fn end_at_once(&mut self, outcome: Outcome) {
        if self.state.outcome().is_some() {
            return;
        }
        if self.state.work().is_some() {
            self.cut_attempt();
        }
        self.end(outcome);
    }

    fn cut_attempt(&mut self) {
        self.record(LoopEvent::AttemptCut {
            iteration: self.state.iteration,
            attempt: self.state.attempt,
            reason: None,
            agent_lives: false,
        });
    }

    pub(super) fn start(&mut self, mut launch: Launch, runner: Runner) {
        if self.state.startable().is_err() {
            return self.emit(Effect::Finish);
        }
        // The start commit of a loop is recorded once and never changes.
        let was_started = self.state.started_at.is_some();
        if was_started {
            launch
                .start_commit
                .clone_from(&self.state.launch.start_commit);
        }
        let resumption = match (self.state.outcome(), self.state.started_at) {
            (Some(outcome), _) => Resumption::AfterEnd {
                outcome: outcome.clone(),
            },
            (None, Some(_)) => Resumption::AfterCrash,
            (None, None) => Resumption::New,
        };
        let changes = match resumption {
            Resumption::New => None,
            Resumption::AfterCrash | Resumption::AfterEnd { .. } => {
                launch.changes_since(&self.state.launch)
            }
        };
        let other_work = launch.other_work_than(&self.state.launch);
        self.record(LoopEvent::Started {
            launch,
            runner,
            resumption,
            limits: self.policy.limits(),
        });
        if let Some(changes) = changes {
            self.record(LoopEvent::ConfigChanged { changes });
        }
        if !self.policy.persist_sessions && self.state.session.agent_id.is_some() {
            self.begin_session("persist_sessions = false, and a new runner started the loop");
        }
        // The runner has ended all processes of the earlier attempt.
        if self.state.work().is_some() {
            self.cut_attempt();
        }
        if let Some(reason) = other_work.filter(|_| was_started) {
            self.cancel_due_checks(reason);
        }
        self.reapply_rate_limits();
        if self.run_hooks(HookPoint::LoopStart, None, None) == PASSED {
            self.resume_phase();
        }
    }

    /// Continues where an earlier runner stopped.
    pub(super) fn resume_phase(&mut self) {
        match &self.state.phase {
            Phase::Idle | Phase::Working { .. } | Phase::Ended { .. } => self.check_at_start(None),
            Phase::Checking { check } => {
                let then = check.then;
                self.check_at_start(then);
            }
            Phase::Waiting { wait } => {
                let then = self.wait_due(*wait);
                match (self.state.question().cloned(), self.state.rolling_back()) {
                    (Some(question), _) => self.resume_question(&question),
                    // The rollback is repeated, because the work tree may be restored in part.
                    (None, Some(rolling)) => self.emit(Effect::RollBack {
                        iteration: rolling.iteration,
                        again: true,
                    }),
                    (None, None) => self.advance(Stage::IterationEndHooks, then),
                }
            }
            Phase::Autocommitting { autocommit } => {
                let autocommit = autocommit.clone();
                self.resume_autocommit(&autocommit);
            }
            Phase::Hooking { hooking } => {
                let hooking = hooking.clone();
                self.resume_hooks(&hooking);
            }
            Phase::Rebooting { reboot } => {
                let reboot = reboot.clone();
                match stop::verdict(self.policy, self.state, self.now) {
                    // The budget is used up, so no hand-off is requested.
                    Some(outcome @ Outcome::Budget { .. }) => {
                        self.record_stop_condition(&outcome);
                        self.close(outcome);
                    }
                    Some(_) | None => self.resume_reboot(reboot),
                }
            }
            // A pause continues after a crash of the runner.
            Phase::Paused { .. } => {}
        }
    }
}
