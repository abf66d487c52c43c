//! Tested versions of OpenCode, and what a person can do about its failures.

use crate::FailureClass;

/// The newest tested version; recordings and checks with the real agent come from its series.
const TRIED: (u32, u32, u32) = (1, 18, 33);

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
            Some("log in by `opencode auth login`, or mend the key in its configuration")
        }
        FailureClass::Billing => Some("look after the account that its key belongs to"),
        FailureClass::Model => Some(
            "name another one by `model` in `[agents.opencode]`, as provider/model; `opencode models` lists them",
        ),
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
        for known in ["1.18.33", "1.18.0"] {
            assert!(is_tried(known), "{known}");
        }
        for unknown in ["1.18.34", "1.19.0", "2.0.0", "1.17.9", "dev", ""] {
            assert!(!is_tried(unknown), "{unknown}");
        }
    }
}
