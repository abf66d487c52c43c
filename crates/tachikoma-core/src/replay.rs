//! Replays a recorded loop: gives its recorded inputs to [`step`] again and compares the records. Nothing is run.
//!
//! Two loops are replayed side by side. The first one follows the recorded settings and has to reproduce every record. The second
//! one follows other settings, and the replay stops where it decides something else: from there on the agent and the operator would
//! have done something else, too, so that the recorded inputs no longer apply.

mod decision;

use std::mem::discriminant;

use serde::Serialize;

use crate::apply::apply;
use crate::policy::stop;
use crate::reasons;
use crate::recorded_input::ExpectedNumbers;
use crate::step::step;
use crate::time::millis;
use crate::{
    AgentInput, Cause, Effect, Input, Launch, LoopEvent, LoopId, Outcome, Phase, Policy, Record,
    Runner, Seq, State, Step, Timestamp, next_deadline,
};
use decision::{Decision, DecisionKind, DecisionReader};

/// The rules of one launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// The rules.
    pub policy: Policy,
    /// The patterns in the agent's final text that end the loop; `None` = all that ended it. The journal has no agent output, so that
    /// other patterns cannot be matched.
    pub stop_patterns: Option<Vec<String>>,
}

impl From<Policy> for Rules {
    fn from(policy: Policy) -> Self {
        Self {
            policy,
            stop_patterns: None,
        }
    }
}

/// The rules that a launch was run by, and the ones to replay it by.
#[derive(Clone, Debug)]
pub struct LaunchRules {
    /// The rules that the run used.
    pub recorded: Rules,
    /// The rules to replay the run with.
    pub replayed: Rules,
}

/// Where the replay decides something else than the recorded loop, and stops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The record at which the replay stops.
    pub seq: Seq,
    /// The recorded iteration; 0 before the first one.
    pub iteration: u32,
    /// What the recorded loop decided.
    pub recorded: String,
    /// What the replay decides.
    pub replayed: String,
    /// The stop condition or limit that leads to the other decision, with its values.
    pub by: String,
}

/// Totals of a loop.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// Number of finished iterations.
    pub iterations: u32,
    /// Number of completed reboots.
    pub reboots: u32,
    /// How the loop ended; `None` if it did not end.
    pub outcome: Option<String>,
    /// Cost in dollars, as far as the agent reports it.
    pub cost_usd: f64,
    /// Tokens, as far as the agent reports them.
    pub tokens: u64,
    /// Time spent waiting, in milliseconds.
    pub waited_ms: u64,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// The difference at which the replay stopped: one at most.
    pub differences: Vec<Difference>,
    /// Totals of the recorded loop.
    pub recorded: Totals,
    /// Totals of the replay, up to the difference.
    pub replayed: Totals,
    /// Whether the recorded loop ended and the replayed one continues.
    pub goes_on: bool,
    /// Records that the recorded rules do not reproduce.
    pub unexplained: u64,
    /// The first record that the recorded rules do not reproduce.
    pub first_unexplained: Option<Seq>,
    /// Records without inputs, written by an earlier version.
    pub without_inputs: u64,
    /// Number of records that are missing in the journal.
    pub lost: u64,
}

/// A record that does not follow the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {expected} is missing before record {found}")]
pub struct Gap {
    /// The number of the record that is missing.
    pub expected: Seq,
    /// The number of the record in its place.
    pub found: Seq,
}

impl Gap {
    /// Returns how many records are lost between `seen` and `record`: only a new segment, which has the full state, may leave some
    /// out.
    pub(crate) fn check(seen: Option<Seq>, record: &Record) -> Result<u64, Self> {
        let (found, first) = (record.seq, Seq(1));
        let expected = seen.map_or(first, Seq::next);
        let opened = matches!(record.event, LoopEvent::SegmentOpened { .. });
        match found.0.checked_sub(expected.0) {
            Some(0) => Ok(0),
            Some(lost) if opened => Ok(lost),
            Some(_) | None => Err(Self { expected, found }),
        }
    }
}

/// A loop that gets the recorded inputs in a replay.
struct Model {
    rules: Rules,
    state: State,
    reader: DecisionReader,
}

impl Model {
    fn new(state: State) -> Self {
        Self {
            rules: Rules::default(),
            state,
            reader: DecisionReader::default(),
        }
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        next_deadline(&self.rules.policy, &self.state)
    }

    /// Handles an input. If the runner died during the step, only the first `written` records count, and no effect.
    fn step(&mut self, now: Timestamp, input: Input, written: Option<usize>) -> Step {
        let Some(written) = written else {
            return step(&self.rules.policy, &mut self.state, now, input);
        };
        let mut made = step(&self.rules.policy, &mut self.state.clone(), now, input);
        made.records.truncate(written);
        made.effects.clear();
        for record in &made.records {
            apply(&mut self.state, record);
        }
        made
    }

    fn note(&mut self, records: &[Record]) -> Vec<Decision> {
        let decided = records.iter();
        let decided = decided.filter_map(|record| self.reader.read(&self.state, record));
        decided.collect()
    }

    /// Returns the totals, with the outcome if the loop has ended or decided to end.
    fn totals(&self, decided: Option<&Outcome>) -> Totals {
        let stats = &self.state.stats;
        let outcome = match &self.state.phase {
            Phase::Ended { outcome } => Some(outcome),
            _ => decided,
        };
        let cost = std::time::Duration::from_micros(stats.cost_microusd);
        Totals {
            iterations: stats.iterations,
            reboots: stats.reboots,
            outcome: outcome.map(ToString::to_string),
            cost_usd: cost.as_secs_f64(),
            tokens: stats.tokens,
            waited_ms: millis(self.reader.waited),
        }
    }
}

/// Returns the rules of a launch, in a git repository or not.
type RulesOfLaunch<'a> = Box<dyn FnMut(&Launch, Option<bool>) -> LaunchRules + 'a>;

/// Replays a recorded loop, record by record.
pub struct Replay<'a> {
    rules: RulesOfLaunch<'a>,
    /// The state that the records lead to.
    state: State,
    /// The loop by the recorded rules.
    recorded: Model,
    /// The loop by the rules of the replay, up to the difference.
    replayed: Model,
    difference: Option<Difference>,
    /// The outcome that the replay decided on at the difference, before its last commit and hooks.
    outcome: Option<Outcome>,
    goes_on: bool,
    /// The records of the current step so far.
    step: Vec<Record>,
    /// The first record of a step that has fewer records than the rules lead to. The runner must have died during this step.
    cut: Option<Seq>,
    seen: Option<Seq>,
    lost: u64,
    without_inputs: u64,
    unexplained: u64,
    first_unexplained: Option<Seq>,
}

impl<'a> Replay<'a> {
    /// Begins before the first record. `rules` returns the rules of a launch; its second argument says whether the working directory
    /// was in a git repository, `None` if that was not recorded.
    #[must_use]
    pub fn new(
        loop_id: LoopId,
        rules: impl FnMut(&Launch, Option<bool>) -> LaunchRules + 'a,
    ) -> Self {
        let state = State::new(loop_id);
        Self {
            rules: Box::new(rules),
            recorded: Model::new(state.clone()),
            replayed: Model::new(state.clone()),
            state,
            difference: None,
            outcome: None,
            goes_on: false,
            step: Vec::new(),
            cut: None,
            seen: None,
            lost: 0,
            without_inputs: 0,
            unexplained: 0,
            first_unexplained: None,
        }
    }

    /// Takes in the next record of the journal.
    ///
    /// Fails if the record does not follow the one before it.
    pub fn take(&mut self, record: Record) -> Result<(), Gap> {
        let lost = Gap::check(self.seen, &record)?;
        let first = self.seen.is_none();
        self.seen = Some(record.seq);
        self.lost += lost;
        if let LoopEvent::SegmentOpened { .. } = &record.event {
            self.finish_step();
            self.open_segment(&record, first || lost > 0);
        } else if record.input.is_some() {
            self.finish_step();
            self.step.push(record);
        } else if self.step.is_empty() || matches!(record.event, LoopEvent::Started { .. }) {
            self.finish_step();
            self.take_without_input(&record);
        } else {
            self.step.push(record);
        }
        Ok(())
    }

    /// Returns the result after the last record.
    #[must_use]
    pub fn finish(mut self) -> Replayed {
        self.finish_step();
        Replayed {
            recorded: self.recorded.totals(None),
            replayed: self.replayed.totals(self.outcome.as_ref()),
            differences: self.difference.into_iter().collect(),
            goes_on: self.goes_on,
            unexplained: self.unexplained,
            first_unexplained: self.first_unexplained,
            without_inputs: self.without_inputs,
            lost: self.lost,
        }
    }

    /// Applies the first record of a segment. The models need its state only at the start of the journal, or after a loss.
    fn open_segment(&mut self, record: &Record, begins: bool) {
        apply(&mut self.state, record);
        apply(&mut self.recorded.state, record);
        if begins {
            let launch = self.state.launch.clone();
            let repository = self.state.runner.as_ref().and_then(|it| it.repository);
            if self.state.started_at.is_some() {
                self.set_rules(&launch, repository);
            }
            self.follow_records();
        }
    }

    fn set_rules(&mut self, launch: &Launch, repository: Option<bool>) {
        let LaunchRules { recorded, replayed } = (self.rules)(launch, repository);
        self.recorded.rules = recorded;
        self.replayed.rules = replayed;
    }

    /// Continues the models from the state that the records lead to.
    fn follow_records(&mut self) {
        self.recorded.state.clone_from(&self.state);
        if self.difference.is_none() {
            self.replayed.state.clone_from(&self.state);
        }
    }

    /// Takes in a record of a version that did not record inputs.
    fn take_without_input(&mut self, record: &Record) {
        self.without_inputs += 1;
        self.cut = None;
        apply(&mut self.state, record);
        self.recorded.state.clone_from(&self.state);
        self.recorded.note(std::slice::from_ref(record));
        if let LoopEvent::Started { launch, runner, .. } = &record.event {
            self.set_rules(launch, runner.repository);
        }
        if self.difference.is_none() {
            self.replayed.state.clone_from(&self.state);
            self.replayed.note(std::slice::from_ref(record));
        }
    }

    /// Replays the step after its last record.
    fn finish_step(&mut self) {
        let records = std::mem::take(&mut self.step);
        let Some(first) = records.first() else { return };
        let events: Vec<&LoopEvent> = records.iter().map(|record| &record.event).collect();
        let before = ExpectedNumbers::of(&self.state);
        let input = first.input.as_ref();
        let input = input.and_then(|input| input.restore(before, &events));
        if let LoopEvent::Started { launch, runner, .. } = &first.event {
            self.set_rules(launch, runner.repository);
        }
        self.judge_cut(input.as_ref());
        for record in &records {
            apply(&mut self.state, record);
        }
        match input {
            Some(input) => self.replay_step(&records, input),
            // The runner died before it recorded the event that contains the input.
            None => {
                self.cut = Some(first.seq);
                self.follow_records();
            }
        }
        if let Some(launch) = records.iter().find_map(|record| record.event.reloaded()) {
            let runner: Option<&Runner> = self.state.runner.as_ref();
            let repository = runner.and_then(|runner| runner.repository);
            self.set_rules(launch, repository);
        }
    }

    /// Checks that a step with missing records was interrupted by the death of its runner: the next input must be a start.
    fn judge_cut(&mut self, next: Option<&Input>) {
        match next {
            Some(Input::Start { .. } | Input::Decline { .. }) => self.cut = None,
            Some(
                Input::Warning { .. }
                | Input::Repaired { .. }
                | Input::Note { .. }
                | Input::CustomSet { .. }
                | Input::Incident(_),
            ) => {}
            _ => {
                if let Some(seq) = self.cut.take() {
                    self.cannot_explain(seq);
                }
            }
        }
    }

    fn cannot_explain(&mut self, seq: Seq) {
        self.unexplained += 1;
        self.first_unexplained.get_or_insert(seq);
    }

    fn replay_step(&mut self, records: &[Record], input: Input) {
        let Some(Record { seq, time, .. }) = records.first() else {
            return;
        };
        let (seq, now, iteration) = (*seq, *time, self.recorded.state.iteration);
        if self.difference.is_none() {
            self.wake_earlier(seq, now, iteration, &input);
        }
        let made = self.recorded.step(now, input.clone(), None);
        let same = made.records.iter().zip(records);
        let same = same.take_while(|(made, record)| is_same(made, record));
        let same = same.count();
        let is_cut = same == records.len() && same < made.records.len();
        if same < records.len() {
            self.cannot_explain(seq);
        } else if is_cut {
            self.cut = Some(seq);
        }
        if same < records.len() || is_cut {
            self.recorded.state.clone_from(&self.state);
        }
        let decided = self.recorded.note(records);
        if self.difference.is_some() {
            return;
        }
        let input = self.known_patterns(input);
        let written = is_cut.then_some(records.len());
        let other = self.replayed.step(now, input, written);
        let other_decided = self.replayed.note(&other.records);
        let effects = if is_cut { &[][..] } else { &made.effects };
        self.compare(
            seq,
            iteration,
            (&decided, effects),
            (&other_decided, &other.effects),
        );
    }

    /// Wakes the replay at a deadline of its own that comes before the input and before every deadline of the recorded loop.
    fn wake_earlier(&mut self, seq: Seq, now: Timestamp, iteration: u32, input: &Input) {
        // Before a start no runner ran, and during a suspension nothing could wake.
        if matches!(input, Input::Start { .. } | Input::Suspended { .. }) {
            return;
        }
        let theirs = self.recorded.next_deadline();
        let due = self.replayed.next_deadline();
        let due = due.filter(|due| *due < now && theirs.is_none_or(|theirs| *due < theirs));
        if let Some(due) = due {
            let made = self.replayed.step(due, Input::Wake, None);
            let decided = self.replayed.note(&made.records);
            self.compare(seq, iteration, (&[], &[]), (&decided, &made.effects));
        }
    }

    /// Removes a matched stop pattern from the input if the rules of the replay do not have that pattern.
    fn known_patterns(&self, mut input: Input) -> Input {
        if let Input::Agent { event, .. } = &mut input {
            let pattern = match event {
                AgentInput::TurnEnded(end) => &mut end.stop_pattern,
                AgentInput::Exited { stop_pattern, .. } => stop_pattern,
                _ => return input,
            };
            let known = self.replayed.rules.stop_patterns.as_ref();
            let known = |pattern: &String| known.is_none_or(|known| known.contains(pattern));
            *pattern = pattern.take().filter(known);
        }
        input
    }

    /// Stops the replay if the two loops decided or ordered different things in a step.
    fn compare(
        &mut self,
        seq: Seq,
        iteration: u32,
        recorded: (&[Decision], &[Effect]),
        replayed: (&[Decision], &[Effect]),
    ) {
        let kinds = |decisions: &[Decision]| -> Vec<DecisionKind> {
            decisions.iter().map(|it| it.kind.clone()).collect()
        };
        let (decided, other) = (kinds(recorded.0), kinds(replayed.0));
        let (orders, other_orders) = (orders(recorded.1), orders(replayed.1));
        let same_phase =
            discriminant(&self.recorded.state.phase) == discriminant(&self.replayed.state.phase);
        if decided == other && orders == other_orders && (same_phase || self.cut.is_some()) {
            return;
        }
        let same = decided == other;
        let equal = orders.iter().zip(&other_orders);
        let equal = equal.take_while(|(one, other)| one == other).count();
        let words = |kinds: &[DecisionKind], orders: &[&Effect]| match (kinds, orders.get(equal)) {
            ([], Some(order)) if same => order.name().to_owned(),
            _ => decision::words(kinds),
        };
        self.difference = Some(Difference {
            seq,
            iteration,
            recorded: words(&decided, &orders),
            replayed: words(&other, &other_orders),
            by: self.reason(recorded.0, replayed.0),
        });
        let outcome = |kinds: &[DecisionKind]| {
            kinds.iter().find_map(|kind| match kind {
                DecisionKind::Ended { outcome } => Some(outcome.clone()),
                _ => None,
            })
        };
        self.outcome = outcome(&other);
        let ended = matches!(self.replayed.state.phase, Phase::Ended { .. });
        self.goes_on = outcome(&decided).is_some() && self.outcome.is_none() && !ended;
    }

    /// Returns the reason of the first decision that differs.
    fn reason(&self, recorded: &[Decision], replayed: &[Decision]) -> String {
        let same = recorded.iter().zip(replayed);
        let same = same.take_while(|(one, other)| one.kind == other.kind);
        let at = same.count();
        let missing = recorded.get(at).map(|decision| &decision.kind);
        let instead = replayed.get(at);
        match (missing, instead) {
            (Some(DecisionKind::Waited { .. }) | None, Some(decision)) => decision.by.clone(),
            (Some(_), Some(decision)) if !matches!(decision.kind, DecisionKind::Waited { .. }) => {
                decision.by.clone()
            }
            (Some(missing), _) => self.why_not(missing),
            (None, None) if self.replayed.state.phase.awaits_operator() => {
                "the operator is asked first".to_owned()
            }
            (None, None) => "the settings lead to another next step".to_owned(),
        }
    }

    /// Returns why the replay does not decide what the recorded loop decided.
    fn why_not(&self, missing: &DecisionKind) -> String {
        let (policy, state) = (&self.replayed.rules.policy, &self.replayed.state);
        match missing {
            DecisionKind::Ended { .. }
            | DecisionKind::TurnEnded {
                cause: Cause::Interrupt,
                ..
            } => {
                let conditions = stop::conditions(policy, state, state.time);
                let conditions = reasons::conditions(&conditions);
                format!("no stop condition is met: {conditions}")
            }
            DecisionKind::TurnEnded { .. }
            | DecisionKind::Rebooted { .. }
            | DecisionKind::RebootPending { .. }
            | DecisionKind::WrapUpAdvised => match &state.session.context {
                Some(context) => reasons::reading(policy, &state.session, context),
                None => "no condition for it is met".to_owned(),
            },
            DecisionKind::SilenceChecked { timeout, .. } => timeout.to_string(),
            DecisionKind::FutileReboot => "the reboot freed enough of the context".to_owned(),
            DecisionKind::ClaimRefused => "the claim is accepted".to_owned(),
            DecisionKind::GatesRun { .. } => "the gates are not needed".to_owned(),
            DecisionKind::FreshSession => "the session continues".to_owned(),
            DecisionKind::Waited { reason, .. } => {
                format!("there is no reason to wait ({reason})")
            }
        }
    }
}

/// Returns the effects that change something. Replies and requests for the cost do not.
fn orders(effects: &[Effect]) -> Vec<&Effect> {
    let decides =
        |effect: &&Effect| !matches!(effect, Effect::Reply { .. } | Effect::AskCost { .. });
    effects.iter().filter(decides).collect()
}

/// Returns whether two records have the same time and event.
fn is_same(one: &Record, other: &Record) -> bool {
    one.time == other.time && one.event == other.event
}
