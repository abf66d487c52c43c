//! Runs the fake agent with its arguments and its environment, and returns its exit code.

use super::agent::{Agent, Break};
use super::args::Args;
use super::{AgentEnvironment, events, replay};
use crate::scenario::Scenario;

/// Runs the fake agent. Returns the exit code, or a message for standard error with exit code 1.
pub(super) fn run(words: &[String], environment: &AgentEnvironment) -> Result<u8, String> {
    let args = Args::parse(words)?;
    if args.version {
        say_version();
        return Ok(0);
    }
    let scenario = match &environment.scenario {
        Some(path) => Scenario::read(path)?,
        None => Scenario::default(),
    };
    let mut agent = Agent::start(args, scenario, environment)?;
    let lived = match &environment.replay {
        Some(file) => replay::play(&mut agent, file, environment.real_speed),
        None => agent.live(),
    };
    match lived {
        Ok(()) => Ok(u8::from(agent.last_failed)),
        Err(Break::Interrupted | Break::Signalled) => Ok(0),
        Err(Break::Exit(code)) => {
            agent.complain();
            Ok(code)
        }
        Err(Break::Failed(error)) => Err(error),
    }
}

#[expect(clippy::print_stdout, reason = "it is asked to")]
fn say_version() {
    println!("{} (Claude Code)", events::VERSION);
}
