//! What a person or a script wants to know now: `status` as data.

use serde::{Deserialize, Serialize};

use crate::id::{LoopId, SessionNo};
use crate::launch::Runner;
use crate::phase::{LoopState, Phase};
use crate::state::State;
use crate::stats::LoopStats;
use crate::time::Timestamp;

/// The object that `status --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The loop.
    pub loop_id: LoopId,
    /// Its public state.
    pub state: LoopState,
    /// The iteration last started.
    pub iteration: u32,
    /// The attempt at it.
    pub attempt: u32,
    /// The session.
    pub session: SessionSummary,
    /// How many iterations it has finished.
    pub session_iterations: u32,
    /// The fill of its context, once it is known.
    pub context: Option<ContextSummary>,
    /// What is waited for.
    pub waiting: Option<WaitSummary>,
    /// What the loop has done.
    pub stats: LoopStats,
    /// How it ended.
    pub outcome: Option<OutcomeSummary>,
    /// When it was first started.
    pub started_at: Option<Timestamp>,
    /// When it last did something.
    pub last_activity: Option<Timestamp>,
    /// Who runs it.
    pub runner: Option<Runner>,
}

/// A session, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// Its number.
    pub number: SessionNo,
    /// The agent's own name for it, where it has one.
    pub agent_id: Option<String>,
}

/// A context reading, as `status` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextSummary {
    /// The fill, in percent, to one decimal.
    pub percent: f64,
    /// Tokens in the context.
    pub tokens: u64,
    /// Tokens that fit into it.
    pub window: u64,
    /// Whether this is a guess.
    pub estimated: bool,
}

/// A wait, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitSummary {
    /// What for.
    pub reason: String,
    /// Until when; none where only the operator can end it.
    pub until: Option<Timestamp>,
}

/// An outcome, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeSummary {
    /// Its kind.
    pub kind: String,
    /// The reason, in words.
    pub reason: String,
}

impl Status {
    /// Sums a state up. `live` says whether a runner holds the loop; without one a loop that has not ended is
    /// idle, whatever its last runner was doing when it died.
    #[must_use]
    pub fn of(state: &State, live: bool) -> Self {
        let ended = state.outcome();
        let public = if live || ended.is_some() {
            state.public()
        } else {
            LoopState::Idle
        };
        Self {
            loop_id: state.loop_id,
            state: public,
            iteration: state.iteration,
            attempt: state.attempt,
            session: SessionSummary {
                number: state.session.number,
                agent_id: state.session.agent_id.clone(),
            },
            session_iterations: state.session.iterations,
            context: state.session.context.map(|context| ContextSummary {
                percent: (context.percent() * 10.0).round() / 10.0,
                tokens: context.tokens,
                window: context.window,
                estimated: context.estimated,
            }),
            waiting: if live { waiting(&state.phase) } else { None },
            stats: state.stats,
            outcome: ended.map(|outcome| OutcomeSummary {
                kind: outcome.kind().to_owned(),
                reason: outcome.to_string(),
            }),
            started_at: state.started_at,
            last_activity: state.started_at.map(|_| state.time),
            runner: if live { state.runner.clone() } else { None },
        }
    }
}

fn waiting(phase: &Phase) -> Option<WaitSummary> {
    match phase {
        Phase::Waiting { wait } => Some(WaitSummary {
            reason: wait.reason.to_string(),
            until: Some(wait.until),
        }),
        Phase::Paused { .. } => Some(WaitSummary {
            reason: "operator".to_owned(),
            until: None,
        }),
        Phase::Idle | Phase::Working { .. } | Phase::Rebooting { .. } | Phase::Ended { .. } => None,
    }
}
