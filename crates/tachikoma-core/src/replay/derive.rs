//! The inputs that a journal was made from. A step leaves its records and not its input; but most records name theirs, and for
//! the others there are few that it can have been. Whether the guess is right shows: the step, taken again, has to
//! give the very records that follow.

use std::collections::VecDeque;

use super::{ByPlace, inputs};
use crate::apply::apply;
use crate::event::LoopEvent;
use crate::input::Input;
use crate::launch::Launch;
use crate::outcome::Stop;
use crate::phase::{Cause, Phase};
use crate::policy::Policy;
use crate::policy::budget::Budgets;
use crate::policy::timeout::next_deadline;
use crate::record::Record;
use crate::state::State;
use crate::step::step;
use crate::time::Timestamp;
use crate::wait::Wait;

/// So many records are looked at beyond the one that is judged; a longer step is judged by as many.
const AHEAD: usize = 16;

/// Where the recorded loop stood before a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    /// When it wanted to be woken.
    pub deadline: Option<Timestamp>,
    /// What it waited for.
    pub waiting: Option<Wait>,
    /// Why the turn under way was being ended, if the agent had been told.
    pub ending: Option<Cause>,
    /// Whether its own rules wanted its end, and not the operator.
    pub by_itself: bool,
    /// What it might spend.
    pub budgets: Budgets,
    /// What its conversation had cost.
    pub conversation_microusd: u64,
}

impl Scene {
    fn of(policy: &Policy, state: &State) -> Self {
        let (waiting, ending) = match &state.phase {
            Phase::Waiting { wait } => (Some(*wait), None),
            Phase::Working { work } => {
                let ending = work.ending.filter(|_| work.ladder.is_some());
                (None, ending.map(|ending| ending.cause))
            }
            Phase::Idle
            | Phase::Keeping { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => (None, None),
        };
        Self {
            deadline: next_deadline(policy, state),
            waiting,
            ending,
            by_itself: match &state.stop {
                Some(
                    Stop::Budget { .. }
                    | Stop::Hook { .. }
                    | Stop::Script { .. }
                    | Stop::Unable { .. },
                ) => true,
                Some(Stop::Operator | Stop::Signal { .. }) | None => false,
            },
            budgets: policy.budgets,
            conversation_microusd: state.ledger.conversation_microusd,
        }
    }
}

/// A step of the recorded loop.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    /// What it was told; none where no input leads to the record.
    pub input: Option<Input>,
    /// Where it stood before.
    pub scene: Scene,
    /// What it recorded.
    pub records: Vec<Record>,
    /// Whether the death of its runner cut the step short.
    pub cut: bool,
    /// Whether there was a repository to keep the work in.
    pub kept: bool,
}

/// What the records come to, in order.
pub(super) enum Found {
    /// A step.
    Taken(Box<Taken>),
    /// The journal begins, or goes on after a loss, with this state.
    Begun,
}

/// Works out the steps of a journal.
pub(super) struct Derivation {
    rules: ByPlace,
    /// Whether there is a repository to keep the work in, as far as the records tell.
    kept: bool,
    /// The records, added up.
    pub state: State,
    /// The same, ahead by what is expected.
    ahead: State,
    expected: VecDeque<Record>,
    buffer: VecDeque<Record>,
    open: Option<Box<Taken>>,
    begun: bool,
    /// Records that do not follow from the rules that were recorded.
    pub unexplained: u64,
    /// The first of them.
    pub first_unexplained: Option<Record>,
}

impl Derivation {
    pub fn new(state: State) -> Self {
        Self {
            rules: ByPlace::default(),
            kept: false,
            ahead: state.clone(),
            state,
            expected: VecDeque::new(),
            buffer: VecDeque::new(),
            open: None,
            begun: false,
            unexplained: 0,
            first_unexplained: None,
        }
    }

    /// Takes one record in, and keeps it until enough of what follows it is known.
    pub fn push(&mut self, record: Record) {
        self.buffer.push_back(record);
    }

    /// Returns what is found next; none until more is known, or, at the end, when there is nothing more.
    pub fn next(
        &mut self,
        at_end: bool,
        rules: &mut dyn FnMut(&Launch) -> ByPlace,
    ) -> Option<Found> {
        while at_end || self.buffer.len() > AHEAD {
            let Some(record) = self.buffer.front() else {
                // The last step may have been cut by the end of the journal.
                let mut last = self.open.take()?;
                last.cut = !self.expected.is_empty();
                self.expected.clear();
                return Some(Found::Taken(last));
            };
            let follows = record.seq == self.state.seq.next();
            if let LoopEvent::SegmentOpened { .. } = &record.event {
                if follows && self.begun {
                    self.consume();
                    continue;
                }
                if let Some(last) = self.cut() {
                    return Some(Found::Taken(last));
                }
                self.consume();
                self.ahead.clone_from(&self.state);
                return Some(Found::Begun);
            }
            let is_expected = self
                .expected
                .front()
                .is_some_and(|expected| is_same(expected, record));
            if is_expected {
                self.expected.pop_front();
                let record = self.consume();
                let open = self.open.as_mut()?;
                open.records.extend(record);
                if self.expected.is_empty() {
                    return self.open.take().map(Found::Taken);
                }
                continue;
            }
            if self.open.is_some() {
                if matches!(record.event, LoopEvent::Started { .. }) {
                    return self.cut().map(Found::Taken);
                }
                // Something else was decided than ought to have been; this step is over, and what follows stands alone.
                let mut last = self.cut()?;
                last.cut = false;
                return Some(Found::Taken(last));
            }
            if let LoopEvent::Started { launch, .. } = &record.event {
                self.rules = rules(launch);
            }
            // It decides nothing: what it says holds behind it.
            let reloaded = record.event.reloaded().cloned();
            self.begin();
            if let Some(launch) = reloaded {
                self.rules = rules(&launch);
            }
            if self.expected.is_empty() {
                return self.open.take().map(Found::Taken);
            }
        }
        None
    }

    /// Sets the rules of the state that the journal begins with.
    pub fn set_rules(&mut self, rules: ByPlace) {
        self.rules = rules;
    }

    /// Returns the rules that hold.
    pub fn policy(&self) -> &Policy {
        self.rules.of(self.kept)
    }

    fn consume(&mut self) -> Option<Record> {
        let record = self.buffer.pop_front()?;
        apply(&mut self.state, &record);
        self.begun = true;
        Some(record)
    }

    /// Gives up on what was expected.
    fn cut(&mut self) -> Option<Box<Taken>> {
        let mut last = self.open.take()?;
        last.cut = true;
        self.expected.clear();
        self.ahead.clone_from(&self.state);
        Some(last)
    }

    fn cannot_explain(&mut self, record: Record) {
        self.unexplained += 1;
        self.first_unexplained.get_or_insert(record);
    }

    /// Finds the input that the next record is the first consequence of.
    fn begin(&mut self) {
        let chosen = self.choose();
        let scene = Scene::of(self.policy(), &self.state);
        // What is plainly a fact is one, even where more was made of it than ought to have been.
        let fact = || match inputs::guesses(&self.state, &self.buffer).as_slice() {
            [fact] if *fact != Input::Wake => Some(fact.clone()),
            [] | [_] | [_, _, ..] => None,
        };
        let (input, records) = match chosen {
            Some((input, records)) => (Some(input), Some(records)),
            None => (fact(), None),
        };
        let Some(record) = self.consume() else { return };
        match records {
            Some(records) => self.expected.extend(records.into_iter().skip(1)),
            None => {
                self.ahead.clone_from(&self.state);
                self.cannot_explain(record.clone());
            }
        }
        self.open = Some(Box::new(Taken {
            input,
            scene,
            records: vec![record],
            cut: false,
            kept: self.kept,
        }));
    }

    /// Tries what may have been the input, until the records follow from it as far as they are known.
    fn choose(&mut self) -> Option<(Input, Vec<Record>)> {
        let record = self.buffer.front()?;
        let time = record.time;
        let guesses = inputs::guesses(&self.state, &self.buffer);
        let mut best: Option<(usize, Input)> = None;
        // That a repository comes or goes shows only in what is done about it.
        let places = [self.kept, !self.kept];
        let places = places
            .iter()
            .take(1 + usize::from(self.rules.kept != self.rules.unkept));
        let tries = places.flat_map(|kept| guesses.iter().map(move |input| (*kept, input)));
        for (kept, input) in tries {
            let input = input.clone();
            let policy = self.rules.of(kept);
            let records = step(policy, &mut self.ahead, time, input.clone()).records;
            if records.is_empty() {
                continue;
            }
            let known = self.buffer.iter();
            let known = known.filter(|r| !matches!(r.event, LoopEvent::SegmentOpened { .. }));
            let same = records.iter().zip(known.clone());
            let same = same.take_while(|(made, known)| is_same(made, known));
            let same = same.count();
            let next = known.clone().nth(same);
            let died = next.is_none_or(|next| matches!(next.event, LoopEvent::Started { .. }));
            if same > 0 && (same == records.len() || died) {
                self.kept = kept;
                return Some((input, records));
            }
            self.ahead.clone_from(&self.state);
            let most = best.as_ref().map_or(0, |(most, _)| *most);
            if same > most && kept == self.kept {
                best = Some((same, input));
            }
        }
        let (_, input) = best?;
        let policy = self.rules.of(self.kept);
        let records = step(policy, &mut self.ahead, time, input.clone()).records;
        Some((input, records))
    }
}

/// Two records say the same, wherever they stand. The words of a warning decide nothing.
fn is_same(one: &Record, other: &Record) -> bool {
    let warnings = [one, other].map(|record| matches!(record.event, LoopEvent::Warned { .. }));
    one.time == other.time && (warnings == [true, true] || one.event == other.event)
}
