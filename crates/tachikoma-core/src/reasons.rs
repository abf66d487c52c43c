//! What a decision was made from, in words and numbers: for those who ask later why.

use std::time::Duration;

use crate::completion::{Claim, GateResult};
use crate::context::Context;
use crate::number_format::{Grouped, Nth, Percent, Span};
use crate::outcome::Outcome;
use crate::policy::context::{Level, hard_limit_percent, is_token_redline, level, redline_percent};
use crate::policy::stop::Condition;
use crate::policy::{Policy, RebootRules};
use crate::reboots::{RebootBook, RebootReason};
use crate::session::Session;
use crate::state::State;
use crate::time::Timestamp;
use crate::turn_report::LimitedAttempt;
use crate::wait::{Wait, WaitReason};

/// Says how full a context is.
pub(crate) fn fill(context: &Context) -> String {
    let estimated = if context.estimated { ", estimated" } else { "" };
    format!(
        "context {} ({} of {} tokens{estimated})",
        Percent(context.percent()),
        Grouped(context.tokens),
        Grouped(context.window)
    )
}

/// Says what a reading means.
pub(crate) fn reading(policy: &Policy, session: &Session, context: &Context) -> String {
    let fill = fill(context);
    if !policy.reboot.manages_context() {
        return format!(
            "{fill}; its fill is the agent's own matter: {}",
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
        Level::Hard => format!("{fill}, hard limit {hard}: takes no prompt any more"),
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

/// Returns the setting that a reboot goes back to.
pub(crate) fn reboot_key(reason: &RebootReason) -> Option<&'static str> {
    Some(match reason {
        RebootReason::Redline {
            tokens: Some(_), ..
        } => "reboot.context_redline_tokens",
        RebootReason::Redline { tokens: None, .. } => "context_redline_percent",
        RebootReason::Degradation { .. } => "reboot.triggers.on_degradation",
        RebootReason::IterationLimit { .. } => "reboot.triggers.after_iterations",
        RebootReason::DurationLimit { .. } => "reboot.triggers.after_duration",
        RebootReason::PatternMatch { .. } => "reboot.triggers.on_patterns",
        RebootReason::ToolCalls { .. } => "context.tool_call_threshold",
        RebootReason::Refused | RebootReason::ErrorRecovery { .. } | RebootReason::Manual => {
            return None;
        }
    })
}

/// Says why a reboot is wanted, with what was measured.
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
        RebootReason::Refused
        | RebootReason::Degradation { .. }
        | RebootReason::PatternMatch { .. }
        | RebootReason::ErrorRecovery { .. }
        | RebootReason::Manual => reason.to_string(),
    }
}

/// Says what the rate limits of reboots stand at.
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
        return "no reboot before it".to_owned();
    }
    parts.join("; ")
}

/// Returns the setting that a wait goes back to.
pub(crate) fn wait_key(wait: &Wait) -> Option<&'static str> {
    match wait.reason {
        WaitReason::Delay => Some("iteration_delay"),
        WaitReason::RebootWindow => Some("reboot.min_reboot_interval"),
        WaitReason::Backoff
        | WaitReason::UsageLimit
        | WaitReason::Outage
        | WaitReason::Operator => None,
    }
}

/// Says why the loop waits, and how long after the attempt was over.
pub(crate) fn wait(policy: &Policy, state: &State, wait: &Wait, over: Timestamp) -> String {
    let span = Span(wait.until.since(over));
    match wait.reason {
        WaitReason::Delay => format!("waited {span}: iteration_delay"),
        WaitReason::Backoff => {
            let failures = state.failure_streak;
            let nth = Nth(failures);
            let cap = Span(policy.backoff.cap);
            format!("backoff {span}: {nth} failure in a row, doubled each time up to {cap}")
        }
        WaitReason::UsageLimit => {
            let nth = Nth(state.limit_streak);
            format!("waited {span} for the model's service: {nth} limit in a row")
        }
        WaitReason::Outage => {
            let nth = Nth(state.limit_streak);
            format!("waited {span}: the model's service could not be reached, {nth} time in a row")
        }
        WaitReason::Operator => "waited for the operator".to_owned(),
        WaitReason::RebootWindow => {
            let why = rate(&policy.reboot, &state.reboots, state.time);
            format!("waited {span} for the reboot, with no room for another prompt: {why}")
        }
    }
}

/// Says what the model's service did to an attempt.
pub(crate) fn limited(attempt: &LimitedAttempt) -> String {
    let what = match attempt.outage {
        true => "cannot be reached",
        false => "takes nothing more",
    };
    let (nth, reason) = (Nth(attempt.streak), &attempt.reason);
    format!(
        "the model's service {what} ({nth} time in a row): {reason}; no failure, and the iteration is repeated"
    )
}

/// Returns the setting that an end goes back to.
pub(crate) fn end_key(outcome: &Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::LimitReached { .. } => Some("max_iterations"),
        Outcome::Done
        | Outcome::Condition { .. }
        | Outcome::Budget { .. }
        | Outcome::Operator
        | Outcome::Signal { .. }
        | Outcome::Error { .. } => None,
    }
}

/// Returns the setting that a stop condition has.
pub(crate) fn condition_key(name: &str) -> String {
    match name {
        "max_iterations" => name.to_owned(),
        name => format!("stop_conditions.{name}"),
    }
}

/// Says how near each stop condition is.
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

/// Says who claims that the work is complete.
pub(crate) fn claims(claims: &[Claim]) -> String {
    if claims.is_empty() {
        return "no claim of completion".to_owned();
    }
    let claims: Vec<String> = claims.iter().map(ToString::to_string).collect();
    format!("completion is claimed by {}", claims.join(", "))
}

/// Says how gates went.
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
