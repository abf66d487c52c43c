//! Why a loop did what it did: the decisions of one iteration, each with what it was made from.
//!
//! A fold over the journal. What is recorded as decided is explained by the state at that point; what is not recorded, because
//! nothing came of it, is asked of the rules again.

mod conditions;
mod facts;
mod operator;
mod verdicts;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::apply::apply;
use crate::autocommit::Autocommit;
use crate::event::LoopEvent;
use crate::hooking::HooksStart;
use crate::id::{LoopId, Seq};
use crate::launch::Launch;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::policy::context::Level;
use crate::record::Record;
use crate::replay::Gap;
use crate::state::State;
use crate::time::Timestamp;

/// Lines of one iteration that are kept. An iteration of a thousand timeouts has no more to say than one of five hundred.
const ENTRIES_MAX: usize = 500;

/// Tools that are told apart by name.
const TOOLS_MAX: usize = 12;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Something happened.
    Fact,
    /// Something was decided.
    Decision,
}

/// Settings and measured values that a decision was made from, by name.
type Inputs = BTreeMap<&'static str, serde_json::Value>;

/// One line of an explanation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// The record that it is about.
    pub seq: Seq,
    /// When.
    pub time: Timestamp,
    /// The iteration.
    pub iteration: u32,
    /// The attempt at it.
    pub attempt: u32,
    /// Whether it happened or was decided.
    pub kind: Kind,
    /// What, and why.
    pub words: String,
    /// Until when, where that belongs to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// What it was decided from, by name: settings, and what they were compared with.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: Inputs,
}

/// An iteration, explained.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Account {
    /// The iteration; 0 for what came before the first.
    pub iteration: u32,
    /// How often it was attempted.
    pub attempts: u32,
    /// The session that it was in at last.
    pub session: u32,
    /// What happened and was decided, in order.
    pub entries: Vec<Entry>,
    /// Entries beyond those.
    pub left_out: u64,
}

/// A loop, explained as far as was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// The iteration that was asked for, or the last; none if there is no such.
    pub account: Option<Account>,
    /// Why the loop ended, if it has.
    pub end: Option<Entry>,
    /// Where the records end.
    pub state: State,
    /// The first record that was there, of a loop of which earlier ones are lost.
    pub lost: u64,
}

/// What is counted over an attempt instead of being told one by one.
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
    level: Option<Level>,
    /// The latest reading, unless it was told.
    untold: Option<Entry>,
}

/// Explains a loop, record by record.
pub struct Explain<'a> {
    rules: Box<dyn FnMut(&Launch) -> Policy + 'a>,
    wanted: Option<u32>,
    policy: Policy,
    state: State,
    seen: Option<Seq>,
    lost: u64,
    current: Account,
    found: Option<Account>,
    end: Option<Entry>,
    counted: Counted,
    /// Whether an attempt is over and nothing has been decided about it yet.
    unsettled: bool,
    /// When the last attempt was over.
    over: Option<Timestamp>,
    /// Whether a claim of the iteration was not believed.
    refused: bool,
}

impl<'a> Explain<'a> {
    /// Begins before the first record. `rules` says by which rules each launch was decided; without a wanted iteration it is
    /// the last.
    #[must_use]
    pub fn new(
        loop_id: LoopId,
        wanted: Option<u32>,
        rules: impl FnMut(&Launch) -> Policy + 'a,
    ) -> Self {
        Self {
            rules: Box::new(rules),
            wanted,
            policy: Policy::default(),
            state: State::new(loop_id),
            seen: None,
            lost: 0,
            current: Account::default(),
            found: None,
            end: None,
            counted: Counted::default(),
            unsettled: false,
            over: None,
            refused: false,
        }
    }

    /// Takes one record in.
    ///
    /// # Errors
    /// It does not follow the one before it.
    pub fn take(&mut self, record: &Record) -> Result<(), Gap> {
        self.lost += Gap::check(self.seen, record)?;
        self.seen = Some(record.seq);
        if let LoopEvent::SegmentOpened { state, .. } = &record.event {
            apply(&mut self.state, record);
            if state.iteration != self.current.iteration {
                // Records are lost: the beginning of this iteration is not known.
                self.policy = (self.rules)(&state.launch);
                self.begin(state.iteration);
            }
            return Ok(());
        }
        if self.unsettled && !comes_before(&record.event) {
            self.unsettled = false;
            self.settled(record);
        }
        if let LoopEvent::Started { launch, .. } = &record.event {
            self.policy = (self.rules)(launch);
            self.end = None;
        }
        if let Some(launch) = record.event.reloaded() {
            self.policy = (self.rules)(launch);
        }
        if let LoopEvent::IterationStarted { iteration, .. } = &record.event
            && *iteration != self.current.iteration
        {
            self.went_on(record, *iteration);
            self.begin(*iteration);
        }
        self.tell_cut_check(record);
        apply(&mut self.state, record);
        self.tell(record);
        Ok(())
    }

    /// Returns what was asked for.
    #[must_use]
    pub fn finish(mut self) -> Explained {
        self.tell_untold();
        let current = std::mem::take(&mut self.current);
        self.autocommit(current);
        let account = self.found;
        Explained {
            account: account.filter(|account| account.iteration > 0 || self.wanted.is_none()),
            end: self.end,
            state: self.state,
            lost: self.lost,
        }
    }

    fn begin(&mut self, iteration: u32) {
        let next = Account {
            iteration,
            ..Account::default()
        };
        let over = std::mem::replace(&mut self.current, next);
        self.counted = Counted::default();
        self.refused = false;
        self.autocommit(over);
    }

    fn autocommit(&mut self, account: Account) {
        if self.wanted.is_none_or(|wanted| wanted == account.iteration) {
            self.found = Some(account);
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

    /// Tells the last reading that was not, before what it led to.
    fn tell_untold(&mut self) {
        if let Some(entry) = self.counted.untold.take() {
            self.push(entry);
        }
    }
}

/// Returns whether it may come behind an attempt before anything is decided: work is committed and checked first.
fn comes_before(event: &LoopEvent) -> bool {
    matches!(
        event,
        LoopEvent::AutocommitStarted { .. }
            | LoopEvent::AutocommitCanceled { .. }
            | LoopEvent::AutocommitFinished { .. }
            | LoopEvent::AutocommitGivenUp { .. }
            | LoopEvent::CheckStarted { .. }
            | LoopEvent::ConditionsAnswered { .. }
            | LoopEvent::GatesRan { .. }
            | LoopEvent::TestsRan(_)
            | LoopEvent::ProgressMeasured(_)
            | LoopEvent::CheckGivenUp { .. }
            | LoopEvent::ClaimRefused(_)
            | LoopEvent::StopRequested { .. }
            | LoopEvent::PauseRequested
            | LoopEvent::AgentExited { .. }
            | LoopEvent::LeftoversEnded { .. }
            | LoopEvent::QuotaTold(_)
            | LoopEvent::Suspended { .. }
            | LoopEvent::Noted { .. }
            | LoopEvent::Warned { .. }
    )
}

/// Returns how the loop ends with a record or with what the record begins: the last commit or the hooks at the end.
fn ends_with(event: &LoopEvent) -> Option<&Outcome> {
    if let LoopEvent::AutocommitStarted(Autocommit { outcome, .. })
    | LoopEvent::HooksStarted(HooksStart { outcome, .. }) = event
    {
        outcome.as_ref()
    } else if let LoopEvent::Completed { outcome, .. }
    | LoopEvent::Stopped { outcome, .. }
    | LoopEvent::Error { outcome, .. } = event
    {
        Some(outcome)
    } else {
        None
    }
}
