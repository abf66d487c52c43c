//! Checks the records of a loop after a fault: no record is missing, no iteration counts twice, the totals are correct, the
//! snapshot agrees, and no acknowledged record is lost.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tachikoma_core::replay::{LaunchRules, Replay};
use tachikoma_core::{Launch, LoopEvent, LoopId, Record, Seq, State, Status};
use tachikoma_loop_runner::launch_rules;
use tachikoma_loop_runner::store::encryption::Encryption;
use tachikoma_loop_runner::store::recover::{self, Copies, Loss};
use tachikoma_loop_runner::store::{backup, journal, layout, loops};

use crate::encryption::encryption_of;

/// Path of the snapshot of a loop, relative to its working directory.
pub const SNAPSHOT: &str = ".ralph/state.json";

/// The number of an iteration, and of its attempt.
pub type Attempt = (u32, u32);

/// Checks that the recorded inputs and settings reproduce every record.
fn check_replay(loop_id: LoopId, records: &[Record]) -> Result<(), String> {
    let rules = |launch: &Launch, repository| {
        let recorded = launch_rules::rules(launch, repository, &[]);
        let recorded = recorded.map(|found| found.rules).unwrap_or_default();
        LaunchRules {
            replayed: recorded.clone(),
            recorded,
        }
    };
    let mut replay = Replay::new(loop_id, rules);
    for record in records {
        let taken = replay.take(record.clone());
        taken.map_err(|gap| gap.to_string())?;
    }
    let found = replay.finish();
    match (found.first_unexplained, found.differences.first()) {
        (Some(seq), _) => Err(format!(
            "replay does not reproduce record {seq}, and {} in all",
            found.unexplained
        )),
        (None, Some(difference)) => Err(format!("replay differs: {difference:?}")),
        (None, None) if found.without_inputs > 0 => Err(format!(
            "{} records have no recorded input",
            found.without_inputs
        )),
        (None, None) => Ok(()),
    }
}

/// The records of a loop, which passed the checks.
#[derive(Debug)]
pub struct Books {
    pub state: State,
    records: Vec<Record>,
    starts: BTreeSet<Attempt>,
}

impl Books {
    /// Reads and checks the records of the current loop; `None` if there is no loop.
    pub fn read(working_dir: &Path) -> Result<Option<Self>, String> {
        let text = |error| tachikoma_loop_runner::chain(&error);
        let snapshot = working_dir.join(SNAPSHOT);
        let encryption = encryption_of(working_dir);
        let Some(loop_id) = loops::current(working_dir, &snapshot, &encryption).map_err(text)?
        else {
            return Ok(None);
        };
        check_backups(working_dir, &encryption)?;
        let dir = layout::loop_dir(working_dir, loop_id);
        let mut records = Vec::new();
        journal::read_records(&dir, &encryption, Seq::default(), |record| {
            records.push(record);
        })
        .map_err(text)?;
        let state = journal::read_state(&dir, &encryption).map_err(text)?;
        let copies = Copies::only(&snapshot, &encryption);
        let found = recover::read(&dir, &copies, loop_id, Loss::Refuse).map_err(text)?;
        if found.state != state {
            return Err(format!(
                "the snapshot and the records after it end at record {}, the journal at {}, and they do not agree",
                found.state.seq, state.seq
            ));
        }
        check_replay(loop_id, &records)?;
        Self::check(state, records).map(Some)
    }

    fn check(state: State, records: Vec<Record>) -> Result<Self, String> {
        let mut ledger = Ledger::default();
        let mut before: Option<&Record> = None;
        for record in &records {
            follows(before, record)?;
            ledger.enter(&record.event)?;
            before = Some(record);
        }
        let stats = &state.stats;
        let outcomes =
            stats.successful + stats.failed + stats.handed_over + stats.skipped + stats.interrupted;
        if stats.iterations != ledger.ended || outcomes != ledger.ended {
            return Err(format!(
                "{} iterations have ended, {} are counted, and their outcomes add up to {outcomes}",
                ledger.ended, stats.iterations
            ));
        }
        Ok(Self {
            state,
            records,
            starts: ledger.starts,
        })
    }

    /// Returns the number of attempts.
    pub fn attempts(&self) -> u64 {
        self.starts.len() as u64
    }

    /// Checks that `status --json` agrees with the journal, for a loop without a runner.
    pub fn expect_status(&self, printed: &str) -> Result<(), String> {
        let printed: Value =
            serde_json::from_str(printed).map_err(|error| format!("a bad status: {error}"))?;
        let folded = serde_json::to_value(Status::of(&self.state, false))
            .map_err(|error| error.to_string())?;
        match printed == folded {
            true => Ok(()),
            false => Err(format!(
                "the status is {printed}, and the journal says {folded}"
            )),
        }
    }

    /// Checks that each printed record is in the journal, unchanged. The last printed line may be incomplete.
    pub fn expect_printed(&self, printed: &str) -> Result<(), String> {
        for line in printed.split_inclusive('\n') {
            let Some(line) = line.strip_suffix('\n') else {
                break;
            };
            let record: Record = serde_json::from_str(line)
                .map_err(|error| format!("a bad record was printed: {error}: {line}"))?;
            let place = self
                .records
                .binary_search_by_key(&record.seq, |kept| kept.seq);
            if place.ok().map(|place| &self.records[place]) != Some(&record) {
                return Err(format!("this was printed and is lost: {line}"));
            }
        }
        Ok(())
    }

    /// Checks that each agent ran for an attempt in the journal, and that no attempt had two agents.
    pub fn expect_ran(&self, ran: &[Attempt]) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for attempt in ran {
            let (iteration, number) = attempt;
            if !self.starts.contains(attempt) {
                return Err(format!(
                    "an agent ran for attempt {number} of iteration {iteration}, which is lost"
                ));
            }
            if !seen.insert(attempt) {
                return Err(format!(
                    "two agents ran for attempt {number} of iteration {iteration}"
                ));
            }
        }
        Ok(())
    }
}

fn follows(before: Option<&Record>, record: &Record) -> Result<(), String> {
    let expected = before.map_or(Seq::default(), |before| before.seq).next();
    if record.seq != expected {
        return Err(format!("record {} where {expected} should be", record.seq));
    }
    let Some(before) = before else {
        return Ok(());
    };
    if record.loop_id != before.loop_id {
        return Err(format!("record {} is another loop's", record.seq));
    }
    if record.time < before.time {
        return Err(format!("the time falls at record {}", record.seq));
    }
    Ok(())
}

/// State of the iterations while the records are read.
#[derive(Debug, Default)]
struct Ledger {
    latest: Attempt,
    fate: Fate,
    ended: u32,
    starts: BTreeSet<Attempt>,
}

/// State of the latest attempt.
#[derive(Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    Ended,
    Open,
    Cut,
}

impl Ledger {
    fn enter(&mut self, event: &LoopEvent) -> Result<(), String> {
        match event {
            LoopEvent::IterationStarted {
                iteration, attempt, ..
            } => self.start((*iteration, *attempt)),
            LoopEvent::AttemptCut {
                iteration, attempt, ..
            } => self.cut((*iteration, *attempt)),
            // The agent exited before it got its prompt, and another agent gets it.
            LoopEvent::AgentExited { .. } if self.fate == Fate::Open => self.cut(self.latest),
            LoopEvent::IterationCompleted { report, .. } => self.end(report.iteration),
            LoopEvent::IterationFailed { iteration, .. } => self.end(*iteration),
            _ => Ok(()),
        }
    }

    fn start(&mut self, found: Attempt) -> Result<(), String> {
        let (iteration, attempt) = self.latest;
        let expected = match self.fate {
            Fate::Ended => (iteration + 1, 1),
            Fate::Cut => (iteration, attempt + 1),
            Fate::Open => return Err(format!("{found:?} begins while {:?} is open", self.latest)),
        };
        if found != expected {
            return Err(format!("{found:?} begins, and {expected:?} is due"));
        }
        self.latest = found;
        self.fate = Fate::Open;
        self.starts.insert(found);
        Ok(())
    }

    fn cut(&mut self, found: Attempt) -> Result<(), String> {
        if self.fate != Fate::Open || found != self.latest {
            return Err(format!(
                "{found:?} is cut, and the latest is {:?}",
                self.latest
            ));
        }
        self.fate = Fate::Cut;
        Ok(())
    }

    fn end(&mut self, iteration: u32) -> Result<(), String> {
        if self.fate != Fate::Open || iteration != self.latest.0 {
            return Err(format!(
                "iteration {iteration} ends, and the latest is {:?}",
                self.latest
            ));
        }
        self.fate = Fate::Ended;
        self.ended += 1;
        Ok(())
    }
}

/// Checks that every backup is complete. A runner that died may leave an empty file with a reserved name.
fn check_backups(working_dir: &Path, encryption: &Encryption) -> Result<(), String> {
    let text = |error| tachikoma_loop_runner::chain(&error);
    for listed in backup::list(&working_dir.join(".ralph/backups"), None).map_err(text)? {
        let is_empty = std::fs::metadata(&listed.path).is_ok_and(|there| there.len() == 0);
        if !is_empty {
            backup::read_through(&listed.path, encryption).map_err(text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(events: &[Value]) -> Result<Ledger, String> {
        let mut ledger = Ledger::default();
        for event in events {
            let event = serde_json::from_value(event.clone()).expect("the test knows events");
            ledger.enter(&event)?;
        }
        Ok(ledger)
    }

    fn start(iteration: u32, attempt: u32) -> Value {
        serde_json::json!({"type": "iteration_started", "iteration": iteration,
            "attempt": attempt, "session": 1, "generation": 1})
    }

    fn cut(iteration: u32, attempt: u32) -> Value {
        serde_json::json!({"type": "attempt_cut", "iteration": iteration, "attempt": attempt})
    }

    fn failed(iteration: u32) -> Value {
        serde_json::json!({"type": "iteration_failed", "iteration": iteration, "duration_ms": 1,
            "streak": 1, "failure": {"kind": "not_launched", "reason": "gone"}})
    }

    #[test]
    fn iterations_follow_each_other_or_are_repeated_after_a_kill() {
        let ledger = entered(&[start(1, 1), failed(1), start(2, 1), cut(2, 1), start(2, 2)]);
        let ledger = ledger.expect("this is how it should be");
        assert_eq!((ledger.ended, ledger.latest), (1, (2, 2)));
        assert_eq!(ledger.starts.len(), 3);
    }

    #[test]
    fn repeated_and_missing_iterations_are_found() {
        for wrong in [
            &[start(2, 1)][..],
            &[start(1, 1), start(2, 1)],
            &[start(1, 1), start(1, 2)],
            &[start(1, 1), failed(1), failed(1)],
            &[start(1, 1), failed(1), start(1, 2)],
            &[start(1, 1), cut(1, 1), start(2, 1)],
            &[start(1, 1), cut(1, 1), failed(1)],
            &[start(1, 1), failed(1), cut(1, 1)],
        ] {
            assert!(entered(wrong).is_err(), "{wrong:?}");
        }
    }
}
