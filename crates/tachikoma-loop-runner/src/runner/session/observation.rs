//! What observations of the agent mean to the core.

use tachikoma_agents::{ARE_YOU_THERE, Observation, Window, is_conversation_id};
use tachikoma_core::{AgentEvent, ConversationUse, QuotaWindow, microusd};

/// The part of a hand-off that the core keeps.
const HAND_OFF_BYTES_MAX: usize = 16 << 10;

/// Returns what an observation means to the core; `None` if it means nothing. The session itself handles observations that depend on what
/// was observed before.
pub(super) fn observation_news(observation: Observation) -> Option<AgentEvent> {
    Some(match observation {
        Observation::Measured(reading) => AgentEvent::ContextMeasured {
            context: reading.context(),
            answering: reading.answering,
        },
        Observation::ToolStarted { id, name, about } => AgentEvent::ToolStarted {
            id,
            name,
            summary: about,
        },
        Observation::ToolEnded { id, failed, tail } => AgentEvent::ToolEnded {
            id,
            error: failed.then_some(tail),
        },
        Observation::FileTouched(path) => AgentEvent::FileTouched { path },
        Observation::CallEnded(tokens) => AgentEvent::CallEnded { tokens },
        Observation::Cost(usd) => AgentEvent::Cost {
            conversation_microusd: microusd(usd?),
        },
        Observation::TakenUp { usd, tokens } => AgentEvent::ConversationResumed(ConversationUse {
            microusd: microusd(usd),
            tokens,
        }),
        Observation::SessionReset { session_id } => AgentEvent::SessionNamed {
            agent_id: session_id.filter(|id| is_conversation_id(id))?,
        },
        Observation::ControlAnswered { request_id, .. } if request_id == ARE_YOU_THERE => {
            AgentEvent::Opened
        }
        Observation::PermissionDenied { tool, id } => AgentEvent::ToolDenied { tool, id },
        Observation::Said(text) => AgentEvent::HandOffText {
            text: text
                .get(..text.floor_char_boundary(HAND_OFF_BYTES_MAX))
                .unwrap_or_default()
                .to_owned(),
        },
        _ => return None,
    })
}

/// Returns the part of the quota that a window shows.
pub(super) fn quota(window: Window) -> QuotaWindow {
    QuotaWindow {
        window: window.name,
        percent: window.percent,
        resets_at: window.resets_at,
    }
}
