//! Decides about one input of the supervisor, and returns records and effects.

mod command;
mod health;

use std::time::Duration;

use super::apply::apply;
use super::verdict::verdict;
use super::{
    CRASH_LOOP, History, Jitter, Pulse, Purpose, ServerEffect, ServerEnd, ServerEvent, ServerInput,
    ServerPhase, ServerPolicy, ServerRecord, ServerState, ServerStep, StartedBy, StayReason,
    Verdict,
};
use crate::time::millis;
use crate::{Exit, Leftover, StopSignal, Timestamp};

/// Handles one input. Inputs that do not fit the state are ignored. `jitter` is used at most once, and its delay is recorded.
pub fn step(
    policy: &ServerPolicy,
    state: &mut ServerState,
    now: Timestamp,
    jitter: Jitter,
    input: ServerInput,
) -> ServerStep {
    let now = now.max(state.time);
    let mut stepper = Stepper {
        policy,
        state,
        now,
        jitter,
        step: ServerStep::default(),
    };
    // Events of an earlier server process are dropped here, and only here.
    if let ServerInput::Spawned { generation, .. }
    | ServerInput::NotStarted { generation, .. }
    | ServerInput::Listening { generation }
    | ServerInput::Answered { generation, .. }
    | ServerInput::Measured { generation, .. }
    | ServerInput::Boundary { generation }
    | ServerInput::Released { generation }
    | ServerInput::Exited { generation, .. } = input
        && !(stepper.state.generation == generation && stepper.state.phase.is_live())
    {
        return stepper.step;
    }
    match input {
        ServerInput::Supervise { pid, by } => stepper.supervise(pid, by),
        ServerInput::Reloaded => stepper.reloaded(),
        ServerInput::Wake => stepper.wake(),
        ServerInput::Spawned { generation, pid } => stepper.spawned(generation, pid),
        ServerInput::NotStarted { why, .. } => stepper.lost(ServerEnd::NotStarted { why }),
        ServerInput::Listening { generation } => stepper.listening(generation),
        ServerInput::Answered {
            generation,
            answered,
        } => stepper.answered(generation, answered),
        ServerInput::Measured {
            generation,
            rss_bytes,
        } => stepper.measured(generation, rss_bytes),
        ServerInput::Boundary { .. } => stepper.boundary(),
        ServerInput::Released { .. } => stepper.released(),
        ServerInput::Exited {
            exit, leftovers, ..
        } => {
            let end = ServerEnd::of(exit, stepper.state.phase.purpose());
            stepper.stopped(end, leftovers);
        }
        ServerInput::GuardLost => {
            if stepper.state.phase.is_live() {
                stepper.lost(ServerEnd::LostWithGuard);
            }
        }
        ServerInput::Stop { ticket } => stepper.stop(ticket),
        ServerInput::Restart { ticket } => stepper.restart(ticket),
        ServerInput::Refused { request, pid } => {
            stepper.record(ServerEvent::AccessRefused { request, pid });
        }
        ServerInput::Suspended { duration } => stepper.suspended(duration),
    }
    stepper.step
}

/// State of one call of [`step`].
struct Stepper<'a> {
    policy: &'a ServerPolicy,
    state: &'a mut ServerState,
    now: Timestamp,
    jitter: Jitter,
    step: ServerStep,
}

impl Stepper<'_> {
    /// Records an event and applies it to the state.
    fn record(&mut self, event: ServerEvent) {
        let record = ServerRecord {
            seq: self.state.seq.next(),
            time: self.now,
            event,
        };
        apply(self.state, &record);
        self.step.records.push(record);
    }

    fn emit(&mut self, effect: ServerEffect) {
        self.step.effects.push(effect);
    }

    /// A command starts the server even if the previous supervisor left it down. A supervisor that a service manager restarted keeps the
    /// decisions of the previous one.
    fn supervise(&mut self, pid: u32, by: StartedBy) {
        self.record(ServerEvent::Supervising { pid });
        match &self.state.phase {
            ServerPhase::Starting { .. }
            | ServerPhase::Ready { .. }
            | ServerPhase::Ending { .. } => {
                self.stopped(ServerEnd::LostWithSupervisor, Vec::new());
            }
            ServerPhase::Idle => self.start_afresh(),
            ServerPhase::Gone
            | ServerPhase::Waiting { .. }
            | ServerPhase::Down { .. }
            | ServerPhase::GaveUp { .. }
                if by == StartedBy::Command =>
            {
                self.start_afresh();
            }
            ServerPhase::Gone => {
                let end = self.state.last_end.clone().unwrap_or(ServerEnd::Unknown);
                let purpose = Purpose::Stop;
                if end == (ServerEnd::Ended { purpose }) {
                    // The server was stopped in order, and only the last record of the supervisor is missing.
                    self.start_afresh();
                } else {
                    self.decide(end);
                }
            }
            ServerPhase::Waiting { .. } | ServerPhase::Down { .. } | ServerPhase::GaveUp { .. } => {
            }
        }
    }

    fn start_afresh(&mut self) {
        if self.state.attempts > 0 || !self.state.crashes.is_empty() {
            self.record(ServerEvent::Cleared);
        }
        self.start();
    }

    /// Applies new settings to a wait for a restart: it ends if restarts are switched off, and is shortened to the new delay.
    fn reloaded(&mut self) {
        let ServerPhase::Waiting { until } = self.state.phase else {
            return;
        };
        let end = self.state.last_end.clone().unwrap_or(ServerEnd::Unknown);
        let attempts = self.state.attempts;
        let before = History {
            attempts: attempts.saturating_sub(1),
            ..self.state.history()
        };
        match verdict(self.policy, &end, before) {
            Verdict::Stay { reason } => self.record(ServerEvent::Stayed { reason }),
            Verdict::GiveUp { attempts } => {
                let why = end.to_string();
                self.record(ServerEvent::GaveUp { attempts, why });
            }
            Verdict::Restart { .. } | Verdict::Replace => {
                let sooner = self
                    .now
                    .after(self.policy.backoff.delay(attempts, self.jitter));
                if sooner < until {
                    self.record(ServerEvent::Rescheduled { until: sooner });
                }
            }
        }
    }

    fn start(&mut self) {
        let generation = self.state.generation.next();
        let until = self.now.after(self.policy.ready_timeout);
        self.record(ServerEvent::Started { generation, until });
        self.state.pulse = Pulse::default();
        self.emit(ServerEffect::Start { generation });
    }

    /// The server has ended, and its exit is unknown. `end` applies unless the supervisor was ending the server.
    fn lost(&mut self, end: ServerEnd) {
        let end = match self.state.phase.purpose() {
            Some(purpose) => ServerEnd::of(Exit::Unknown, Some(purpose)),
            None => end,
        };
        self.stopped(end, Vec::new());
    }

    fn stopped(&mut self, end: ServerEnd, leftovers: Vec<Leftover>) {
        let uptime_ms = match end == ServerEnd::LostWithSupervisor {
            // The supervisor died too, so the time at which the server ended is unknown.
            true => 0,
            false => millis(self.state.uptime(self.now)),
        };
        self.record(ServerEvent::Stopped {
            generation: self.state.generation,
            end: end.clone(),
            uptime_ms,
            leftovers,
        });
        self.state.pulse = Pulse::default();
        self.decide(end);
    }

    fn decide(&mut self, end: ServerEnd) {
        match verdict(self.policy, &end, self.state.history()) {
            Verdict::Restart { attempt } => {
                self.note_crash_loop(&end);
                let delay = self.policy.backoff.delay(attempt, self.jitter);
                self.restarting(attempt, delay, end);
            }
            Verdict::Replace => self.restarting(0, Duration::ZERO, end),
            Verdict::Stay {
                reason: StayReason::Stopped,
            } => self.close(),
            Verdict::Stay { reason } => self.record(ServerEvent::Stayed { reason }),
            Verdict::GiveUp { attempts } => {
                self.note_crash_loop(&end);
                let why = end.to_string();
                self.record(ServerEvent::GaveUp { attempts, why });
            }
        }
    }

    fn note_crash_loop(&mut self, end: &ServerEnd) {
        let crashes = self.state.crashes_in_window(self.now);
        if end.is_crash() && crashes >= CRASH_LOOP {
            self.record(ServerEvent::CrashLoop { crashes });
        }
    }

    fn restarting(&mut self, attempt: u32, delay: Duration, end: ServerEnd) {
        self.record(ServerEvent::Restarting {
            attempt,
            delay_ms: millis(delay),
            until: self.now.after(delay),
            end,
        });
        // Without a delay, the server is started in the same step.
        if delay.is_zero() {
            self.start();
        }
    }

    fn close(&mut self) {
        self.record(ServerEvent::Closed);
        self.state.pulse = Pulse::default();
        self.emit(ServerEffect::Finish);
    }

    fn end(&mut self, purpose: Purpose, signal: StopSignal) {
        let generation = self.state.generation;
        let until = self.now.after(self.patience(signal));
        self.record(ServerEvent::Ending {
            generation,
            purpose,
            signal,
            until,
        });
        self.state.pulse = Pulse::default();
        self.emit(match signal {
            StopSignal::Interrupt => ServerEffect::Release { generation },
            StopSignal::Terminate | StopSignal::Kill => ServerEffect::Signal { generation, signal },
        });
    }

    fn escalate_stop(&mut self, signal: StopSignal) {
        let generation = self.state.generation;
        let until = self.now.after(self.patience(signal));
        self.record(ServerEvent::Hurried {
            generation,
            signal,
            until,
        });
        self.emit(ServerEffect::Signal { generation, signal });
    }

    fn patience(&self, signal: StopSignal) -> Duration {
        match signal {
            StopSignal::Interrupt => self.policy.release_timeout,
            StopSignal::Terminate => self.policy.stop_grace,
            StopSignal::Kill => self.policy.kill_timeout,
        }
    }

    fn released(&mut self) {
        if let ServerPhase::Ending {
            signal: StopSignal::Interrupt,
            ..
        } = self.state.phase
        {
            self.escalate_stop(StopSignal::Terminate);
        }
    }

    fn wake(&mut self) {
        match &self.state.phase {
            ServerPhase::Starting { until, .. } if *until <= self.now => {
                let seen = self.state.pulse.last.clone();
                let why = seen.unwrap_or_else(|| "it never answered".to_owned());
                self.end(Purpose::NotReady { why }, StopSignal::Kill);
            }
            ServerPhase::Starting { .. } | ServerPhase::Ready { .. } => self.ask_if_due(),
            ServerPhase::Ending {
                until,
                signal,
                purpose,
                ..
            } if *until <= self.now => match signal {
                StopSignal::Interrupt => self.escalate_stop(StopSignal::Terminate),
                StopSignal::Terminate => self.escalate_stop(StopSignal::Kill),
                StopSignal::Kill => {
                    let stops = *purpose == Purpose::Stop;
                    self.unkillable(stops);
                }
            },
            ServerPhase::Waiting { until } if *until <= self.now => self.start(),
            ServerPhase::Ending { .. }
            | ServerPhase::Waiting { .. }
            | ServerPhase::Idle
            | ServerPhase::Gone
            | ServerPhase::Down { .. }
            | ServerPhase::GaveUp { .. } => {}
        }
    }

    fn unkillable(&mut self, stops: bool) {
        let attempts = self.state.attempts;
        let why =
            "it cannot be killed: it is stuck in the kernel, or its parent `loop-guard` is stopped"
                .to_owned();
        self.record(ServerEvent::GaveUp { attempts, why });
        if stops {
            self.close();
        }
    }

    fn suspended(&mut self, duration: Duration) {
        // A wait for a restart is not extended, and the other phases have no deadline.
        if let ServerPhase::Starting { .. } | ServerPhase::Ending { .. } = self.state.phase {
            let duration_ms = millis(duration);
            self.record(ServerEvent::Suspended { duration_ms });
        }
    }
}
