//! Reasons of decisions in words, with the measured values and the settings. `step` records them, and `explain` and `replay` print them.

use std::time::Duration;

use crate::number_format::{Grouped, Nth, Percent, Span};
use crate::policy::context::{Level, hard_limit_percent, is_token_redline, level, redline_percent};
use crate::policy::stop::Condition;
use crate::policy::{RebootRules, stop};
use crate::{
    Cause, Claim, Context, Ending, GateResult, LimitedAttempt, Outcome, Policy, RebootBook,
    RebootReason, Session, State, Timestamp, Wait, WaitReason,
};

/// Describes how full a context is.
pub(crate) fn fill(context: &Context) -> String {
    let estimated = if context.estimated { ", estimated" } else { "" };
    format!(
        "context {} ({} of {} tokens{estimated})",
        Percent(context.percent()),
        Grouped(context.tokens),
        Grouped(context.window)
    )
}

/// Describes a reading of the context with its limits.
pub(crate) fn reading(policy: &Policy, session: &Session, context: &Context) -> String {
    let fill = fill(context);
    if !policy.reboot.manages_context() {
        return format!(
            "{fill}; the agent manages its context itself: {}",
            off(&policy.reboot)
        );
    }
    let redline = Percent(redline_percent(policy, session, context.window));
    let hard = Percent(hard_limit_percent(policy, context.window));
    let redline = match policy.reboot.redline_tokens {
        tokens if is_token_redline(policy, session, context) => {
            format!("{redline} ({} tokens)", Grouped(tokens))
        }
        _ => redline.to_string(),
    };
    match level(policy, session, context) {
        Level::Fine | Level::Warning => format!("{fill}, redline {redline}: below"),
        Level::Redline => format!("{fill}, redline {redline}: reached"),
        Level::Hard => format!("{fill}, hard limit {hard}: reached"),
    }
}

fn off(rules: &RebootRules) -> &'static str {
    if !rules.enabled {
        "reboot.enabled = false"
    } else if rules.max_reboots == Some(0) {
        "reboot.max_restarts = 0"
    } else if !rules.on_redline {
        "reboot.triggers.on_redline = false"
    } else {
        "context_redline_percent = 100"
    }
}

/// Describes why a reboot is wanted, with the measured values.
pub(crate) fn reboot(policy: &Policy, state: &State, reason: &RebootReason) -> String {
    let rules = &policy.reboot;
    match reason {
        RebootReason::Redline { .. } => match &state.session.context {
            Some(context) => reading(policy, &state.session, context),
            None => reason.to_string(),
        },
        RebootReason::IterationLimit { .. } => {
            let limit = rules.after_iterations.unwrap_or_default();
            format!("{reason} (reboot.triggers.after_iterations = {limit})")
        }
        RebootReason::DurationLimit { .. } => {
            let limit = Span(rules.after_duration.unwrap_or_default());
            format!("{reason} (reboot.triggers.after_duration is {limit})")
        }
        RebootReason::ToolCalls { .. } => {
            let limit = rules.tool_call_threshold;
            format!("{reason} (context.tool_call_threshold = {limit})")
        }
        RebootReason::Degradation { .. } => format!("{reason} (reboot.triggers.on_degradation)"),
        RebootReason::PatternMatch { .. } => format!("{reason} (reboot.triggers.on_patterns)"),
        RebootReason::Refused | RebootReason::ErrorRecovery { .. } | RebootReason::Manual => {
            reason.to_string()
        }
    }
}

/// Describes the rate limits of reboots with their current values.
pub(crate) fn rate(rules: &RebootRules, book: &RebootBook, now: Timestamp) -> String {
    let mut parts = Vec::new();
    if let Some(success) = book.last_success {
        let (since, interval) = (Span(now.since(success)), Span(rules.min_interval));
        parts.push(format!(
            "the last reboot {since} ago, reboot.min_reboot_interval is {interval}"
        ));
    }
    if let Some(failure) = book.last_failure.filter(|_| book.failures > 0) {
        let (since, cooldown) = (Span(now.since(failure)), Span(rules.failure_cooldown));
        parts.push(format!(
            "{} failed in a row, the last {since} ago, reboot.failure_cooldown is {cooldown} each",
            book.failures
        ));
    }
    if rules.max_per_hour > 0 && book.last_success.is_some() {
        let (hour, limit) = (book.last_hour(now), rules.max_per_hour);
        parts.push(format!(
            "{hour} in the last hour, reboot.max_reboots_per_hour = {limit}"
        ));
    }
    if parts.is_empty() {
        return "no earlier reboot".to_owned();
    }
    parts.join("; ")
}

/// Describes a due reboot, and whether the rate limits allow it.
pub(crate) fn reboot_wanted(
    policy: &Policy,
    state: &State,
    reason: &RebootReason,
    not_before: Option<Timestamp>,
    now: Timestamp,
) -> String {
    let why = reboot(policy, state, reason);
    let rate = rate(&policy.reboot, &state.reboots, now);
    match not_before {
        Some(until) => {
            let span = Span(until.since(now));
            format!("a reboot is due, and allowed in {span}: {why}; {rate}")
        }
        None => format!("a reboot is due and allowed: {why}; {rate}"),
    }
}

/// Describes why the session continues without a reboot.
pub(crate) fn session_goes_on(policy: &Policy, state: &State, now: Timestamp) -> String {
    let (rules, session) = (&policy.reboot, &state.session);
    if !rules.enabled || rules.max_reboots == Some(0) {
        return format!("no reboot: {}", off(rules));
    }
    let mut parts = vec![match &session.context {
        Some(context) => reading(policy, session, context),
        None if rules.tool_call_threshold > 0 && rules.manages_context() => format!(
            "context not known, {} tool calls of {} (context.tool_call_threshold)",
            session.tool_calls, rules.tool_call_threshold
        ),
        None => "context not known".to_owned(),
    }];
    if let Some(most) = rules.after_iterations {
        let had = session.iterations;
        parts.push(format!(
            "{had} of {most} iterations in this session (reboot.triggers.after_iterations)"
        ));
    }
    if let (Some(most), Some(started)) = (rules.after_duration, session.started) {
        let (age, most) = (Span(now.since(started)), Span(most));
        parts.push(format!(
            "{age} old of {most} (reboot.triggers.after_duration)"
        ));
    }
    if rules.on_degradation {
        parts.push("its quality did not fall".to_owned());
    }
    format!("the session continues: {}", parts.join("; "))
}

/// Describes why a turn is ended early, from its cause alone.
pub(crate) fn turn_ended(cause: Cause) -> String {
    match cause {
        Cause::HandOver => "the turn is ended for a reboot".to_owned(),
        Cause::Skip => "the turn is ended: the operator skips it".to_owned(),
        Cause::Interrupt => "the turn is ended: a stop or an immediate pause".to_owned(),
        Cause::Timeout { timeout } => format!("the turn is ended: {timeout}"),
    }
}

/// Describes why a turn is ended early, with the measured values.
pub(crate) fn ending(policy: &Policy, state: &State, ending: Ending, now: Timestamp) -> String {
    let mut words = turn_ended(ending.cause);
    match (ending.cause, &state.session.context, state.work()) {
        (Cause::HandOver, Some(context), _) => {
            let reading = reading(policy, &state.session, context);
            words = format!("{words}: {reading}");
        }
        (Cause::Interrupt, _, _) => {
            if let Some(stop) = &state.stop {
                words = format!("the turn is ended: {}", Outcome::from(stop.clone()));
            }
        }
        (Cause::Timeout { .. }, _, Some(work)) => {
            let ago = Span(now.since(work.active));
            words = format!("{words}; last activity {ago} ago");
        }
        _ => {}
    }
    if ending.boundary_until > now {
        words.push_str(
            "; a tool call or an answer in flight may end first (session.graceful_timeout)",
        );
    }
    words
}

/// Describes why the agent is asked to finish.
pub(crate) fn wrap_up(policy: &Policy, context: &Context) -> String {
    let (fill, warning) = (fill(context), policy.reboot.warning_percent);
    format!("the agent is asked to finish: {fill}, context.warning_percent = {warning}")
}

/// Describes why the loop waits.
pub(crate) fn wait(policy: &Policy, state: &State, wait: Wait, now: Timestamp) -> String {
    let span = Span(wait.until.since(now));
    let nth = Nth(state.limit_streak);
    match wait.reason {
        WaitReason::Delay => format!("waits: iteration_delay is {}", Span(policy.iteration_delay)),
        WaitReason::Backoff => {
            let delay = Span(policy.backoff.delay(state.failure_streak));
            let (nth, cap) = (Nth(state.failure_streak), Span(policy.backoff.cap));
            format!("backoff {delay}: {nth} failure in a row, doubled each time up to {cap}")
        }
        WaitReason::UsageLimit => {
            format!("waits {span} for the model's service: {nth} limit in a row")
        }
        WaitReason::Outage => {
            format!("waits {span}: the model's service could not be reached, {nth} time in a row")
        }
        WaitReason::Operator => "waits for the operator".to_owned(),
        WaitReason::RebootWindow => {
            let why = rate(&policy.reboot, &state.reboots, now);
            format!("waits {span} for the reboot, with no room for another prompt: {why}")
        }
    }
}

/// Describes how a limit or an outage of the model's service ended an attempt.
pub(crate) fn limited(attempt: &LimitedAttempt) -> String {
    let what = match attempt.outage {
        true => "cannot be reached",
        false => "refuses requests",
    };
    let (nth, reason) = (Nth(attempt.streak), &attempt.reason);
    format!(
        "the model's service {what} ({nth} time in a row): {reason}; this is not a failure, and the iteration is repeated"
    )
}

/// Returns the full configuration key of a stop condition.
pub(crate) fn condition_key(name: &str) -> String {
    match name {
        "max_iterations" => name.to_owned(),
        name => format!("stop_conditions.{name}"),
    }
}

/// Describes the value and the limit of each stop condition.
pub(crate) fn conditions(conditions: &[Condition]) -> String {
    if conditions.is_empty() {
        return "none is set".to_owned();
    }
    let words = conditions.iter().map(|condition| {
        let key = condition_key(condition.name);
        format!("{} ({key})", condition.words)
    });
    let words: Vec<String> = words.collect();
    words.join("; ")
}

/// Describes the value and the limit of each stop condition, and the claims of completion.
pub(crate) fn stop_conditions(policy: &Policy, state: &State, now: Timestamp) -> String {
    let met = conditions(&stop::conditions(policy, state, now));
    let known = &state.completion;
    let refused = !known.refused.is_empty() && known.feedback_iteration == state.iteration;
    match refused {
        true => format!("{met}; the claim of completion was refused"),
        false => format!("{met}; {}", claims(&known.claims)),
    }
}

/// Describes why gates run.
pub(crate) fn gates_due(state: &State, claimed: bool) -> String {
    match claimed {
        true => claims(&state.completion.claims),
        false if state.iteration == 0 => "all gates run once before the first iteration".to_owned(),
        false => "they run after every successful iteration".to_owned(),
    }
}

/// Describes why a claim of completion is accepted.
pub(crate) fn completion(policy: &Policy, state: &State) -> String {
    let (rules, known) = (&policy.completion, &state.completion);
    let mut parts = vec![claims(&known.claims)];
    if rules.confirmations > 1 {
        let needed = rules.confirmations;
        parts.push(format!(
            "{needed} times in a row (stop_conditions.confirmations)"
        ));
    }
    if rules.objectives {
        parts.push("all objectives are ticked".to_owned());
    }
    parts.push(match rules.gates.is_empty() {
        true => "no gate is configured".to_owned(),
        false => gates(&known.gates),
    });
    parts.join("; ")
}

/// Describes who claims that the work is complete.
pub(crate) fn claims(claims: &[Claim]) -> String {
    if claims.is_empty() {
        return "no claim of completion".to_owned();
    }
    let claims: Vec<String> = claims.iter().map(ToString::to_string).collect();
    format!("completion is claimed by {}", claims.join(", "))
}

/// Describes the results of gates.
pub(crate) fn gates(results: &[GateResult]) -> String {
    let words = results.iter().map(|result| {
        let (name, took) = (
            &result.name,
            Span(Duration::from_millis(result.duration_ms)),
        );
        match &result.error {
            None => format!("the gate `{name}` passed after {took}"),
            Some(error) => format!("the gate `{name}` failed after {took}: {error}"),
        }
    });
    let words: Vec<String> = words.collect();
    words.join("; ")
}
