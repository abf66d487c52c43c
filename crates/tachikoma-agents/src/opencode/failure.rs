//! Why a turn of OpenCode failed, and what that means for the loop.

use serde_json::Value;
use tachikoma_core::Problem;

use crate::tested_version::OPENCODE;
use crate::{FailureClass, TurnResult};

/// Maximum size of an error message in bytes.
const MESSAGE_BYTES_MAX: usize = 2048;

/// Error codes of a connection that failed or broke.
const NETWORK_CODES: [&str; 8] = [
    "ConnectionRefused",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "EHOSTUNREACH",
    "ENETUNREACH",
    "ENOTFOUND",
    "ETIMEDOUT",
];

/// Start of the bridge's last output if the connection to its server was lost.
pub const SERVER_LOST: &str = "the OpenCode server was lost";

/// Start of the bridge's last output if no server is expected to come back.
pub const GAVE_UP: &str = "there is no OpenCode server";

/// An error of OpenCode.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Trouble {
    pub class: Option<FailureClass>,
    pub name: String,
    pub message: String,
    pub status: Option<u64>,
}

impl Trouble {
    /// Reads an error in the format of messages, events and `opencode run`.
    pub fn of(error: &Value) -> Self {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let data = &error["data"];
        let mut name = word(&error["name"]);
        if name.is_empty() {
            // The error of a broken connection has only a code.
            name = word(&error["code"]);
        }
        name.truncate(name.floor_char_boundary(MESSAGE_BYTES_MAX));
        let mut message = word(&data["message"]);
        if message.is_empty() {
            message = word(&error["message"]);
        }
        if message.is_empty() {
            message.clone_from(&name);
        }
        // Some messages contain a stack trace of the server, which is removed.
        let end = message.find("\n    at ").unwrap_or(message.len());
        message.truncate(message.floor_char_boundary(end.min(MESSAGE_BYTES_MAX)));
        let status = data["statusCode"].as_u64();
        let class = Some(class(&name, status, &message, data));
        Self {
            class,
            name,
            message,
            status,
        }
    }
}

fn class(name: &str, status: Option<u64>, message: &str, data: &Value) -> FailureClass {
    match (name, status) {
        ("MessageAbortedError", _) => FailureClass::Interrupted,
        ("ContextOverflowError", _) | (_, Some(413)) => FailureClass::PromptTooLong,
        ("ContentFilterError", _) => FailureClass::Refused,
        ("ProviderAuthError", _) | (_, Some(401 | 403)) => FailureClass::Authentication,
        (_, Some(402)) => FailureClass::Billing,
        (_, Some(404)) => FailureClass::Model,
        (_, Some(429)) if is_quota(data) => FailureClass::UsageLimit,
        (_, Some(429 | 529)) => FailureClass::Overloaded,
        (_, Some(500..=599)) | ("APIError", None) => FailureClass::Unreachable,
        (code, None) if NETWORK_CODES.contains(&code) => FailureClass::Unreachable,
        _ if message.contains("Model not found") => FailureClass::Model,
        _ => FailureClass::Other,
    }
}

/// Returns whether the quota is exhausted. Only the service's own answer distinguishes that from too many requests.
fn is_quota(data: &Value) -> bool {
    let body = data["responseBody"].as_str().unwrap_or_default();
    ["insufficient_quota", "usage_limit", "quota_exceeded"]
        .iter()
        .any(|word| body.contains(word))
}

/// Returns what a result means for the loop, unless a retry is enough.
pub(crate) fn of_result(result: &TurnResult) -> Option<Problem> {
    let failure = result.failure?;
    match failure {
        FailureClass::UsageLimit | FailureClass::Overloaded => Some(Problem::Limited {
            until: result.limit_resets_at,
        }),
        FailureClass::Unreachable => Some(Problem::Unreachable),
        FailureClass::Authentication | FailureClass::Billing | FailureClass::Model => {
            let advice = OPENCODE.hint(failure).unwrap_or_default().to_owned();
            Some(Problem::Permanent { advice })
        }
        // The rejected content stays in the conversation.
        FailureClass::Refused => Some(Problem::Poisoned),
        // The iteration is repeated in a new session, and does not count as a failure.
        FailureClass::Lost => Some(Problem::Cut),
        FailureClass::PromptTooLong
        | FailureClass::Interrupted
        | FailureClass::OwnLimit
        | FailureClass::Other => None,
    }
}

/// Returns what the last output of the bridge means for the loop.
pub(crate) fn of_output(words: &str) -> Option<Problem> {
    if words.starts_with(SERVER_LOST) {
        return Some(Problem::Cut);
    }
    words.starts_with(GAVE_UP).then(|| Problem::Permanent {
        advice: "start it again, and `tachikoma run` continues".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_of_opencode_are_classified_and_lose_their_stack_trace() {
        let api = |status: u64, body: &str| json!({"name": "APIError", "data": {"message": "m", "statusCode": status, "responseBody": body}});
        for (error, class) in [
            (api(401, ""), FailureClass::Authentication),
            (api(402, ""), FailureClass::Billing),
            (api(404, ""), FailureClass::Model),
            (api(413, ""), FailureClass::PromptTooLong),
            (api(429, "slow down"), FailureClass::Overloaded),
            (
                api(429, r#"{"code":"insufficient_quota"}"#),
                FailureClass::UsageLimit,
            ),
            (api(503, ""), FailureClass::Unreachable),
            (
                json!({"name": "APIError", "data": {"message": "Connection reset by server"}}),
                FailureClass::Unreachable,
            ),
            (
                json!({"code": "ECONNRESET", "path": "http://127.0.0.1:1/"}),
                FailureClass::Unreachable,
            ),
            (
                json!({"name": "UnknownError", "data": {"message": "ProviderModelNotFoundError: Model not found: a/b.\n    at x"}}),
                FailureClass::Model,
            ),
            (
                json!({"name": "ContextOverflowError"}),
                FailureClass::PromptTooLong,
            ),
            (json!({"name": "ContentFilterError"}), FailureClass::Refused),
            (
                json!({"name": "MessageAbortedError"}),
                FailureClass::Interrupted,
            ),
            (json!({"name": "UnknownError"}), FailureClass::Other),
            (json!(null), FailureClass::Other),
        ] {
            let trouble = Trouble::of(&error);
            assert_eq!(trouble.class, Some(class), "{error}");
            assert!(!trouble.message.contains("    at "), "{error}");
        }
    }

    #[test]
    fn the_last_output_of_the_bridge_is_classified() {
        let lost = format!("{SERVER_LOST}: the event stream of the server ended");
        assert_eq!(of_output(&lost), Some(Problem::Cut));
        let gone = format!("{GAVE_UP} at http://127.0.0.1:1");
        assert!(matches!(of_output(&gone), Some(Problem::Permanent { .. })));
        assert_eq!(of_output("Error: Unexpected error"), None);
    }
}
