//! Commit messages with placeholders, checked when the configuration is loaded.

use std::str::FromStr;

use crate::{Context, LoopId, SessionNo};

/// Maximum size of a commit message in bytes. The message is one argument of a command line.
const BYTES_MAX: usize = 8 << 10;

/// A message with its placeholders, as `[git] commit_message` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitMessage(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Placeholder(Placeholder),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placeholder {
    Iteration,
    Status,
    Context,
    Session,
    Loop,
}

const PLACEHOLDERS: [(&str, Placeholder); 5] = [
    ("iteration", Placeholder::Iteration),
    ("status", Placeholder::Status),
    ("context", Placeholder::Context),
    ("session", Placeholder::Session),
    ("loop", Placeholder::Loop),
];

/// Values of the placeholders.
#[derive(Clone, Copy, Debug)]
pub struct CommitFacts<'a> {
    /// Number of the iteration, for `{iteration}`.
    pub iteration: u32,
    /// Value of `{status}`: how the iteration ended, or why the commit is made.
    pub status: &'a str,
    /// How full the context is, for `{context}`; `None` if it is not known.
    pub context: Option<Context>,
    /// Number of the session, for `{session}`.
    pub session: SessionNo,
    /// Id of the loop, for `{loop}`.
    pub loop_id: LoopId,
}

/// Why a text cannot be the message of a commit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitMessageError {
    /// `{name}` is not a placeholder.
    #[error("`{{{0}}}` is not a placeholder")]
    Unknown(String),
    /// A brace is not closed, or not opened.
    #[error("`{0}` has no matching brace")]
    Unpaired(char),
    /// The message is empty. Git rejects empty messages.
    #[error("it is empty, and git rejects empty messages")]
    Empty,
    /// The message is too long. The field is its size in bytes.
    #[error("it has {0} bytes; the maximum is {BYTES_MAX}")]
    TooLong(usize),
    /// The message contains a NUL, which a command-line argument cannot contain.
    #[error("it has a NUL character")]
    Nul,
}

impl CommitMessage {
    /// Explains the placeholders, for error messages.
    pub const ALLOWED: &'static str = "{iteration}, {status}, {context}, {session} and {loop} are filled in; {{ and }} are plain braces";

    /// Returns the message with its placeholders filled in.
    #[must_use]
    pub fn fill(&self, facts: &CommitFacts<'_>) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Placeholder(placeholder) => match placeholder {
                Placeholder::Iteration => facts.iteration.to_string(),
                Placeholder::Status => facts.status.to_owned(),
                Placeholder::Context => facts.context.map_or_else(
                    || "unknown".to_owned(),
                    |context| format!("{}%", context.percent_rounded_down()),
                ),
                Placeholder::Session => facts.session.to_string(),
                Placeholder::Loop => facts.loop_id.to_string(),
            },
        };
        self.0.iter().map(text).collect()
    }
}

impl FromStr for CommitMessage {
    type Err = CommitMessageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > BYTES_MAX {
            return Err(CommitMessageError::TooLong(text.len()));
        }
        if text.contains('\0') {
            return Err(CommitMessageError::Nul);
        }
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            let after = &rest[at + 1..];
            if let Some(after) = after.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(CommitMessageError::Unpaired('}'));
            }
            let Some((name, after)) = after.split_once('}') else {
                return Err(CommitMessageError::Unpaired('{'));
            };
            let known = PLACEHOLDERS.iter().find(|(known, _)| *known == name);
            let (_, placeholder) =
                known.ok_or_else(|| CommitMessageError::Unknown(name.to_owned()))?;
            parts.push(Part::Text(std::mem::take(&mut plain)));
            parts.push(Part::Placeholder(*placeholder));
            rest = after;
        }
        plain.push_str(rest);
        if parts.is_empty() && plain.trim().is_empty() {
            return Err(CommitMessageError::Empty);
        }
        parts.push(Part::Text(plain));
        Ok(Self(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str, context: Option<Context>) -> String {
        let facts = CommitFacts {
            iteration: 7,
            status: "succeeded",
            context,
            session: SessionNo(2),
            loop_id: LoopId::from_u128(1),
        };
        template.parse::<CommitMessage>().unwrap().fill(&facts)
    }

    fn refused(template: &str) -> String {
        template.parse::<CommitMessage>().unwrap_err().to_string()
    }

    #[test]
    fn every_placeholder_is_filled_in() {
        let context = Context {
            tokens: 124_999,
            window: 200_000,
            estimated: false,
        };
        assert_eq!(
            filled(
                "{iteration} {status} {context} s{session}: {loop}",
                Some(context)
            ),
            "7 succeeded 62% s2: loop_00000000-0000-0000-0000-000000000001"
        );
        assert_eq!(filled("{context}", None), "unknown");
        for (name, _) in PLACEHOLDERS {
            let named = format!("{{{name}}}");
            assert!(
                CommitMessage::ALLOWED.contains(&named),
                "{named} is documented"
            );
        }
    }

    #[test]
    fn doubled_braces_become_plain_braces() {
        assert_eq!(filled("{{{iteration}}} }}{{", None), "{7} }{");
        assert_eq!(filled("feat: ü\n\n- {{x}}\n", None), "feat: ü\n\n- {x}\n");
        assert_eq!(filled("{status}{status}", None), "succeededsucceeded");
    }

    #[test]
    fn invalid_commit_message_templates_are_rejected() {
        assert_eq!(refused("a {iter}"), "`{iter}` is not a placeholder");
        assert_eq!(refused("a {}"), "`{}` is not a placeholder");
        assert_eq!(
            refused("{ iteration }"),
            "`{ iteration }` is not a placeholder"
        );
        assert_eq!(refused("a {iteration"), "`{` has no matching brace");
        assert_eq!(refused("iteration} b"), "`}` has no matching brace");
        assert_eq!(refused("{{iteration}"), "`}` has no matching brace");
        assert_eq!(
            refused(" \n"),
            "it is empty, and git rejects empty messages"
        );
        assert_eq!(refused("a\0b"), "it has a NUL character");
        assert_eq!(
            refused(&"a".repeat(8193)),
            "it has 8193 bytes; the maximum is 8192"
        );
        assert_eq!(filled(&"a".repeat(8192), None).len(), 8192);
    }
}
