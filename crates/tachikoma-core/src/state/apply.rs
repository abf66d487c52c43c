//! How a fact changes the state.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{PastSession, Session, State};
use crate::event::{LoopEvent, Record};
use crate::id::Generation;
use crate::launch::{Launch, Runner};
use crate::outcome::IterationOutcome;
use crate::phase::{Ending, Ladder, Phase, Reboot, Tool, TurnResult, Work};
use crate::time::Timestamp;

/// Sessions that are remembered; a loop of thousands must not carry all of them in every segment.
const HISTORY_MAX: usize = 100;

impl State {
    /// Takes one fact in. The only mutation of a state, live or replayed.
    pub fn apply(&mut self, record: &Record) {
        if let LoopEvent::SegmentOpened { state, .. } = &record.event {
            self.clone_from(state);
        }
        debug_assert_eq!(
            record.seq,
            self.seq.next(),
            "records are applied in order, without gaps"
        );
        self.seq = record.seq;
        self.time = record.time;
        self.apply_event(&record.event, record.time);
    }

    fn apply_event(&mut self, event: &LoopEvent, time: Timestamp) {
        match event {
            LoopEvent::SegmentOpened { .. }
            | LoopEvent::ConfigChanged { .. }
            | LoopEvent::LeftoversEnded { .. }
            | LoopEvent::StopConditionTriggered { .. }
            | LoopEvent::Warned { .. }
            | LoopEvent::DiskWasFull { .. }
            | LoopEvent::Repaired { .. } => {}
            LoopEvent::Started { launch, runner, .. } => self.take_up(launch, runner, time),
            LoopEvent::PauseRequested => self.pause_requested = true,
            LoopEvent::Paused { then } => {
                self.pause_requested = false;
                self.phase = Phase::Paused { then: *then };
            }
            // What follows a resumption is recorded right behind it.
            LoopEvent::PauseWithdrawn | LoopEvent::Resumed => self.pause_requested = false,
            LoopEvent::StopRequested { stop } => self.stop = Some(stop.clone()),
            LoopEvent::WaitStarted { wait } => self.phase = Phase::Waiting { wait: *wait },
            LoopEvent::SessionStarted { session, agent_id } => {
                self.session = Session {
                    number: *session,
                    agent_id: agent_id.clone(),
                    started: Some(time),
                    ..Session::default()
                };
            }
            LoopEvent::SessionEnded {
                session,
                iterations,
                reason,
            } => {
                self.session.context = None;
                // A crash between two records of one reboot may say it twice.
                self.history.retain(|past| past.number != *session);
                if self.history.len() >= HISTORY_MAX {
                    self.history.remove(0);
                }
                self.history.push(PastSession {
                    number: *session,
                    agent_id: self.session.agent_id.clone(),
                    started: self.session.started,
                    ended: time,
                    iterations: *iterations,
                    reason: reason.clone(),
                });
            }
            LoopEvent::CustomSet { key, value } => {
                if value.is_null() {
                    self.custom.remove(key);
                } else {
                    self.custom.insert(key.clone(), value.clone());
                }
            }
            LoopEvent::IterationStarted {
                iteration,
                attempt,
                generation,
                ..
            } => {
                self.iteration = *iteration;
                self.attempt = *attempt;
                self.cut = false;
                self.claimed = false;
                self.generation = *generation;
                self.phase = Phase::Working {
                    work: Box::new(Work::new(*generation, time)),
                };
            }
            LoopEvent::AgentLaunched { pid } => self.work(|work| {
                work.pid = Some(*pid);
                work.launched = Some(time);
                work.active = time;
            }),
            LoopEvent::OutputSeen => self.work(|work| {
                work.spoke = true;
                work.active = time;
            }),
            LoopEvent::ContextMeasured { context } => {
                self.session.context = Some(*context);
                self.work(|work| {
                    work.spoke = true;
                    work.active = time;
                });
            }
            LoopEvent::ToolStarted { id, name } => self.work(|work| {
                work.tools.insert(
                    id.clone(),
                    Tool {
                        name: name.clone(),
                        since: time,
                    },
                );
                work.active = time;
                work.spoke = true;
            }),
            LoopEvent::ToolEnded { id } => self.work(|work| {
                work.tools.remove(id);
                work.active = time;
            }),
            LoopEvent::TurnResulted { success } => {
                self.work(|work| {
                    work.result = Some(TurnResult {
                        time,
                        success: *success,
                    });
                });
            }
            LoopEvent::EndingRequested {
                cause,
                boundary_until,
            } => {
                self.work(|work| {
                    work.ending = Some(Ending {
                        cause: *cause,
                        boundary_until: *boundary_until,
                    });
                });
            }
            LoopEvent::RungClimbed { rung, until } => {
                self.work(|work| {
                    work.ladder = Some(Ladder {
                        rung: *rung,
                        until: *until,
                    });
                });
            }
            LoopEvent::StoodStill { duration_ms } => {
                self.stand_still(Duration::from_millis(*duration_ms));
            }
            LoopEvent::IterationCompleted { report } => {
                self.claimed = report.claimed;
                if report.outcome == IterationOutcome::Succeeded {
                    self.session.oriented = true;
                    self.failure_streak = 0;
                }
                self.finish_iteration(report.outcome, report.duration_ms);
            }
            LoopEvent::IterationFailed {
                failure,
                duration_ms,
                streak,
                ..
            } => {
                self.failure_streak = *streak;
                self.last_failure = Some(failure.clone());
                self.finish_iteration(IterationOutcome::Failed, *duration_ms);
            }
            LoopEvent::AttemptCut { .. } => {
                self.cut = true;
                self.phase = Phase::Idle;
            }
            LoopEvent::RebootRequested { reason } => self.reboot_pending = Some(reason.clone()),
            LoopEvent::RebootStarted { reason, then, .. } => {
                self.reboot_pending = None;
                let to = self.session.number.next();
                self.phase = Phase::Rebooting {
                    reboot: Reboot {
                        reason: reason.clone(),
                        started: time,
                        to,
                        then: *then,
                    },
                };
            }
            // A runner that dies right here must not reboot a second time.
            LoopEvent::RebootCompleted { .. } => {
                self.stats.reboots += 1;
                self.phase = Phase::Idle;
            }
            LoopEvent::RebootFailed { .. } => self.phase = Phase::Idle,
            LoopEvent::Completed { outcome, .. }
            | LoopEvent::Stopped { outcome, .. }
            | LoopEvent::Error { outcome, .. } => {
                self.runner = None;
                self.phase = Phase::Ended {
                    outcome: outcome.clone(),
                };
            }
        }
    }

    fn take_up(&mut self, launch: &Launch, runner: &Runner, time: Timestamp) {
        self.launch = launch.clone();
        self.runner = Some(runner.clone());
        self.started_at.get_or_insert(time);
        // A new run is the operator's wish to go on: an earlier wish to stop has been granted, or died with its runner.
        self.stop = None;
        if matches!(self.phase, Phase::Ended { .. }) {
            self.failure_streak = 0;
            self.pause_requested = false;
            self.phase = Phase::Idle;
        }
    }

    fn finish_iteration(&mut self, outcome: IterationOutcome, duration_ms: u64) {
        self.stats.count(outcome, duration_ms);
        self.session.iterations = self.session.iterations.saturating_add(1);
        self.phase = Phase::Idle;
    }

    fn stand_still(&mut self, duration: Duration) {
        if let Phase::Rebooting { reboot } = &mut self.phase {
            reboot.started = reboot.started.after(duration);
        }
        self.work(|work| work.postpone(duration));
    }

    fn work(&mut self, change: impl FnOnce(&mut Work)) {
        if let Phase::Working { work } = &mut self.phase {
            change(work);
        }
    }
}

impl Work {
    /// Moves every moment from which a time-out counts.
    fn postpone(&mut self, duration: Duration) {
        let moments = [&mut self.started, &mut self.active]
            .into_iter()
            .chain(&mut self.launched)
            .chain(self.tools.values_mut().map(|tool| &mut tool.since))
            .chain(self.result.as_mut().map(|result| &mut result.time))
            .chain(
                self.ending
                    .as_mut()
                    .map(|ending| &mut ending.boundary_until),
            )
            .chain(self.ladder.as_mut().map(|ladder| &mut ladder.until));
        for moment in moments {
            *moment = moment.after(duration);
        }
    }

    fn new(generation: Generation, started: Timestamp) -> Self {
        Self {
            generation,
            started,
            pid: None,
            launched: None,
            active: started,
            spoke: false,
            tools: BTreeMap::new(),
            result: None,
            ending: None,
            ladder: None,
        }
    }
}
