//! Timeouts: when a silent agent is killed (`silence_timeout`), and which timeout of an iteration runs out next.
//!
//! Before the first output, `first_output_timeout` (2 min by default) applies; after it, `silence_timeout` (10 min), and during a tool call
//! `tool_timeout` (1 h). Keep-alive messages of the agent are not output. While no tool call runs, an agent with processes that use the CPU, the network or files
//! is busy (`busy`) and has until `tool_timeout`. When a timeout has passed, the agent is interrupted, then terminated, then killed (`step/ending`).

use std::time::Duration;

use super::Policy;
use super::budget::out_of_time;
use crate::{Phase, Reboot, RebootStage, State, Timeout, Timestamp, Wait, Work};

/// Output is recorded at most this many times per `silence_timeout`. The timeout is longer by one such interval, so
/// that the missing records never make it shorter than configured.
const STEPS_PER_SILENCE: u32 = 20;

/// Returns the minimum time between two records of output.
#[must_use]
pub fn output_step(policy: &Policy) -> Duration {
    (policy.timeouts.silence / STEPS_PER_SILENCE).max(Duration::from_secs(1))
}

/// Returns when the runner has to send [`Input::Wake`](crate::Input::Wake).
#[must_use]
pub fn next_deadline(policy: &Policy, state: &State) -> Option<Timestamp> {
    let deadline = match &state.phase {
        Phase::Waiting { wait } => wait_deadline(state, *wait),
        Phase::Working { work } => work_deadline(policy, work),
        Phase::Autocommitting { autocommit } => autocommit
            .closing
            .map(|escalation| escalation.until)
            .or(autocommit.until),
        Phase::Checking { check } => check.until,
        Phase::Hooking { hooking } => Some(hooking.until),
        Phase::Rebooting { reboot } => self::reboot(policy, reboot),
        // Only the operator or a new runner ends these phases.
        Phase::Idle | Phase::Paused { .. } | Phase::Ended { .. } => return None,
    };
    deadline.into_iter().chain(out_of_time(policy, state)).min()
}

/// Returns when a wait ends; `None` for a question without a timeout.
fn wait_deadline(state: &State, wait: Wait) -> Option<Timestamp> {
    match state.question() {
        Some(question) => question.until,
        None => Some(wait.until),
    }
}

/// Returns the next deadline of an iteration.
fn work_deadline(policy: &Policy, work: &Work) -> Option<Timestamp> {
    if let Some(escalation) = work.escalation {
        return Some(escalation.until);
    }
    let timeout = next(policy, work).map(|(time, _)| time);
    // If the agent is not launched yet, the launch timeout applies instead.
    let boundary = work
        .ending
        .filter(|_| work.launched.is_some())
        .map(|ending| ending.boundary_until);
    boundary.into_iter().chain(timeout).min()
}

/// Returns the earliest timeout of an iteration that is not being ended.
#[must_use]
pub fn next(policy: &Policy, work: &Work) -> Option<(Timestamp, Timeout)> {
    let limits = &policy.timeouts;
    let Some(launched) = work.launched else {
        return after(work.started, limits.launch, Timeout::Launch);
    };
    let session = after(work.started, limits.session, Timeout::Session);
    if !policy.agent.event_stream {
        return session;
    }
    if let Some(result) = &work.result {
        return earlier(
            session,
            after(result.time, limits.result_grace, Timeout::ResultGrace),
        );
    }
    if let Some(ended) = work.stream_ended {
        return earlier(
            session,
            after(ended, limits.result_grace, Timeout::StreamGone),
        );
    }
    let oldest = work.tools.values().map(|tool| tool.since).min();
    earlier(
        session,
        match oldest {
            Some(oldest) => after(oldest, limits.tool, Timeout::Tool),
            None => silence_timeout(policy, work, launched),
        },
    )
}

/// Decides the silence timeout: when a silent agent is checked, and killed if its processes are idle.
fn silence_timeout(
    policy: &Policy,
    work: &Work,
    launched: Timestamp,
) -> Option<(Timestamp, Timeout)> {
    let (limit, timeout) = if work.spoke {
        (policy.timeouts.silence, Timeout::Silence)
    } else {
        (policy.timeouts.first_output, Timeout::FirstOutput)
    };
    if let Some(until) = work.silence_check_until {
        return Some((until, timeout));
    }
    let last_output_at = last_output(policy, work, launched);
    match work.busy {
        None => after(last_output_at, limit, timeout),
        Some(busy) => earlier(
            after(busy.time, limit, timeout),
            after(last_output_at, policy.timeouts.tool, timeout),
        ),
    }
}

/// Returns the latest time at which the agent may have printed output.
fn last_output(policy: &Policy, work: &Work, launched: Timestamp) -> Timestamp {
    if work.spoke {
        work.active.after(output_step(policy))
    } else {
        launched
    }
}

/// Returns whether an agent that has been quiet for too long may be busy instead of stuck, so that its processes are
/// sampled first. Like a tool call, a busy agent is ended after `tool_timeout`.
#[must_use]
pub fn may_be_busy(policy: &Policy, work: &Work, now: Timestamp) -> bool {
    let launched = work.launched.unwrap_or(work.started);
    let most = policy.timeouts.tool;
    let spent = most > Duration::ZERO && last_output(policy, work, launched).after(most) <= now;
    work.silence_check_until.is_none() && work.ending.is_none() && !spent
}

/// Returns the deadline of the current stage of a reboot.
#[must_use]
pub fn reboot(policy: &Policy, reboot: &Reboot) -> Option<Timestamp> {
    match &reboot.stage {
        // The loop never waits in this stage.
        RebootStage::Begun => None,
        RebootStage::HandOff { until, .. } | RebootStage::Hooks { until, .. } => Some(*until),
        RebootStage::Autocommitting { autocommit } => autocommit.until,
        RebootStage::Closing { escalation, .. } => Some(escalation.until),
        RebootStage::Opening { since, .. } => {
            let limits = [policy.timeouts.renew, policy.timeouts.first_output];
            let limit = limits.into_iter().filter(|limit| *limit > Duration::ZERO);
            limit.min().map(|limit| since.after(limit))
        }
    }
}

fn after(start: Timestamp, limit: Duration, timeout: Timeout) -> Option<(Timestamp, Timeout)> {
    (limit > Duration::ZERO).then(|| (start.after(limit), timeout))
}

fn earlier(
    a: Option<(Timestamp, Timeout)>,
    b: Option<(Timestamp, Timeout)>,
) -> Option<(Timestamp, Timeout)> {
    a.into_iter().chain(b).min_by_key(|(time, _)| *time)
}
