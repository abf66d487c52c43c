//! A fast loop around a misbehaving fake agent, without a repository.

use std::os::unix::fs::symlink;

use tachikoma_testkit::fake_agent::Misbehavior;
use tachikoma_testkit::{Ran, Scenario, Scratch, Tool};

use crate::claude_support::{self, fake_agent_path, write_scenario};
use crate::support::shown;

/// Settings without delays.
const SETTINGS: [(&str, &str); 6] = [
    ("ITERATION_DELAY", "0s"),
    ("AGENTS__CLAUDE__PERMISSION", "bypass"),
    ("REBOOT__MIN_REBOOT_INTERVAL", "0s"),
    ("REBOOT__MAX_REBOOTS_PER_HOUR", "0"),
    ("REBOOT__FAILURE_COOLDOWN", "0s"),
    ("REBOOT__GRACEFUL_DELAY", "1s"),
];

/// Returns a directory with a prompt and a scenario of the agent.
pub(crate) fn with_scenario(scenario: &Scenario) -> Scratch {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "do the next thing\n");
    // The messages contain this path, so it has to be the same on every machine.
    symlink(fake_agent_path(), scratch.home().join("claude")).unwrap();
    write_scenario(&scratch, scenario);
    scratch
}

/// Returns the binary, with the fake agent as `claude`.
pub(crate) fn claude(scratch: &Scratch) -> Tool<'_> {
    set(claude_support::claude(scratch), &SETTINGS).env(
        "TACHIKOMA_SESSION__CLAUDE_COMMAND",
        scratch.home().join("claude"),
    )
}

/// Returns the tool with additional settings as environment variables.
pub(crate) fn set<'a>(tool: Tool<'a>, settings: &[(&str, &str)]) -> Tool<'a> {
    let set =
        |tool: Tool<'a>, (name, value): &(&str, &str)| tool.env(format!("TACHIKOMA_{name}"), value);
    settings.iter().fold(tool, set)
}

/// Runs the given number of iterations and returns the output lines about problems.
pub(crate) fn loop_of(scratch: &Scratch, iterations: &str, settings: &[(&str, &str)]) -> String {
    shown(&set(claude(scratch), settings).run(run(iterations)))
}

/// Returns a scenario in which each agent process misbehaves in its own way.
pub(crate) fn misbehaving(
    mut scenario: Scenario,
    starts: impl IntoIterator<Item = Misbehavior>,
) -> Scenario {
    scenario.agent.starts = starts.into_iter().collect();
    scenario
}

/// Arguments of a run with the given number of iterations.
pub(crate) fn run(iterations: &str) -> [&str; 5] {
    ["run", "--agent", "claude", "--max-iterations", iterations]
}

/// Returns the output lines that report problems.
pub(crate) fn trouble(ran: &Ran) -> String {
    let wanted = |line: &&str| {
        ["failed", "warning", "error", "hint", "exit:"]
            .iter()
            .any(|word| line.contains(word))
    };
    let text = shown(ran);
    let lines = text.lines().filter(wanted);
    // Ids of conversations are random.
    let lines = lines.map(|line| match line.split_once("session ID: ") {
        Some((before, _)) => format!("{before}session ID: [ID]"),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}
