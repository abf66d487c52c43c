//! What the rules were asked, and what they were asked from.

use serde_json::json;

use super::{Explain, Inputs, ends_with};
use crate::context::Context;
use crate::number_format::Span;
use crate::outcome::Outcome;
use crate::policy::context::redline_percent;
use crate::policy::{reboot, stop};
use crate::reasons;
use crate::reboots::RebootReason;
use crate::record::Record;
use crate::time::Timestamp;
use crate::wait::Wait;

impl Explain<'_> {
    pub(super) fn reading_inputs(&self, context: &Context) -> Inputs {
        let mut inputs = readings(context);
        if self.policy.reboot.manages_context() {
            let redline = redline_percent(&self.policy, &self.state.session, context.window);
            inputs.insert("context_redline_percent", json!(redline));
            let tokens = self.policy.reboot.redline_tokens;
            inputs.insert("context_redline_tokens", json!(tokens));
        }
        inputs
    }

    /// Says what was asked after an attempt and led to nothing: what did lead to something is recorded.
    pub(super) fn settled(&mut self, record: &Record) {
        let now = record.time;
        let ends = ends_with(&record.event).is_some();
        if ends || stop::verdict(&self.policy, &self.state, now).is_some() {
            return;
        }
        let inputs = self.stop_inputs(now);
        let words = format!("no stop condition is met: {}", self.stop_words(now));
        self.decide(record, words, None, inputs);
        let asked = self.state.reboot_pending.is_none();
        if asked && reboot::verdict(&self.policy, &self.state) == reboot::Verdict::GoOn {
            let (words, inputs) = self.no_reboot(record.time);
            self.decide(record, words, None, inputs);
        }
    }

    fn no_reboot(&self, now: Timestamp) -> (String, Inputs) {
        let rules = &self.policy.reboot;
        let session = &self.state.session;
        let mut inputs = Inputs::new();
        if !rules.enabled || rules.max_reboots == Some(0) {
            let words = "no reboot: they are off (reboot.enabled, reboot.max_restarts)";
            return (words.to_owned(), inputs);
        }
        let mut parts = Vec::new();
        match &session.context {
            Some(context) => {
                inputs.extend(self.reading_inputs(context));
                parts.push(reasons::reading(&self.policy, &self.state.session, context));
            }
            None if rules.tool_call_threshold > 0 && rules.manages_context() => {
                let (calls, most) = (session.tool_calls, rules.tool_call_threshold);
                inputs.insert("tool_calls", json!(calls));
                inputs.insert("context.tool_call_threshold", json!(most));
                parts.push(format!(
                    "context not known, {calls} tool calls of {most} (context.tool_call_threshold)"
                ));
            }
            None => parts.push("context not known".to_owned()),
        }
        if let Some(most) = rules.after_iterations {
            let had = session.iterations;
            inputs.insert("session_iterations", json!(had));
            inputs.insert("reboot.triggers.after_iterations", json!(most));
            parts.push(format!("{had} of {most} iterations in this session"));
        }
        if let (Some(most), Some(started)) = (rules.after_duration, session.started) {
            let age = Span(now.since(started));
            parts.push(format!(
                "{age} old of {} (reboot.triggers.after_duration)",
                Span(most)
            ));
        }
        if rules.on_degradation {
            parts.push("not worse than before".to_owned());
        }
        (format!("the session goes on: {}", parts.join("; ")), inputs)
    }

    pub(super) fn wanted_reboot(
        &mut self,
        record: &Record,
        reason: &RebootReason,
        until: Option<Timestamp>,
    ) {
        let why = reasons::reboot(&self.policy, &self.state, reason);
        let rate = reasons::rate(&self.policy.reboot, &self.state.reboots, record.time);
        let words = match until {
            Some(until) => {
                let span = Span(until.since(record.time));
                format!("a reboot is wanted and pending for {span}: {why}; {rate}")
            }
            None => format!("a reboot is wanted and may happen: {why}; {rate}"),
        };
        let mut inputs = self.rate_inputs(record.time);
        if let Some(context) = &self.state.session.context {
            inputs.extend(self.reading_inputs(context));
        }
        self.decide(record, words, until, inputs);
    }

    pub(super) fn rate_inputs(&self, now: Timestamp) -> Inputs {
        let (rules, book) = (&self.policy.reboot, &self.state.reboots);
        let mut inputs = Inputs::new();
        inputs.insert("reboots", json!(self.state.stats.reboots));
        inputs.insert("reboots_last_hour", json!(book.last_hour(now)));
        inputs.insert("reboot.max_reboots_per_hour", json!(rules.max_per_hour));
        inputs.insert(
            "reboot.min_reboot_interval_s",
            json!(rules.min_interval.as_secs()),
        );
        if let Some(success) = book.last_success {
            inputs.insert("since_last_reboot_s", json!(now.since(success).as_secs()));
        }
        if book.failures > 0 {
            inputs.insert("failed_reboots_in_a_row", json!(book.failures));
        }
        inputs
    }

    pub(super) fn waits(&mut self, record: &Record, wait: &Wait) {
        let words = reasons::wait(
            &self.policy,
            &self.state,
            wait,
            self.over.unwrap_or(record.time),
        );
        let mut inputs = Inputs::new();
        inputs.insert("reason", json!(wait.reason));
        inputs.insert("failures_in_a_row", json!(self.state.failure_streak));
        self.decide(record, words, Some(wait.until), inputs);
    }

    pub(super) fn stop_inputs(&self, now: Timestamp) -> Inputs {
        let (policy, state) = (&self.policy, &self.state);
        let conditions = stop::conditions(policy, state, now);
        let conditions = conditions.iter().map(|condition| {
            json!({
                "key": reasons::condition_key(condition.name),
                "value": condition.value,
                "limit": condition.limit,
                "percent": condition.percent,
                "met": condition.met,
            })
        });
        Inputs::from([
            ("stop_conditions", conditions.collect()),
            ("claimed", json!(state.claimed)),
            ("claims", json!(state.completion.claims)),
            ("next_iteration", json!(state.next_iteration())),
            ("max_iterations", json!(policy.max_iterations)),
            ("failures_in_a_row", json!(state.failure_streak)),
        ])
    }

    fn stop_words(&self, now: Timestamp) -> String {
        let conditions = stop::conditions(&self.policy, &self.state, now);
        let claim = match self.refused {
            true => "the claim of completion was refused".to_owned(),
            false => reasons::claims(&self.state.completion.claims),
        };
        format!("{}; {claim}", reasons::conditions(&conditions))
    }

    pub(super) fn ended(&mut self, record: &Record, outcome: &Outcome) {
        let why = match outcome {
            Outcome::Done => format!("{outcome}: {}", self.belief()),
            Outcome::LimitReached { .. } => {
                format!("{outcome} ({})", self.stop_words(record.time))
            }
            Outcome::Condition { .. }
            | Outcome::Budget { .. }
            | Outcome::Operator
            | Outcome::Signal { .. }
            | Outcome::Error { .. } => outcome.to_string(),
        };
        let mut inputs = self.stop_inputs(record.time);
        inputs.insert("outcome", json!(outcome.kind()));
        if *outcome == Outcome::Done {
            inputs.extend(self.belief_inputs());
        }
        self.decide(record, format!("the loop ended: {why}"), None, inputs);
        self.end = self.current.entries.last().cloned();
    }
}

pub(super) fn readings(context: &Context) -> Inputs {
    let percent = (context.percent() * 10.0).round() / 10.0;
    Inputs::from([
        ("context_percent", json!(percent)),
        ("context_tokens", json!(context.tokens)),
        ("context_window", json!(context.window)),
        ("context_estimated", json!(context.estimated)),
    ])
}
