//! The result of a check, as text and as JSON.

use serde::Serialize;

use crate::out;
use crate::view::text::{Text, Tone};

/// Width of the column with the subjects.
const SUBJECT_COLUMNS: usize = 16;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nothing has to be done.
    Ok,
    /// A run works, but not as the user may expect.
    Warning,
    /// A run fails.
    Error,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub status: Status,
    /// What was checked.
    pub subject: String,
    /// What was found.
    pub message: String,
    /// What to do about it; `None` if there is nothing to fix.
    pub fix: Option<String>,
}

impl Check {
    /// Returns a check without a problem.
    pub fn ok(subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: Status::Ok,
            subject: subject.into(),
            message: message.into(),
            fix: None,
        }
    }

    /// Returns a warning.
    pub fn warning(
        subject: impl Into<String>,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            status: Status::Warning,
            fix: Some(fix.into()),
            ..Self::ok(subject, message)
        }
    }

    /// Returns an error.
    pub fn error(
        subject: impl Into<String>,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            status: Status::Error,
            ..Self::warning(subject, message, fix)
        }
    }

    /// Prints the check, and what to do about it in a second line.
    pub fn print(&self) {
        let (tone, sign) = match self.status {
            Status::Ok => (Tone::Done, "✓"),
            Status::Warning => (Tone::Waiting, "!"),
            Status::Error => (Tone::Failed, "✗"),
        };
        let indent = SUBJECT_COLUMNS + 3;
        let first = Text::new(tone, sign)
            .and(format!(" {:<SUBJECT_COLUMNS$} ", self.subject))
            .and(self.message.clone());
        let fix = self.fix.as_ref().map(|fix| {
            Text::plain(" ".repeat(indent))
                .with(Tone::Detail, "fix: ")
                .and(fix.clone())
        });
        let columns = out::columns();
        let lines = first.wrap(columns, indent).into_iter();
        let fixes = fix.map(|fix| fix.wrap(columns, indent + 5));
        for line in lines.chain(fixes.into_iter().flatten()) {
            out::text(&line);
        }
    }
}
