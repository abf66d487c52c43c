//! Which versions of Claude Code are known by trial, and what a person can do about its failures.

use crate::FailureClass;

/// The line of versions that the recordings and the checks with the real agent come from, and its newest one.
const TRIED: (u32, u32, u32) = (2, 1, 325);

/// Returns whether a version is one that was tried, or lies between those that were. What is no version is not.
#[must_use]
pub fn is_tried(version: &str) -> bool {
    crate::is_up_to(TRIED, version)
}

/// Returns what to do about a failure that will come again until someone does something.
#[must_use]
pub fn hint(class: FailureClass) -> Option<&'static str> {
    match class {
        FailureClass::Authentication => {
            Some("log in by `claude` and `/login`, or set ANTHROPIC_API_KEY")
        }
        FailureClass::Billing => Some("look after the account that its key belongs to"),
        FailureClass::Model => Some("name another one by `model` in `[agents.claude]`"),
        FailureClass::UsageLimit
        | FailureClass::Overloaded
        | FailureClass::Unreachable
        | FailureClass::PromptTooLong
        | FailureClass::Lost
        | FailureClass::Refused
        | FailureClass::Interrupted
        | FailureClass::OwnLimit
        | FailureClass::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_up_to_the_newest_one_that_was_tried_are_known() {
        for known in ["2.1.325", "2.1.50", "2.1.0", " 2.1.9 "] {
            assert!(is_tried(known), "{known}");
        }
        for unknown in [
            "2.1.326", "2.2.0", "3.0.0", "2.0.37", "1.0.84", "2.1", "2.1.x", "2.1.3-rc", "",
        ] {
            assert!(!is_tried(unknown), "{unknown}");
        }
    }
}
