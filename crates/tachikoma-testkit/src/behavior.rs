//! Behavior of the fake agent: the part of a scenario that only the fake agent reads.

use serde::{Deserialize, Serialize};

/// Context window of the models that most tests use, in tokens.
const WINDOW_TOKENS: u64 = 200_000;

/// Behavior of the fake agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Behavior {
    /// Size of the context window that the fake agent reports, in tokens.
    pub window: u64,
    /// How the first, second, ... process of the fake agent misbehaves.
    pub starts: Vec<Misbehavior>,
    /// How all processes after those of `starts` misbehave.
    pub always: Misbehavior,
}

impl Default for Behavior {
    fn default() -> Self {
        Self {
            window: WINDOW_TOKENS,
            starts: Vec::new(),
            always: Misbehavior::default(),
        }
    }
}

/// How one process of the fake agent misbehaves. Lines are output lines, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Misbehavior {
    /// The process never prints anything.
    pub hang_at_start: bool,
    /// The process hangs after it has printed this line.
    pub silent_after_line: Option<u64>,
    /// Activity of the process while it hangs; `None` if it is idle.
    pub while_silent: Option<WhileSilent>,
    /// Before this line, the process prints a line that is not JSON and one that is not UTF-8.
    pub garbage_before_line: Option<u64>,
    /// Before its second line, the process prints a line of this many bytes.
    pub huge_line_bytes: Option<usize>,
    /// Interrupts and signals that the process ignores.
    pub ignore: Vec<Ignored>,
    /// The process exits instead of printing this line.
    pub exit_at_line: Option<u64>,
    /// Exit code of an early exit (`exit_at_line`, `die_after_results`).
    pub exit_code: u8,
    /// The process closes its stdout instead of printing this line, and continues to run.
    pub close_stdout_at_line: Option<u64>,
    /// The process does not exit after its last result.
    pub hang_after_result: bool,
    /// The process exits after this many results.
    pub die_after_results: Option<u64>,
    /// The process starts an orphan in its own session, with this text in its command line, and leaves it running.
    pub escaping_child: Option<String>,
    /// The process left by `escaping_child` has an empty environment.
    pub child_without_env: bool,
    /// The process prints each result twice.
    pub second_result: bool,
    /// Session id that the process reports instead of its own.
    pub session_id: Option<String>,
    /// Version that the process reports instead of the imitated one.
    pub version: Option<String>,
    /// The process rejects the request for the cost of the conversation, like older versions.
    pub tells_no_cost: bool,
    /// The process ignores its budget.
    pub overspends: bool,
    /// Text that the process prints to stderr if it exits early.
    pub last_words: Option<String>,
}

/// Activity of an agent while it prints nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhileSilent {
    /// Uses the CPU.
    Compute,
    /// Receives data from this local port.
    Receive {
        /// Number of the port.
        port: u16,
    },
}

/// Interrupt or signal that an agent ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ignored {
    /// The interrupt message of the protocol.
    Interrupt,
    /// SIGINT.
    Sigint,
    /// SIGTERM.
    Sigterm,
}
