//! Formats numbers for people, in the same way everywhere: `2 m 03 s`, `173k`, `$0.43`.

use std::time::Duration;

/// Formats a duration: `0.4 s`, `12.4 s`, `38 s`, `2 m 03 s`, `1 h 12 m`, `3 d 4 h`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600, seconds / 60);
    match seconds {
        0..20 => format!("{:.1} s", duration.as_secs_f64()),
        20..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} m {:02} s", seconds % 60),
        3600..86_400 => format!("{hours} h {:02} m", minutes % 60),
        86_400.. => format!("{days} d {} h", hours % 24),
    }
}

/// Formats a number of tokens: `950`, `41k`, `1.21M`.
#[expect(
    clippy::cast_precision_loss,
    reason = "three digits are shown, and a double has fifteen"
)]
pub fn tokens(tokens: u64) -> String {
    match tokens {
        0..1000 => tokens.to_string(),
        1000..999_500 => format!("{}k", (tokens + 500) / 1000),
        999_500.. => format!("{:.2}M", tokens as f64 / 1e6),
    }
}

/// Formats millionths of a dollar. Amounts below a cent have four decimals, so that they are not shown as nothing.
#[expect(
    clippy::cast_precision_loss,
    reason = "cents are shown, and a double is exact to them"
)]
pub fn dollars(microusd: u64) -> String {
    let usd = microusd as f64 / 1e6;
    match microusd {
        1..10_000 => format!("${usd:.4}"),
        _ => format!("${usd:.2}"),
    }
}

/// Returns a number with its noun, in the plural if needed.
pub fn count(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_units() {
        let durations = [
            0,
            400,
            12_400,
            38_900,
            60_000,
            123_000,
            4_320_000,
            273_600_000,
        ];
        assert_eq!(
            durations.map(|millis| duration(Duration::from_millis(millis))),
            [
                "0.0 s", "0.4 s", "12.4 s", "38 s", "1 m 00 s", "2 m 03 s", "1 h 12 m", "3 d 4 h"
            ]
        );
        assert_eq!(
            [0, 999, 1_000, 41_200, 999_499, 999_500, 1_210_000].map(tokens),
            ["0", "999", "1k", "41k", "999k", "1.00M", "1.21M"]
        );
        assert_eq!(
            [0, 1, 9_999, 430_000, 12_345_678].map(dollars),
            ["$0.00", "$0.0000", "$0.0100", "$0.43", "$12.35"]
        );
        assert_eq!(count(1, "file"), "1 file");
        assert_eq!(count(3, "file"), "3 files");
    }
}
