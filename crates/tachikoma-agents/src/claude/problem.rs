//! What a failed turn of Claude Code means for the loop: wait, start a new session, or ask a person.

use tachikoma_core::{Problem, Timestamp};

use super::limit::resets_at;
use crate::tested_version::CLAUDE;
use crate::{FailureClass, TurnResult, ZoneOffset};

/// Part of the agent's error message for a conversation that another process uses.
const CONVERSATION_IN_USE: &str = "already in use";

/// Returns what a result means for the loop, unless a retry is enough.
pub(crate) fn of_result(
    result: &TurnResult,
    now: Timestamp,
    seconds_east: ZoneOffset,
) -> Option<Problem> {
    let failure = result.failure?;
    match failure {
        FailureClass::UsageLimit => Some(Problem::Limited {
            until: result
                .limit_resets_at
                .or_else(|| resets_at(&result.text, now, seconds_east)),
        }),
        FailureClass::Overloaded => Some(Problem::Limited { until: None }),
        FailureClass::Unreachable => Some(Problem::Unreachable),
        FailureClass::Authentication | FailureClass::Billing | FailureClass::Model => {
            let advice = CLAUDE.hint(failure).unwrap_or_default().to_owned();
            Some(Problem::Permanent { advice })
        }
        FailureClass::Other => of_words(&result.text),
        // The agent says "Start a new session to continue": the rejected content stays in the conversation.
        FailureClass::Refused => Some(Problem::Poisoned),
        // A conversation that is full or lost is recognized elsewhere.
        FailureClass::PromptTooLong
        | FailureClass::Lost
        | FailureClass::Interrupted
        | FailureClass::OwnLimit => None,
    }
}

/// Returns what the last output of a process that ended without a result means for the loop.
pub(crate) fn of_words(words: &str) -> Option<Problem> {
    words
        .contains(CONVERSATION_IN_USE)
        .then_some(Problem::Poisoned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(failure: FailureClass, text: &str) -> TurnResult {
        TurnResult {
            failure: Some(failure),
            ..TurnResult::plain(false, text.to_owned())
        }
    }

    #[test]
    fn each_failure_class_maps_to_the_expected_problem() {
        let now = Timestamp::from_millis(1_794_700_000_000);
        let of = |failure, text| of_result(&result(failure, text), now, |_| Some(3600));
        let east =
            |hours: i64| now.as_millis() / 86_400_000 * 86_400_000 + (24 + hours) * 3_600_000;
        assert_eq!(
            of(FailureClass::UsageLimit, "Spending cap reached resets 2am"),
            Some(Problem::Limited {
                until: Some(Timestamp::from_millis(east(1)))
            }),
            "a time without a zone is local time"
        );
        for (failure, text, expected) in [
            (
                FailureClass::UsageLimit,
                "You've hit your limit",
                Some(Problem::Limited { until: None }),
            ),
            (
                FailureClass::Overloaded,
                "API Error: 529 · resets 4am",
                Some(Problem::Limited { until: None }),
            ),
            (FailureClass::PromptTooLong, "Prompt is too long", None),
            (FailureClass::Lost, "No conversation found", None),
            (FailureClass::Other, "hm", None),
            (
                FailureClass::Unreachable,
                "Connection refused",
                Some(Problem::Unreachable),
            ),
            (FailureClass::Refused, "flagged", Some(Problem::Poisoned)),
        ] {
            assert_eq!(of(failure, text), expected, "{failure:?} {text}");
        }
        for failure in [
            FailureClass::Authentication,
            FailureClass::Billing,
            FailureClass::Model,
        ] {
            assert!(matches!(of(failure, ""), Some(Problem::Permanent { .. })));
        }
        assert_eq!(
            of_words("Error: Session ID x is already in use."),
            Some(Problem::Poisoned)
        );
        assert_eq!(of_words("error: unknown option '--frobnicate'"), None);
    }
}
