//! Converts events of the agent to inputs of the core.

use tachikoma_agents::{ARE_YOU_THERE, AgentEvent, Window, is_conversation_id};
use tachikoma_core::{AgentInput, ConversationUse, QuotaWindow, microusd};

/// Maximum length of a hand-off that is passed to the core.
const HAND_OFF_BYTES_MAX: usize = 16 << 10;

/// Returns the input for an event; `None` if the core does not need the event. The session itself handles events that depend on earlier
/// events.
pub(super) fn agent_input(event: AgentEvent) -> Option<AgentInput> {
    Some(match event {
        AgentEvent::Measured(reading) => AgentInput::ContextMeasured {
            context: reading.context(),
            answering: reading.answering,
        },
        AgentEvent::ToolStarted { id, name, about } => AgentInput::ToolStarted {
            id,
            name,
            summary: about,
        },
        AgentEvent::ToolEnded { id, failed, tail } => AgentInput::ToolEnded {
            id,
            error: failed.then_some(tail),
        },
        AgentEvent::FileTouched(path) => AgentInput::FileTouched { path },
        AgentEvent::CallEnded(tokens) => AgentInput::CallEnded { tokens },
        AgentEvent::Cost(usd) => AgentInput::Cost {
            conversation_microusd: microusd(usd?),
        },
        AgentEvent::TakenUp { usd, tokens } => AgentInput::ConversationResumed(ConversationUse {
            microusd: microusd(usd),
            tokens,
        }),
        AgentEvent::SessionReset { session_id } => AgentInput::SessionNamed {
            agent_id: session_id.filter(|id| is_conversation_id(id))?,
        },
        AgentEvent::ControlAnswered { request_id, .. } if request_id == ARE_YOU_THERE => {
            AgentInput::Opened
        }
        AgentEvent::PermissionDenied { tool, id } => AgentInput::ToolDenied { tool, id },
        AgentEvent::Said(text) => AgentInput::HandOffText {
            text: text
                .get(..text.floor_char_boundary(HAND_OFF_BYTES_MAX))
                .unwrap_or_default()
                .to_owned(),
        },
        _ => return None,
    })
}

/// Converts the quota window of an agent for the core.
pub(super) fn quota(window: Window) -> QuotaWindow {
    QuotaWindow {
        window: window.name,
        percent: window.percent,
        resets_at: window.resets_at,
    }
}
