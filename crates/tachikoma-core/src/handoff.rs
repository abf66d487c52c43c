//! What the next session needs to know: the hand-off text, prepended to the original prompt.

use std::fmt::Write as _;

use crate::state::State;

/// Writes the hand-off for a session that replaced another one; nothing for the first session of a loop, and
/// nothing once an iteration of the session has gone well.
#[must_use]
pub fn handoff(state: &State, max_bytes: usize) -> Option<String> {
    if state.session.number.0 <= 1 || state.session.oriented {
        return None;
    }
    let mut text = String::from("# Hand-off from the session before this one\n\n");
    let stats = &state.stats;
    let _ = writeln!(
        text,
        "You continue work that an earlier session began; its conversation is gone, its changes to the files are not. \
         Look at the work tree first and do not redo what is done.\n\n\
         - Session {}, iteration {}, attempt {}.\n\
         - So far: {} iterations finished, {} of them well, {} failed.",
        state.session.number,
        state.iteration,
        state.attempt,
        stats.iterations,
        stats.successful,
        stats.failed
    );
    if let Some(failure) = &state.last_failure {
        let _ = writeln!(text, "- The latest failure: {failure}.");
    }
    text.push_str("\n---\n\n");
    truncate(&mut text, max_bytes);
    Some(text)
}

fn truncate(text: &mut String, max_bytes: usize) {
    if text.len() > max_bytes {
        let mut end = max_bytes;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Exit, Failure, LoopId, SessionNo};

    #[test]
    fn a_later_session_gets_one_until_an_iteration_went_well() {
        let mut state = State::new(LoopId::from_u128(1));
        state.session.number = SessionNo(1);
        assert_eq!(handoff(&state, 1000), None);
        state.session.number = SessionNo(2);
        state.last_failure = Some(Failure::Exited {
            exit: Exit::Code(3),
        });
        let text = handoff(&state, 50_000).unwrap();
        assert!(
            text.contains("Session 2") && text.contains("exit 3"),
            "{text}"
        );
        assert_eq!(handoff(&state, 7).unwrap(), "# Hand-");
        state.session.iterations = 1;
        assert!(
            handoff(&state, 1000).is_some(),
            "an iteration that failed has oriented nobody"
        );
        state.session.oriented = true;
        assert_eq!(handoff(&state, 1000), None);
    }
}
