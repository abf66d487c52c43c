//! What the record cannot tell, guessed: each time as the least that can have happened.

use super::super::derive::Scene;
use super::Shadow;
use crate::effect::Effect;
use crate::exit::Exit;
use crate::input::{Input, News, TurnEnd};
use crate::outcome::Timeout;
use crate::phase::{Cause, Phase, RebootStage};
use crate::policy::timeout::next_deadline;
use crate::state::State;
use crate::time::Timestamp;

/// What is guessed comes to an end in a few steps; a loop that needs more is going round in circles.
pub(super) const ROUNDS_MAX: u32 = 32;

/// The signal that an agent has ended by which was interrupted.
const SIGINT: i32 = 2;

impl Shadow {
    /// Ends a turn that the recorded loop ended by its own rules, and this one did not: returns whether it did.
    pub(super) fn goes_on(&mut self, now: Timestamp, scene: &Scene, end: &TurnEnd) -> bool {
        match scene.ending {
            Some(Cause::Interrupt) if !scene.by_itself => false,
            // The rest of it is not recorded: taken as done.
            Some(
                Cause::HandOver
                | Cause::Interrupt
                | Cause::Timeout {
                    timeout: Timeout::Session,
                },
            ) => {
                let end = self.end(end);
                let end = self.well(&end);
                if self.policy.agent.event_stream {
                    let effects = self.agent(now, News::Resulted(end), None);
                    self.react(&effects, false);
                }
                if self.work().is_some() {
                    let effects = self.agent(now, gone(Exit::Code(0)), None);
                    self.react(&effects, false);
                }
                true
            }
            // Whoever hangs goes on hanging.
            Some(Cause::Timeout {
                timeout:
                    Timeout::Launch
                    | Timeout::FirstOutput
                    | Timeout::Silence
                    | Timeout::Tool
                    | Timeout::StreamGone,
            }) => {
                self.owes(end);
                self.run_out(now);
                true
            }
            Some(
                Cause::Timeout {
                    timeout: Timeout::ResultGrace,
                }
                | Cause::Skip,
            )
            | None => false,
        }
    }

    /// Nothing more is heard of the turn: its own time-outs end it.
    pub(super) fn run_out(&mut self, now: Timestamp) {
        self.guessed = true;
        for _ in 0..ROUNDS_MAX {
            if self.work().is_none() {
                break;
            }
            let effects = match next_deadline(&self.policy, &self.state) {
                Some(due) => self.feed(due.max(self.state.time), Input::Wake, None),
                None => self.agent(now, gone(Exit::Unknown), None),
            };
            self.react(&effects, false);
        }
        self.deaf = true;
    }

    /// Answers for the agent where it signals one that was not signalled in the record.
    pub(super) fn react(&mut self, effects: &[Effect], recorded_too: bool) {
        let any = |wish: fn(&Effect) -> bool| effects.iter().any(wish);
        if any(|effect| matches!(effect, Effect::Look { .. })) && !self.recorded_looks {
            // What there was to see is not recorded: nothing.
            self.guessed = true;
            let news = News::Looked { activity: None };
            let effects = self.agent(self.state.time, news, None);
            return self.react(&effects, recorded_too);
        }
        let signals = any(|effect| matches!(effect, Effect::Signal { .. }));
        if !signals || recorded_too || self.work().is_none() {
            return;
        }
        self.deaf = true;
        self.heard = self.state.ledger.turn;
        let now = self.state.time;
        let answer = if self.policy.agent.persistent {
            News::Resulted(TurnEnd::default())
        } else {
            gone(Exit::Signal(SIGINT))
        };
        let effects = self.agent(now, answer, None);
        self.react(&effects, recorded_too);
    }

    /// Keeps the work at once, with what is known of it.
    pub(super) fn finish_keep(&mut self, now: Timestamp) {
        self.finish_closing(now);
        let kept = Ok(self.state.kept.as_before());
        let number = self.state.kept.number;
        let now = now.max(self.state.time);
        let _ = self.feed(now, Input::Kept { number, kept }, None);
    }

    /// Ends the agent that the work is kept after.
    pub(super) fn finish_closing(&mut self, now: Timestamp) {
        if is_closing(&self.state) {
            let now = now.max(self.state.time);
            let _ = self.agent(now, gone(Exit::Code(0)), None);
        }
    }

    /// Has hooks run that did not run in the record: well, and at once.
    pub(super) fn finish_hooks(&mut self, now: Timestamp) {
        let Some(hooking) = self.state.hooking() else {
            return;
        };
        let (point, results) = (hooking.point, Vec::new());
        let now = now.max(self.state.time);
        let _ = self.feed(now, Input::HooksRan { point, results }, None);
    }

    /// Reboots as reboots usually go: well, and as fast as the last one.
    pub(super) fn finish_reboot(&mut self, now: Timestamp) {
        self.guessed = true;
        let end = now.max(self.state.time).after(self.reboot_takes);
        for _ in 0..ROUNDS_MAX {
            if self.state.keep().is_some() {
                self.finish_keep(end);
                continue;
            }
            let Phase::Rebooting { reboot } = &self.state.phase else {
                return;
            };
            let _ = match &reboot.stage {
                RebootStage::Begun | RebootStage::Keeping { .. } => return,
                RebootStage::HandOff { .. } => {
                    let news = News::Resulted(TurnEnd {
                        success: true,
                        text: "not recorded".to_owned(),
                        ..TurnEnd::default()
                    });
                    self.agent(end, news, None)
                }
                RebootStage::Hooks { point, .. } => {
                    let (point, results) = (*point, Vec::new());
                    self.feed(end, Input::HooksRan { point, results }, None)
                }
                RebootStage::Closing { .. } => self.agent(end, gone(Exit::Code(0)), None),
                RebootStage::Opening { .. } => {
                    self.agent(end, News::Launched { pid: 0 }, None);
                    self.agent(end, News::Opened, None)
                }
            };
        }
    }
}

/// Returns whether the end of the agent's process is waited for before the work is kept.
pub(super) fn is_closing(state: &State) -> bool {
    state.keep().is_some_and(|keep| keep.closing.is_some())
}

fn gone(exit: Exit) -> News {
    News::Exited {
        exit,
        claimed: false,
        stop_pattern: None,
        leftovers: Vec::new(),
        last_words: None,
        problem: None,
    }
}
