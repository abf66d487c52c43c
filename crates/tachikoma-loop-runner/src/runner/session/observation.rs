//! What observations of the agent mean to the core.

use tachikoma_agents::{ARE_YOU_THERE, Observation, Window, is_conversation_id};
use tachikoma_core::{ConversationUse, News, QuotaWindow, microusd};

/// The part of a hand-off that the core keeps.
const HAND_OFF_BYTES_MAX: usize = 16 << 10;

/// Returns what an observation means to the core; `None` if it means nothing. The session itself handles observations that depend on what
/// was observed before.
pub(super) fn observation_news(observation: Observation) -> Option<News> {
    Some(match observation {
        Observation::Measured(reading) => News::Measured {
            context: reading.context(),
            answering: reading.answering,
        },
        Observation::ToolStarted { id, name, about } => News::ToolStarted {
            id,
            name,
            summary: about,
        },
        Observation::ToolEnded { id, failed, tail } => News::ToolEnded {
            id,
            error: failed.then_some(tail),
        },
        Observation::FileTouched(path) => News::Touched { path },
        Observation::CallEnded(tokens) => News::CallEnded { tokens },
        Observation::Cost(usd) => News::Cost {
            conversation_microusd: microusd(usd?),
        },
        Observation::TakenUp { usd, tokens } => News::TakenUp(ConversationUse {
            microusd: microusd(usd),
            tokens,
        }),
        Observation::SessionReset { session_id } => News::Named {
            agent_id: session_id.filter(|id| is_conversation_id(id))?,
        },
        Observation::ControlAnswered { request_id, .. } if request_id == ARE_YOU_THERE => {
            News::Opened
        }
        Observation::PermissionDenied { tool, id } => News::Denied { tool, id },
        Observation::Said(text) => News::Said {
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
