//! Health checks: whether the server is ready, answers, and does not use too much memory.

use std::time::Duration;

use super::Stepper;
use crate::supervise::{Answered, Pulse, Purpose, ServerEffect, ServerEvent, ServerPhase};
use crate::{Generation, StopSignal};

/// Time between two health checks while the server starts.
const READY_TICK: Duration = Duration::from_millis(50);

/// Wrong answers in a row after which a start has failed.
const WRONG_ANSWERS_MAX: u32 = 20;

/// Time between two memory measurements if health checks are switched off.
const MEASURE_TICK: Duration = Duration::from_secs(5);

impl Stepper<'_> {
    pub(super) fn spawned(&mut self, generation: Generation, pid: i32) {
        self.record(ServerEvent::Spawned { generation, pid });
        if let ServerPhase::Starting { .. } = self.state.phase {
            self.probe(generation);
        }
    }

    /// Repeats the health check, because a server never answers requests that came too early. If the process is unknown, the check follows
    /// [`Spawned`](super::ServerInput::Spawned).
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
        if let ServerPhase::Starting { .. } = self.state.phase {
            self.answered_at_start(generation, answered);
        } else if let ServerPhase::Ready { .. } = self.state.phase {
            match answered {
                Answered::Healthy { .. } => self.state.pulse.misses = 0,
                Answered::Silent { what } | Answered::Wrong { what } => self.missed(&what),
            }
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
                    next: self.check_interval().map(|tick| self.now.after(tick)),
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
                    self.end(Purpose::NotReady { why: what }, StopSignal::Kill);
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
            let why = format!("{misses} health checks in a row failed ({what})");
            self.end(Purpose::Hung { why }, StopSignal::Kill);
        }
    }

    /// Returns the time between two checks of a ready server; `None` for no checks.
    fn check_interval(&self) -> Option<Duration> {
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
        self.state.pulse.next = self.check_interval().map(|tick| self.now.after(tick));
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
            self.end(Purpose::Memory { rss_bytes }, StopSignal::Interrupt);
        }
    }
}
