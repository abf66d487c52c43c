//! The operator's commands, each answered in every phase.

use super::Stepper;
use super::order::Stage;
use crate::state::ITERATION_NOTES_MAX;
use crate::{
    Answer, AnsweredBy, Cause, Choice, Effect, HookPoint, LoopCommand, LoopEvent, NOTE_BYTES_MAX,
    Phase, Question, RebootReason, RebootStage, Stop, Ticket, Urgency, Wait, WaitReason,
};

/// To promise a pause or a reboot that never comes would be worse than to refuse it.
const STOPPING: &str = "the loop is stopping";

/// Reason for checks that the operator skipped.
const CALLED_OFF: &str = "the operator called the gates and the stop scripts off";

/// Reason for hooks that the operator skipped.
const HOOKS_CALLED_OFF: &str = "the operator called them off";

impl Stepper<'_> {
    pub(super) fn command(&mut self, ticket: Ticket, command: LoopCommand) {
        let answer = match command {
            LoopCommand::Pause(urgency) => self.pause(urgency),
            LoopCommand::Resume => self.resume(),
            LoopCommand::Stop(urgency) => self.stop(urgency),
            LoopCommand::ForceReboot => self.force_reboot(),
            LoopCommand::SkipIteration => self.skip(),
        };
        self.emit(Effect::Reply { ticket, answer });
    }

    pub(super) fn shutdown(&mut self, signal: i32, urgency: Urgency) {
        let stop = Stop::Signal { signal };
        if self.work().is_some() {
            self.stop_working(stop, urgency);
        } else if self.state.outcome().is_none() {
            self.stop_between(stop, urgency);
        }
    }

    /// Ends a loop that has no iteration under way.
    pub(super) fn stop_between(&mut self, stop: Stop, urgency: Urgency) {
        if self.state.hooking().is_some() {
            return self.stop_hooking(stop, urgency);
        }
        if self.state.rolling_back().is_some() && urgency < Urgency::Kill {
            return self.want_stop(stop, urgency);
        }
        let agent_may_work = matches!(self.state.phase, Phase::Rebooting { .. });
        match self.state.autocommit().cloned() {
            Some(autocommit) => self.stop_during_autocommit(autocommit, stop, urgency),
            // Changes that are being made at this moment are not committed.
            None if urgency == Urgency::Kill => self.end(stop.into()),
            None if agent_may_work || urgency >= Urgency::Now => self.close_soon(stop, urgency),
            None => self.finish(stop.into()),
        }
    }

    /// Ends the loop without a commit. Hooks at its end get a short time.
    pub(super) fn close_soon(&mut self, stop: Stop, urgency: Urgency) {
        let taken_up = self.state.runner.is_some();
        if taken_up && self.policy.hooks.contains_key(&HookPoint::LoopEnd) {
            self.want_stop(stop.clone(), urgency);
        }
        self.close(stop.into());
    }

    fn pause(&mut self, urgency: Urgency) -> Answer {
        match &self.state.phase {
            Phase::Waiting { .. } if self.state.rolling_back().is_some() => {
                if self.is_ending() {
                    return self.refused(STOPPING);
                }
                self.request_pause();
                accepted("pauses when the work tree is brought back")
            }
            Phase::Waiting { wait } => {
                let then = self.behind(*wait);
                self.record(LoopEvent::Paused { then });
                accepted("paused")
            }
            Phase::Working { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
                if self.is_ending() =>
            {
                self.refused(STOPPING)
            }
            Phase::Hooking { .. } => {
                self.request_pause();
                if urgency >= Urgency::Now {
                    self.give_up_hooks(HOOKS_CALLED_OFF);
                }
                accepted("pauses when the hooks have run")
            }
            Phase::Checking { check } => {
                let then = check.then;
                self.request_pause();
                if urgency >= Urgency::Now {
                    self.give_up_check(CALLED_OFF, then);
                }
                accepted("pauses when the work is checked")
            }
            Phase::Working { .. } => {
                self.request_pause();
                let iteration = self.state.iteration;
                if urgency == Urgency::Graceful {
                    return accepted(format!("pauses after iteration {iteration}"));
                }
                self.request_ending(Cause::Interrupt, urgency);
                accepted(format!("pauses; iteration {iteration} is interrupted"))
            }
            Phase::Autocommitting { autocommit } => {
                let then = autocommit.then;
                self.request_pause();
                if urgency >= Urgency::Now {
                    self.cancel_autocommit(then);
                }
                accepted("pauses when the work is kept")
            }
            Phase::Rebooting { .. } => {
                self.request_pause();
                accepted("pauses after the reboot")
            }
            Phase::Paused { .. } => accepted("already paused"),
            Phase::Idle | Phase::Ended { .. } => self.refused("nothing runs that could be paused"),
        }
    }

    fn request_pause(&mut self) {
        if !self.state.pause_requested {
            self.record(LoopEvent::PauseRequested);
        }
    }

    fn resume(&mut self) -> Answer {
        match &self.state.phase {
            Phase::Paused { then } => {
                let then = *then;
                self.record(LoopEvent::Resumed);
                self.advance(Stage::IterationEndHooks, then);
                accepted("goes on")
            }
            Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
                if self.state.pause_requested =>
            {
                self.record(LoopEvent::PauseWithdrawn);
                accepted("goes on; the pause that was asked for is withdrawn")
            }
            Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. } => match self.state.question() {
                Some(_) => self.refused(
                    "the loop is not paused: it is asked, and waits for `tachikoma answer`",
                ),
                None => self.refused("the loop is not paused"),
            },
            Phase::Idle | Phase::Ended { .. } => {
                self.refused("the loop is not live; `tachikoma run` goes on with it")
            }
        }
    }

    fn stop(&mut self, urgency: Urgency) -> Answer {
        match self.state.phase {
            Phase::Working { .. } => {
                self.stop_working(Stop::Operator, urgency);
                accepted(format!(
                    "stops; iteration {} is interrupted",
                    self.state.iteration
                ))
            }
            Phase::Waiting { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. } => {
                self.stop_between(Stop::Operator, urgency);
                accepted(match self.state.phase {
                    Phase::Ended { .. } => "stopped",
                    Phase::Hooking { .. } => "stops when the hooks at the end have run",
                    Phase::Waiting { .. } => {
                        "stops when the work tree is brought back, or as it was before"
                    }
                    Phase::Idle
                    | Phase::Working { .. }
                    | Phase::Autocommitting { .. }
                    | Phase::Checking { .. }
                    | Phase::Rebooting { .. }
                    | Phase::Paused { .. } => "stops when the work is kept",
                })
            }
            Phase::Idle | Phase::Ended { .. } => self.refused("nothing runs that could be stopped"),
        }
    }

    /// Stops the loop for a hook that it waits for. Without one it is a stop like any other.
    pub(super) fn stop_behind_hooks(&mut self) -> Answer {
        let rebooting = self
            .state
            .rebooting()
            .is_some_and(|reboot| matches!(reboot.stage, RebootStage::Hooks { .. }));
        if !rebooting && self.state.hooking().is_none() {
            return self.stop(Urgency::Graceful);
        }
        if !self.is_ending() {
            self.want_stop(Stop::Operator, Urgency::Graceful);
        }
        accepted("stops when the hooks have run")
    }

    fn stop_working(&mut self, stop: Stop, urgency: Urgency) {
        self.want_stop(stop, urgency);
        self.request_ending(Cause::Interrupt, urgency);
    }

    /// Records the request to stop. The first one decides the outcome, later ones only add urgency.
    pub(super) fn want_stop(&mut self, stop: Stop, urgency: Urgency) {
        let urgent = urgency >= Urgency::Now;
        // Only work that is kept and hooks are waited for.
        let waits = self.policy.autocommit.is_some() || !self.policy.hooks.is_empty();
        match self.state.stop.clone() {
            None => self.record(LoopEvent::StopRequested { stop, urgent }),
            Some(stop) if urgent && !self.state.stop_urgent && waits => {
                self.record(LoopEvent::StopRequested { stop, urgent });
            }
            Some(_) => {}
        }
    }

    /// Returns whether the loop is on its way to its end.
    pub(super) fn is_ending(&self) -> bool {
        self.state.pending_end().is_some()
    }

    fn force_reboot(&mut self) -> Answer {
        match &self.state.phase {
            Phase::Waiting { .. } if self.state.rolling_back().is_some() => {
                if self.is_ending() {
                    return self.refused(STOPPING);
                }
                self.want_reboot_by_hand();
                accepted("reboots when the work tree is brought back")
            }
            Phase::Waiting { wait } => {
                let then = after_reboot(self.behind(*wait));
                self.begin_reboot(RebootReason::Manual, then);
                accepted("reboots")
            }
            Phase::Working { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
                if self.is_ending() =>
            {
                self.refused(STOPPING)
            }
            Phase::Hooking { hooking } => {
                // A reboot that a runner found under way goes on when the hooks at the start have run.
                let over = hooking.over.as_deref();
                if !over.is_some_and(|over| matches!(over, Phase::Rebooting { .. })) {
                    self.want_reboot_by_hand();
                }
                accepted("reboots when the hooks have run")
            }
            Phase::Working { .. } => {
                self.want_reboot_by_hand();
                self.end_for_reboot();
                accepted(format!(
                    "reboots; iteration {} is handed over",
                    self.state.iteration
                ))
            }
            Phase::Autocommitting { .. } => {
                self.want_reboot_by_hand();
                accepted("reboots when the work is kept")
            }
            Phase::Checking { .. } => {
                self.want_reboot_by_hand();
                accepted("reboots when the work is checked")
            }
            Phase::Paused { then } => {
                let then = after_reboot(*then);
                // So that it is paused again afterwards.
                self.record(LoopEvent::PauseRequested);
                self.begin_reboot(RebootReason::Manual, then);
                accepted("reboots and stays paused")
            }
            Phase::Rebooting { .. } => accepted("already rebooting"),
            Phase::Idle | Phase::Ended { .. } => {
                self.refused("nothing runs that could be rebooted")
            }
        }
    }

    /// The operator passes every rate limit.
    fn want_reboot_by_hand(&mut self) {
        let confirms = self.policy.reboot.confirm.is_some();
        if self.state.reboot_pending.is_none() || self.reboot_is_held() || confirms {
            self.request_reboot(RebootReason::Manual, None);
        }
    }

    fn skip(&mut self) -> Answer {
        match self.state.phase {
            Phase::Working { .. } if self.state.stop.is_some() => self.refused(STOPPING),
            Phase::Working { .. } => {
                self.request_ending(Cause::Skip, Urgency::Now);
                accepted(format!("skips iteration {}", self.state.iteration))
            }
            Phase::Waiting { wait } if wait.reason == WaitReason::RebootWindow => self.refused(
                "the context is full, and its session may not be rebooted yet; `tachikoma reboot` does it all the same",
            ),
            Phase::Waiting { .. } => match self.state.question().cloned() {
                Some(question) => self.skip_question(&question),
                None if self.state.rolling_back().is_some() => {
                    self.refused("the work tree is being brought back")
                }
                None => {
                    self.advance(Stage::IterationEndHooks, None);
                    accepted("skips the wait")
                }
            },
            Phase::Paused { .. } => {
                self.refused("the loop is paused, no iteration runs; `tachikoma resume` goes on")
            }
            Phase::Autocommitting { .. } => self.skip_keep(),
            Phase::Checking { .. } => {
                self.give_up_check(CALLED_OFF, None);
                accepted("goes on without the gates and the stop scripts")
            }
            Phase::Hooking { .. } => {
                self.give_up_hooks(HOOKS_CALLED_OFF);
                accepted("goes on without the hooks")
            }
            Phase::Rebooting { .. } if self.state.autocommit().is_some() => self.skip_keep(),
            Phase::Rebooting { .. } => self.refused("the loop is rebooting, no iteration runs"),
            Phase::Idle | Phase::Ended { .. } => self.refused("nothing runs that could be skipped"),
        }
    }

    /// Skipping a question goes on with the next iteration, or without the reboot.
    fn skip_question(&mut self, question: &Question) -> Answer {
        let choices = [Choice::Skip, Choice::Continue, Choice::No];
        let mut choices = choices.into_iter();
        match choices.find(|choice| question.choices.contains(choice)) {
            Some(choice) => {
                self.choose(question, choice, AnsweredBy::Operator, None);
                accepted(match choice {
                    Choice::No => "goes on without the reboot, as `no` does",
                    Choice::Continue
                    | Choice::Skip
                    | Choice::Reboot
                    | Choice::Rollback
                    | Choice::Edit
                    | Choice::Yes
                    | Choice::Pause
                    | Choice::Stop => "goes on without an answer",
                })
            }
            None => self.refused(
                "the context is full, and it is asked whether its session is rebooted; `tachikoma answer yes`, or `tachikoma stop`",
            ),
        }
    }

    fn skip_keep(&mut self) -> Answer {
        self.cancel_autocommit(None);
        accepted("goes on without a commit; the work stays in the work tree")
    }

    pub(super) fn note(&mut self, ticket: Ticket, text: &str, tell: bool, operator: bool) {
        if !operator && !self.state.takes_agents_note() {
            let answer = self.refused(&format!(
                "the agent has left {ITERATION_NOTES_MAX} notes in this iteration, and more are not kept; write them into a file of the work tree"
            ));
            return self.emit(Effect::Reply { ticket, answer });
        }
        // A loop that has ended may be run again, and then needs the note.
        let answer = if self.state.phase == Phase::Idle {
            self.refused("no loop runs that could take a note")
        } else {
            let kept = text.floor_char_boundary(NOTE_BYTES_MAX);
            let text = text.get(..kept).unwrap_or_default().to_owned();
            self.record(LoopEvent::Noted {
                text,
                tell,
                operator,
            });
            if tell {
                self.rolled_back_outside();
            }
            accepted("noted")
        };
        self.emit(Effect::Reply { ticket, answer });
    }

    pub(super) fn refused(&self, reason: &str) -> Answer {
        Answer::Refused {
            current: self.state.public(),
            reason: reason.to_owned(),
        }
    }
}

/// Returns what is left of a wait when a reboot is over: who waited for the reboot waits for nothing.
fn after_reboot(wait: Option<Wait>) -> Option<Wait> {
    wait.filter(|wait| wait.reason != WaitReason::RebootWindow)
}

fn accepted(note: impl Into<String>) -> Answer {
    Answer::Accepted { note: note.into() }
}
