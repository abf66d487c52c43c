//! Score of an iteration, from evidence such as changed files, commits and tests.

use serde::{Deserialize, Serialize};

use crate::is_zero;
use crate::number_format::count;

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
    pub(crate) fn words(&self) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
            evidence.words(),
            "10 for 50 lines in 2 files, 10 for a commit, 5 for 1 test now passing, 20 for 3 objectives ticked"
        );
        let files = Evidence {
            files: 1,
            ..Evidence::default()
        };
        assert_eq!(files.words(), "1 for 1 file");
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
