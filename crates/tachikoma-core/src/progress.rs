//! Progress of the work: the evidence of each iteration, its score (0 = no progress), and the results of tests.

use serde::{Deserialize, Serialize};

use crate::number_format::count;
use crate::tests_seen::RUNS_RECENT;
use crate::{Answers, AutocommitResult, ObjectivesSeen, TestsReport, is_zero};

/// Number of scores that are kept.
pub const SCORES_KEPT: usize = 20;

/// Maximum number of changed files that are kept by name.
pub const FILES_KEPT: usize = 100;

/// More changed lines do not raise the score: such a diff is a move, a format run or a vendored tree.
const LINES_MAX: u32 = 200;

const FOR_DIFF: u32 = 40;
const FOR_COMMIT: u32 = 10;
const FOR_TEST: u32 = 5;
const FOR_TESTS_MAX: u32 = 30;
const FOR_OBJECTIVE: u32 = 10;
const FOR_OBJECTIVES_MAX: u32 = 20;

/// Evidence of progress. The runner measures it. Nothing of it is reported by the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Number of changed files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub files: u32,
    /// Number of added and removed lines; 0 if it is unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lines: u32,
    /// Whether there are new commits.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub commits: bool,
    /// Number of tests that pass and did not pass before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub newly_passing: u32,
    /// Number of objectives that were ticked.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ticked: u32,
}

impl Evidence {
    /// Returns the score of the iteration, from 0 to 100; 0 means no progress.
    #[must_use]
    pub fn score(&self) -> u32 {
        self.points().iter().sum()
    }

    /// Returns the points for changes, commits, tests and objectives.
    fn points(&self) -> [u32; 4] {
        let changed = self.files > 0;
        // Every change counts. If lines are unknown, each file counts as one line.
        let lines = self.lines.max(self.files).min(LINES_MAX);
        let diff = (lines * FOR_DIFF / LINES_MAX).max(u32::from(changed));
        let commits = if self.commits { FOR_COMMIT } else { 0 };
        let tests = self.newly_passing.saturating_mul(FOR_TEST);
        let objectives = self.ticked.saturating_mul(FOR_OBJECTIVE);
        [
            diff,
            commits,
            tests.min(FOR_TESTS_MAX),
            objectives.min(FOR_OBJECTIVES_MAX),
        ]
    }

    /// Lists the parts of the score.
    pub(crate) fn description(&self) -> String {
        let files = count(self.files, "file");
        let changed = match self.lines {
            0 => files,
            lines => format!("{} in {files}", count(lines, "line")),
        };
        let what = [
            changed,
            "a commit".to_owned(),
            format!("{} now passing", count(self.newly_passing, "test")),
            format!("{} ticked", count(self.ticked, "objective")),
        ];
        let parts = self.points().into_iter().zip(what);
        let parts = parts.filter(|(points, _)| *points > 0);
        let parts: Vec<String> = parts
            .map(|(points, what)| format!("{points} for {what}"))
            .collect();
        parts.join(", ")
    }
}

/// The measured progress of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Number of the iteration.
    pub iteration: u32,
    /// Changes, commits, tests and objectives of the iteration.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub evidence: Evidence,
    /// Score of the iteration, from 0 to 100; 0 without progress.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub score: u32,
    /// Whether all gates passed that ran after the iteration; `None` if none ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests_passed: Option<bool>,
}

/// The score of one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// Number of the iteration.
    pub iteration: u32,
    /// Score of the iteration, from 0 to 100.
    pub score: u32,
}

/// A test that was fixed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedTest {
    /// Name of the test.
    pub name: String,
    /// Number of test runs since the run in which the test first passed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub runs: u32,
}

/// Progress of the work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Evidence of the current iteration, over all attempts at it.
    pub evidence: Evidence,
    /// Whether the iteration is over and its progress was not measured yet.
    pub due: bool,
    /// Whether the work tree was surveyed after the iteration.
    #[serde(rename = "looked")]
    pub surveyed: bool,
    /// Whether changes may have been missed, so that the iteration is not counted as one without progress.
    pub unsure: bool,
    /// The latest scores, oldest first.
    pub recent: Vec<Score>,
    /// The last iteration with progress; `None` before the first.
    pub last: Option<u32>,
    /// Summary of the last run of the tests; `None` before the first.
    pub tests: Option<TestsReport>,
    /// Whether the code may have changed since the tests last ran.
    pub untested: bool,
    /// Tests that were fixed within the last [`RUNS_RECENT`] runs and passed since, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fixed: Vec<FixedTest>,
    /// Files that the loop changed, relative to the working directory; the last `FILES_KEPT`, latest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

impl Progress {
    /// Returns the progress of the current iteration, if it is over and its changes are known. `tests_passed` says whether all gates
    /// passed after it; `None` if none ran.
    #[must_use]
    pub fn measure(&self, iteration: u32, tests_passed: Option<bool>) -> Option<Measured> {
        let score = self.evidence.score();
        // Evidence of progress is enough, even if other changes were missed.
        let known = score > 0 || (self.surveyed && !self.unsure);
        (self.due && known).then_some(Measured {
            iteration,
            evidence: self.evidence,
            score,
            tests_passed,
        })
    }

    pub(crate) fn attempt_started(&mut self, attempt: u32) {
        self.due = false;
        self.surveyed = false;
        if attempt == 1 {
            self.evidence = Evidence::default();
            self.unsure = false;
        }
    }

    /// An attempt has ended. If it was cut, its changes count for the next attempt.
    pub(crate) fn attempt_ended(&mut self, seen_through: bool) {
        self.due = seen_through;
    }

    /// Changes since the last survey may have been missed.
    pub(crate) fn missed(&mut self) {
        self.unsure = true;
        self.untested = true;
    }

    pub(crate) fn seen_in_the_tree(&mut self, result: &AutocommitResult) {
        let evidence = &mut self.evidence;
        evidence.files = evidence.files.saturating_add(result.changed);
        evidence.lines = evidence.lines.saturating_add(result.lines);
        // A commit of earlier changes is not progress of this iteration.
        evidence.commits |= result.head_moved || (result.commit.is_some() && result.changed > 0);
        self.untested |= result.changed > 0 || result.head_moved;
        for name in &result.files {
            self.files.retain(|known| known != name);
            self.files.push(name.clone());
        }
        let forgotten = self.files.len().saturating_sub(FILES_KEPT);
        self.files.drain(..forgotten);
    }

    /// Counts objectives that were ticked since they were last read. The first reading counts nothing.
    pub(crate) fn answered(&mut self, before: Option<&ObjectivesSeen>, answers: &Answers) {
        let ticked = |seen: Option<&ObjectivesSeen>| match seen {
            Some(ObjectivesSeen::Read { objectives }) => Some(objectives.ticked),
            Some(ObjectivesSeen::Unknown { .. }) | None => None,
        };
        if let (Some(before), Some(now)) = (ticked(before), ticked(answers.objectives.as_ref())) {
            let more = now.saturating_sub(before);
            self.evidence.ticked = self.evidence.ticked.saturating_add(more);
        }
    }

    pub(crate) fn tested(&mut self, report: &TestsReport) {
        let passing = &mut self.evidence.newly_passing;
        *passing = passing.saturating_add(report.newly_passing);
        for test in &mut self.fixed {
            test.runs = test.runs.saturating_add(1);
        }
        let fixed = report.fixed.iter().cloned();
        self.fixed
            .retain(|test| test.runs < RUNS_RECENT && !report.failing.contains(&test.name));
        self.fixed.retain(|test| !report.fixed.contains(&test.name));
        self.fixed
            .extend(fixed.map(|name| FixedTest { name, runs: 0 }));
        self.tests = Some(report.clone());
        self.untested = false;
    }

    pub(crate) fn measured(&mut self, measured: &Measured) {
        self.due = false;
        if measured.score > 0 {
            self.last = Some(measured.iteration);
        }
        if self.recent.len() >= SCORES_KEPT {
            self.recent.remove(0);
        }
        self.recent.push(Score {
            iteration: measured.iteration,
            score: measured.score,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_progress_needs_a_finished_and_surveyed_iteration() {
        let mut known = Progress::default();
        assert_eq!(known.measure(1, None), None, "the iteration has not ended");
        known.attempt_ended(true);
        assert_eq!(
            known.measure(1, None),
            None,
            "the work tree was not surveyed"
        );
        known.surveyed = true;
        assert_eq!(known.measure(1, None).unwrap().score, 0);
        known.missed();
        assert_eq!(known.measure(1, None), None, "changes were missed");
        known.evidence.files = 1;
        assert_eq!(
            known.measure(1, None).unwrap().score,
            1,
            "some changes were seen"
        );
        known.attempt_ended(false);
        assert_eq!(known.measure(1, None), None, "the attempt was cut");
    }

    #[test]
    fn changes_of_a_cut_attempt_count_for_its_own_iteration() {
        let mut known = Progress::default();
        known.attempt_started(1);
        known.seen_in_the_tree(&AutocommitResult {
            changed: 2,
            lines: 7,
            ..AutocommitResult::default()
        });
        known.attempt_ended(false);
        known.attempt_started(2);
        known.attempt_ended(true);
        let measured = known.measure(4, None).unwrap();
        assert_eq!((measured.evidence.files, measured.evidence.lines), (2, 7));
        known.measured(&measured);
        assert_eq!(
            known.measure(4, None),
            None,
            "an iteration is measured once"
        );
        known.attempt_started(1);
        known.attempt_ended(true);
        known.surveyed = true;
        assert_eq!(
            known.measure(5, None).unwrap().evidence,
            Evidence::default()
        );
    }

    #[test]
    fn only_the_latest_scores_are_kept() {
        let mut known = Progress::default();
        for iteration in 1..=50 {
            let score = u32::from(iteration == 30);
            known.measured(&Measured {
                iteration,
                evidence: Evidence::default(),
                score,
                tests_passed: None,
            });
        }
        assert_eq!(known.last, Some(30));
        assert_eq!(known.recent.len(), SCORES_KEPT);
        assert_eq!(known.recent[0].iteration, 31);
    }

    #[test]
    fn each_kind_of_evidence_alone_scores_above_zero() {
        assert_eq!(Evidence::default().score(), 0);
        let alone = [
            Evidence {
                files: 1,
                ..Evidence::default()
            },
            Evidence {
                commits: true,
                ..Evidence::default()
            },
            Evidence {
                newly_passing: 1,
                ..Evidence::default()
            },
            Evidence {
                ticked: 1,
                ..Evidence::default()
            },
        ];
        assert_eq!(alone.map(|evidence| evidence.score()), [1, 10, 5, 10]);
    }

    #[test]
    fn score_description_lists_its_parts() {
        let evidence = Evidence {
            files: 2,
            lines: 50,
            commits: true,
            newly_passing: 1,
            ticked: 3,
        };
        assert_eq!(
            evidence.description(),
            "10 for 50 lines in 2 files, 10 for a commit, 5 for 1 test now passing, 20 for 3 objectives ticked"
        );
        let files = Evidence {
            files: 1,
            ..Evidence::default()
        };
        assert_eq!(files.description(), "1 for 1 file");
    }

    #[test]
    fn score_is_monotonic_and_capped() {
        let all = Evidence {
            files: u32::MAX,
            lines: u32::MAX,
            commits: true,
            newly_passing: u32::MAX,
            ticked: u32::MAX,
        };
        assert_eq!(all.score(), 100);
        let mut last = 0;
        for lines in 0..400 {
            let score = Evidence {
                files: 1,
                lines,
                ..Evidence::default()
            }
            .score();
            assert!(score >= last, "{lines} lines");
            last = score;
        }
        assert_eq!(last, FOR_DIFF);
    }
}
