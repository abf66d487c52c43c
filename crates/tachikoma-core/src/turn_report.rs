//! How a turn ended, as it is recorded.

use serde::{Deserialize, Serialize};

use crate::{Problem, Spent, Timestamp, TurnEnd, is_zero};

/// The result of a turn, as the agent reported it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnReport {
    /// Whether it calls the turn a success.
    pub success: bool,
    /// What it says went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What that means for the loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// Whether its final text claims that the whole work is complete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub claimed: bool,
    /// The pattern of the reboot rules that the text matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// What the turn cost, in millionths of a dollar.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cost_microusd: u64,
    /// The tokens that it used.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tokens: u64,
    /// Why its conversation cannot go on, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<Spent>,
}

impl From<&TurnEnd> for TurnReport {
    fn from(end: &TurnEnd) -> Self {
        Self {
            success: end.success,
            reason: end.reason.clone(),
            problem: end.problem.clone(),
            claimed: end.claimed,
            pattern: end.pattern.clone(),
            cost_microusd: end.cost_microusd,
            tokens: end.tokens,
            spent: end.spent,
        }
    }
}

/// An attempt that a limit of the model's service ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitedAttempt {
    /// The iteration.
    pub iteration: u32,
    /// The attempt at it.
    pub attempt: u32,
    /// What the agent said.
    pub reason: String,
    /// When the limit ends; `None` if the service did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Limits in a row, this one included.
    pub streak: u32,
    /// Whether the service could not be reached, instead of refusing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outage: bool,
    /// Whether the agent's process is up and waits for the next prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent_lives: bool,
}
