//! The settings of the supervisor.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::policy::Backoff;

/// Length of the sliding window in which crashes are counted.
pub const CRASH_WINDOW: Duration = Duration::from_secs(60);

/// Number of crashes in the window that count as a crash loop.
pub const CRASH_LOOP: usize = 3;

/// A server that was ready for this long counts as healthy. Crashes before that are no longer counted.
pub const HEALTHY_UPTIME: Duration = Duration::from_secs(60);

/// Longest delay of a restart.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// Jitter adds at most one part in this many to a delay.
const JITTER_PART: u32 = 4;

/// Which ends of a server are followed by a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartPolicy {
    /// The server is restarted after every end that the operator did not request.
    Always,
    /// The server is restarted after a crash, and not after an exit with code 0.
    OnCrash,
    /// The server is never restarted.
    Never,
}

impl RestartPolicy {
    /// Returns the policy for these two settings.
    #[must_use]
    pub fn of(auto_restart: bool, restart_on_normal_exit: bool) -> Self {
        match (auto_restart, restart_on_normal_exit) {
            (false, _) => Self::Never,
            (true, true) => Self::Always,
            (true, false) => Self::OnCrash,
        }
    }
}

/// What SIGINT or SIGTERM to a server means if its supervisor did not send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignals {
    /// The user wants the shared server stopped, so it stays down.
    Obeyed,
    /// The server belongs to one loop, and a tool that runs in it sent the signal: that is a crash.
    Crash,
}

/// Random number of the supervisor, from 0 to 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jitter(pub u8);

/// Delays before restarts: the base, doubled with each restart in a row, at most a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartBackoff {
    /// Delay of the first restart.
    pub base: Duration,
}

impl RestartBackoff {
    /// Returns the delay before the restart with this number in a row, from 1. The first delay is exactly the base. Later
    /// delays are up to a quarter longer, so that servers that died together do not restart together.
    #[must_use]
    pub fn delay(self, attempt: u32, jitter: Jitter) -> Duration {
        let backoff = Backoff {
            base: self.base,
            cap: DELAY_MAX,
        };
        let delay = backoff.delay(attempt);
        let more = match attempt {
            0 | 1 => Duration::ZERO,
            2.. => delay / JITTER_PART * u32::from(jitter.0) / u32::from(u8::MAX),
        };
        (delay + more).min(DELAY_MAX)
    }
}

/// The rules of the supervisor. The default is what an empty configuration file means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPolicy {
    /// Which ends of the server are followed by a restart.
    pub restart: RestartPolicy,
    /// What SIGINT or SIGTERM to the server means.
    pub signals: StopSignals,
    /// Delays before restarts.
    pub backoff: RestartBackoff,
    /// Maximum number of restarts in a row without a healthy uptime; 0 = no limit.
    pub max_restart_attempts: u32,
    /// Maximum time from a start until the server answers health checks.
    pub ready_timeout: Duration,
    /// Time between two health checks of a ready server; zero = no checks.
    pub health_interval: Duration,
    /// Number of failed health checks in a row after which the server counts as hung; 0 = no limit.
    pub health_failures: u32,
    /// Memory in bytes above which the server is replaced as soon as no session is busy; 0 = no limit.
    pub max_rss_bytes: u64,
    /// How long the server may take to end its tools, before SIGTERM.
    pub release_timeout: Duration,
    /// How long the server may take to end after SIGTERM.
    pub stop_grace: Duration,
    /// How long the server and its processes may take to end after SIGKILL.
    pub kill_timeout: Duration,
}

impl Default for ServerPolicy {
    fn default() -> Self {
        Self {
            restart: RestartPolicy::Always,
            signals: StopSignals::Obeyed,
            backoff: RestartBackoff {
                base: Duration::from_secs(1),
            },
            max_restart_attempts: 5,
            // OpenCode needs two to four seconds to start, and more than ten under load.
            ready_timeout: Duration::from_secs(60),
            health_interval: Duration::from_secs(5),
            health_failures: 3,
            max_rss_bytes: 0,
            release_timeout: Duration::from_secs(3),
            stop_grace: Duration::from_secs(5),
            kill_timeout: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(base_ms: u64, jitter: u8) -> Vec<f64> {
        let backoff = RestartBackoff {
            base: Duration::from_millis(base_ms),
        };
        (1..=9)
            .map(|attempt| backoff.delay(attempt, Jitter(jitter)).as_secs_f64())
            .collect()
    }

    /// Jitter never exceeds the maximum delay, and never makes a later delay shorter than an earlier one.
    #[test]
    fn delays_double_from_the_base_to_a_minute() {
        assert_eq!(
            seconds(1000, 0),
            [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
        );
        assert_eq!(
            seconds(1000, 255),
            [1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
        );
        assert_eq!(seconds(0, 255), [0.0; 9], "a base of zero means no delay");
        assert_eq!(seconds(600_000, 255), [60.0; 9]);
        for jitter in 0..=255 {
            assert!(seconds(1000, jitter).is_sorted(), "{jitter}");
        }
    }

    #[test]
    fn restart_policy_follows_auto_restart_and_restart_on_normal_exit() {
        assert_eq!(RestartPolicy::of(true, true), RestartPolicy::Always);
        assert_eq!(RestartPolicy::of(true, false), RestartPolicy::OnCrash);
        assert_eq!(RestartPolicy::of(false, true), RestartPolicy::Never);
        assert_eq!(RestartPolicy::of(false, false), RestartPolicy::Never);
    }
}
