//! An agent that is not there: it speaks as `claude -p --output-format stream-json` does, answers from a scenario or a
//! recorded transcript, and misbehaves on request. For tests of everything around an agent, without an agent.
//!
//! A test crate gets the program by an example of its own: `fn main() -> ExitCode { fake_agent::main() }`.
//! `docs/testing-agents.md` has the words of its scenario and its environment.

mod agent;
mod args;
mod events;
mod inbox;
mod replay;
mod sessions;
mod silence;
mod tools;
mod turn;

use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// The scenario file.
pub const SCENARIO_VAR: &str = "FAKE_AGENT_SCENARIO";
/// A transcript to replay instead.
pub const REPLAY_VAR: &str = "FAKE_AGENT_REPLAY";
/// `real` keeps the transcript's own timing; all else is at full speed.
pub const SPEED_VAR: &str = "FAKE_AGENT_SPEED";
/// Where sessions and the place in the scenario are kept from one process to the next.
pub const STATE_VAR: &str = "FAKE_AGENT_STATE";

/// A file that gets the moments, in nanoseconds since 1970, at which a tool's result was out and an interrupt was heard.
pub const STAMPS_VAR: &str = "FAKE_AGENT_STAMPS";

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

/// Where its input is.
#[derive(Debug, Clone, Default)]
struct Surroundings {
    scenario: Option<PathBuf>,
    replay: Option<PathBuf>,
    real_speed: bool,
    state: Option<PathBuf>,
}

impl Surroundings {
    fn read() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Self {
            scenario: path(SCENARIO_VAR),
            replay: path(REPLAY_VAR),
            real_speed: std::env::var_os(SPEED_VAR).is_some_and(|speed| speed == "real"),
            state: path(STATE_VAR),
        }
    }
}

/// The whole program: arguments, environment, standard input and output.
#[must_use]
#[expect(clippy::print_stderr, reason = "it is a program's main")]
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match agent::run(&words, &Surroundings::read()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
