//! The operator's commands. Each command gets an answer in every phase.

use super::{Stage, Stepper};
use crate::state::ITERATION_NOTES_MAX;
use crate::{
    Answer, AnsweredBy, Cause, Choice, Effect, HookPoint, LoopCommand, LoopEvent, NOTE_BYTES_MAX,
    Phase, Question, RebootReason, RebootStage, Stop, Ticket, Urgency, Wait, WaitReason,
};

/// Why a pause or a reboot is refused while the loop is stopping.
const STOPPING: &str = "the loop is stopping";

pub(super) const NOT_RUNNING: &str = "the loop is not running";

/// Recorded for checks that the operator skipped.
const CHECKS_SKIPPED: &str = "the operator skipped the gates and the stop scripts";

/// Recorded for hooks that the operator skipped.
const HOOKS_SKIPPED: &str = "the operator skipped the hooks";

/// What the loop is doing, as far as the answer to a command depends on it.
enum Doing {
    /// The loop was not started, or has ended.
    Nothing,
    /// The loop is paused. `then` is the wait that continues after the pause.
    Paused { then: Option<Wait> },
    /// The loop waits. `then` is the wait that is due if something else comes first.
    Waiting { then: Option<Wait> },
    /// The loop is in the middle of a task.
    Busy(Task),
}

/// A task that a pause, a reboot or a stop waits for.
#[derive(Clone, Copy)]
enum Task {
    Turn,
    Commit,
    Checks,
    Hooks,
    Reboot,
    Rollback,
}

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

    fn current_activity(&self) -> Doing {
        match &self.state.phase {
            Phase::Idle | Phase::Ended { .. } => Doing::Nothing,
            Phase::Paused { then } => Doing::Paused { then: *then },
            Phase::Waiting { .. } if self.state.rolling_back().is_some() => {
                Doing::Busy(Task::Rollback)
            }
            Phase::Waiting { wait } => Doing::Waiting {
                then: self.wait_due(*wait),
            },
            Phase::Working { .. } => Doing::Busy(Task::Turn),
            Phase::Autocommitting { .. } => Doing::Busy(Task::Commit),
            Phase::Checking { .. } => Doing::Busy(Task::Checks),
            Phase::Hooking { .. } => Doing::Busy(Task::Hooks),
            Phase::Rebooting { .. } => Doing::Busy(Task::Reboot),
        }
    }

    fn task_name(&self, task: Task) -> String {
        match task {
            Task::Turn => format!("iteration {}", self.state.iteration),
            Task::Commit => "the commit".to_owned(),
            Task::Checks => "the checks".to_owned(),
            Task::Hooks => "the hooks".to_owned(),
            Task::Reboot => "the reboot".to_owned(),
            Task::Rollback => "the rollback".to_owned(),
        }
    }

    pub(super) fn shutdown(&mut self, signal: i32, urgency: Urgency) {
        let stop = Stop::Signal { signal };
        if self.state.work().is_some() {
            self.stop_working(stop, urgency);
        } else if self.state.outcome().is_none() {
            self.stop_between(stop, urgency);
        }
    }

    /// Stops a loop while no agent works on an iteration.
    pub(super) fn stop_between(&mut self, stop: Stop, urgency: Urgency) {
        if self.state.hooking().is_some() {
            return self.stop_hooking(stop, urgency);
        }
        if self.state.rolling_back().is_some() && urgency < Urgency::Kill {
            return self.request_stop(stop, urgency);
        }
        let agent_may_work = matches!(self.state.phase, Phase::Rebooting { .. });
        match self.state.autocommit().cloned() {
            Some(autocommit) => self.stop_during_autocommit(autocommit, stop, urgency),
            // The agent may be changing files now, so a kill makes no commit.
            None if urgency == Urgency::Kill => self.end(stop.into()),
            None if agent_may_work || urgency >= Urgency::Now => self.close_soon(stop, urgency),
            None => self.finish(stop.into()),
        }
    }

    /// Ends the loop without a commit. The end hooks get a short time.
    pub(super) fn close_soon(&mut self, stop: Stop, urgency: Urgency) {
        let taken_up = self.state.runner.is_some();
        if taken_up && self.policy.hooks.contains_key(&HookPoint::LoopEnd) {
            self.request_stop(stop.clone(), urgency);
        }
        self.close(stop.into());
    }

    fn pause(&mut self, urgency: Urgency) -> Answer {
        match self.current_activity() {
            Doing::Nothing => self.refused(NOT_RUNNING),
            Doing::Paused { .. } => accepted("already paused"),
            Doing::Waiting { then } => {
                self.record(LoopEvent::Paused { then });
                accepted("paused")
            }
            Doing::Busy(_) if self.is_ending() => self.refused(STOPPING),
            Doing::Busy(task) => {
                self.request_pause();
                let name = self.task_name(task);
                if urgency >= Urgency::Now {
                    self.interrupt_task(task, urgency);
                }
                match (task, urgency) {
                    (Task::Turn, Urgency::Now | Urgency::Kill) => {
                        accepted(format!("pauses; {name} is interrupted"))
                    }
                    (_, _) => accepted(format!("pauses after {name}")),
                }
            }
        }
    }

    /// Ends a task early for a pause. A reboot and a rollback always finish.
    fn interrupt_task(&mut self, task: Task, urgency: Urgency) {
        match task {
            Task::Turn => self.request_ending(Cause::Interrupt, urgency),
            Task::Commit => {
                let then = self.state.autocommit().and_then(|commit| commit.then);
                self.cancel_autocommit(then);
            }
            Task::Checks => {
                let then = self.state.check().and_then(|check| check.then);
                self.give_up_check(CHECKS_SKIPPED, then);
            }
            Task::Hooks => self.give_up_hooks(HOOKS_SKIPPED),
            Task::Reboot | Task::Rollback => {}
        }
    }

    fn request_pause(&mut self) {
        if !self.state.pause_requested {
            self.record(LoopEvent::PauseRequested);
        }
    }

    fn resume(&mut self) -> Answer {
        match self.current_activity() {
            Doing::Nothing => self.refused("the loop is not running; `tachikoma run` continues it"),
            Doing::Paused { then } => {
                self.record(LoopEvent::Resumed);
                self.advance(Stage::IterationEndHooks, then);
                accepted("the loop continues")
            }
            Doing::Waiting { .. } | Doing::Busy(_) if self.state.pause_requested => {
                self.record(LoopEvent::PauseWithdrawn);
                accepted("the loop continues; the requested pause is canceled")
            }
            Doing::Waiting { .. } | Doing::Busy(_) => match self.state.question() {
                Some(_) => self.refused(
                    "the loop is not paused; it waits for an answer: use `tachikoma answer`",
                ),
                None => self.refused("the loop is not paused"),
            },
        }
    }

    fn stop(&mut self, urgency: Urgency) -> Answer {
        match self.current_activity() {
            Doing::Nothing => self.refused(NOT_RUNNING),
            Doing::Busy(Task::Turn) => {
                self.stop_working(Stop::Operator, urgency);
                accepted(format!(
                    "stops; iteration {} is interrupted",
                    self.state.iteration
                ))
            }
            Doing::Busy(_) | Doing::Waiting { .. } | Doing::Paused { .. } => {
                self.stop_between(Stop::Operator, urgency);
                match self.current_activity() {
                    Doing::Busy(_) if self.state.autocommit().is_some() => {
                        accepted("stops after the commit")
                    }
                    Doing::Busy(task) => accepted(format!("stops after {}", self.task_name(task))),
                    Doing::Nothing | Doing::Waiting { .. } | Doing::Paused { .. } => {
                        accepted("stopped")
                    }
                }
            }
        }
    }

    /// Stops the loop for a hook, after the hooks that the loop waits for. Without such hooks it stops at once.
    pub(super) fn stop_after_hooks(&mut self) -> Answer {
        let rebooting = self
            .state
            .rebooting()
            .is_some_and(|reboot| matches!(reboot.stage, RebootStage::Hooks { .. }));
        if !rebooting && self.state.hooking().is_none() {
            return self.stop(Urgency::Graceful);
        }
        if !self.is_ending() {
            self.request_stop(Stop::Operator, Urgency::Graceful);
        }
        accepted("stops after the hooks")
    }

    /// Stops the loop gracefully. A task other than a turn is finished first.
    pub(super) fn stop_after_task(&mut self, stop: Stop) {
        match self.current_activity() {
            Doing::Nothing => {}
            Doing::Paused { .. } | Doing::Waiting { .. } => self.finish(stop.into()),
            Doing::Busy(Task::Turn) => self.stop_working(stop, Urgency::Graceful),
            Doing::Busy(_) => self.request_stop(stop, Urgency::Graceful),
        }
    }

    fn stop_working(&mut self, stop: Stop, urgency: Urgency) {
        self.request_stop(stop, urgency);
        self.request_ending(Cause::Interrupt, urgency);
    }

    /// Records the request to stop. The first request decides the outcome, later ones can only be more urgent.
    pub(super) fn request_stop(&mut self, stop: Stop, urgency: Urgency) {
        let urgent = urgency >= Urgency::Now;
        // Only commits and hooks can delay a stop.
        let waits = self.policy.autocommit.is_some() || !self.policy.hooks.is_empty();
        match self.state.stop.clone() {
            None => self.record(LoopEvent::StopRequested { stop, urgent }),
            Some(stop) if urgent && !self.state.stop_urgent && waits => {
                self.record(LoopEvent::StopRequested { stop, urgent });
            }
            Some(_) => {}
        }
    }

    /// Returns whether the loop is about to end.
    pub(super) fn is_ending(&self) -> bool {
        self.state.pending_end().is_some()
    }

    fn force_reboot(&mut self) -> Answer {
        match self.current_activity() {
            Doing::Nothing => self.refused(NOT_RUNNING),
            Doing::Paused { then } => {
                // The loop pauses again after the reboot.
                self.record(LoopEvent::PauseRequested);
                self.begin_reboot(RebootReason::Manual, after_reboot(then));
                accepted("reboots and stays paused")
            }
            Doing::Waiting { then } => {
                self.begin_reboot(RebootReason::Manual, after_reboot(then));
                accepted("reboots")
            }
            Doing::Busy(_) if self.is_ending() => self.refused(STOPPING),
            Doing::Busy(Task::Reboot) => accepted("already rebooting"),
            Doing::Busy(Task::Turn) => {
                self.request_manual_reboot();
                self.end_for_reboot();
                accepted(format!(
                    "reboots; iteration {} ends, and the new session continues its work",
                    self.state.iteration
                ))
            }
            Doing::Busy(task) => {
                // A reboot that an earlier runner began continues after the start hooks.
                let over = self
                    .state
                    .hooking()
                    .and_then(|hooking| hooking.over.as_deref());
                if !over.is_some_and(|over| matches!(over, Phase::Rebooting { .. })) {
                    self.request_manual_reboot();
                }
                accepted(format!("reboots after {}", self.task_name(task)))
            }
        }
    }

    /// Requests a reboot that ignores the rate limits.
    fn request_manual_reboot(&mut self) {
        let confirms = self.policy.reboot.confirm.is_some();
        if self.state.reboot_pending.is_none() || self.reboot_is_held() || confirms {
            self.request_reboot(RebootReason::Manual, None);
        }
    }

    fn skip(&mut self) -> Answer {
        match self.current_activity() {
            Doing::Nothing => self.refused(NOT_RUNNING),
            Doing::Paused { .. } => {
                self.refused("the loop is paused; `tachikoma resume` continues it")
            }
            Doing::Waiting { then } => match self.state.question().cloned() {
                Some(question) => self.skip_question(&question),
                None if then.is_some_and(|wait| wait.reason == WaitReason::RebootWindow) => {
                    self.refused(
                        "the context is full, and the rate limits do not allow a reboot yet; `tachikoma reboot` reboots now",
                    )
                }
                None => {
                    self.advance(Stage::IterationEndHooks, None);
                    accepted("skips the wait")
                }
            },
            Doing::Busy(Task::Turn) if self.state.stop.is_some() => self.refused(STOPPING),
            Doing::Busy(Task::Turn) => {
                self.request_ending(Cause::Skip, Urgency::Now);
                accepted(format!("skips iteration {}", self.state.iteration))
            }
            Doing::Busy(Task::Commit | Task::Reboot) if self.state.autocommit().is_some() => {
                self.cancel_autocommit(None);
                accepted("skips the commit; the changes stay in the work tree")
            }
            Doing::Busy(Task::Commit | Task::Reboot) => {
                self.refused("the loop is rebooting; no iteration runs")
            }
            Doing::Busy(Task::Checks) => {
                self.give_up_check(CHECKS_SKIPPED, None);
                accepted("skips the gates and the stop scripts")
            }
            Doing::Busy(Task::Hooks) => {
                self.give_up_hooks(HOOKS_SKIPPED);
                accepted("skips the hooks")
            }
            Doing::Busy(Task::Rollback) => self.refused("the work tree is being rolled back"),
        }
    }

    /// Skips a question: the next iteration begins, or the reboot that was asked about does not happen.
    fn skip_question(&mut self, question: &Question) -> Answer {
        let choices = [Choice::Skip, Choice::Continue, Choice::No];
        let mut choices = choices.into_iter();
        match choices.find(|choice| question.choices.contains(choice)) {
            Some(choice) => {
                self.choose(question, choice, AnsweredBy::Operator, None);
                match choice == Choice::No {
                    true => accepted("continues without the reboot, as with the answer `no`"),
                    false => accepted("skips the question"),
                }
            }
            None => self.refused(
                "the context is full, so the reboot cannot be skipped; use `tachikoma answer yes` or `tachikoma stop`",
            ),
        }
    }

    pub(super) fn note(&mut self, ticket: Ticket, text: &str, tell: bool, operator: bool) {
        if !operator && !self.state.takes_agents_note() {
            let answer = self.refused(&format!(
                "the agent may leave {ITERATION_NOTES_MAX} notes per iteration; write more notes into a file of the work tree"
            ));
            return self.emit(Effect::Reply { ticket, answer });
        }
        // A loop that has ended may be started again. Its next session then gets the note.
        let answer = if self.state.phase == Phase::Idle {
            self.refused("the loop was never started")
        } else {
            let end = text.floor_char_boundary(NOTE_BYTES_MAX);
            let text = text.get(..end).unwrap_or_default().to_owned();
            self.record(LoopEvent::Noted {
                text,
                tell,
                operator,
            });
            if tell {
                self.rolled_back_by_command();
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

/// Returns the wait that is due after a reboot. A wait for the reboot itself is over.
fn after_reboot(wait: Option<Wait>) -> Option<Wait> {
    wait.filter(|wait| wait.reason != WaitReason::RebootWindow)
}

fn accepted(note: impl Into<String>) -> Answer {
    Answer::Accepted { note: note.into() }
}
