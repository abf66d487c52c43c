//! The decision function: one input in, records and effects out.
//!
//! The runner gives one input at a time, with a time that never decreases. It journals and syncs [`Step::records`], publishes them,
//! carries out [`Step::effects`] in order, sleeps until [`next_deadline`](crate::next_deadline), and sends [`Input::Wake`].
#![warn(clippy::wildcard_enum_match_arm)]

mod agent_input;
mod autocommit;
mod check;
mod command;
mod ending;
mod hooks;
mod operator;
mod reading;
mod reboot;
mod settle;
mod spending;
mod start;

use std::ops::ControlFlow;
use std::time::Duration;

use crate::apply::apply;
use crate::policy::budget::out_of_time;
use crate::policy::{custom, timeout};
use crate::recorded_input::ExpectedNumbers;
use crate::time::millis;
use crate::{
    Answer, Autocommit, CommitStatus, Effect, HookPoint, Input, LoopEvent, Outcome, Phase, Policy,
    Record, RecordedInput, State, Step, Ticket, Timestamp, Wait, WaitReason,
};

/// Handles one input. It cannot fail: an invalid input is recorded, refused or ignored.
pub fn step(policy: &Policy, state: &mut State, now: Timestamp, input: Input) -> Step {
    let now = now.max(state.time);
    let before = ExpectedNumbers::of(state);
    let given = input.clone();
    let mut stepper = Stepper {
        policy,
        state,
        now,
        reasons: Vec::new(),
        step: Step::default(),
    };
    match input {
        Input::Start { launch, runner } => stepper.start(launch, runner),
        Input::Wake => stepper.wake(),
        Input::Command { ticket, command } => stepper.command(ticket, command),
        Input::Shutdown { signal, urgency } => stepper.shutdown(signal, urgency),
        Input::Decline { signal } => stepper.end_at_once(Outcome::Signal { signal }),
        Input::Broken { reason } => stepper.end_at_once(Outcome::Error { reason }),
        Input::Suspended { duration } => stepper.suspended(duration),
        // Events of an earlier launch are dropped.
        Input::Agent { generation, event } => {
            let agent = stepper.state.agent;
            if agent.is_some_and(|agent| agent.generation == generation) {
                stepper.agent_event(event);
            }
        }
        Input::HooksRan { point, results } => stepper.hooks_ran(point, results),
        Input::SnapshotTaken {
            iteration,
            commit,
            uncommitted,
        } => stepper.snapshot_taken(iteration, commit, uncommitted),
        Input::AutocommitFinished { number, result } => stepper.autocommit_finished(number, result),
        Input::ConditionsAnswered { number, answers } => {
            stepper.conditions_answered(number, answers);
        }
        Input::GatesRan {
            number,
            results,
            tests,
        } => stepper.gates_ran(number, results, tests),
        Input::CompletionClaimed { ticket, reason } => stepper.completion_claimed(ticket, reason),
        Input::Note {
            ticket,
            text,
            tell,
            operator,
        } => stepper.note(ticket, &text, tell, operator),
        Input::OperatorRequest { ticket, request } => stepper.operator_request(ticket, request),
        Input::RolledBack { iteration, result } => stepper.rolled_back(iteration, result),
        Input::CustomSet { ticket, key, value } => stepper.set_custom(ticket, key, value),
        Input::Warning { warning } => stepper.record(LoopEvent::Warned { warning }),
        Input::DiskWasFull { duration } => stepper.record(LoopEvent::DiskWasFull {
            duration_ms: millis(duration),
        }),
        Input::Incident(incident) => stepper.record(LoopEvent::Incident(incident)),
        Input::Repaired { what, how } => stepper.record(LoopEvent::Repaired { what, how }),
    }
    let mut made = stepper.step;
    let events: Vec<&LoopEvent> = made.records.iter().map(|record| &record.event).collect();
    if !events.is_empty() {
        let input = RecordedInput::new(given, before, &events);
        made.records[0].input = Some(input);
    }
    made
}

/// Whether a stage was passed. `Break` means that the loop waits, or has ended. The input that ends the wait continues with the next
/// stage.
type StageResult = ControlFlow<()>;

/// The stage was passed.
const PASSED: StageResult = ControlFlow::Continue(());

/// The loop waits, or has ended.
const HELD: StageResult = ControlFlow::Break(());

/// A stage between the end of a turn and the next prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Commit the changes of the attempt under this status. `None` only surveys the work tree.
    Commit(Option<CommitStatus>),
    /// Read the objectives, ask the stop scripts, run the gates, and judge a claim of completion.
    Check,
    /// Decide whether the session continues or needs a reboot.
    Settle,
    /// Run the hooks of the iteration that ended.
    IterationEndHooks,
    /// End the loop if a stop condition is met.
    End,
    /// Reboot the session if that is due.
    Reboot,
    /// Pause if the operator asked for it.
    Pause,
    /// Ask the operator, in attended mode.
    Question,
    /// Wait, after failures or between iterations.
    Wait,
    /// Begin a session if there is none, or if the last one cannot continue.
    Session,
    /// Run the hooks of the sessions and of the iteration that begins.
    StartHooks,
    /// Start the agent, or prompt the one that runs.
    Prompt,
}

/// A step of a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RebootStep {
    /// Ask the old session for its hand-off.
    HandOff,
    /// Postpone the reboot if the rate limits do not allow it yet.
    RateLimits,
    /// Run the hooks before the reboot.
    HooksBefore,
    /// End the process of the old session. It may change files until then.
    CloseOld,
    /// Commit the work of the old session.
    Commit,
    /// Open the new session. An agent that runs for one turn is started by its next prompt instead.
    OpenNew,
    /// Record the end of the old session and the start of the new one.
    Replace,
    /// Run the hooks after the reboot.
    HooksAfter,
    /// Record the end of the reboot, and continue the loop.
    Complete,
}

/// State of one call of [`step`].
struct Stepper<'a> {
    policy: &'a Policy,
    state: &'a mut State,
    now: Timestamp,
    /// Reasons that are stored in the next record.
    reasons: Vec<String>,
    step: Step,
}

impl Stepper<'_> {
    /// Records an event and applies it to the state. Nothing else changes the state.
    fn record(&mut self, event: LoopEvent) {
        let record = Record {
            seq: self.state.seq.next(),
            time: self.now,
            loop_id: self.state.loop_id,
            event,
            input: None,
            reasons: std::mem::take(&mut self.reasons),
        };
        apply(self.state, &record);
        self.step.records.push(record);
    }

    /// Adds a reason for a decision. The next record stores it.
    fn add_reason(&mut self, reason: String) {
        self.reasons.push(reason);
    }

    fn emit(&mut self, effect: Effect) {
        self.step.effects.push(effect);
    }

    fn set_custom(&mut self, ticket: Ticket, key: String, value: serde_json::Value) {
        let answer = match custom::verdict(&self.state.custom, &key, &value) {
            Ok(note) => {
                // A key that does not exist need not be removed.
                if !value.is_null() || self.state.custom.contains_key(&key) {
                    self.record(LoopEvent::CustomSet { key, value });
                }
                Answer::Accepted { note }
            }
            Err(refusal) => self.refused(&refusal.to_string()),
        };
        self.emit(Effect::Reply { ticket, answer });
    }

    /// Extends the timeouts by the time of the suspension.
    fn suspended(&mut self, duration: Duration) {
        match self.state.phase {
            Phase::Working { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. } => {
                self.record(LoopEvent::Suspended {
                    duration_ms: millis(duration),
                });
            }
            // A wait is not extended, and the other phases have no deadline.
            Phase::Idle | Phase::Waiting { .. } | Phase::Paused { .. } | Phase::Ended { .. } => {}
        }
    }

    fn wake(&mut self) {
        let over = out_of_time(self.policy, self.state);
        if over.is_some_and(|moment| moment <= self.now) {
            self.check_budgets();
        }
        match &self.state.phase {
            Phase::Waiting { wait } if wait.until <= self.now => {
                if wait.reason == WaitReason::Operator {
                    self.operator_overdue();
                } else {
                    self.advance(Stage::IterationEndHooks, None);
                }
            }
            Phase::Working { work } => {
                let work = (**work).clone();
                self.iteration_overdue(&work);
            }
            Phase::Autocommitting {
                autocommit:
                    Autocommit {
                        closing: Some(escalation),
                        ..
                    },
            } => {
                let escalation = *escalation;
                if escalation.until <= self.now {
                    self.closing_overdue(escalation);
                }
            }
            Phase::Autocommitting { autocommit }
                if autocommit.until.is_some_and(|until| until <= self.now) =>
            {
                let autocommit = autocommit.clone();
                self.autocommit_overdue(autocommit);
            }
            Phase::Checking { check } if check.until.is_some_and(|until| until <= self.now) => {
                let check = check.clone();
                self.check_overdue(&check);
            }
            Phase::Hooking { hooking } if hooking.until <= self.now => {
                self.give_up_hooks("the hooks did not end in time");
            }
            Phase::Rebooting { reboot }
                if timeout::reboot(self.policy, reboot).is_some_and(|until| until <= self.now) =>
            {
                let reboot = reboot.clone();
                self.reboot_overdue(reboot);
            }
            Phase::Waiting { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
            | Phase::Idle
            | Phase::Paused { .. }
            | Phase::Ended { .. } => {}
        }
    }

    /// Runs the stages from `stage` on until the loop has to wait. `wait` is the wait that is due before the next prompt.
    fn advance(&mut self, stage: Stage, wait: Option<Wait>) {
        let (mut stage, mut wait) = (stage, wait);
        loop {
            let (result, next) = match stage {
                Stage::Commit(status) => (self.commit_iteration(status, wait), Stage::Check),
                Stage::Check => (self.check(wait), Stage::Settle),
                Stage::Settle => (self.settle(), Stage::IterationEndHooks),
                Stage::IterationEndHooks => (self.run_iteration_end_hooks(wait), Stage::End),
                Stage::End => (self.end_if_condition_met(wait), Stage::Reboot),
                Stage::Reboot => (self.reboot_if_due(&mut wait), Stage::Pause),
                Stage::Pause => (self.pause_if_requested(wait), Stage::Question),
                Stage::Question => (self.ask_if_attended(wait), Stage::Wait),
                Stage::Wait => (self.wait_if_due(wait), Stage::Session),
                Stage::Session => (self.begin_session_if_needed(), Stage::StartHooks),
                Stage::StartHooks => (self.run_start_hooks(), Stage::Prompt),
                Stage::Prompt => return self.begin_turn(),
            };
            if result == HELD {
                return;
            }
            stage = next;
        }
    }

    /// Runs the steps of a reboot from `step` on until the loop has to wait.
    fn advance_reboot(&mut self, step: RebootStep) {
        let mut step = step;
        loop {
            let (result, next) = match step {
                RebootStep::HandOff => (self.ask_hand_off(), RebootStep::RateLimits),
                RebootStep::RateLimits => (self.postpone_if_limited(), RebootStep::HooksBefore),
                RebootStep::HooksBefore => (
                    self.run_hooks(HookPoint::BeforeReboot, None, None),
                    RebootStep::CloseOld,
                ),
                RebootStep::CloseOld => (self.close_old_session(), RebootStep::Commit),
                RebootStep::Commit => (self.commit_checkpoint(), RebootStep::OpenNew),
                RebootStep::OpenNew => (self.open_new_session(), RebootStep::Replace),
                RebootStep::Replace => (self.replace_session(), RebootStep::HooksAfter),
                RebootStep::HooksAfter => (
                    self.run_hooks(HookPoint::AfterReboot, None, None),
                    RebootStep::Complete,
                ),
                RebootStep::Complete => return self.complete_reboot(),
            };
            if result == HELD {
                return;
            }
            step = next;
        }
    }
}
