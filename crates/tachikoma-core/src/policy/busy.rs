//! Decides whether a silent agent is busy.
//!
//! The limits are between the activity of Claude Code 2.1 while it waits for a model that does not answer (at most
//! 60 ms of CPU time, no byte over the network and 1.4 kB otherwise in a second; 5.5 kB with a sleeping shell
//! in addition) and the activity of the slowest work.

use crate::Activity;

/// Minimum milliseconds of CPU time per second: a tenth of a core. A program that computes uses a whole core, and a tenth
/// of it on a machine with ten times too much load.
const CPU_MS_MIN: u64 = 100;

/// Minimum bytes over the network per second. A ping of the model's service has 41 bytes and comes every 15 s, so that even
/// ten pings in a second are below this. An answer has 126 bytes for each word, and ten words in a second are slow.
const NETWORK_BYTES_MIN: u64 = 512;

/// Minimum bytes of files and pipes per second: ten times the activity of idle programs, a hundredth of that of a slow disk.
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
        assert!(!seen(120, 0, 11_000), "idle agent with a sleeping shell");
        assert!(!seen(120, 82, 2_800), "one ping per second");
        assert!(!seen(120, 820, 2_800), "ten pings per second");
    }

    #[test]
    fn cpu_network_or_file_activity_alone_is_busy() {
        assert!(seen(2_000, 0, 0), "one whole core");
        assert!(seen(200, 0, 0), "a tenth of a core");
        assert!(seen(0, 2_520, 0), "an answer with ten words per second");
        assert!(seen(0, 0, 10_000_000), "a copied file");
    }

    #[test]
    fn sample_of_zero_length_is_not_busy() {
        assert!(!is_busy(&Activity::default()));
    }
}
