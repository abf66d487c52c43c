//! Decides whether a silent agent is busy.
//!
//! The bounds lie between what Claude Code 2.1 was seen doing while it waited for a model that does not answer (at most
//! 60 ms of CPU time, no byte over the network and 1.4 kB otherwise in a second; 5.5 kB with a shell that only sleeps
//! beside it) and what the slowest work looks like.

use crate::Activity;

/// Milliseconds of CPU time per second: a tenth of a core. A program that computes uses a whole one, and gets this much of it
/// on a machine with ten times as much to do as it can.
const CPU_MS_MIN: u64 = 100;

/// Bytes over the network per second. A ping of the model's service has 41 bytes and comes every 15 s, so that even ten of
/// them in a second are none; an answer has 126 bytes for each word, and ten words in a second are slow.
const NETWORK_BYTES_MIN: u64 = 512;

/// Bytes of files and pipes per second: ten times what idle programs read, a hundredth of what a slow disk gives.
const FILE_BYTES_MIN: u64 = 64 * 1024;

/// Returns whether processes with this activity are busy.
#[must_use]
pub fn is_busy(activity: &Activity) -> bool {
    let per_second = |amount: u64| amount.saturating_mul(1000) / activity.over_ms.max(1);
    per_second(activity.cpu_ms) >= CPU_MS_MIN
        || per_second(activity.network_bytes) >= NETWORK_BYTES_MIN
        || per_second(activity.file_bytes) >= FILE_BYTES_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(cpu_ms: u64, network_bytes: u64, file_bytes: u64) -> bool {
        is_busy(&Activity {
            over_ms: 2_000,
            cpu_ms,
            network_bytes,
            file_bytes,
        })
    }

    #[test]
    fn activity_of_a_waiting_agent_is_not_busy() {
        assert!(!seen(0, 0, 0));
        assert!(!seen(120, 0, 11_000), "idle, a shell that sleeps beside it");
        assert!(!seen(120, 82, 2_800), "a ping in each second");
        assert!(!seen(120, 820, 2_800), "ten pings in each second");
    }

    #[test]
    fn cpu_network_or_file_activity_alone_is_busy() {
        assert!(seen(2_000, 0, 0), "a core");
        assert!(seen(200, 0, 0), "a tenth of one");
        assert!(seen(0, 2_520, 0), "an answer of ten words in a second");
        assert!(seen(0, 0, 10_000_000), "a file that is copied");
    }

    #[test]
    fn sample_of_zero_length_is_not_busy() {
        assert!(!is_busy(&Activity::default()));
    }
}
