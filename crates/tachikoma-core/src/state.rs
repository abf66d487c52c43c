//! The state of a loop: a fold over its records. [`State::apply`] is the only way it changes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::event::{Launch, LoopEvent, Record, Runner};
use crate::id::{Generation, LoopId, Seq, SessionNo};
use crate::outcome::{Failure, IterationOutcome, Outcome, RebootReason, Stop};
use crate::phase::{Ending, Ladder, LoopState, Phase, Reboot, Tool, TurnResult, Work};
use crate::policy::{Policy, timeout};
use crate::stats::LoopStats;
use crate::time::Timestamp;

/// Everything a loop knows about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The loop.
    pub loop_id: LoopId,
    /// The last record that is part of this state.
    pub seq: Seq,
    /// When it was decided: the last activity.
    pub time: Timestamp,
    /// When the loop was first started.
    pub started_at: Option<Timestamp>,
    /// What the latest run was told to do.
    pub launch: Launch,
    /// Who runs it, or ran it last.
    pub runner: Option<Runner>,
    /// Where it stands.
    pub phase: Phase,
    /// The iteration last started; 0 before the first.
    pub iteration: u32,
    /// The attempt at it.
    pub attempt: u32,
    /// Whether that attempt was cut by the death of a runner, so that the iteration is owed.
    pub cut: bool,
    /// The number of the latest launch.
    pub generation: Generation,
    /// The session.
    pub session: Session,
    /// Whether the loop pauses at the next opportunity.
    pub pause_requested: bool,
    /// Whether the session is rebooted at the next opportunity, and why.
    pub reboot_pending: Option<RebootReason>,
    /// Whether the loop ends at the next opportunity, and by whose wish.
    pub stop: Option<Stop>,
    /// Whether the agent claims that the work is complete.
    pub claimed: bool,
    /// Failed iterations in a row.
    pub failure_streak: u32,
    /// The latest failure.
    pub last_failure: Option<Failure>,
    /// What the loop has done.
    pub stats: LoopStats,
    /// Sessions that have ended, oldest first.
    pub history: Vec<PastSession>,
    /// What hooks and the operator wrote down for later.
    pub custom: BTreeMap<String, serde_json::Value>,
}

/// Sessions that are remembered; a loop of thousands must not carry all of them in every segment.
const HISTORY_MAX: usize = 100;

/// A session that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastSession {
    /// Its number.
    pub number: SessionNo,
    /// The agent's own name for it, where it had one.
    pub agent_id: Option<String>,
    /// When it began.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Timestamp,
    /// How many iterations it had.
    pub iterations: u32,
    /// Why it ended.
    pub reason: String,
}

/// One agent conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its number; 0 before the first.
    pub number: SessionNo,
    /// The agent's own name for it, where it has one.
    pub agent_id: Option<String>,
    /// When it began.
    pub started: Option<Timestamp>,
    /// How many iterations it has finished.
    pub iterations: u32,
    /// Whether one of them went well: then it knows where the work stands, and needs no hand-off any more.
    pub oriented: bool,
    /// The latest reading of its context; unknown until the first.
    pub context: Option<Context>,
}

/// The loop is not in a state in which this can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidState {
    /// The state it is in.
    pub current: LoopState,
    /// What was to be done.
    pub action: &'static str,
}

impl fmt::Display for InvalidState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} a loop that is {}", self.action, self.current)
    }
}

impl std::error::Error for InvalidState {}

impl State {
    /// Returns the state of a loop that nobody has started.
    #[must_use]
    pub fn new(loop_id: LoopId) -> Self {
        Self {
            loop_id,
            seq: Seq(0),
            time: Timestamp::default(),
            started_at: None,
            launch: Launch::default(),
            runner: None,
            phase: Phase::Idle,
            iteration: 0,
            attempt: 0,
            cut: false,
            generation: Generation(0),
            session: Session::default(),
            pause_requested: false,
            reboot_pending: None,
            stop: None,
            claimed: false,
            failure_streak: 0,
            last_failure: None,
            stats: LoopStats::default(),
            history: Vec::new(),
            custom: BTreeMap::new(),
        }
    }

    /// Returns the public state.
    #[must_use]
    pub fn public(&self) -> LoopState {
        self.phase.public()
    }

    /// Returns the number of the iteration that comes next.
    #[must_use]
    pub fn next_iteration(&self) -> u32 {
        if self.cut {
            self.iteration
        } else {
            self.iteration.saturating_add(1)
        }
    }

    /// Returns how the loop ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.phase {
            Phase::Ended { outcome } => Some(outcome),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. } => None,
        }
    }

    /// Checks that a runner may take up the loop: every loop but one that is done.
    ///
    /// # Errors
    /// The loop is done; what comes next is a new loop.
    pub fn startable(&self) -> Result<(), InvalidState> {
        match self.outcome() {
            Some(Outcome::Done) => Err(InvalidState {
                current: self.public(),
                action: "start",
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the moment at which the core wants to be woken. A query: there are no timers to cancel or forget.
    #[must_use]
    pub fn next_deadline(&self, policy: &Policy) -> Option<Timestamp> {
        match &self.phase {
            Phase::Waiting { wait } => Some(wait.until),
            Phase::Working { work } => work_deadline(policy, work),
            Phase::Rebooting { reboot } => timeout::renewal(policy, reboot.started),
            // Only the operator or a new runner ends these.
            Phase::Idle | Phase::Paused { .. } | Phase::Ended { .. } => None,
        }
    }

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

fn work_deadline(policy: &Policy, work: &Work) -> Option<Timestamp> {
    if let Some(ladder) = work.ladder {
        return Some(ladder.until);
    }
    let timeout = timeout::next(policy, work).map(|(time, _)| time);
    // An ending that waits for a launch in flight is bounded by the launch's own time-out.
    let boundary = work
        .ending
        .filter(|_| work.launched.is_some())
        .map(|ending| ending.boundary_until);
    boundary.into_iter().chain(timeout).min()
}
