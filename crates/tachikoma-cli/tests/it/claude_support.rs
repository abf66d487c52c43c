//! A loop around the fake agent that replaces Claude Code.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tachikoma_testkit::{Ran, Rule, Scenario, Scratch, Tool, Turn, Usage, fake_agent};

use crate::support::tachikoma;

/// Settings without delays.
const NO_WAITS: &str = "iteration_delay = \"0s\"\n\n\
    [agent]\nname = \"claude\"\n\n\
    [reboot]\nmin_reboot_interval = \"0s\"\nfailure_cooldown = \"0s\"\nmax_reboots_per_hour = 0\n";

/// Hand-off that the old session writes when it is asked for it.
pub const WORDS: &str = "The parser is done, the printer is next.";

/// Returns a git repository with one commit, a prompt, settings without delays plus `more`, and a scenario.
pub fn stage(scenario: &Scenario, more: &str) -> Scratch {
    let scratch = Scratch::with_git();
    place(&scratch, scenario, more);
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "before the loop"]);
    scratch
}

/// Writes the prompt, the settings without delays plus `more`, and the scenario into a directory.
pub fn place(scratch: &Scratch, scenario: &Scenario, more: &str) {
    scratch.write("prompt.md", "the task\n");
    let program = fake_agent_path();
    let session = format!("\n[session]\nclaude_command = \"{}\"\n", program.display());
    scratch.write("tachikoma.toml", format!("{NO_WAITS}{session}{more}"));
    write_scenario(scratch, scenario);
}

/// Writes the scenario of the agent.
pub fn write_scenario(scratch: &Scratch, scenario: &Scenario) {
    let text = serde_json::to_string(scenario).expect("the scenario can be serialized");
    std::fs::write(scratch.home().join("scenario.json"), text)
        .expect("the scenario file can be written");
}

/// Returns the binary with the variables of the fake agent.
pub fn claude(scratch: &Scratch) -> Tool<'_> {
    tachikoma(scratch)
        .env(
            fake_agent::SCENARIO_VAR,
            scratch.home().join("scenario.json"),
        )
        .env(fake_agent::STATE_VAR, scratch.home().join("agent"))
}

/// Runs the loop to its end.
pub fn run_claude(scratch: &Scratch, flags: &[&str]) -> Ran {
    claude(scratch).run(["run"].iter().chain(flags))
}

/// Returns a scenario in which the old session is asked for its hand-off and answers.
pub fn scenario(turns: impl IntoIterator<Item = Turn>) -> Scenario {
    let mut scenario = Scenario::of(turns);
    scenario.rules.push(Rule {
        when: "Write its hand-off".to_owned(),
        turn: Turn::text(WORDS).using(Usage::cached(172_000)),
    });
    scenario
}

/// Returns a call of the shell tool. `tokens` is the context usage, of a window of 200 000 tokens.
pub fn bash(command: &str, tokens: u64) -> Turn {
    Turn::bash(command).using(Usage::cached(tokens))
}

/// Returns an answer that ends a turn. `tokens` is the context usage.
pub fn says(text: &str, tokens: u64) -> Turn {
    Turn::text(text).using(Usage::cached(tokens))
}

/// Returns a tool call that changes a file. A claim without work would be rejected.
pub fn did() -> Turn {
    bash("true", 1_000)
}

/// Returns an answer that claims completion. `tokens` is the context usage.
pub fn claims(tokens: u64) -> Turn {
    says("All is done.\n<promise>COMPLETE</promise>", tokens)
}

/// Returns the session id and the text of each prompt that the agent got, in order.
pub fn prompts(scratch: &Scratch) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(scratch.home().join("agent/prompts.jsonl"));
    let parse = |line: &str| {
        let asked: Value = serde_json::from_str(line).expect("an object");
        let part = |name: &str| asked[name].as_str().expect("a text").to_owned();
        (part("session"), part("prompt"))
    };
    text.unwrap_or_default().lines().map(parse).collect()
}

/// Replaces the agent by a wrapper script. `AGENT` in the script is the path of the agent.
pub fn wrap_agent(scratch: &Scratch, script: &str) {
    let own = fake_agent_path().display().to_string();
    let program = scratch.write_script("agent.sh", script.replace("AGENT", &format!("'{own}'")));
    let config = scratch.read("tachikoma.toml");
    let config = config.replace(&own, &program.display().to_string());
    scratch.write("tachikoma.toml", config);
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "another agent"]);
}

/// The fake agent, which `cargo test` builds beside the binary.
pub fn fake_agent_path() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_tachikoma"));
    let path = binary.with_file_name("examples").join("fake-agent");
    assert!(path.exists(), "{} is built by `cargo test`", path.display());
    path
}
