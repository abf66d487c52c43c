//! Applies records to the state of a loop. The state changes nowhere else, neither live nor in a replay.
#![warn(clippy::wildcard_enum_match_arm)]

mod completion;
mod operator;
mod phases;

use std::time::Duration;

use self::phases::with_reboot;
use crate::completion::only_talks_to_the_loop;
use crate::time::millis;
use crate::{
    AttemptEnd, Claim, DENIALS_MAX, Denial, Ending, Escalation, Generation, HandOff,
    IterationOutcome, Launch, LimitedAttempt, LiveAgent, LoopEvent, Note, PastSession,
    PendingHooks, Phase, Reboot, RebootEntry, RebootResult, RebootStage, Record, Resumption,
    Runner, Session, Snapshot, State, StopSignal, Timestamp, Tool, TurnEnd, TurnResult, Work,
};

/// Maximum number of past sessions that are kept.
const HISTORY_MAX: usize = 100;

/// Maximum number of notes of the agent, and of the operator. Neither displaces the other.
const NOTES_MAX: usize = 50;

/// Applies one record. Nothing else changes a state.
pub fn apply(state: &mut State, record: &Record) {
    if let LoopEvent::SegmentOpened {
        state: opened,
        epoch,
        ..
    } = &record.event
    {
        state.clone_from(opened);
        state.epoch.clone_from(epoch);
    }
    debug_assert_eq!(
        record.seq,
        state.seq.next(),
        "records are applied in order, without gaps"
    );
    state.seq = record.seq;
    state.time = record.time;
    let time = record.time;
    pass_time(state, &record.event, time);
    match &record.event {
        LoopEvent::SegmentOpened { .. }
        | LoopEvent::LeftoversEnded { .. }
        | LoopEvent::StopConditionTriggered { .. }
        | LoopEvent::Warned { .. }
        | LoopEvent::DiskWasFull { .. }
        | LoopEvent::Repaired { .. } => {}
        LoopEvent::Incident(incident) => state.uploads.take(incident, time),
        LoopEvent::ConfigChanged { changes } => {
            if changes.iter().any(|change| change.key == "attended_mode") {
                state.operator.attended = None;
            }
        }
        LoopEvent::Operator(event) => operator::operator_event(state, event, time),
        LoopEvent::Started {
            launch,
            runner,
            limits,
            resumption,
        } => {
            state.limits = *limits;
            // The user has started the ended loop again, so an old outage no longer counts.
            if matches!(resumption, Resumption::AfterEnd { .. }) {
                service_answered(state);
            }
            state.pending_hooks.ready = false;
            runner_started(state, launch, runner, time);
        }
        LoopEvent::PauseRequested => state.pause_requested = true,
        LoopEvent::Paused { then } => {
            state.pause_requested = false;
            state.phase = Phase::Paused { then: *then };
        }
        // The next record states what follows the resumption.
        LoopEvent::PauseWithdrawn => state.pause_requested = false,
        LoopEvent::Resumed => {
            state.pause_requested = false;
            state.operator.unanswered = None;
            state.operator.agreed |= state.operator.put;
        }
        LoopEvent::StopRequested { stop, urgent } => {
            state.stop = Some(stop.clone());
            state.stop_urgent |= *urgent;
        }
        LoopEvent::WaitStarted { wait } => state.phase = Phase::Waiting { wait: *wait },
        LoopEvent::SessionStarted { session, agent_id } => {
            state.accounting.session_began();
            state.pending_hooks.session_start = true;
            state.session = Session {
                number: *session,
                agent_id: agent_id.clone(),
                started: Some(time),
                unproven: matches!(state.phase, Phase::Rebooting { .. }),
                ..Session::default()
            };
        }
        LoopEvent::SessionNamed { agent_id } => {
            state.session.agent_id = Some(agent_id.clone());
            state.reboots.named(agent_id);
        }
        LoopEvent::SessionEnded {
            session,
            iterations,
            reason,
        } => {
            state.checkpoint.take(&state.session, reason);
            state.pending_hooks.session_end = true;
            // After a crash during a reboot, the end of a session may be recorded twice.
            state.history.retain(|past| past.number != *session);
            if state.history.len() >= HISTORY_MAX {
                state.history.remove(0);
            }
            state.history.push(PastSession {
                number: *session,
                agent_id: state.session.agent_id.clone(),
                started: state.session.started,
                ended: time,
                iterations: *iterations,
                reason: reason.clone(),
            });
        }
        LoopEvent::CustomSet { key, value } => {
            if value.is_null() {
                state.custom.remove(key);
            } else {
                state.custom.insert(key.clone(), value.clone());
            }
        }
        LoopEvent::IterationStarted {
            iteration,
            attempt,
            generation,
            ..
        } => {
            if *iteration != state.iteration {
                state.cuts = 0;
            }
            state.iteration = *iteration;
            state.attempt = *attempt;
            state.after_cut = *attempt > 1 && (state.after_cut || state.cut);
            state.cut = false;
            state.claimed = false;
            operator::attempt_started_attended(state);
            state.pending_hooks = PendingHooks::default();
            state.completion.attempt_started();
            state.progress.attempt_started(*attempt);
            state.stop_pattern = None;
            state.accounting.turn_began();
            state.tracked_work.unsurveyed = true;
            state.session.context_before = state.session.context;
            state.session.hand_off = HandOff::NotAsked;
            begin_work(state, *generation, time);
        }
        LoopEvent::AgentLaunched { pid } => {
            if let Some(agent) = &mut state.agent {
                agent.pid = Some(*pid);
            }
            with_work(state, |work| {
                work.pid = Some(*pid);
                work.launched = Some(time);
                work.active = time;
            });
        }
        LoopEvent::AgentExited { .. } => {
            state.agent = None;
            if let Phase::Autocommitting { autocommit } = &mut state.phase {
                autocommit.closing = None;
            }
        }
        LoopEvent::OutputSeen => with_work(state, |work| work.heard(time)),
        LoopEvent::SilenceChecked { until, .. } => {
            with_work(state, |work| work.silence_check_until = Some(*until));
        }
        LoopEvent::AgentBusy { activity } => with_work(state, |work| work.seen(*activity, time)),
        LoopEvent::ContextMeasured {
            context,
            answering,
            redline_tokens,
        } => {
            if state.session.context.is_none() {
                state.session.first_tokens = Some(context.tokens);
            }
            state.session.context = Some(*context);
            state.session.redline_tokens = redline_tokens.or(state.session.redline_tokens);
            with_work(state, |work| {
                work.heard(time);
                work.answering = *answering;
            });
        }
        LoopEvent::WrapUpAdvised { .. } => state.session.advised = true,
        LoopEvent::ToolStarted { id, name, summary } => {
            state.session.call(call(name, summary));
            with_work(state, |work| {
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
            let (mut tool, mut work_done) = (None, false);
            with_work(state, |work| {
                // A call that was denied or blocked by a hook ends with an error too: it is not work.
                let ended = work.tools.get(id).filter(|_| error.is_none());
                work_done = ended.is_some_and(|tool| !only_talks_to_the_loop(&tool.summary));
                // A tool call that our interrupt ended has not failed, and stays the last sign of activity.
                if work.escalation.is_none() {
                    tool = work.tools.remove(id);
                    work.heard(time);
                }
            });
            state.completion.idle &= !work_done;
            if let (Some(tool), Some(error)) = (tool, error) {
                state
                    .session
                    .call_failed(call(&tool.name, &tool.summary), error);
            }
        }
        LoopEvent::ToolDenied(denial) => denied(state, denial, time),
        LoopEvent::FileTouched { path } => {
            state.completion.idle = false;
            if state.session.knows_file(path) {
                state.session.files_unnamed = state.session.files_unnamed.saturating_add(1);
            } else {
                state.session.files.push(path.clone());
            }
        }
        LoopEvent::TurnResulted(TurnEnd {
            success,
            reason,
            problem,
            claimed,
            pattern,
            cost_microusd,
            tokens,
            spent,
            ..
        }) => {
            state.session.spent = *spent;
            phases::hand_off_resulted(state, *success, problem.as_ref(), time);
            let (cost, tokens) = (*cost_microusd, *tokens);
            state
                .accounting
                .turn_resulted(&mut state.stats, cost, tokens);
            if pattern.is_some() {
                state.session.pattern.clone_from(pattern);
            }
            with_work(state, |work| {
                work.result = Some(TurnResult {
                    time,
                    success: *success,
                    claimed: *claimed,
                    reason: reason.clone(),
                    problem: problem.clone(),
                    after_interrupt: work.escalation.is_some(),
                });
            });
        }
        LoopEvent::CallEnded { tokens } => state.accounting.call_ended(&mut state.stats, *tokens),
        LoopEvent::CostReported {
            conversation_microusd,
        } => {
            let conversation = *conversation_microusd;
            state
                .accounting
                .cost_reported(&mut state.stats, conversation);
        }
        LoopEvent::WorkedOutside {
            tool,
            cost_microusd,
            tokens,
        } => {
            if tool.is_empty() {
                let accounting = &mut state.accounting;
                accounting.turn_resulted(&mut state.stats, *cost_microusd, *tokens);
            } else {
                state.tracked_work.checked = true;
                state.tracked_work.outside = true;
            }
        }
        LoopEvent::ConversationResumed(told) => state
            .accounting
            .conversation_resumed(&mut state.stats, *told),
        LoopEvent::QuotaReported(quota) => {
            state.stats.on_subscription = true;
            state.accounting.quota_reported(quota.clone());
        }
        LoopEvent::StopPatternMatched { pattern } => {
            state.stop_pattern = Some(pattern.clone());
        }
        LoopEvent::Noted {
            text,
            tell,
            operator,
        } => record_note(state, text, *tell, *operator, time),
        LoopEvent::EndingRequested {
            cause,
            boundary_until,
        } => {
            with_work(state, |work| {
                work.ending = Some(Ending {
                    cause: *cause,
                    boundary_until: *boundary_until,
                });
            });
        }
        LoopEvent::AgentSignaled { signal, until } => {
            let next = Escalation {
                signal: *signal,
                until: *until,
            };
            with_work(state, |work| work.escalation = Some(next));
            with_reboot(state, |reboot| {
                if let RebootStage::Closing { escalation, .. } = &mut reboot.stage {
                    *escalation = next;
                }
            });
            if let Phase::Autocommitting { autocommit } = &mut state.phase {
                autocommit.closing = Some(next);
            }
        }
        LoopEvent::Suspended { duration_ms } => {
            postpone_deadlines(state, Duration::from_millis(*duration_ms));
        }
        LoopEvent::IterationCompleted {
            report,
            agent_lives,
        } => {
            completion::iteration_over(state, report.outcome);
            operator::iteration_ended_attended(
                state,
                report.outcome == IterationOutcome::Succeeded,
            );
            if report.claimed {
                completion::claim(state, Claim::Promise);
            }
            service_answered(state);
            if report.outcome == IterationOutcome::Succeeded {
                state.session.oriented = true;
                state.tracked_work.work_tree_note = None;
                state.session.fast_failures = 0;
                state.failure_streak = 0;
            }
            finish_iteration(state, report.outcome, report.duration_ms, *agent_lives);
        }
        LoopEvent::IterationFailed {
            failure,
            duration_ms,
            streak,
            agent_lives,
            ..
        } => {
            state.failure_streak = *streak;
            operator::iteration_ended_attended(state, false);
            completion::attempt_ended(state, AttemptEnd::Failed);
            service_answered(state);
            state.session.note_failure(*duration_ms);
            state.last_failure = Some(failure.clone());
            finish_iteration(state, IterationOutcome::Failed, *duration_ms, *agent_lives);
        }
        LoopEvent::IterationLimited(LimitedAttempt {
            streak,
            agent_lives,
            outage,
            ..
        }) => {
            service_refused(state, *streak, *outage, time);
            state.pending_hooks.ended(None);
            completion::attempt_ended(state, AttemptEnd::Cut);
            attempt_cut(state, *agent_lives);
        }
        LoopEvent::StreamEnded => with_work(state, |work| work.stream_ended = Some(time)),
        LoopEvent::AttemptCut {
            agent_lives,
            reason,
            ..
        } => {
            state.cuts += u32::from(reason.is_some());
            state.progress.missed();
            attempt_cut(state, *agent_lives);
        }
        LoopEvent::SnapshotTaken {
            iteration,
            commit,
            uncommitted,
        } => {
            state.tracked_work.uncommitted = *uncommitted;
            let known = state.tracked_work.snapshot.as_ref();
            if known.is_none_or(|known| known.commit != *commit) {
                state.tracked_work.snapshot = Some(Snapshot {
                    iteration: *iteration,
                    commit: commit.clone(),
                });
            }
        }
        LoopEvent::AutocommitStarted(autocommit) => {
            phases::autocommit_started(state, autocommit.clone());
        }
        LoopEvent::AutocommitCanceled { until, then } => {
            phases::autocommit_canceled(state, *until, *then);
        }
        LoopEvent::AutocommitFinished {
            purpose,
            iteration,
            result,
        } => phases::autocommit_finished(state, *purpose, *iteration, result, time),
        LoopEvent::AutocommitGivenUp { purpose, .. } => {
            phases::autocommit_given_up(state, *purpose);
        }
        LoopEvent::Claimed { reason } => completion::claim(
            state,
            Claim::Done {
                reason: reason.clone(),
            },
        ),
        LoopEvent::CheckStarted { check } => {
            state.completion.number += 1;
            state.completion.given_up = None;
            state.tracked_work.checked = true;
            state.phase = Phase::Checking {
                check: check.clone(),
            };
        }
        LoopEvent::ConditionsAnswered { answers } => {
            completion::conditions_answered(state, answers);
        }
        LoopEvent::GatesRan { iteration, results } => {
            completion::gates_ran(state, *iteration, results);
        }
        LoopEvent::TestsRan(report) => state.progress.tested(report),
        LoopEvent::ProgressMeasured(measured) => {
            let streak = &mut state.stats.no_progress_count;
            *streak = match measured.score {
                0 => streak.saturating_add(1),
                _ => 0,
            };
            state.progress.measured(measured);
        }
        LoopEvent::CheckGivenUp { reason } => completion::check_given_up(state, reason),
        LoopEvent::ClaimRefused(refusal) => completion::claim_refused(state, refusal),
        LoopEvent::RebootRequested { reason, not_before } => {
            phases::reboot_requested(state, reason, *not_before);
        }
        LoopEvent::RebootStarted { reason, then, .. } => {
            state.reboot_pending = None;
            state.reboot_not_before = None;
            state.operator.put_off = None;
            state.reboots.begun(time);
            let to = state.session.number.next();
            state.phase = Phase::Rebooting {
                reboot: Reboot {
                    reason: reason.clone(),
                    started: time,
                    to,
                    then: *then,
                    asked: 0,
                    stage: RebootStage::Begun,
                },
            };
        }
        LoopEvent::HandOffRequested { until } => {
            state.accounting.turn_began();
            // The turn of the hand-off may change files.
            state.tracked_work.unsurveyed = true;
            with_reboot(state, |reboot| {
                reboot.asked = reboot.asked.saturating_add(1);
                reboot.stage = RebootStage::HandOff {
                    until: *until,
                    parts: Vec::new(),
                };
            });
        }
        LoopEvent::HandOffWritten { text, partial } => {
            phases::hand_off_written(state, text, *partial);
        }
        LoopEvent::HooksStarted(start) => phases::hooks_started(state, start),
        LoopEvent::HooksRan(end) => phases::hooks_ended(state, end),
        LoopEvent::ClosingStarted { until, failed } => {
            let signal = match failed {
                None => StopSignal::Interrupt,
                Some(_) => StopSignal::Kill,
            };
            let escalation = Escalation {
                signal,
                until: *until,
            };
            let failed = failed.clone();
            with_reboot(state, |reboot| {
                reboot.stage = RebootStage::Closing { escalation, failed }
            });
        }
        LoopEvent::SessionOpening {
            session,
            generation,
        } => {
            launching(state, *generation);
            let old = *session == state.session.number;
            with_reboot(state, |reboot| {
                reboot.stage = RebootStage::Opening {
                    generation: *generation,
                    since: time,
                    old,
                };
            });
        }
        // A runner that dies after this record must not reboot again.
        LoopEvent::RebootCompleted {
            reason,
            iteration,
            from,
            duration_ms,
            ..
        } => {
            state.stats.reboots += 1;
            let entry = phases::entry(
                state,
                time,
                reason,
                *iteration,
                *duration_ms,
                RebootResult::Done,
            );
            state.reboots.succeeded(RebootEntry {
                from: *from,
                ..entry
            });
            state.phase = Phase::Idle;
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
            let started = state.rebooting().map_or(time, |reboot| reboot.started);
            let took = millis(time.since(started));
            let entry = phases::entry(state, time, reason, *iteration, took, result);
            state.reboots.failed(entry);
            state.phase = Phase::Idle;
        }
        LoopEvent::RebootVerified { futile, .. } => {
            state.session.unproven = false;
            state.reboots.verified(futile.as_deref());
        }
        LoopEvent::Completed { outcome, .. }
        | LoopEvent::Stopped { outcome, .. }
        | LoopEvent::Error { outcome, .. } => {
            // A commit without changes has no record of its own. If the agent had not ended, the work tree was not examined.
            if let Phase::Autocommitting { autocommit } = &state.phase {
                state.tracked_work.checked = autocommit.closing.is_some();
            }
            state.runner = None;
            state.agent = None;
            state.phase = Phase::Ended {
                outcome: outcome.clone(),
            };
        }
    }
    operator::withdraw_question(state);
}

fn finish_iteration(state: &mut State, outcome: IterationOutcome, duration_ms: u64, lives: bool) {
    state.stats.count(outcome, duration_ms);
    state.pending_hooks.ended(Some(outcome));
    state.session.end_iteration();
    if !lives {
        state.agent = None;
    }
    state.phase = Phase::Idle;
}

/// A denied call is not a failure of the session.
fn denied(state: &mut State, denial: &Denial, time: Timestamp) {
    let mut tool = None;
    with_work(state, |work| {
        if work.escalation.is_none() {
            tool = work.tools.remove(&denial.id);
            work.heard(time);
        }
    });
    if let Some(tool) = tool {
        state.session.call_denied(&call(&tool.name, &tool.summary));
    }
    let same = |known: &Denial| known.name == denial.name && known.summary == denial.summary;
    match state.denials.iter().position(same) {
        Some(at) => state.denials[at].clone_from(denial),
        None if state.denials.len() < DENIALS_MAX => state.denials.push(denial.clone()),
        None => state.other_denials = state.other_denials.saturating_add(1),
    }
}

/// Returns the text by which repeated calls are recognized.
fn call(name: &str, summary: &str) -> String {
    match summary {
        "" => name.to_owned(),
        summary => format!("{name}: {summary}"),
    }
}

/// Counts the time that the loop ran up to a record.
fn pass_time(state: &mut State, event: &LoopEvent, time: Timestamp) {
    if let LoopEvent::Started { runner, .. } = event {
        if let Some(until) = runner.follows_until {
            state.accounting.count(&state.phase, until.min(time));
        }
        state.accounting.runner_started(time);
    } else if let LoopEvent::Suspended { duration_ms } = event {
        let duration = Duration::from_millis(*duration_ms);
        state.accounting.suspended(duration);
    } else if !event.may_come_without_runner() {
        // Events that may come without a runner do not count time. The next other record counts it.
        state.accounting.count(&state.phase, time);
    }
}

/// Extends all deadlines by the time of a suspension.
fn postpone_deadlines(state: &mut State, duration: Duration) {
    with_reboot(state, |reboot| match &mut reboot.stage {
        RebootStage::Begun => {}
        RebootStage::HandOff { until, .. } | RebootStage::Hooks { until, .. } => {
            *until = until.after(duration);
        }
        RebootStage::Autocommitting { autocommit } => autocommit.postpone(duration),
        RebootStage::Closing { escalation, .. } => {
            escalation.until = escalation.until.after(duration);
        }
        RebootStage::Opening { since, .. } => *since = since.after(duration),
    });
    if let Phase::Autocommitting { autocommit } = &mut state.phase {
        autocommit.postpone(duration);
    }
    if let Phase::Hooking { hooking } = &mut state.phase {
        hooking.until = hooking.until.after(duration);
    }
    if let Phase::Checking { check } = &mut state.phase {
        check.until = check.until.map(|until| until.after(duration));
    }
    with_work(state, |work| work.postpone(duration));
}

fn runner_started(state: &mut State, launch: &Launch, runner: &Runner, time: Timestamp) {
    if state.needs_survey() {
        // The survey at the start finds the changes of the attempt that was cut, but does not measure its progress.
        state.progress.missed();
        // Those changes are committed when the loop ends, also if no iteration follows.
        state.tracked_work.checked = true;
    }
    state.launch = launch.clone();
    state.runner = Some(runner.clone());
    state.agent = None;
    state.started_at.get_or_insert(time);
    // The operator started the loop again, so an earlier request to stop no longer applies.
    state.stop = None;
    state.stop_urgent = false;
    operator::restart_rollback_timeout(state, time);
    if matches!(state.phase, Phase::Ended { .. }) {
        state.failure_streak = 0;
        // These counters may have ended the loop. The operator who runs it again wants it to continue.
        state.stats.test_failure_streak = 0;
        state.stats.no_progress_count = 0;
        state.stop_pattern = None;
        state.reboots.failures = 0;
        state.reboots.futile = 0;
        state.pause_requested = false;
        operator::reset_for_new_run(state);
        state.phase = Phase::Idle;
    }
}

fn service_answered(state: &mut State) {
    state.limit_streak = 0;
    state.outage_since = None;
}

/// The model's service refused an attempt, or could not be reached.
fn service_refused(state: &mut State, streak: u32, outage: bool, time: Timestamp) {
    state.limit_streak = streak;
    // If no request ever succeeded, the outage began with the attempt.
    let mut attempt_began = time;
    if let Phase::Working { work } = &state.phase
        && !state.reached_service()
    {
        attempt_began = work.started;
    }
    state.outage_since = outage.then(|| state.outage_since.unwrap_or(attempt_began));
}

/// The attempt ended without a result. Its iteration is repeated.
fn attempt_cut(state: &mut State, agent_lives: bool) {
    state.cut = true;
    if !agent_lives {
        state.agent = None;
    }
    state.phase = Phase::Idle;
}

fn begin_work(state: &mut State, generation: Generation, time: Timestamp) {
    let mut work = Work::new(generation, time);
    match state.agent.filter(|agent| agent.generation == generation) {
        // The process of the session runs, and gets its next prompt.
        Some(agent) => {
            work.pid = agent.pid;
            work.launched = Some(time);
            work.reused = true;
        }
        None => launching(state, generation),
    }
    let work = Box::new(work);
    state.phase = Phase::Working { work };
}

fn launching(state: &mut State, generation: Generation) {
    state.generation = generation;
    state.agent = Some(LiveAgent {
        generation,
        pid: None,
    });
}

/// Changes the current attempt, if there is one.
fn with_work(state: &mut State, change: impl FnOnce(&mut Work)) {
    if let Phase::Working { work } = &mut state.phase {
        change(work);
    }
}

fn record_note(state: &mut State, text: &str, tell: bool, operator: bool, time: Timestamp) {
    if tell {
        state.tracked_work.work_tree_note = Some(text.to_owned());
    }
    let mut same = state
        .notes
        .iter()
        .enumerate()
        .filter(|(_, note)| note.operator == operator);
    let oldest = same.next().map(|(index, _)| index);
    if let Some(oldest) = oldest.filter(|_| same.count() + 1 >= NOTES_MAX) {
        state.notes.remove(oldest);
    }
    state.notes.push(Note {
        time,
        iteration: state.iteration,
        text: text.to_owned(),
        operator,
    });
}
