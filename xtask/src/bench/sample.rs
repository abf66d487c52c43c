//! Repeated measurements of one value.

use std::process::Command;
use std::time::Instant;

/// The measured values, in order.
#[derive(Debug, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// Runs a command and adds its duration in milliseconds. The command must exit with one of `codes`.
    pub fn time(&mut self, command: &mut Command, codes: &[i32]) -> Result<(), String> {
        let started = Instant::now();
        let status = command.status();
        let took = started.elapsed();
        let program = command.get_program().display();
        let status = status.map_err(|error| format!("start {program}: {error}"))?;
        if !status.code().is_some_and(|code| codes.contains(&code)) {
            return Err(format!("{program} ended with {status}"));
        }
        self.add(took.as_secs_f64() * 1e3);
        Ok(())
    }

    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Returns the median; for an even number the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        match sorted.len() % 2 {
            _ if sorted.is_empty() => f64::NAN,
            0 => f64::midpoint(sorted[half - 1], sorted[half]),
            _ => sorted[half],
        }
    }

    /// Returns the minimum, which is the least disturbed measurement.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_depend_on_the_order() {
        let of = |values: &[f64]| Sample(values.to_vec()).median();
        assert!((of(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((of(&[4.0, 1.0, 2.0, 100.0]) - 3.0).abs() < 1e-9);
        assert!((of(&[7.0]) - 7.0).abs() < 1e-9);
        assert!(of(&[]).is_nan(), "the median of no measurements is NaN");
    }

    #[test]
    fn min_and_max_are_the_smallest_and_largest_measurement() {
        let sample = Sample(vec![3.0, 1.0, 2.0]);
        assert!((sample.min() - 1.0).abs() < 1e-9);
        assert!((sample.max() - 3.0).abs() < 1e-9);
        assert!(Sample::default().min().is_nan());
    }

    #[test]
    fn a_failing_command_is_not_a_measurement() {
        let mut sample = Sample::default();
        let error = sample.time(&mut Command::new("false"), &[0]).unwrap_err();
        assert_eq!(error, "false ended with exit status: 1");
        assert!(sample.0.is_empty());
        sample.time(&mut Command::new("false"), &[1]).unwrap();
        assert_eq!(sample.0.len(), 1);
    }
}
