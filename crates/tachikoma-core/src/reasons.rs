//! What a decision was made from, in words and numbers: for those who ask later why.

use std::fmt;
use std::time::Duration;

use crate::completion::{Claim, GateResult};
use crate::context::Context;
use crate::outcome::{Outcome, RebootReason};
use crate::phase::{Wait, WaitReason};
use crate::policy::context::{Level, hard_limit_percent, level, redline_percent};
use crate::policy::stop::Condition;
use crate::policy::{Policy, RebootRules};
use crate::reboots::RebootBook;
use crate::state::State;
use crate::time::Timestamp;

/// A span of time, to the second; shorter ones to the millisecond.
pub(crate) struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        match self.0.subsec_millis() {
            0 => {}
            millis if seconds == 0 => return write!(f, "{millis} ms"),
            millis if seconds < 60 => return write!(f, "{seconds}.{:01} s", millis / 100),
            _ => {}
        }
        match (hours, minutes, seconds % 60) {
            (0, 0, seconds) => write!(f, "{seconds} s"),
            (0, minutes, 0) => write!(f, "{minutes} min"),
            (0, minutes, seconds) => write!(f, "{minutes} min {seconds} s"),
            (hours, 0, _) => write!(f, "{hours} h"),
            (hours, minutes, _) => write!(f, "{hours} h {minutes} min"),
        }
    }
}

/// A large number, in groups of three digits.
pub(crate) struct Grouped(pub u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (place, digit) in digits.char_indices() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                f.write_str(" ")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

/// A number with the ending of its place: 1st, 2nd, 3rd.
pub(crate) struct Nth(pub u32);

impl fmt::Display for Nth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match (self.0 % 10, self.0 % 100) {
            (_, 11..=13) => "th",
            (1, _) => "st",
            (2, _) => "nd",
            (3, _) => "rd",
            _ => "th",
        };
        write!(f, "{}{ending}", self.0)
    }
}

/// A share, with a decimal where there is one.
pub(crate) struct Percent(pub f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = (self.0 * 10.0).round() / 10.0;
        write!(f, "{rounded} %")
    }
}

/// So many of a thing.
pub(crate) fn count(number: u32, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{ending}")
}

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
pub(crate) fn reading(policy: &Policy, context: &Context) -> String {
    let fill = fill(context);
    if !policy.reboot.manages_context() {
        return format!(
            "{fill}; its fill is the agent's own matter: {}",
            off(&policy.reboot)
        );
    }
    let redline = Percent(redline_percent(policy, context.window));
    let hard = Percent(hard_limit_percent(policy, context.window));
    match level(policy, context) {
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
        RebootReason::Redline { .. } => "context_redline_percent",
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
            Some(context) => reading(policy, context),
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
        WaitReason::Backoff | WaitReason::UsageLimit | WaitReason::Operator => None,
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
        WaitReason::Operator => "waited for the operator".to_owned(),
        WaitReason::RebootWindow => {
            let why = rate(&policy.reboot, &state.reboots, state.time);
            format!("waited {span} for the reboot, with no room for another prompt: {why}")
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_numbers_read_as_people_write_them() {
        let spans = [0, 250, 4_000, 4_250, 90_000, 300_000, 3_600_000, 5_430_000];
        let words = spans.map(|millis| Span(Duration::from_millis(millis)).to_string());
        assert_eq!(
            words,
            [
                "0 s",
                "250 ms",
                "4 s",
                "4.2 s",
                "1 min 30 s",
                "5 min",
                "1 h",
                "1 h 30 min"
            ]
        );
        let numbers = [7, 999, 1_000, 162_000, 1_234_567].map(|n| Grouped(n).to_string());
        assert_eq!(numbers, ["7", "999", "1 000", "162 000", "1 234 567"]);
        let nth = [1, 2, 3, 4, 11, 12, 21, 113].map(|n| Nth(n).to_string());
        assert_eq!(
            nth,
            ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "113th"]
        );
    }
}
