//! `tachikoma run --agent claude` with the fake agent in the place of Claude Code.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tachikoma_testkit::fake_agent::{Misbehaviour, SCENARIO_VAR, STATE_VAR};
use tachikoma_testkit::{Ran, Scenario, Scratch, Tool};

use crate::support::{shown, tachikoma};

/// Nothing is waited for that a test does not want to see waited for.
const SETTINGS: [(&str, &str); 6] = [
    ("ITERATION_DELAY", "0s"),
    ("AGENTS__CLAUDE__PERMISSION", "bypass"),
    ("REBOOT__MIN_REBOOT_INTERVAL", "0s"),
    ("REBOOT__MAX_REBOOTS_PER_HOUR", "0"),
    ("REBOOT__FAILURE_COOLDOWN", "0s"),
    ("REBOOT__GRACEFUL_DELAY", "1s"),
];

/// The fake agent, which `cargo test` builds beside the binary.
pub(crate) fn fake_agent() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_tachikoma"));
    let path = binary.with_file_name("examples").join("fake-agent");
    assert!(path.exists(), "{} is built by `cargo test`", path.display());
    path
}

/// A work tree with a prompt and what the agent is going to say.
pub(crate) fn with_scenario(scenario: &Scenario) -> Scratch {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "do the next thing\n");
    // Under a name that is the same on every machine.
    symlink(fake_agent(), scratch.home().join("claude")).unwrap();
    let scenario = serde_json::to_string(scenario).expect("it is data");
    fs::write(scratch.home().join("scenario.json"), scenario).unwrap();
    scratch
}

/// The binary, with the fake agent as its `claude`.
pub(crate) fn claude(scratch: &Scratch) -> Tool<'_> {
    SETTINGS
        .iter()
        .fold(tachikoma(scratch), |tool, (name, value)| {
            tool.env(format!("TACHIKOMA_{name}"), value)
        })
        .env(
            "TACHIKOMA_SESSION__CLAUDE_COMMAND",
            scratch.home().join("claude"),
        )
        .env(SCENARIO_VAR, scratch.home().join("scenario.json"))
        .env(STATE_VAR, scratch.home().join("agent"))
}

/// A scenario whose processes misbehave, one after the other.
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
