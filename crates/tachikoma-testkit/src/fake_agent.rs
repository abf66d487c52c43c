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
mod run;
mod sessions;
mod silence;
mod tools;
mod turn;

use std::path::PathBuf;
use std::process::ExitCode;

pub use crate::behavior::{Behaviour, Ignored, Misbehaviour, WhileSilent};

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
    match run::run(&words, &Surroundings::read()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
