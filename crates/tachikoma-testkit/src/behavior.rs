//! How the fake agent behaves: the part of a scenario that only the fake agent reads.

use serde::{Deserialize, Serialize};

/// The context window of the models that most tests use.
const WINDOW_TOKENS: u64 = 200_000;

/// How the fake agent behaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Behaviour {
    /// The size of the context that it reports.
    pub window: u64,
    /// How its first, second, ... process misbehaves.
    pub starts: Vec<Misbehaviour>,
    /// How all later processes misbehave.
    pub always: Misbehaviour,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            window: WINDOW_TOKENS,
            starts: Vec::new(),
            always: Misbehaviour::default(),
        }
    }
}

/// How one process misbehaves. Lines are those that it prints, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Misbehaviour {
    /// Never prints anything.
    pub hang_at_start: bool,
    /// Hangs after this line.
    pub silent_after_line: Option<u64>,
    /// What it does while it hangs.
    pub while_silent: Option<WhileSilent>,
    /// Prints a line that is not JSON, and one that is not text, before this line.
    pub garbage_before_line: Option<u64>,
    /// Prints a line of this many bytes before its second line.
    pub huge_line_bytes: Option<usize>,
    /// What it ignores.
    pub ignore: Vec<Ignored>,
    /// Exits instead of printing this line.
    pub exit_at_line: Option<u64>,
    /// The exit code there, and between prompts.
    pub exit_code: u8,
    /// Closes its output instead of printing this line, and continues.
    pub close_stdout_at_line: Option<u64>,
    /// Does not exit when it should.
    pub hang_after_result: bool,
    /// Exits after this many results.
    pub die_after_results: Option<u64>,
    /// Leaves a process running that has this in its command line and its own session, and is orphaned.
    pub escaping_child: Option<String>,
    /// The child clears its environment too.
    pub child_without_env: bool,
    /// Prints each result twice.
    pub second_result: bool,
    /// Reports this session id.
    pub session_id: Option<String>,
    /// Reports this version.
    pub version: Option<String>,
    /// Does not know the request for the cost of the conversation, like older versions.
    pub tells_no_cost: bool,
    /// Ignores its budget.
    pub overspends: bool,
    /// Prints this to standard error if it exits early.
    pub last_words: Option<String>,
}

/// What an agent does while it is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhileSilent {
    /// Uses the CPU.
    Compute,
    /// Receives data from this local port.
    Receive {
        /// The port.
        port: u16,
    },
}

/// What an agent ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ignored {
    /// The interrupt of the protocol.
    Interrupt,
    /// SIGINT.
    Sigint,
    /// SIGTERM.
    Sigterm,
}
