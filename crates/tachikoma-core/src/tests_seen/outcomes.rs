//! The last outcomes of one test, and its status.

use serde::{Deserialize, Serialize};

use super::result::Verdict;

/// Number of outcomes that are kept of each test.
pub const RUNS_KEPT: u32 = 20;

/// A test with this many changes between passing and failing is flaky. One change means that it was fixed, two that it was broken and
/// fixed.
pub const FLIPS_FLAKY: u32 = 3;

/// Number of runs for which a test that passes again counts as recently fixed.
pub const RUNS_RECENT: u32 = 3;

/// Status of a test after its last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The test passes, and did not fail recently.
    Passing,
    /// The test passes, and failed within its last [`RUNS_RECENT`] runs before this one.
    RecentlyFixed,
    /// The test fails, and passed in its previous run.
    NewlyFailing,
    /// The test fails, and failed before or has never passed.
    Failing,
    /// The test passes and fails without a change of the code.
    Flaky,
    /// The test failed when it last ran, and was skipped since.
    Silenced,
    /// The test was always skipped, or it passed when it last ran and was skipped since.
    Skipped,
}

/// The last outcomes of one test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Packed", into = "Packed")]
pub struct Outcomes {
    /// One bit for each run in which the test failed. The lowest bit is the last run.
    failed: u32,
    /// One bit for each run in which the result changed although the code had not changed.
    unexplained: u32,
    /// Number of runs that are remembered.
    runs: u32,
    /// Whether the test was skipped since its last result.
    skipped: bool,
    /// Number of the last run that included the test.
    pub(super) last_run: u32,
}

/// Compact form for snapshots, which contain thousands of tests.
#[derive(Serialize, Deserialize)]
struct Packed(u32, u32, u32, bool, u32);

impl From<Packed> for Outcomes {
    fn from(packed: Packed) -> Self {
        let Packed(failed, unexplained, runs, skipped, last_run) = packed;
        let runs = runs.min(RUNS_KEPT);
        Self {
            failed: failed & mask(runs),
            unexplained: unexplained & mask(runs),
            runs,
            skipped,
            last_run,
        }
    }
}

impl From<Outcomes> for Packed {
    fn from(of: Outcomes) -> Self {
        Self(of.failed, of.unexplained, of.runs, of.skipped, of.last_run)
    }
}

const fn mask(runs: u32) -> u32 {
    (1 << runs) - 1
}

impl Outcomes {
    /// Returns the number of known outcomes.
    #[must_use]
    pub const fn runs(&self) -> u32 {
        self.runs
    }

    /// Returns whether the test failed when it last ran.
    #[must_use]
    pub const fn failed_last(&self) -> bool {
        self.failed & 1 == 1
    }

    /// Returns how often the test changed between passing and failing.
    #[must_use]
    pub const fn flips(&self) -> u32 {
        match self.runs {
            0 | 1 => 0,
            runs => ((self.failed ^ (self.failed >> 1)) & mask(runs - 1)).count_ones(),
        }
    }

    /// Returns the status of the test.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        let flaky = self.unexplained != 0 || self.flips() >= FLIPS_FLAKY;
        let failed_before = self.failed & 0b10 != 0;
        match (self.runs, self.skipped, self.failed_last()) {
            (1.., true, true) => Standing::Silenced,
            (_, true, _) | (0, ..) => Standing::Skipped,
            (1.., false, _) if flaky => Standing::Flaky,
            (2.., false, true) if !failed_before => Standing::NewlyFailing,
            (1.., false, true) => Standing::Failing,
            (1.., false, false) if self.failed & mask(RUNS_RECENT + 1) != 0 => {
                Standing::RecentlyFixed
            }
            (1.., false, false) => Standing::Passing,
        }
    }

    /// Adds an outcome. `explained` is whether the code changed since the last run.
    pub(super) const fn push(&mut self, verdict: Verdict, explained: bool) {
        let failed = match verdict {
            Verdict::Skipped => {
                self.skipped = true;
                return;
            }
            Verdict::Passed | Verdict::Flaky => false,
            Verdict::Failed | Verdict::Errored => true,
        };
        let flipped = self.runs > 0 && failed != self.failed_last();
        let unexplained = matches!(verdict, Verdict::Flaky) || (flipped && !explained);
        if self.runs < RUNS_KEPT {
            self.runs += 1;
        }
        self.failed = ((self.failed << 1) | failed as u32) & mask(self.runs);
        self.unexplained = ((self.unexplained << 1) | unexplained as u32) & mask(self.runs);
        self.skipped = false;
    }

    /// Returns whether the name of the test has to be stored.
    pub(super) const fn is_of_interest(&self) -> bool {
        self.failed != 0 || self.unexplained != 0
    }

    /// Returns the verdict of the last run, as far as it is stored.
    pub(super) const fn last(&self) -> Verdict {
        match (self.runs, self.skipped, self.failed_last()) {
            (_, true, _) | (0, ..) => Verdict::Skipped,
            (1.., false, true) => Verdict::Failed,
            (1.., false, false) if self.unexplained & 1 == 1 => Verdict::Flaky,
            (1.., false, false) => Verdict::Passed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Letters: `P`assed, `F`ailed, `E`rrored, `S`kipped, flaky (`~`). Lower case means that the code had not changed.
    fn after(runs: &str) -> Outcomes {
        let mut outcomes = Outcomes::default();
        for run in runs.chars() {
            let verdict = match run.to_ascii_uppercase() {
                'P' => Verdict::Passed,
                'F' => Verdict::Failed,
                'E' => Verdict::Errored,
                'S' => Verdict::Skipped,
                '~' => Verdict::Flaky,
                other => panic!("{other} is not a verdict"),
            };
            outcomes.push(verdict, run.is_ascii_uppercase());
        }
        outcomes
    }

    #[test]
    fn status_of_a_test_follows_from_its_outcomes() {
        let many = |text: &str, times: usize| text.repeat(times);
        for (runs, expected) in [
            (String::new(), Standing::Skipped),
            ("S".into(), Standing::Skipped),
            ("PS".into(), Standing::Skipped),
            ("P".into(), Standing::Passing),
            ("PP".into(), Standing::Passing),
            ("SP".into(), Standing::Passing),
            // A test that never passed was not broken by a change.
            ("F".into(), Standing::Failing),
            ("E".into(), Standing::Failing),
            ("SF".into(), Standing::Failing),
            ("FF".into(), Standing::Failing),
            ("PF".into(), Standing::NewlyFailing),
            ("PE".into(), Standing::NewlyFailing),
            ("PSF".into(), Standing::NewlyFailing),
            ("PFF".into(), Standing::Failing),
            ("PFE".into(), Standing::Failing),
            ("FP".into(), Standing::RecentlyFixed),
            ("EP".into(), Standing::RecentlyFixed),
            ("FPPP".into(), Standing::RecentlyFixed),
            ("FPPPP".into(), Standing::Passing),
            // A test that was broken and fixed once is not flaky.
            ("PFP".into(), Standing::RecentlyFixed),
            ("PFFFPPPP".into(), Standing::Passing),
            ("FPF".into(), Standing::NewlyFailing),
            ("PFPF".into(), Standing::Flaky),
            ("FPFP".into(), Standing::Flaky),
            // A test is flaky after one change of its result if the code did not change.
            ("Pf".into(), Standing::Flaky),
            ("Fp".into(), Standing::Flaky),
            ("pp".into(), Standing::Passing),
            ("ff".into(), Standing::Failing),
            ("p".into(), Standing::Passing),
            ("P~".into(), Standing::Flaky),
            ("~".into(), Standing::Flaky),
            // Old outcomes are forgotten after 20 runs.
            (format!("~{}", many("P", 19)), Standing::Flaky),
            (format!("~{}", many("P", 20)), Standing::Passing),
            (format!("PFPF{}", many("P", 16)), Standing::Flaky),
            (format!("PFPF{}", many("P", 19)), Standing::Passing),
            (format!("PFPF{}", many("F", 19)), Standing::Failing),
            // A skipped test does not count as fixed.
            ("FS".into(), Standing::Silenced),
            ("PFSS".into(), Standing::Silenced),
            ("FSP".into(), Standing::RecentlyFixed),
        ] {
            assert_eq!(after(&runs).standing(), expected, "{runs}");
        }
    }

    #[test]
    fn flips_are_counted_within_the_remembered_runs() {
        for (runs, flips) in [
            ("", 0),
            ("F", 0),
            ("P", 0),
            ("PF", 1),
            ("PFP", 2),
            ("FFPP", 1),
            ("PSF", 1),
        ] {
            assert_eq!(after(runs).flips(), flips, "{runs}");
        }
        let all = after(&"PF".repeat(100));
        assert_eq!((all.runs(), all.flips()), (RUNS_KEPT, RUNS_KEPT - 1));
    }

    #[test]
    fn deserialized_outcomes_are_bounded() {
        let whole = after("PFpF~S");
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<Outcomes>(&text).unwrap(), whole);
        let wild: Outcomes =
            serde_json::from_str("[4294967295,4294967295,4294967295,false,0]").unwrap();
        assert_eq!((wild.runs(), wild.flips()), (RUNS_KEPT, 0));
        let wild: Outcomes = serde_json::from_str("[7,7,1,false,0]").unwrap();
        assert_eq!(
            wild,
            Outcomes {
                failed: 1,
                unexplained: 1,
                runs: 1,
                skipped: false,
                last_run: 0
            }
        );
    }
}
