//! History of each test over many runs: passing, failing, fixed, broken or flaky.
//!
//! A run is stored as its difference to the history ([`TestRun`]), because thousands of passing tests would fill the journal. The history
//! ([`TestsSeen`]) has a hash and the last [`RUNS_KEPT`] outcomes of each test, and the names of tests that failed.

mod outcomes;
mod result;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use outcomes::{FLIPS_FLAKY, Outcomes, RUNS_KEPT, RUNS_RECENT, Standing};
pub use result::{ParseTestIdError, TestId, Verdict};

/// Maximum number of tests in the history. They take 0.7 MB of each snapshot.
pub const TESTS_KEPT_MAX: usize = 20_000;

/// Maximum number of failed tests that are remembered by name.
pub const NAMES_KEPT_MAX: usize = 500;

/// Maximum size of a test name in bytes. Tests are identified by the hash of the whole name.
pub const NAME_BYTES_KEPT: usize = 200;

/// Outcome of known tests that a [`TestRun`] does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rest {
    /// The tests that are not listed had the same result as in the previous run.
    AsBefore,
    /// The tests that are not listed were not part of the run.
    NotRun,
}

/// One run of the tests, stored as its difference from the test history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestRun {
    /// Whether the tested code changed since the previous run. A test that passes without a change was not fixed.
    pub changed: bool,
    /// Outcome of tests that are not listed here.
    pub rest: Rest,
    /// Verdicts of tests that differ from the previous run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ended: BTreeMap<TestId, Verdict>,
    /// Tests that did not run, although the other known tests did.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub not_run: BTreeSet<TestId>,
    /// Names of failed or flaky tests, if the history does not have them yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<TestId, String>,
}

/// History of all tests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TestsSeen {
    /// Number of runs in the history.
    runs: u32,
    tests: BTreeMap<TestId, Outcomes>,
    names: BTreeMap<TestId, String>,
}

impl TestsSeen {
    /// Compares a run with the history. If two results have the same name, the worse one counts. `changed` is whether the tested code
    /// changed since the last run.
    pub fn compare<'a>(
        &self,
        changed: bool,
        results: impl IntoIterator<Item = (&'a str, Verdict)>,
    ) -> TestRun {
        let mut all: BTreeMap<TestId, (Verdict, &str)> = BTreeMap::new();
        for (name, verdict) in results {
            let entry = all.entry(TestId::of(name)).or_insert((verdict, name));
            entry.0 = entry.0.max(verdict);
        }
        let mut names = BTreeMap::new();
        for (id, (verdict, name)) in &all {
            let tells = verdict.is_failure() || *verdict == Verdict::Flaky;
            if tells && !self.names.contains_key(id) && names.len() < NAMES_KEPT_MAX {
                let end = name.floor_char_boundary(NAME_BYTES_KEPT);
                names.insert(*id, name.get(..end).unwrap_or_default().to_owned());
            }
        }
        let repeats = |id: &TestId, verdict: Verdict| {
            // A test that was not part of the previous run cannot have the same result as before.
            self.tests.get(id).is_some_and(|known| {
                known.last_run == self.runs && is_same_verdict(known.last(), verdict)
            })
        };
        let not_run: BTreeSet<TestId> = self
            .tests
            .iter()
            .filter(|(id, known)| known.last_run == self.runs && !all.contains_key(id))
            .map(|(id, _)| *id)
            .collect();
        let differs = all
            .iter()
            .filter(|(id, (verdict, _))| !repeats(id, *verdict));
        let (rest, not_run, listed): (_, _, Vec<_>) =
            if not_run.len() + differs.clone().count() <= all.len() {
                (Rest::AsBefore, not_run, differs.collect())
            } else {
                (Rest::NotRun, BTreeSet::new(), all.iter().collect())
            };
        // Known tests come first, because leaving them out would mean "as before". Then the worst verdicts.
        let mut listed: Vec<(TestId, Verdict)> = listed
            .into_iter()
            .map(|(id, (verdict, _))| (*id, *verdict))
            .collect();
        listed.sort_by_key(|(id, verdict)| (!self.tests.contains_key(id), Reverse(*verdict), *id));
        listed.truncate(TESTS_KEPT_MAX);
        TestRun {
            changed,
            rest,
            ended: listed.into_iter().collect(),
            not_run,
            names,
        }
    }

    /// Adds a run to the history.
    pub fn apply(&mut self, run: &TestRun) {
        let before = self.runs;
        self.runs = self.runs.saturating_add(1);
        let take = |outcomes: &mut Outcomes, verdict: Verdict| {
            outcomes.push(verdict, run.changed);
            outcomes.last_run = self.runs;
        };
        if run.rest == Rest::AsBefore {
            for (id, outcomes) in &mut self.tests {
                let named = run.ended.contains_key(id) || run.not_run.contains(id);
                if !named && outcomes.last_run == before {
                    take(outcomes, outcomes.last());
                }
            }
        }
        for (id, verdict) in &run.ended {
            take(self.tests.entry(*id).or_default(), *verdict);
        }
        for (id, name) in &run.names {
            self.names.insert(*id, name.clone());
        }
        self.forget();
    }

    /// Removes the oldest passing tests beyond the maximum.
    fn forget(&mut self) {
        let too_many = self.tests.len().saturating_sub(TESTS_KEPT_MAX);
        if too_many > 0 {
            let worth = |(id, of): (&TestId, &Outcomes)| (of.is_of_interest(), of.last_run, *id);
            let mut order: Vec<_> = self.tests.iter().map(worth).collect();
            order.sort_unstable();
            for (_, _, id) in order.into_iter().take(too_many) {
                self.tests.remove(&id);
            }
        }
        let tests = &self.tests;
        let of_interest = |id: &TestId| tests.get(id).is_some_and(Outcomes::is_of_interest);
        self.names.retain(|id, _| of_interest(id));
        let too_many = self.names.len().saturating_sub(NAMES_KEPT_MAX);
        if too_many > 0 {
            let worth = |id: &TestId| {
                let of = tests.get(id).copied().unwrap_or_default();
                (of.failed_last(), of.last_run, *id)
            };
            let mut order: Vec<_> = self.names.keys().map(worth).collect();
            order.sort_unstable();
            for (_, _, id) in order.into_iter().take(too_many) {
                self.names.remove(&id);
            }
        }
    }

    /// Returns the history of one test; `None` if it is unknown.
    fn outcomes(&self, id: TestId) -> Option<&Outcomes> {
        self.tests.get(&id)
    }

    /// Returns the name of a test; `None` if the name is not stored.
    fn name(&self, id: TestId) -> Option<&str> {
        self.names.get(&id).map(String::as_str)
    }

    /// Returns all tests with their status, ordered by id.
    fn statuses(&self) -> impl Iterator<Item = (TestId, Standing)> {
        self.tests
            .iter()
            .map(|(id, outcomes)| (*id, outcomes.standing()))
    }

    /// Returns the tests with this status that were part of the latest run and have a stored name, in alphabetical order. Tests that always
    /// passed have no stored name.
    pub(crate) fn names_of_run(&self, standing: Standing) -> Vec<(TestId, &str)> {
        let of_run = |id: &TestId| {
            self.tests
                .get(id)
                .is_some_and(|known| known.last_run == self.runs)
        };
        let mut names: Vec<(TestId, &str)> = self
            .statuses()
            .filter(|(id, found)| *found == standing && of_run(id))
            .filter_map(|(id, _)| Some((id, self.name(id)?)))
            .collect();
        names.sort_unstable_by_key(|(_, name)| *name);
        names
    }

    /// Returns the tests that failed when they last ran.
    pub(crate) fn failing(&self) -> BTreeSet<TestId> {
        let failing = self.tests.iter().filter(|(_, known)| known.failed_last());
        failing.map(|(id, _)| *id).collect()
    }

    /// Returns the number of tests that pass in `run` and failed when they last ran, or are new. The first run is the baseline
    /// and has none. When the history is full, new tests do not count.
    pub(crate) fn newly_passing(&self, run: &TestRun) -> usize {
        let new_counts = self.runs > 0 && self.tests.len() < TESTS_KEPT_MAX;
        let progress = |(id, verdict): &(&TestId, &Verdict)| match verdict {
            Verdict::Passed | Verdict::Flaky => self
                .outcomes(**id)
                .map_or(new_counts, Outcomes::failed_last),
            Verdict::Skipped | Verdict::Failed | Verdict::Errored => false,
        };
        run.ended.iter().filter(progress).count()
    }
}

/// Returns whether two verdicts are stored in the same way.
const fn is_same_verdict(left: Verdict, right: Verdict) -> bool {
    match (left, right) {
        (Verdict::Failed | Verdict::Errored, Verdict::Failed | Verdict::Errored) => true,
        (left, right) => left as u8 == right as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simple reference model: all outcomes of each test, and the number of runs.
    #[derive(Default)]
    struct Model(BTreeMap<String, Outcomes>, u32);

    impl Model {
        fn take(&mut self, changed: bool, results: &[(String, Verdict)]) {
            self.1 += 1;
            for (name, verdict) in results {
                let outcomes = self.0.entry(name.clone()).or_default();
                outcomes.push(*verdict, changed);
                outcomes.last_run = self.1;
            }
        }
    }

    fn names(seen: &TestsSeen, standing: Standing) -> Vec<&str> {
        let names = seen.names_of_run(standing).into_iter();
        names.map(|(_, name)| name).collect()
    }

    fn count(seen: &TestsSeen, standing: Standing) -> usize {
        seen.statuses()
            .filter(|(_, found)| *found == standing)
            .count()
    }

    fn take(seen: &mut TestsSeen, changed: bool, results: &[(&str, Verdict)]) -> TestRun {
        let run = seen.compare(changed, results.iter().copied());
        seen.apply(&run);
        run
    }

    /// Returns reproducible random numbers (`xorshift`).
    fn draw(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn applying_the_recorded_difference_restores_all_results_of_a_test_run() {
        for seed in 1..=200 {
            let mut state = seed * 0x9e37_79b9;
            let (mut seen, mut model) = (TestsSeen::default(), Model::default());
            let mut short = false;
            for _ in 0..40 {
                // Some runs have most tests, some have few.
                let share = [1, 9, 10][usize::try_from(draw(&mut state) % 3).unwrap()];
                let mut results = Vec::new();
                for number in 0..12 {
                    if draw(&mut state) % 10 >= share {
                        continue;
                    }
                    let verdict = match draw(&mut state) % 20 {
                        0 => Verdict::Skipped,
                        1 => Verdict::Flaky,
                        2 | 3 => Verdict::Failed,
                        4 => Verdict::Errored,
                        _ => Verdict::Passed,
                    };
                    results.push((format!("test {number}"), verdict));
                }
                let changed = draw(&mut state).is_multiple_of(2);
                let run =
                    seen.compare(changed, results.iter().map(|(name, v)| (name.as_str(), *v)));
                // The run is written as JSON and read again.
                let text = serde_json::to_string(&run).unwrap();
                let run: TestRun = serde_json::from_str(&text).unwrap();
                short |= run.ended.len() + run.not_run.len() < results.len();
                seen.apply(&run);
                model.take(changed, &results);
                for (name, expected) in &model.0 {
                    let id = TestId::of(name);
                    assert_eq!(seen.outcomes(id), Some(expected), "seed {seed}, {name}");
                    let shown = expected.is_of_interest().then_some(name.as_str());
                    assert_eq!(seen.name(id), shown, "seed {seed}, {name}");
                }
                assert_eq!(seen.statuses().count(), model.0.len(), "seed {seed}");
                let text = serde_json::to_string(&seen).unwrap();
                assert_eq!(serde_json::from_str::<TestsSeen>(&text).unwrap(), seen);
            }
            assert!(
                short,
                "the difference is shorter than the full list of results"
            );
        }
    }

    #[test]
    fn unchanged_test_run_has_an_empty_difference() {
        let mut seen = TestsSeen::default();
        let all: Vec<String> = (0..5000).map(|number| format!("test {number}")).collect();
        let results = || all.iter().map(|name| (name.as_str(), Verdict::Passed));
        let first = seen.compare(true, results());
        assert_eq!((first.ended.len(), seen.newly_passing(&first)), (5000, 0));
        seen.apply(&first);
        let second = seen.compare(true, results());
        assert_eq!(
            serde_json::to_string(&second).unwrap(),
            r#"{"changed":true,"rest":"as_before"}"#
        );
        seen.apply(&second);
        // Only one test is part of this run. The others did not run.
        let third = seen.compare(true, [("test 7", Verdict::Failed)]);
        assert_eq!((third.rest, third.ended.len()), (Rest::NotRun, 1));
        seen.apply(&third);
        assert_eq!(names(&seen, Standing::NewlyFailing), ["test 7"]);
        assert_eq!(seen.outcomes(TestId::of("test 8")).unwrap().runs(), 2);
    }

    #[test]
    fn history_stores_the_names_of_failed_tests() {
        let mut seen = TestsSeen::default();
        take(
            &mut seen,
            true,
            &[
                ("good", Verdict::Passed),
                ("bad", Verdict::Failed),
                ("odd", Verdict::Passed),
            ],
        );
        assert_eq!(names(&seen, Standing::Failing), ["bad"]);
        assert_eq!(count(&seen, Standing::Passing), 2);
        let run = take(
            &mut seen,
            false,
            &[
                ("good", Verdict::Passed),
                ("bad", Verdict::Passed),
                ("odd", Verdict::Flaky),
            ],
        );
        assert_eq!(run.ended.len(), 2);
        assert_eq!(names(&seen, Standing::Flaky), ["bad", "odd"]);
        let mut seen = TestsSeen::default();
        take(
            &mut seen,
            true,
            &[("good", Verdict::Passed), ("bad", Verdict::Failed)],
        );
        let run = seen.compare(
            true,
            [
                ("good", Verdict::Failed),
                ("bad", Verdict::Passed),
                ("new", Verdict::Passed),
            ],
        );
        assert_eq!(seen.newly_passing(&run), 2);
        seen.apply(&run);
        assert_eq!(names(&seen, Standing::NewlyFailing), ["good"]);
        assert_eq!(names(&seen, Standing::RecentlyFixed), ["bad"]);
    }

    #[test]
    fn worse_of_two_results_with_one_name_counts() {
        let mut seen = TestsSeen::default();
        take(
            &mut seen,
            true,
            &[
                ("a", Verdict::Failed),
                ("a", Verdict::Passed),
                ("a", Verdict::Skipped),
            ],
        );
        assert_eq!(seen.outcomes(TestId::of("a")).unwrap().runs(), 1);
        assert_eq!(count(&seen, Standing::Failing), 1);
    }

    #[test]
    fn test_history_is_bounded_and_keeps_failures() {
        let mut seen = TestsSeen::default();
        let long = "x".repeat(1000);
        let failing: Vec<String> = (0..700).map(|number| format!("{number} é{long}")).collect();
        let passing: Vec<String> = (0..30_000).map(|number| format!("p{number}")).collect();
        for _ in 0..3 {
            let results = failing.iter().map(|name| (name.as_str(), Verdict::Failed));
            let results =
                results.chain(passing.iter().map(|name| (name.as_str(), Verdict::Passed)));
            let run = seen.compare(true, results);
            assert!(run.ended.len() <= TESTS_KEPT_MAX && run.names.len() <= NAMES_KEPT_MAX);
            seen.apply(&run);
            assert_eq!(seen.statuses().count(), TESTS_KEPT_MAX);
            assert_eq!(count(&seen, Standing::Failing), 700);
            assert_eq!(names(&seen, Standing::Failing).len(), NAMES_KEPT_MAX);
            assert!(
                names(&seen, Standing::Failing)
                    .iter()
                    .all(|name| name.len() <= NAME_BYTES_KEPT)
            );
            let bytes = serde_json::to_string(&seen).unwrap().len();
            assert!(bytes < 1_000_000, "{bytes} bytes in each snapshot");
        }
        // A full history cannot distinguish a new test from a forgotten one.
        let run = seen.compare(true, [("new", Verdict::Passed)]);
        assert_eq!(seen.newly_passing(&run), 0);
    }
}
