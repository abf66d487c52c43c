//! Decides what to do after a server has ended.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Purpose, RestartPolicy, ServerEnd, ServerPolicy, StopSignals};

/// What is known about the server from before its latest end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Number of restarts of the server since it last stayed healthy for long enough.
    pub attempts: u32,
    /// Whether the server that ended was ready for long enough.
    pub healthy: bool,
}

/// What the supervisor does after a server has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Start the server again after the delay of this attempt. Attempts are counted from 1.
    Restart {
        /// Number of this restart since the last healthy uptime.
        attempt: u32,
    },
    /// Start the server again at once. The operator asked for it, so it does not count as a restart.
    Replace,
    /// Do not restart the server.
    Stay {
        /// Why the server is not restarted.
        reason: StayReason,
    },
    /// Leave the server down until the operator starts it, because restarts do not help.
    GiveUp {
        /// Number of restarts that were tried.
        attempts: u32,
    },
}

/// Why a server is left down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StayReason {
    /// The operator stopped the server.
    Stopped,
    /// The user ended the server with a signal.
    ByUser,
    /// `opencode.auto_restart` is false.
    NoRestarts,
    /// The server exited with code 0, and only crashes cause a restart.
    NormalExit,
    /// It is unknown how the server ended. The user may have ended it.
    Unknown,
}

impl fmt::Display for StayReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "it was stopped",
            Self::ByUser => "the user stopped it",
            Self::NoRestarts => "`opencode.auto_restart` is false",
            Self::NormalExit => {
                "it ended by itself, and `opencode.restart_on_normal_exit` is false"
            }
            Self::Unknown => "how it ended is unknown, and the user may have stopped it",
        })
    }
}

/// Returns what to do about a server that has ended.
#[must_use]
pub fn verdict(policy: &ServerPolicy, end: &ServerEnd, history: History) -> Verdict {
    let stay = |reason| Verdict::Stay { reason };
    match end {
        ServerEnd::Ended { purpose } => match purpose {
            Purpose::Stop => stay(StayReason::Stopped),
            Purpose::Restart => Verdict::Replace,
            Purpose::Memory { .. } if history.healthy => Verdict::Replace,
            // The server was too large again soon. The limit may be below what it needs, so the number of restarts is limited.
            Purpose::Memory { .. } => restart_verdict(policy, history),
            Purpose::NotReady { .. } | Purpose::Hung { .. } => crashed(policy, history),
        },
        ServerEnd::ByUser { .. } => match policy.signals {
            StopSignals::Obeyed => stay(StayReason::ByUser),
            StopSignals::Crash => crashed(policy, history),
        },
        ServerEnd::Unknown => stay(StayReason::Unknown),
        ServerEnd::LostWithSupervisor => Verdict::Replace,
        ServerEnd::Unexpected => match policy.restart {
            RestartPolicy::Always => restart_verdict(policy, history),
            RestartPolicy::OnCrash => stay(StayReason::NormalExit),
            RestartPolicy::Never => stay(StayReason::NoRestarts),
        },
        ServerEnd::Crashed { .. } | ServerEnd::NotStarted { .. } | ServerEnd::LostWithGuard => {
            crashed(policy, history)
        }
    }
}

fn crashed(policy: &ServerPolicy, history: History) -> Verdict {
    match policy.restart {
        RestartPolicy::Always | RestartPolicy::OnCrash => restart_verdict(policy, history),
        RestartPolicy::Never => Verdict::Stay {
            reason: StayReason::NoRestarts,
        },
    }
}

fn restart_verdict(policy: &ServerPolicy, history: History) -> Verdict {
    let attempts = history.attempts;
    if policy.max_restart_attempts > 0 && attempts >= policy.max_restart_attempts {
        return Verdict::GiveUp { attempts };
    }
    Verdict::Restart {
        attempt: attempts.saturating_add(1),
    }
}

#[cfg(test)]
mod tests;
