//! Formats durations for people.

use std::time::Duration;

/// Formats a duration with the precision that a person needs: `3.2 s`, `45 s`, `12 min`, `2.5 h`.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200.. => format!("{:.1} h", duration.as_secs_f64() / 3600.0),
    }
}
