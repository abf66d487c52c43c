//! Tested versions of Claude Code, and what a person can do about its failures.

use crate::FailureClass;

/// The newest tested version; recordings and checks with the real agent come from its series.
const TRIED: (u32, u32, u32) = (2, 1, 325);

/// Returns whether a version was tested, or is an earlier one of the same series. Other text is not a version.
#[must_use]
pub fn is_tried(version: &str) -> bool {
    crate::is_up_to(TRIED, version)
}

/// Returns what to do about a failure that does not go away by itself.
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
    fn versions_up_to_the_newest_tested_one_are_known() {
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
