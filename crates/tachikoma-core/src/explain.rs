//! Explains why a loop did what it did: what happened in one iteration and what was decided, each with its recorded reason.
//!
//! It reads the journal and decides nothing: [`Record::reasons`] has the reason of each decision.

mod events;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use crate::apply::apply;
use crate::number_format::{Grouped, Percent, count};
use crate::policy::stop::conditions_for;
use crate::reasons;
use crate::replay::Gap;
use crate::{
    Autocommit, Context, GateResult, HooksStart, LoopEvent, LoopId, Outcome, Record, Seq, State,
    Timestamp,
};

/// Maximum number of lines that are kept of one iteration.
const ENTRIES_MAX: usize = 500;

/// Maximum number of tools that are counted by name.
const TOOLS_MAX: usize = 12;

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The entry tells what happened.
    Fact,
    /// The entry tells what was decided.
    Decision,
}

/// Measured values that a decision was made from, by name.
type Inputs = BTreeMap<&'static str, serde_json::Value>;

/// One line of an explanation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// The record that the line is about.
    pub seq: Seq,
    /// Time of the record.
    pub time: Timestamp,
    /// Number of the iteration.
    pub iteration: u32,
    /// The attempt at the iteration.
    pub attempt: u32,
    /// Whether the entry is a fact or a decision.
    pub kind: Kind,
    /// What happened, or what was decided and why.
    pub words: String,
    /// When the decision ends, for waits and timeouts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Values that were measured when a decision was made; empty for facts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: Inputs,
}

/// An iteration, explained.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Account {
    /// The iteration; 0 for everything before the first one.
    pub iteration: u32,
    /// Number of attempts at the iteration.
    pub attempts: u32,
    /// Number of the session of the last attempt.
    pub session: u32,
    /// What happened and was decided, in order.
    pub entries: Vec<Entry>,
    /// Number of entries that were left out, because there were too many.
    pub left_out: u64,
}

/// Explanation of an iteration, and of the end of the loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// The wanted iteration, or the last one; `None` if it does not exist.
    pub account: Option<Account>,
    /// Why the loop ended; `None` if it has not.
    pub end: Option<Entry>,
    /// The state after the last record.
    pub state: State,
    /// Number of records that are lost.
    pub lost: u64,
}

/// Counters of an attempt, for events that are not listed one by one.
#[derive(Clone, Debug, Default)]
struct Counted {
    tools: BTreeMap<String, u32>,
    other_tools: u32,
    failed: u32,
    denied: u32,
    files: u32,
    readings: u32,
    calls: u32,
    tokens: u64,
    /// Whether the latest reading was at the redline; `None` before the first one.
    at_redline: Option<bool>,
    /// The latest reading, unless it is already listed.
    pending_reading: Option<Entry>,
}

/// Explains a loop, record by record.
pub struct Explain {
    wanted: Option<u32>,
    state: State,
    seen: Option<Seq>,
    lost: u64,
    current: Account,
    found: Option<Account>,
    end: Option<Entry>,
    counted: Counted,
    /// Reasons of the record that decided the end of the loop. The last commit and hooks may come before the end itself.
    end_reasons: Vec<String>,
}

impl Explain {
    /// Starts an explanation, before the first record. Without a `wanted` iteration the last one is explained.
    #[must_use]
    pub fn new(loop_id: LoopId, wanted: Option<u32>) -> Self {
        Self {
            wanted,
            state: State::new(loop_id),
            seen: None,
            lost: 0,
            current: Account::default(),
            found: None,
            end: None,
            counted: Counted::default(),
            end_reasons: Vec::new(),
        }
    }

    /// Adds the next record.
    ///
    /// Fails if the record does not follow the one before it.
    pub fn take(&mut self, record: &Record) -> Result<(), Gap> {
        self.lost += Gap::check(self.seen, record)?;
        self.seen = Some(record.seq);
        if let LoopEvent::SegmentOpened { state, .. } = &record.event {
            apply(&mut self.state, record);
            if state.iteration != self.current.iteration {
                // Records are lost: the beginning of this iteration is not known.
                self.begin(state.iteration);
            }
            return Ok(());
        }
        self.add_reasons(record);
        if let LoopEvent::IterationStarted { iteration, .. } = &record.event
            && *iteration != self.current.iteration
        {
            if self.current.iteration > 0 {
                self.decision(
                    record,
                    format!("continued with iteration {iteration}"),
                    None,
                );
            }
            self.begin(*iteration);
        }
        if let Some(words) = events::cut_check(&self.state, &record.event) {
            self.decision(record, words, None);
        }
        apply(&mut self.state, record);
        self.add_event(record);
        Ok(())
    }

    /// Returns the explanation after the last record.
    #[must_use]
    pub fn finish(mut self) -> Explained {
        self.add_pending_reading();
        self.begin(u32::MAX);
        let account = self.found;
        Explained {
            account: account.filter(|account| account.iteration > 0 || self.wanted.is_none()),
            end: self.end,
            state: self.state,
            lost: self.lost,
        }
    }

    /// Starts the entries of an iteration, and keeps those of the one before if it is wanted.
    fn begin(&mut self, iteration: u32) {
        let next = Account {
            iteration,
            ..Account::default()
        };
        let over = std::mem::replace(&mut self.current, next);
        self.counted = Counted::default();
        if self.wanted.is_none_or(|wanted| wanted == over.iteration) {
            self.found = Some(over);
        }
    }

    /// Adds the recorded reasons of the decisions that led to a record. Reasons for the end of the loop go into its last line.
    fn add_reasons(&mut self, record: &Record) {
        if matches!(
            record.event,
            LoopEvent::Started { .. } | LoopEvent::IterationStarted { .. }
        ) {
            self.end = None;
            self.end_reasons.clear();
        }
        if ends_with(&record.event).is_some() {
            self.end_reasons.extend(record.reasons.iter().cloned());
            return;
        }
        let last = record.reasons.len().saturating_sub(1);
        for (index, reason) in record.reasons.iter().enumerate() {
            let until = events::until(record).filter(|_| index == last);
            self.decision(record, reason.clone(), until);
        }
    }

    fn add_event(&mut self, record: &Record) {
        match &record.event {
            LoopEvent::ContextMeasured { context, .. } => return self.reading(record, context),
            LoopEvent::IterationStarted { attempt, .. } => {
                self.current.attempts = *attempt;
                self.current.session = self.state.session.number.0;
                self.counted = Counted::default();
            }
            LoopEvent::TurnResulted(_) => self.add_pending_reading(),
            LoopEvent::IterationCompleted { .. }
            | LoopEvent::IterationFailed { .. }
            | LoopEvent::IterationLimited(_)
            | LoopEvent::AttemptCut { .. } => self.add_totals(record),
            event => self.counted.count(event),
        }
        let Some(line) = events::describe(&self.state, record) else {
            return;
        };
        match line.kind {
            Kind::Fact => {
                let entry = self.entry(record, Kind::Fact, line.words);
                self.push(entry);
            }
            Kind::Decision => {
                let mut words = line.words;
                if record.event.is_terminal() {
                    for reason in std::mem::take(&mut self.end_reasons) {
                        words.push_str(&format!(": {reason}"));
                    }
                }
                self.decision(record, words, events::until(record));
            }
        }
    }

    fn push(&mut self, entry: Entry) {
        if self.current.entries.len() >= ENTRIES_MAX {
            self.current.left_out += 1;
        } else {
            self.current.entries.push(entry);
        }
    }

    fn entry(&self, record: &Record, kind: Kind, words: String) -> Entry {
        Entry {
            seq: record.seq,
            time: record.time,
            iteration: self.state.iteration,
            attempt: self.state.attempt,
            kind,
            words,
            until: None,
            inputs: Inputs::new(),
        }
    }

    fn decision(&mut self, record: &Record, words: String, until: Option<Timestamp>) {
        self.add_pending_reading();
        let mut inputs = measured(&self.state, record.time);
        if let LoopEvent::ClaimRefused(refusal) = &record.event {
            inputs.insert("claims", json!(refusal.claims));
            inputs.insert("reasons", json!(refusal.reasons));
            inputs.insert("confirmed", json!(refusal.confirmed));
        }
        let outcome = ends_with(&record.event).filter(|_| record.event.is_terminal());
        if let Some(outcome) = outcome {
            inputs.insert("outcome", json!(outcome.kind()));
        }
        let entry = Entry {
            until,
            inputs,
            ..self.entry(record, Kind::Decision, words)
        };
        if outcome.is_some() {
            self.end = Some(entry.clone());
        }
        self.push(entry);
    }

    /// Lists a reading if it is the first one or crosses the redline. Others are kept in case a decision follows.
    fn reading(&mut self, record: &Record, context: &Context) {
        let redline = self.state.session.redline_tokens;
        let at_redline = redline.is_some_and(|redline| context.tokens >= redline);
        let fill = reasons::fill(context);
        let words = match redline {
            None => fill,
            Some(tokens) => {
                let redline = Percent(Context { tokens, ..*context }.percent());
                let relation = if at_redline { "reached" } else { "below" };
                format!("{fill}, redline {redline}: {relation}")
            }
        };
        let entry = self.entry(record, Kind::Fact, words);
        self.counted.readings += 1;
        if self.counted.at_redline.replace(at_redline) == Some(at_redline) {
            self.counted.pending_reading = Some(entry);
        } else {
            self.counted.pending_reading = None;
            self.push(entry);
        }
    }

    /// Lists the latest reading before the decision that it led to.
    fn add_pending_reading(&mut self) {
        if let Some(entry) = self.counted.pending_reading.take() {
            self.push(entry);
        }
    }

    fn add_totals(&mut self, record: &Record) {
        self.add_pending_reading();
        let counted = std::mem::take(&mut self.counted);
        if let Some(words) = counted.words() {
            let entry = self.entry(record, Kind::Fact, words);
            self.push(entry);
        }
    }
}

impl Counted {
    fn count(&mut self, event: &LoopEvent) {
        match event {
            LoopEvent::ToolStarted { name, .. } => {
                if self.tools.contains_key(name) || self.tools.len() < TOOLS_MAX {
                    *self.tools.entry(name.clone()).or_default() += 1;
                } else {
                    self.other_tools += 1;
                }
            }
            LoopEvent::ToolEnded { error, .. } => self.failed += u32::from(error.is_some()),
            LoopEvent::ToolDenied(_) => self.denied += 1,
            LoopEvent::FileTouched { .. } => self.files += 1,
            LoopEvent::CallEnded { tokens } => {
                self.calls += 1;
                self.tokens = self.tokens.saturating_add(*tokens);
            }
            _ => {}
        }
    }

    /// Returns the totals of an attempt; `None` if nothing was counted.
    fn words(&self) -> Option<String> {
        let calls = self.tools.values().sum::<u32>() + self.other_tools;
        if calls == 0 && self.readings == 0 && self.calls == 0 {
            return None;
        }
        let tools = self.tools.iter();
        let mut by_name: Vec<String> = tools
            .map(|(name, times)| format!("{name} {times}"))
            .collect();
        if self.other_tools > 0 {
            by_name.push(format!("others {}", self.other_tools));
        }
        let mut parts = vec![match by_name.is_empty() {
            true => "no tool calls".to_owned(),
            false => format!("{} ({})", count(calls, "tool call"), by_name.join(", ")),
        }];
        let more = [
            (self.failed, format!("{} failed", self.failed)),
            (self.denied, format!("{} denied", self.denied)),
            (
                self.files,
                format!("{} first changed", count(self.files, "file")),
            ),
            (self.readings, count(self.readings, "reading")),
        ];
        parts.extend(
            more.into_iter()
                .filter(|(n, _)| *n > 0)
                .map(|(_, words)| words),
        );
        if self.calls > 0 {
            let tokens = Grouped(self.tokens);
            let calls = count(self.calls, "call");
            parts.push(format!("{calls} of the model ({tokens} tokens)"));
        }
        Some(parts.join(", "))
    }
}

/// Returns the measured values that decisions are made from.
fn measured(state: &State, now: Timestamp) -> Inputs {
    let conditions = conditions_for(&state.limits, state, now);
    let conditions = conditions.iter().map(|condition| {
        json!({
            "key": reasons::condition_key(condition.name),
            "value": condition.value,
            "limit": condition.limit,
            "percent": condition.percent,
            "met": condition.met,
        })
    });
    let known = &state.completion;
    let gates = known.gates.iter().map(|gate| {
        json!({ "name": gate.name, "passed": GateResult::passed(gate), "error": gate.error })
    });
    let mut inputs = Inputs::from([
        ("stop_conditions", conditions.collect()),
        ("claims", json!(known.claims)),
        ("gates", gates.collect()),
        ("objectives", json!(known.objectives)),
        ("next_iteration", json!(state.next_iteration())),
        ("failures_in_a_row", json!(state.failure_streak)),
        ("no_progress_count", json!(state.stats.no_progress_count)),
        (
            "test_failure_streak",
            json!(state.stats.test_failure_streak),
        ),
        ("reboots", json!(state.stats.reboots)),
        ("reboots_last_hour", json!(state.reboots.last_hour(now))),
    ]);
    if let Some(context) = state.session.context {
        let percent = (context.percent() * 10.0).round() / 10.0;
        inputs.insert("context_percent", json!(percent));
        inputs.insert("context_tokens", json!(context.tokens));
        inputs.insert("context_window", json!(context.window));
        inputs.insert("context_estimated", json!(context.estimated));
        inputs.insert(
            "context_redline_tokens",
            json!(state.session.redline_tokens),
        );
    }
    if let Some(success) = state.reboots.last_success {
        inputs.insert("since_last_reboot_s", json!(now.since(success).as_secs()));
    }
    inputs
}

/// Returns the outcome if the record ends the loop, or starts its last commit or its end hooks.
fn ends_with(event: &LoopEvent) -> Option<&Outcome> {
    match event {
        LoopEvent::AutocommitStarted(Autocommit { outcome, .. })
        | LoopEvent::HooksStarted(HooksStart { outcome, .. }) => outcome.as_ref(),
        LoopEvent::Completed { outcome, .. }
        | LoopEvent::Stopped { outcome, .. }
        | LoopEvent::Error { outcome, .. } => Some(outcome),
        _ => None,
    }
}
