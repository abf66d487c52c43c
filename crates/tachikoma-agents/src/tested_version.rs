//! Tested versions of agents, and advice about failures that a person has to fix.

use crate::FailureClass;

/// The tested versions of an agent, and advice for its user.
#[derive(Debug)]
pub struct TestedAgent {
    /// The oldest version that the recordings and the tests with the real agent use.
    oldest: (u32, u32, u32),
    /// The newest tested version. The recordings and the tests with the real agent use this version or earlier ones of its series.
    newest: (u32, u32, u32),
    /// Advice if the agent is not logged in.
    log_in: &'static str,
    /// Advice if the model is not available.
    choose_model: &'static str,
}

pub(crate) const CLAUDE: TestedAgent = TestedAgent {
    oldest: (2, 1, 197),
    newest: (2, 1, 325),
    log_in: "log in with `claude` and `/login`, or set ANTHROPIC_API_KEY",
    choose_model: "set another `model` in `[agents.claude]`",
};

pub(crate) const OPENCODE: TestedAgent = TestedAgent {
    oldest: (1, 18, 33),
    newest: (1, 18, 33),
    log_in: "log in with `opencode auth login`, or correct the key in its configuration",
    choose_model: "set another `model` in `[agents.opencode]`, as provider/model; `opencode models` lists them",
};

impl TestedAgent {
    /// Returns the tested versions of the agent with this name in the configuration; `None` for agents without versions.
    #[must_use]
    pub fn of(agent: &str) -> Option<Self> {
        match agent {
            "claude" => Some(CLAUDE),
            "opencode" => Some(OPENCODE),
            _ => None,
        }
    }

    /// Returns the tested versions as text, such as `2.1.197 to 2.1.325`.
    #[must_use]
    pub fn range(&self) -> String {
        let text = |(major, minor, patch)| format!("{major}.{minor}.{patch}");
        match self.oldest == self.newest {
            true => text(self.newest),
            false => format!("{} to {}", text(self.oldest), text(self.newest)),
        }
    }

    /// Returns advice about the login.
    #[must_use]
    pub const fn login_advice(&self) -> &'static str {
        self.log_in
    }

    /// Returns whether a version was tested, or is earlier in the same series. False if the text is not a version.
    #[must_use]
    pub fn is_tested(&self, version: &str) -> bool {
        let (major, minor, newest) = self.newest;
        let mut numbers = version.trim().splitn(3, '.').map(str::parse::<u32>);
        let mut next = || numbers.next().and_then(Result::ok);
        (next(), next()) == (Some(major), Some(minor)) && next().is_some_and(|it| it <= newest)
    }

    /// Returns advice about a failure that a person has to fix; `None` for other failures.
    pub(crate) fn hint(&self, class: FailureClass) -> Option<&'static str> {
        match class {
            FailureClass::Authentication => Some(self.log_in),
            FailureClass::Billing => Some("check the account that the key belongs to"),
            FailureClass::Model => Some(self.choose_model),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_up_to_the_newest_tested_one_are_known() {
        for known in ["2.1.325", "2.1.50", "2.1.0", " 2.1.9 "] {
            assert!(CLAUDE.is_tested(known), "{known}");
        }
        for unknown in [
            "2.1.326", "2.2.0", "3.0.0", "2.0.37", "1.0.84", "2.1", "2.1.x", "2.1.3-rc", "",
        ] {
            assert!(!CLAUDE.is_tested(unknown), "{unknown}");
        }
        for known in ["1.18.33", "1.18.0"] {
            assert!(OPENCODE.is_tested(known), "{known}");
        }
        for unknown in ["1.18.34", "1.19.0", "2.0.0", "1.17.9", "dev", ""] {
            assert!(!OPENCODE.is_tested(unknown), "{unknown}");
        }
    }
}
