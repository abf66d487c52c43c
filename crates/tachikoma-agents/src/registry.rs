//! The agents by name, with a guess at what was meant.

use std::fmt;

/// An agent's name, and whether it can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The name.
    pub name: &'static str,
    /// Whether this version can drive it.
    pub built: bool,
}

/// Every agent whose name means something.
pub const AGENTS: [Known; 7] = [
    Known {
        name: "claude",
        built: false,
    },
    Known {
        name: "opencode",
        built: false,
    },
    Known {
        name: "codex",
        built: false,
    },
    Known {
        name: "gemini",
        built: false,
    },
    Known {
        name: "acp",
        built: false,
    },
    Known {
        name: "command",
        built: true,
    },
    Known {
        name: "demo",
        built: true,
    },
];

/// A name that is no agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAgent {
    /// The name.
    pub name: String,
    /// The agent that was probably meant.
    pub nearest: Option<&'static str>,
}

impl fmt::Display for UnknownAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown agent `{}`", self.name)
    }
}

impl std::error::Error for UnknownAgent {}

/// Finds an agent by name.
///
/// # Errors
/// No agent has that name.
pub fn find(name: &str) -> Result<Known, UnknownAgent> {
    AGENTS
        .into_iter()
        .find(|known| known.name == name)
        .ok_or_else(|| UnknownAgent {
            name: name.to_owned(),
            nearest: nearest(name),
        })
}

fn nearest(name: &str) -> Option<&'static str> {
    /// Below this, a name is another word rather than a slip.
    const SIMILAR_ENOUGH: f64 = 0.7;
    AGENTS
        .iter()
        .map(|known| (strsim::jaro_winkler(name, known.name), known.name))
        .filter(|(similarity, _)| *similarity >= SIMILAR_ENOUGH)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_guessed_and_another_word_is_not() {
        assert_eq!(
            find("demo"),
            Ok(Known {
                name: "demo",
                built: true
            })
        );
        assert_eq!(find("cluade").unwrap_err().nearest, Some("claude"));
        assert_eq!(find("comand").unwrap_err().nearest, Some("command"));
        assert_eq!(find("xyzzy").unwrap_err().nearest, None);
    }
}
