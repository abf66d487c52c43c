//! How a fact changes the state.

use std::time::Duration;

use super::State;
use crate::completion::{AttemptEnd, Claim, only_talks_to_the_loop};
use crate::effect::Rung;
use crate::event::LoopEvent;
use crate::hooking::Frames;
use crate::id::Generation;
use crate::outcome::{IterationOutcome, RebootReason};
use crate::phase::{Ending, Ladder, Phase, Reboot, RebootStage, Tool, TurnResult, Work};
use crate::reboots::{RebootEntry, RebootResult};
use crate::record::Record;
use crate::session::{LiveAgent, PastSession, Session};
use crate::time::Timestamp;
use crate::turn_report::{LimitedAttempt, TurnReport};

/// Sessions that are remembered; a loop of thousands must not carry all of them in every segment.
const HISTORY_MAX: usize = 100;

impl State {
    /// Takes one fact in. The only mutation of a state, live or replayed.
    pub fn apply(&mut self, record: &Record) {
        if let LoopEvent::SegmentOpened { state, life, .. } = &record.event {
            self.clone_from(state);
            self.life.clone_from(life);
        }
        debug_assert_eq!(
            record.seq,
            self.seq.next(),
            "records are applied in order, without gaps"
        );
        self.seq = record.seq;
        self.time = record.time;
        self.pass_time(&record.event, record.time);
        self.apply_event(&record.event, record.time);
        self.withdraw_question();
    }

    fn apply_event(&mut self, event: &LoopEvent, time: Timestamp) {
        match event {
            LoopEvent::SegmentOpened { .. }
            | LoopEvent::LeftoversEnded { .. }
            | LoopEvent::ToolDenied { .. }
            | LoopEvent::StopConditionTriggered { .. }
            | LoopEvent::Warned { .. }
            | LoopEvent::DiskWasFull { .. }
            | LoopEvent::Repaired { .. } => {}
            LoopEvent::Incident(incident) => self.copies.take(incident, time),
            LoopEvent::ConfigChanged { changes } => {
                if changes.iter().any(|change| change.key == "attended_mode") {
                    self.operator.attended = None;
                }
            }
            LoopEvent::Operator(event) => self.operator_event(event, time),
            LoopEvent::Started {
                launch,
                runner,
                limits,
                ..
            } => {
                self.limits = *limits;
                self.frames.ready = false;
                self.take_up(launch, runner, time);
            }
            LoopEvent::PauseRequested => self.pause_requested = true,
            LoopEvent::Paused { then } => {
                self.pause_requested = false;
                self.phase = Phase::Paused { then: *then };
            }
            // What follows a resumption is recorded right behind it.
            LoopEvent::PauseWithdrawn => self.pause_requested = false,
            LoopEvent::Resumed => {
                self.pause_requested = false;
                self.operator.unanswered = None;
                self.operator.agreed |= self.operator.put;
            }
            LoopEvent::StopRequested { stop, urgent } => {
                self.stop = Some(stop.clone());
                self.stop_urgent |= *urgent;
            }
            LoopEvent::WaitStarted { wait } => self.phase = Phase::Waiting { wait: *wait },
            LoopEvent::SessionStarted { session, agent_id } => {
                self.ledger.session_began();
                self.frames.session_start = true;
                self.session = Session {
                    number: *session,
                    agent_id: agent_id.clone(),
                    started: Some(time),
                    unproven: matches!(self.phase, Phase::Rebooting { .. }),
                    ..Session::default()
                };
            }
            LoopEvent::SessionNamed { agent_id } => {
                self.session.agent_id = Some(agent_id.clone());
                self.reboots.named(agent_id);
            }
            LoopEvent::SessionEnded {
                session,
                iterations,
                reason,
            } => {
                self.checkpoint.take(&self.session, reason);
                self.frames.session_end = true;
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
                if *iteration != self.iteration {
                    self.cuts = 0;
                }
                self.iteration = *iteration;
                self.attempt = *attempt;
                self.cut = false;
                self.claimed = false;
                self.attempt_attended();
                self.frames = Frames::default();
                self.completion.attempt_started();
                self.progress.attempt_started(*attempt);
                self.stop_pattern = None;
                self.ledger.turn_began();
                self.kept.unseen = true;
                self.session.context_before = self.session.context;
                self.begin_work(*generation, time);
            }
            LoopEvent::AgentLaunched { pid } => {
                if let Some(agent) = &mut self.agent {
                    agent.pid = Some(*pid);
                }
                self.work(|work| {
                    work.pid = Some(*pid);
                    work.launched = Some(time);
                    work.active = time;
                });
            }
            LoopEvent::AgentExited { .. } => self.agent = None,
            LoopEvent::OutputSeen => self.work(|work| work.heard(time)),
            LoopEvent::LookRequested { until, .. } => self.work(|work| work.look = Some(*until)),
            LoopEvent::BusySeen { activity } => self.work(|work| work.seen(*activity, time)),
            LoopEvent::ContextMeasured {
                context,
                answering,
                redline_tokens,
            } => {
                self.session.context = Some(*context);
                self.session.redline_tokens = redline_tokens.or(self.session.redline_tokens);
                self.work(|work| {
                    work.heard(time);
                    work.answering = *answering;
                });
            }
            LoopEvent::WrapUpAdvised { .. } => self.session.advised = true,
            LoopEvent::ToolStarted { id, name, summary } => {
                self.completion.idle &= only_talks_to_the_loop(summary);
                self.session.call(call(name, summary));
                self.work(|work| {
                    let tool = Tool {
                        name: name.clone(),
                        summary: summary.clone(),
                        since: time,
                    };
                    work.tools.insert(id.clone(), tool);
                    work.heard(time);
                });
            }
            LoopEvent::ToolEnded { id, error } => {
                let mut tool = None;
                self.work(|work| {
                    // One that an interrupt of ours ended has not failed, and is what was last seen.
                    if work.ladder.is_none() {
                        tool = work.tools.remove(id);
                        work.heard(time);
                    }
                });
                if let (Some(tool), Some(error)) = (tool, error) {
                    self.session
                        .call_failed(call(&tool.name, &tool.summary), error);
                }
            }
            LoopEvent::FileTouched { path } => {
                self.completion.idle = false;
                if self.session.knows_file(path) {
                    self.session.files_unnamed = self.session.files_unnamed.saturating_add(1);
                } else {
                    self.session.files.push(path.clone());
                }
            }
            LoopEvent::TurnResulted(TurnReport {
                success,
                reason,
                problem,
                claimed,
                pattern,
                cost_microusd,
                tokens,
                spent,
            }) => {
                self.session.spent = *spent;
                let (cost, tokens) = (*cost_microusd, *tokens);
                self.ledger.turn_resulted(&mut self.stats, cost, tokens);
                if pattern.is_some() {
                    self.session.pattern.clone_from(pattern);
                }
                self.work(|work| {
                    work.result = Some(TurnResult {
                        time,
                        success: *success,
                        claimed: *claimed,
                        reason: reason.clone(),
                        problem: problem.clone(),
                        after_interrupt: work.ladder.is_some(),
                    });
                });
            }
            LoopEvent::CallEnded { tokens } => self.ledger.call_ended(&mut self.stats, *tokens),
            LoopEvent::CostTold {
                conversation_microusd,
            } => {
                let conversation = *conversation_microusd;
                self.ledger.cost_told(&mut self.stats, conversation);
            }
            LoopEvent::QuotaTold(quota) => {
                self.stats.on_subscription = true;
                self.ledger.quota_told(quota.clone());
            }
            LoopEvent::StopPatternMatched { pattern } => {
                self.stop_pattern = Some(pattern.clone());
            }
            LoopEvent::Noted { text, tell } => self.noted(text, *tell, time),
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
                let next = Ladder {
                    rung: *rung,
                    until: *until,
                };
                self.work(|work| work.ladder = Some(next));
                self.reboot(|reboot| {
                    if let RebootStage::Closing { ladder, .. } = &mut reboot.stage {
                        *ladder = next;
                    }
                });
            }
            LoopEvent::StoodStill { duration_ms } => {
                self.stand_still(Duration::from_millis(*duration_ms));
            }
            LoopEvent::IterationCompleted {
                report,
                agent_lives,
            } => {
                self.iteration_over(report.outcome);
                self.iteration_attended(false);
                if report.claimed {
                    self.claim(Claim::Promise);
                }
                self.limit_streak = 0;
                if report.outcome == IterationOutcome::Succeeded {
                    self.session.oriented = true;
                    self.kept.untold = None;
                    self.session.fast_failures = 0;
                    self.failure_streak = 0;
                }
                self.finish_iteration(report.outcome, report.duration_ms, *agent_lives);
            }
            LoopEvent::IterationFailed {
                failure,
                duration_ms,
                streak,
                agent_lives,
                ..
            } => {
                self.failure_streak = *streak;
                self.iteration_attended(true);
                self.attempt_ended(AttemptEnd::Failed);
                self.limit_streak = 0;
                self.session.note_failure(*duration_ms);
                self.last_failure = Some(failure.clone());
                self.finish_iteration(IterationOutcome::Failed, *duration_ms, *agent_lives);
            }
            LoopEvent::IterationLimited(LimitedAttempt {
                streak,
                agent_lives,
                ..
            }) => {
                self.limit_streak = *streak;
                self.frames.ended(None);
                self.attempt_ended(AttemptEnd::Cut);
                self.cut_short(*agent_lives);
            }
            LoopEvent::StreamEnded => self.work(|work| work.stream_ended = Some(time)),
            LoopEvent::AttemptCut {
                agent_lives,
                reason,
                ..
            } => {
                self.cuts += u32::from(reason.is_some());
                self.progress.missed();
                self.cut_short(*agent_lives);
            }
            LoopEvent::SnapshotTaken {
                iteration,
                commit,
                uncommitted,
            } => self.snapshot_taken(*iteration, commit, *uncommitted),
            LoopEvent::KeepStarted(keep) => self.keep_started(keep.clone()),
            LoopEvent::KeepCalledOff { until, then } => self.keep_called_off(*until, *then),
            LoopEvent::WorkKept {
                purpose,
                iteration,
                kept,
            } => self.work_kept(*purpose, *iteration, kept, time),
            LoopEvent::KeepGivenUp { purpose, .. } => self.keep_given_up(*purpose),
            LoopEvent::Claimed { reason } => self.claim(Claim::Done {
                reason: reason.clone(),
            }),
            LoopEvent::CheckStarted { check } => self.check_started(check),
            LoopEvent::ConditionsAnswered { answers } => self.conditions_answered(answers),
            LoopEvent::GatesRan { iteration, results } => self.gates_ran(*iteration, results),
            LoopEvent::TestsRan(report) => self.progress.tested(report),
            LoopEvent::ProgressMeasured(measured) => self.progress_measured(measured),
            LoopEvent::CheckGivenUp { reason } => self.check_given_up(reason),
            LoopEvent::ClaimRefused(refusal) => self.claim_refused(refusal),
            LoopEvent::RebootRequested { reason, not_before } => {
                self.reboot_pending = Some(reason.clone());
                self.reboot_not_before = *not_before;
                if *reason == RebootReason::Manual {
                    self.operator.put_off = None;
                }
            }
            LoopEvent::RebootStarted { reason, then, .. } => {
                self.reboot_pending = None;
                self.reboot_not_before = None;
                self.operator.put_off = None;
                self.reboots.begun(time);
                let to = self.session.number.next();
                self.phase = Phase::Rebooting {
                    reboot: Reboot {
                        reason: reason.clone(),
                        started: time,
                        to,
                        then: *then,
                        stage: RebootStage::Begun,
                    },
                };
            }
            LoopEvent::HandOffRequested { until } => {
                let until = *until;
                self.ledger.turn_began();
                self.checkpoint.words = None;
                self.reboot(|reboot| reboot.stage = RebootStage::HandOff { until });
            }
            LoopEvent::HandOffWritten { text } => {
                self.checkpoint.words = Some(text.clone());
                self.checkpoint.words_of = self.session.number;
                self.reboot(|reboot| reboot.stage = RebootStage::Begun);
            }
            LoopEvent::HooksStarted(start) => self.hooks_started(start),
            LoopEvent::HooksRan(end) => self.hooks_ended(end),
            LoopEvent::ClosingStarted { until, failed } => {
                let rung = match failed {
                    None => Rung::Interrupt,
                    Some(_) => Rung::Kill,
                };
                let ladder = Ladder {
                    rung,
                    until: *until,
                };
                let failed = failed.clone();
                self.reboot(|reboot| reboot.stage = RebootStage::Closing { ladder, failed });
            }
            LoopEvent::SessionOpening { generation, .. } => {
                self.launching(*generation);
                let generation = *generation;
                self.reboot(|reboot| {
                    reboot.stage = RebootStage::Opening {
                        generation,
                        since: time,
                    };
                });
            }
            // A runner that dies right here must not reboot a second time.
            LoopEvent::RebootCompleted {
                reason,
                iteration,
                from,
                duration_ms,
                ..
            } => {
                self.stats.reboots += 1;
                let entry = self.entry(time, reason, *iteration, *duration_ms, RebootResult::Done);
                self.reboots.succeeded(RebootEntry {
                    from: *from,
                    ..entry
                });
                self.phase = Phase::Idle;
            }
            LoopEvent::RebootFailed {
                reason,
                iteration,
                error,
                aborted,
            } => {
                let error = error.clone();
                let result = match aborted {
                    true => RebootResult::Aborted { error },
                    false => RebootResult::Failed { error },
                };
                self.reboot_failed(time, reason, *iteration, result);
            }
            LoopEvent::RebootVerified { futile, .. } => {
                self.session.unproven = false;
                self.reboots.verified(futile.as_deref());
            }
            LoopEvent::Completed { outcome, .. }
            | LoopEvent::Stopped { outcome, .. }
            | LoopEvent::Error { outcome, .. } => {
                self.runner = None;
                self.agent = None;
                self.phase = Phase::Ended {
                    outcome: outcome.clone(),
                };
            }
        }
    }

    pub(super) fn launching(&mut self, generation: Generation) {
        self.generation = generation;
        self.agent = Some(LiveAgent {
            generation,
            pid: None,
        });
    }

    fn finish_iteration(&mut self, outcome: IterationOutcome, duration_ms: u64, lives: bool) {
        self.stats.count(outcome, duration_ms);
        self.frames.ended(Some(outcome));
        self.session.end_iteration();
        if !lives {
            self.agent = None;
        }
        self.phase = Phase::Idle;
    }

    pub(super) fn work(&mut self, change: impl FnOnce(&mut Work)) {
        if let Phase::Working { work } = &mut self.phase {
            change(work);
        }
    }
}

/// A call as it is counted: two are the same when tool and input are.
fn call(name: &str, summary: &str) -> String {
    match summary {
        "" => name.to_owned(),
        summary => format!("{name}: {summary}"),
    }
}
