//! A fake agent: it behaves like `claude -p --output-format stream-json`, answers from a scenario or a recorded transcript, and
//! misbehaves on request.
//!
//! A test crate builds the program as an example: `fn main() -> ExitCode { fake_agent::main() }`.
//! `docs/testing-agents.md` describes its scenario and its environment.

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

pub use crate::behavior::{Behavior, Ignored, Misbehavior, WhileSilent};

/// Environment variable with the path of the scenario file.
pub const SCENARIO_VAR: &str = "FAKE_AGENT_SCENARIO";
/// Environment variable with the path of a transcript to replay instead of a scenario.
pub const REPLAY_VAR: &str = "FAKE_AGENT_REPLAY";
/// Environment variable for the speed of a replay. `real` keeps the recorded timing; otherwise there are no pauses.
pub const SPEED_VAR: &str = "FAKE_AGENT_SPEED";
/// Environment variable with the directory that stores sessions and the position in the scenario between processes.
pub const STATE_VAR: &str = "FAKE_AGENT_STATE";

/// Environment variable with the path of a file to which the times of tool results and interrupts are written, in ns since 1970.
pub const STAMPS_VAR: &str = "FAKE_AGENT_STAMPS";

/// Settings of the fake agent from environment variables.
#[derive(Debug, Clone, Default)]
struct AgentEnvironment {
    scenario: Option<PathBuf>,
    replay: Option<PathBuf>,
    real_speed: bool,
    state: Option<PathBuf>,
}

impl AgentEnvironment {
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

/// Runs the fake agent as a program.
#[must_use]
#[expect(clippy::print_stderr, reason = "it is a program's main")]
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run::run(&words, &AgentEnvironment::read()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
