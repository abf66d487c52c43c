//! A recorded loop decided again, by the rules that it had or by others.
//!
//! The journal has the facts that a loop decided on, and its decisions. [`Replay`] works out from the records what the core
//! was told, tells it to the core again under other rules, and compares. Nothing is run. Under the rules that were recorded
//! every record has to come out as it was: whatever does not is counted, so that nobody has to believe the comparison.

mod decision;
mod derive;
mod inputs;
mod readings;
mod shadow;

use std::fmt;

use serde::Serialize;

use crate::event::LoopEvent;
use crate::id::{LoopId, Seq};
use crate::launch::Launch;
use crate::ledger::TurnSpending;
use crate::phase::{Cause, Phase};
use crate::policy::{Policy, stop};
use crate::reasons;
use crate::record::Record;
use crate::state::State;
use decision::{Decision, Side, What};
use derive::{Derivation, Found};
use shadow::Shadow;

/// Differences that are kept; those of one kind in a row are one.
const DIFFERENCES_MAX: usize = 1000;

/// The rules of a launch, which also depend on whether there is a repository to keep the work in. That is not recorded: what is
/// done about it tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByPlace {
    /// Those where there is one.
    pub kept: Policy,
    /// Those where there is none.
    pub unkept: Policy,
    /// The patterns that end the loop; none = whichever ended it. What else would have matched is not recorded.
    pub stop_patterns: Option<Vec<String>>,
}

impl ByPlace {
    fn of(&self, kept: bool) -> &Policy {
        if kept { &self.kept } else { &self.unkept }
    }
}

impl From<Policy> for ByPlace {
    fn from(policy: Policy) -> Self {
        Self {
            kept: policy.clone(),
            unkept: policy,
            stop_patterns: None,
        }
    }
}

/// The rules of a launch.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Those that were recorded.
    pub recorded: ByPlace,
    /// Those to decide by again.
    pub replayed: ByPlace,
}

/// Where the decisions differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The recorded iteration.
    pub iteration: u32,
    /// The last one in a row in which they differ in the same way.
    pub to: u32,
    /// What was decided.
    pub recorded: String,
    /// What would have been.
    pub replayed: String,
    /// By which condition, and what it would have seen.
    pub by: String,
    /// Whether something had to be guessed for it.
    pub estimated: bool,
}

/// What a loop came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sum {
    /// Finished iterations.
    pub iterations: u32,
    /// Completed reboots.
    pub reboots: u32,
    /// How it ended; none where it did not.
    pub outcome: Option<String>,
    /// What it cost, in dollars, as far as the agent says.
    pub cost_usd: f64,
    /// Tokens that it used, as far as the agent says.
    pub tokens: u64,
    /// Time spent waiting, in milliseconds.
    pub waited_ms: u64,
}

/// A loop decided again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// Where it differs, in order.
    pub differences: Vec<Difference>,
    /// Differences beyond those.
    pub left_out: u64,
    /// What it came to.
    pub recorded: Sum,
    /// What it would have come to, up to its end or to that of the record.
    pub replayed: Sum,
    /// Whether it would have gone on where the record ends.
    pub goes_on: bool,
    /// Whether some of it is guessed.
    pub estimated: bool,
    /// Records that do not follow from the recorded rules.
    pub unexplained: u64,
    /// The first of them.
    pub first_unexplained: Option<Seq>,
    /// Records that are lost.
    pub lost: u64,
}

/// A record that does not follow the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The record that was to come.
    pub expected: Seq,
    /// The one that did.
    pub found: Seq,
}

impl Gap {
    /// Returns how many records are lost before one that may stand behind `seen`: only a new segment, which has the full
    /// state, may leave some out.
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

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, found } = self;
        write!(f, "record {found} stands where record {expected} ought to")
    }
}

impl std::error::Error for Gap {}

/// Decides a recorded loop again, record by record.
pub struct Replay<'a> {
    rules: Box<dyn FnMut(&Launch) -> Rules + 'a>,
    derivation: Derivation,
    shadow: Shadow,
    recorded: Side,
    /// The rules of the launch that is about to be told.
    next_rules: Option<ByPlace>,
    iteration: u32,
    seen: Option<Seq>,
    lost: u64,
    differences: Vec<Difference>,
    left_out: u64,
    last: Option<(Vec<What>, Vec<What>)>,
    estimated: bool,
    compared: bool,
}

impl<'a> Replay<'a> {
    /// Begins before the first record; `rules` says by which rules each launch is decided.
    #[must_use]
    pub fn new(loop_id: LoopId, rules: impl FnMut(&Launch) -> Rules + 'a) -> Self {
        let state = State::new(loop_id);
        Self {
            rules: Box::new(rules),
            derivation: Derivation::new(state.clone()),
            shadow: Shadow::new(state),
            recorded: Side::default(),
            next_rules: None,
            iteration: 0,
            seen: None,
            lost: 0,
            differences: Vec::new(),
            left_out: 0,
            last: None,
            estimated: false,
            compared: true,
        }
    }

    /// Takes one record in.
    ///
    /// # Errors
    /// It does not follow the one before it.
    pub fn take(&mut self, record: Record) -> Result<(), Gap> {
        self.lost += Gap::check(self.seen, &record)?;
        self.seen = Some(record.seq);
        self.derivation.push(record);
        self.advance(false);
        Ok(())
    }

    /// Returns what came of it.
    #[must_use]
    pub fn finish(mut self) -> Replayed {
        self.advance(true);
        self.compare();
        let state = &self.derivation.state;
        let recorded = sum(state, &self.recorded, TurnSpending::default());
        let replayed = sum(&self.shadow.state, &self.shadow.side, self.shadow.owed);
        let goes_on = recorded.outcome.is_some() && replayed.outcome.is_none();
        Replayed {
            differences: self.differences,
            left_out: self.left_out,
            recorded,
            replayed,
            goes_on,
            estimated: self.estimated,
            unexplained: self.derivation.unexplained,
            first_unexplained: self.derivation.first_unexplained.map(|record| record.seq),
            lost: self.lost,
        }
    }

    fn advance(&mut self, at_end: bool) {
        loop {
            let (rules, next_rules) = (&mut self.rules, &mut self.next_rules);
            let mut of_launch = |launch: &Launch| {
                let Rules { recorded, replayed } = rules(launch);
                *next_rules = Some(replayed);
                recorded
            };
            match self.derivation.next(at_end, &mut of_launch) {
                None => return,
                Some(Found::Begun) => {
                    let state = &self.derivation.state;
                    if state.started_at.is_some() {
                        let rules = of_launch(&state.launch);
                        self.derivation.set_rules(rules);
                    }
                    if let Some(rules) = self.next_rules.take() {
                        self.shadow.set_rules(rules);
                    }
                    if !self.shadow.over {
                        self.shadow.begin(&self.derivation.state);
                    }
                }
                Some(Found::Taken(taken)) => {
                    let started = |r: &Record| {
                        matches!(r.event, LoopEvent::Started { .. }) || r.event.reloaded().is_some()
                    };
                    if taken.records.first().is_some_and(started)
                        && let Some(rules) = self.next_rules.take()
                    {
                        self.shadow.set_rules(rules);
                    }
                    let (policy, state) = (self.derivation.policy(), &self.derivation.state);
                    for record in &taken.records {
                        self.recorded.take(policy, state, record);
                    }
                    self.shadow.take(&taken, state);
                    for record in &taken.records {
                        if let LoopEvent::IterationStarted { iteration, .. } = &record.event {
                            let iteration = *iteration;
                            self.compare();
                            self.iteration = iteration;
                        }
                    }
                }
            }
        }
    }

    /// Compares what was decided since an iteration began.
    fn compare(&mut self) {
        let recorded = std::mem::take(&mut self.recorded.decisions);
        let replayed = std::mem::take(&mut self.shadow.side.decisions);
        let estimated = std::mem::take(&mut self.shadow.guessed);
        let assumed = std::mem::take(&mut self.shadow.assumed);
        if !self.compared {
            return;
        }
        // What the record says after its end is of no concern to a loop that has ended.
        self.compared = !self.shadow.over;
        self.estimated |= estimated;
        let what = |decisions: &[Decision]| -> Vec<What> {
            decisions.iter().map(|d| d.what.clone()).collect()
        };
        let both = (what(&recorded), what(&replayed));
        if both.0 == both.1 {
            self.last = None;
            return;
        }
        let again = self.last.as_ref() == Some(&both);
        if again && let Some(last) = self.differences.last_mut() {
            last.to = self.iteration;
            last.estimated |= estimated;
            return;
        }
        if self.differences.len() >= DIFFERENCES_MAX {
            self.left_out += 1;
            return;
        }
        self.differences.push(Difference {
            iteration: self.iteration,
            to: self.iteration,
            recorded: words(&both.0),
            replayed: words(&both.1),
            by: because(self.by(&recorded, &replayed), &assumed),
            estimated,
        });
        self.last = Some(both);
    }

    /// Says which condition makes the difference, at the first decision that is not the same.
    fn by(&self, recorded: &[Decision], replayed: &[Decision]) -> String {
        let same = recorded.iter().zip(replayed);
        let same = same.take_while(|(one, other)| one.what == other.what);
        let at = same.count();
        let missing = recorded.get(at).map(|decision| &decision.what);
        let instead = replayed.get(at);
        match (missing, instead) {
            (Some(What::Waited { .. }) | None, Some(decision)) => decision.by.clone(),
            (Some(_), Some(decision)) if !matches!(decision.what, What::Waited { .. }) => {
                decision.by.clone()
            }
            (Some(missing), _) => self.why_not(missing),
            (None, None) => String::new(),
        }
    }

    fn why_not(&self, missing: &What) -> String {
        let Shadow { policy, state, .. } = &self.shadow;
        let unmet = || {
            let conditions = stop::conditions(policy, state, state.time);
            let conditions = reasons::conditions(&conditions);
            format!("no stop condition is met: {conditions}")
        };
        match (missing, &state.session.context) {
            (
                What::Ended { .. }
                | What::Cut {
                    cause: Cause::Interrupt,
                    ..
                },
                _,
            ) => unmet(),
            (
                What::Cut { .. } | What::Rebooted { .. } | What::Pending { .. } | What::Advised,
                Some(context),
            ) => reasons::reading(policy, &state.session, context),
            (
                What::Cut { .. } | What::Rebooted { .. } | What::Pending { .. } | What::Advised,
                None,
            ) => "nothing calls for it".to_owned(),
            (What::Futile, _) => "there was no reboot to judge, or it was worth it".to_owned(),
            (What::Refused, _) => "no claim was refused".to_owned(),
            (What::Gated { .. }, _) => "there are no such gates, or nothing was claimed".to_owned(),
            (What::Fresh, _) => "the session goes on".to_owned(),
            (What::Waited { reason, .. }, _) => format!("nothing to wait for ({reason})"),
        }
    }
}

/// Says what was taken for granted behind why something was decided.
fn because(by: String, assumed: &[String]) -> String {
    let mut parts = vec![by];
    parts.retain(|by| !by.is_empty());
    for words in assumed {
        if !parts.contains(words) {
            parts.push(words.clone());
        }
    }
    parts.join("; ")
}

fn words(decisions: &[What]) -> String {
    if decisions.is_empty() {
        return "went on".to_owned();
    }
    let words: Vec<String> = decisions.iter().map(ToString::to_string).collect();
    words.join(", then ")
}

fn sum(state: &State, side: &Side, owed: TurnSpending) -> Sum {
    let cost = state.stats.cost_microusd.saturating_add(owed.cost_microusd);
    let outcome = match &state.phase {
        Phase::Ended { outcome } => Some(outcome.to_string()),
        Phase::Idle
        | Phase::Waiting { .. }
        | Phase::Working { .. }
        | Phase::Keeping { .. }
        | Phase::Checking { .. }
        | Phase::Hooking { .. }
        | Phase::Rebooting { .. }
        | Phase::Paused { .. } => None,
    };
    Sum {
        iterations: state.stats.iterations,
        reboots: state.stats.reboots,
        outcome,
        cost_usd: std::time::Duration::from_micros(cost).as_secs_f64(),
        tokens: state.stats.tokens.saturating_add(owed.tokens),
        waited_ms: u64::try_from(side.waited.as_millis()).unwrap_or(u64::MAX),
    }
}
