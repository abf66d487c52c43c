//! Whether a server is ready, answers, and is not too large.

use std::time::Duration;

use super::Stepper;
use crate::id::Generation;
use crate::ladder::Rung;
use crate::supervise::effect::ServerEffect;
use crate::supervise::end::Purpose;
use crate::supervise::event::ServerEvent;
use crate::supervise::input::Answered;
use crate::supervise::state::{Pulse, ServerPhase};

/// How soon a server that starts is asked again: the wait for it is not to be much longer than its start.
const READY_TICK: Duration = Duration::from_millis(50);

/// Something that answers wrongly so often in a row is not about to be right.
const WRONG_ANSWERS_MAX: u32 = 20;

/// How often memory is measured where health is not asked for.
const MEASURE_TICK: Duration = Duration::from_secs(5);

impl Stepper<'_> {
    pub(super) fn spawned(&mut self, generation: Generation, pid: i32) {
        self.record(ServerEvent::Spawned { generation, pid });
        if let ServerPhase::Starting { .. } = self.state.phase {
            self.probe(generation);
        }
    }

    /// The question that is out was asked too early, and may never be answered. One whose guard has not told of it yet is asked
    /// then: nothing is ready without its process being known.
    pub(super) fn listening(&mut self, generation: Generation) {
        if let ServerPhase::Starting { pid: Some(_), .. } = self.state.phase {
            self.probe(generation);
        }
    }

    fn probe(&mut self, generation: Generation) {
        self.state.pulse.asking = true;
        self.state.pulse.next = None;
        self.emit(ServerEffect::Probe { generation });
    }

    pub(super) fn answered(&mut self, generation: Generation, answered: Answered) {
        self.state.pulse.asking = false;
        match &self.state.phase {
            ServerPhase::Starting { .. } => self.answered_at_start(generation, answered),
            ServerPhase::Ready { .. } => match answered {
                Answered::Healthy { .. } => self.state.pulse.misses = 0,
                Answered::Silent { what } | Answered::Wrong { what } => self.missed(&what),
            },
            ServerPhase::Ending { .. }
            | ServerPhase::Idle
            | ServerPhase::Gone
            | ServerPhase::Waiting { .. }
            | ServerPhase::Down { .. }
            | ServerPhase::GaveUp { .. } => {}
        }
    }

    fn answered_at_start(&mut self, generation: Generation, answered: Answered) {
        match answered {
            Answered::Healthy { url, version } => {
                self.record(ServerEvent::Ready {
                    generation,
                    url,
                    version,
                });
                self.state.pulse = Pulse {
                    next: self.look_interval().map(|tick| self.now.after(tick)),
                    ..Pulse::default()
                };
            }
            Answered::Silent { what } => {
                self.state.pulse.misses = 0;
                self.ask_again(what);
            }
            Answered::Wrong { what } => {
                self.state.pulse.misses += 1;
                if self.state.pulse.misses >= WRONG_ANSWERS_MAX {
                    self.end(Purpose::NotReady { why: what }, Rung::Kill);
                } else {
                    self.ask_again(what);
                }
            }
        }
    }

    fn ask_again(&mut self, seen: String) {
        self.state.pulse.last = Some(seen);
        self.state.pulse.next = Some(self.now.after(READY_TICK));
    }

    fn missed(&mut self, what: &str) {
        self.state.pulse.misses += 1;
        let (misses, max) = (self.state.pulse.misses, self.policy.health_failures);
        if max > 0 && misses >= max {
            let why = format!("{misses} questions for its health in a row failed ({what})");
            self.end(Purpose::Hung { why }, Rung::Kill);
        }
    }

    /// Returns how often a server that is ready is looked at; none = never.
    fn look_interval(&self) -> Option<Duration> {
        match (self.policy.health_interval, self.policy.max_rss_bytes) {
            (Duration::ZERO, 0) => None,
            (Duration::ZERO, _) => Some(MEASURE_TICK),
            (interval, _) => Some(interval),
        }
    }

    pub(super) fn ask_if_due(&mut self) {
        if self.state.pulse.next.is_none_or(|next| next > self.now) {
            return;
        }
        let generation = self.state.generation;
        let ServerPhase::Ready { too_large, .. } = &self.state.phase else {
            self.probe(generation);
            return;
        };
        let too_large = too_large.is_some();
        let asking = self.state.pulse.asking;
        if !self.policy.health_interval.is_zero() && !asking {
            self.probe(generation);
        }
        if too_large {
            self.emit(ServerEffect::AskIdle { generation });
        } else if self.policy.max_rss_bytes > 0 {
            self.emit(ServerEffect::Measure { generation });
        }
        self.state.pulse.next = self.look_interval().map(|tick| self.now.after(tick));
    }

    pub(super) fn measured(&mut self, generation: Generation, rss_bytes: u64) {
        let max_rss_bytes = self.policy.max_rss_bytes;
        let ServerPhase::Ready {
            too_large: None, ..
        } = self.state.phase
        else {
            return;
        };
        if max_rss_bytes > 0 && rss_bytes > max_rss_bytes {
            self.record(ServerEvent::TooLarge {
                generation,
                rss_bytes,
                max_rss_bytes,
            });
            self.emit(ServerEffect::AskIdle { generation });
        }
    }

    pub(super) fn boundary(&mut self) {
        if let ServerPhase::Ready {
            too_large: Some(rss_bytes),
            ..
        } = self.state.phase
        {
            self.end(Purpose::Memory { rss_bytes }, Rung::Interrupt);
        }
    }
}
