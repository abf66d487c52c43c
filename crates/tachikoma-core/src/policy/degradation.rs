//! Decides whether the quality of a session has fallen.
//!
//! The verdict compares a session with itself. A session of constant quality, good or bad, is not getting
//! worse, and a new session would not change that.

use crate::Sample;

/// A session is judged after this many iterations. The first ones set its usual quality.
const ITERATIONS_MIN: usize = 3;

/// This many of the latest iterations must all be worse. One bad iteration proves nothing.
const LATEST: usize = 2;

/// The latest iterations must be worse by this many points of 100.
const FALL_MIN: u32 = 30;

/// Returns how the quality fell; `None` if it did not.
#[must_use]
pub fn verdict(samples: &[Sample]) -> Option<String> {
    if samples.len() < ITERATIONS_MIN {
        return None;
    }
    let (before, latest) = samples.split_at(samples.len() - LATEST);
    let usual = median(before.iter().map(|sample| score(*sample)))?;
    let best_of_latest = latest.iter().map(|sample| score(*sample)).max()?;
    if best_of_latest.saturating_add(FALL_MIN) > usual {
        return None;
    }
    Some(describe(latest, usual, best_of_latest))
}

/// Returns the quality of an iteration from 0 to 100: 100 minus the percentages of failed and of repeated tool calls.
#[must_use]
pub fn score(sample: Sample) -> u32 {
    if sample.calls == 0 {
        return 0;
    }
    let share = |part: u32| u64::from(part.min(sample.calls)) * 100 / u64::from(sample.calls);
    let lost = (share(sample.failed) + share(sample.repeated)).min(100);
    100 - u32::try_from(lost).unwrap_or(100)
}

fn median(scores: impl Iterator<Item = u32>) -> Option<u32> {
    let mut scores: Vec<u32> = scores.collect();
    scores.sort_unstable();
    scores.get(scores.len() / 2).copied()
}

fn describe(latest: &[Sample], usual: u32, now: u32) -> String {
    let sum = |part: fn(&Sample) -> u32| latest.iter().map(part).fold(0, u32::saturating_add);
    let calls = sum(|sample| sample.calls);
    let what = if calls == 0 {
        "no tool calls".to_owned()
    } else {
        format!(
            "of {calls} tool calls {} failed and {} repeated an earlier one",
            sum(|sample| sample.failed),
            sum(|sample| sample.repeated)
        )
    };
    format!(
        "in the last {} iterations {what} (quality {now} of 100, before {usual})",
        latest.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(calls: u32, failed: u32, repeated: u32) -> Sample {
        Sample {
            calls,
            failed,
            repeated,
        }
    }

    #[test]
    fn constant_quality_is_not_degradation() {
        for calls in 0..=6 {
            for failed in 0..=calls {
                for repeated in 0..=calls {
                    for length in 0..=12 {
                        let samples = vec![sample(calls, failed, repeated); length];
                        assert_eq!(verdict(&samples), None, "{samples:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn degradation_is_reported_after_three_iterations_at_the_earliest() {
        let good = sample(10, 0, 0);
        for (name, samples, expected) in [
            ("two", vec![good, sample(10, 9, 0)], None),
            ("one bad one", vec![good, good, sample(10, 9, 0)], None),
            (
                "failures",
                vec![good, sample(10, 5, 0), sample(10, 5, 0)],
                Some(
                    "in the last 2 iterations of 20 tool calls 10 failed and 0 repeated an earlier one (quality 50 of 100, before 100)",
                ),
            ),
            (
                "repeats",
                vec![good, good, sample(10, 0, 8), sample(10, 0, 6)],
                Some(
                    "in the last 2 iterations of 20 tool calls 0 failed and 14 repeated an earlier one (quality 40 of 100, before 100)",
                ),
            ),
            (
                "no activity",
                vec![good, good, sample(0, 0, 0), sample(0, 0, 0)],
                Some("in the last 2 iterations no tool calls (quality 0 of 100, before 100)"),
            ),
            (
                "29 points",
                vec![sample(100, 0, 0), sample(100, 29, 0), sample(100, 29, 0)],
                None,
            ),
            ("recovers", vec![good, sample(10, 9, 0), good], None),
            ("improves", vec![sample(10, 9, 0), good, good], None),
        ] {
            assert_eq!(verdict(&samples).as_deref(), expected, "{name}");
        }
    }
}
