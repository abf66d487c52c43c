//! A fast loop around a misbehaving fake agent, without a repository.

use std::os::unix::fs::symlink;

use tachikoma_testkit::fake_agent::Misbehaviour;
use tachikoma_testkit::{Ran, Scenario, Scratch, Tool};

use crate::claude_support::{self, fake_agent_path, write_scenario};
use crate::support::shown;

/// Nothing is waited for that a test does not want to see waited for.
const SETTINGS: [(&str, &str); 6] = [
    ("ITERATION_DELAY", "0s"),
    ("AGENTS__CLAUDE__PERMISSION", "bypass"),
    ("REBOOT__MIN_REBOOT_INTERVAL", "0s"),
    ("REBOOT__MAX_REBOOTS_PER_HOUR", "0"),
    ("REBOOT__FAILURE_COOLDOWN", "0s"),
    ("REBOOT__GRACEFUL_DELAY", "1s"),
];

/// A work tree with a prompt and what the agent is going to say.
pub(crate) fn with_scenario(scenario: &Scenario) -> Scratch {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "do the next thing\n");
    // Under a name that is the same on every machine.
    symlink(fake_agent_path(), scratch.home().join("claude")).unwrap();
    write_scenario(&scratch, scenario);
    scratch
}

/// The binary, with the fake agent as its `claude`.
pub(crate) fn claude(scratch: &Scratch) -> Tool<'_> {
    set(claude_support::claude(scratch), &SETTINGS).env(
        "TACHIKOMA_SESSION__CLAUDE_COMMAND",
        scratch.home().join("claude"),
    )
}

/// The same with more settings, as variables are called.
pub(crate) fn set<'a>(tool: Tool<'a>, settings: &[(&str, &str)]) -> Tool<'a> {
    let set =
        |tool: Tool<'a>, (name, value): &(&str, &str)| tool.env(format!("TACHIKOMA_{name}"), value);
    settings.iter().fold(tool, set)
}

/// Runs a loop of so many iterations to its end, and returns what it printed.
pub(crate) fn loop_of(scratch: &Scratch, iterations: &str, settings: &[(&str, &str)]) -> String {
    shown(&set(claude(scratch), settings).run(run(iterations)))
}

/// A scenario with processes that misbehave, one after the other.
pub(crate) fn misbehaving(
    mut scenario: Scenario,
    starts: impl IntoIterator<Item = Misbehaviour>,
) -> Scenario {
    scenario.agent.starts = starts.into_iter().collect();
    scenario
}

/// The words of a run of so many iterations.
pub(crate) fn run(iterations: &str) -> [&str; 5] {
    ["run", "--agent", "claude", "--max-iterations", iterations]
}

/// Lines that tell what went wrong.
pub(crate) fn trouble(ran: &Ran) -> String {
    let wanted = |line: &&str| {
        ["failed", "warning", "error", "hint", "exit:"]
            .iter()
            .any(|word| line.contains(word))
    };
    let text = shown(ran);
    let lines = text.lines().filter(wanted);
    // The fake agent's names of its conversations are chance.
    let lines = lines.map(|line| match line.split_once("session ID: ") {
        Some((before, _)) => format!("{before}session ID: [ID]"),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}
