//! Formats numbers, percentages and durations for people.

use std::fmt;
use std::time::Duration;

/// Formats a duration in seconds. Short durations have milliseconds.
pub(crate) struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        match self.0.subsec_millis() {
            0 => {}
            millis if seconds == 0 => return write!(f, "{millis} ms"),
            millis if seconds < 60 => return write!(f, "{seconds}.{:01} s", millis / 100),
            _ => {}
        }
        match (hours, minutes, seconds % 60) {
            (0, 0, seconds) => write!(f, "{seconds} s"),
            (0, minutes, 0) => write!(f, "{minutes} min"),
            (0, minutes, seconds) => write!(f, "{minutes} min {seconds} s"),
            (hours, 0, _) => write!(f, "{hours} h"),
            (hours, minutes, _) => write!(f, "{hours} h {minutes} min"),
        }
    }
}

/// Formats a large number in groups of three digits.
pub(crate) struct Grouped(pub u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (place, digit) in digits.char_indices() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                f.write_str(" ")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

/// Formats an ordinal number: 1st, 2nd, 3rd.
pub(crate) struct Nth(pub u32);

impl fmt::Display for Nth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match (self.0 % 10, self.0 % 100) {
            (_, 11..=13) => "th",
            (1, _) => "st",
            (2, _) => "nd",
            (3, _) => "rd",
            _ => "th",
        };
        write!(f, "{}{ending}", self.0)
    }
}

/// Formats a percentage with at most one decimal.
pub(crate) struct Percent(pub f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = (self.0 * 10.0).round() / 10.0;
        write!(f, "{rounded} %")
    }
}

/// Returns a number with its noun, in the plural if needed.
pub(crate) fn count(number: u32, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_numbers_are_formatted_for_people() {
        let spans = [0, 250, 4_000, 4_250, 90_000, 300_000, 3_600_000, 5_430_000];
        let words = spans.map(|millis| Span(Duration::from_millis(millis)).to_string());
        assert_eq!(
            words,
            [
                "0 s",
                "250 ms",
                "4 s",
                "4.2 s",
                "1 min 30 s",
                "5 min",
                "1 h",
                "1 h 30 min"
            ]
        );
        let numbers = [7, 999, 1_000, 162_000, 1_234_567].map(|n| Grouped(n).to_string());
        assert_eq!(numbers, ["7", "999", "1 000", "162 000", "1 234 567"]);
        let nth = [1, 2, 3, 4, 11, 12, 21, 113].map(|n| Nth(n).to_string());
        assert_eq!(
            nth,
            ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "113th"]
        );
    }
}
