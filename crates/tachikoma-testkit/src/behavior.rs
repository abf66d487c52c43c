//! How the fake agent behaves: the part of a scenario that only it reads.

use serde::{Deserialize, Serialize};

/// The window of the models that the tests mostly use.
const WINDOW_TOKENS: u64 = 200_000;

/// How the fake agent behaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Behaviour {
    /// The size of the context that it reports.
    pub window: u64,
    /// How its first, second, ... process misbehaves.
    pub starts: Vec<Misbehaviour>,
    /// How all later ones do.
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

/// What one process does wrong. Lines are those it prints, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Misbehaviour {
    /// Prints nothing, ever.
    pub hang_at_start: bool,
    /// Hangs after this line.
    pub silent_after_line: Option<u64>,
    /// What it does while it hangs.
    pub while_silent: Option<WhileSilent>,
    /// Prints a line that is not JSON, and one that is not text, before this line.
    pub garbage_before_line: Option<u64>,
    /// Prints a line of so many bytes before its second line.
    pub huge_line_bytes: Option<usize>,
    /// What it does not hear.
    pub ignore: Vec<Ignored>,
    /// Exits instead of printing this line.
    pub exit_at_line: Option<u64>,
    /// With this code there, and between prompts.
    pub exit_code: u8,
    /// Closes its output instead of printing this line, and goes on without.
    pub close_stdout_at_line: Option<u64>,
    /// Does not end when it should.
    pub hang_after_result: bool,
    /// Exits after this many results, whatever is asked next.
    pub die_after_results: Option<u64>,
    /// Leaves a process behind that has this in its command line, a session of its own, and nobody as its parent.
    pub escaping_child: Option<String>,
    /// The child clears its environment too.
    pub child_without_env: bool,
    /// Prints each result twice.
    pub second_result: bool,
    /// Names this session, whatever was asked for.
    pub session_id: Option<String>,
    /// Says that it is of this version.
    pub version: Option<String>,
    /// Does not know the question what its conversation has cost, as older ones do not.
    pub tells_no_cost: bool,
    /// Minds no budget that it is given.
    pub overspends: bool,
    /// Says this on standard error when it exits before its time.
    pub last_words: Option<String>,
}

/// What an agent may do while it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhileSilent {
    /// Computes.
    Compute,
    /// Takes whatever comes from this port of the machine.
    Receive {
        /// The port.
        port: u16,
    },
}

/// What an agent may not hear.
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
