//! The environment of one check: scratch directories, the agent with its own environment, and functions that read its output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tachikoma_agents::AgentEvent;
use tachikoma_agents::claude::Decoder;
use tachikoma_testkit::{Ended, Kind, Scratch, ScriptedModel, Talk, Usage, await_until};

/// A model with a window of 200,000 tokens, which a scenario can fill.
pub const MODEL: &str = "claude-sonnet-4-5";
pub const WINDOW: u64 = 200_000;

const OUT: [&str; 4] = ["-p", "--output-format", "stream-json", "--verbose"];
const IN: [&str; 2] = ["--input-format", "stream-json"];
const USUAL: [&str; 3] = ["--dangerously-skip-permissions", "--model", MODEL];

/// The environment of one check.
pub struct Ground {
    pub scratch: Scratch,
    /// Time limit of all waits.
    pub patience: Duration,
    programs: Programs,
}

/// Paths of the programs.
#[derive(Debug, Clone)]
pub struct Programs {
    pub claude: PathBuf,
    pub opencode: PathBuf,
    pub tachikoma: PathBuf,
}

impl Ground {
    pub fn new(programs: &Programs, patience: Duration) -> Self {
        Self {
            scratch: Scratch::new(),
            patience,
            programs: programs.clone(),
        }
    }

    /// Returns another environment with the same programs.
    pub fn another(&self) -> Self {
        Self::new(&self.programs, self.patience)
    }

    /// Returns a tachikoma command in the agent's environment.
    pub fn tachikoma(&self, model: &ScriptedModel, words: &[&str]) -> Command {
        let mut command = self.surrounded(&self.programs.tachikoma, model);
        command
            .args(words)
            .env("XDG_RUNTIME_DIR", self.scratch.runtime_dir());
        command
    }

    /// Returns a tachikoma command that runs Claude Code as a plain command, with one prompt.
    pub fn tachikoma_around(&self, model: &ScriptedModel, words: &[&str]) -> Command {
        let mut command = self.tachikoma(model, words);
        command
            .arg(&self.programs.claude)
            .args([&OUT[..], &USUAL].concat());
        command
    }

    /// All programs.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Returns the path of the Claude Code program.
    pub fn claude_path(&self) -> &Path {
        &self.programs.claude
    }

    /// Returns a command that starts Claude Code with these arguments.
    fn claude(&self, model: &ScriptedModel, words: &[&str]) -> Command {
        let mut command = self.surrounded(&self.programs.claude, model);
        command.args(words);
        command
    }

    /// Returns a command without the caller's environment: no account, no settings, a dummy key.
    pub fn surrounded(&self, program: &Path, model: &ScriptedModel) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        command
            .current_dir(self.scratch.path())
            .env_clear()
            .env("PATH", path)
            .env("LANG", "C.UTF-8")
            .env("HOME", self.scratch.home())
            .env("TMPDIR", self.scratch.runtime_dir())
            .env("CLAUDE_CONFIG_DIR", self.scratch.home().join("claude"))
            .env("ANTHROPIC_BASE_URL", model.url())
            .env("ANTHROPIC_API_KEY", "dummy")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
            .env("DISABLE_AUTOUPDATER", "1")
            .env("DISABLE_TELEMETRY", "1")
            .env("DISABLE_ERROR_REPORTING", "1")
            .env("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1")
            // The agent refuses some permissions as root. The checks run as root in a namespace.
            .env("IS_SANDBOX", "1");
        command
    }

    /// Runs the agent with one prompt on stdin, to the end.
    pub fn one_prompt(&self, model: &ScriptedModel, more: &[&str], prompt: &str) -> Ended {
        let words = [&OUT[..], &USUAL, more].concat();
        self.finish(&mut self.claude(model, &words), prompt)
    }

    /// Gives a command a prompt and waits for its end.
    pub fn finish(&self, command: &mut Command, prompt: &str) -> Ended {
        let mut talk = Talk::start(command, &self.scratch);
        talk.send_raw(prompt);
        let ended = talk.end(self.patience);
        expect_decodable(&ended);
        ended
    }

    /// Returns the command line of one prompt, to change its environment.
    pub fn one_prompt_command(&self, model: &ScriptedModel) -> Command {
        self.claude(model, &[&OUT[..], &USUAL].concat())
    }

    /// Starts the agent for prompts that are sent as JSON lines.
    pub fn talk(&self, model: &ScriptedModel, more: &[&str]) -> Talk {
        let words = [&OUT[..], &IN, &USUAL, more].concat();
        Talk::start(&mut self.claude(model, &words), &self.scratch)
    }

    /// Ends a talk.
    pub fn end(&self, talk: Talk) -> Ended {
        let ended = talk.end(self.patience);
        expect_decodable(&ended);
        ended
    }

    /// Waits for this many lines of a type.
    pub fn await_lines(&self, talk: &Talk, kind: &str, count: usize) {
        talk.await_lines(kind, count, self.patience);
    }

    /// Waits until the agent has saved a tool call. It saves its conversation with a delay, and unsaved parts are lost when it is killed.
    pub fn await_kept_call(&self) {
        let projects = self.scratch.home().join("claude/projects");
        let kept = || {
            let Ok(projects) = fs::read_dir(&projects) else {
                return false;
            };
            let files = projects
                .flatten()
                .flat_map(|project| fs::read_dir(project.path()));
            let mut texts = files.flatten().flatten().map(|file| fs::read(file.path()));
            texts.any(|text| {
                text.is_ok_and(|text| String::from_utf8_lossy(&text).contains("\"tool_use\""))
            })
        };
        await_until("the call to be kept", self.patience, kept);
    }

    /// Waits for a file of the work tree.
    pub fn await_file(&self, name: &str) {
        let path = self.scratch.path().join(name);
        await_until(name, self.patience, || path.exists());
    }
}

/// Checks that every line is a JSON object with a type.
fn expect_decodable(ended: &Ended) {
    let text = String::from_utf8(ended.raw.clone()).expect("the output is UTF-8");
    for line in text.lines() {
        let value: Value = serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("a line is not JSON ({error}): {line:.200}"));
        assert!(value["type"].is_string(), "a line has no type: {line:.200}");
    }
}

/// Returns the only result of a process with one prompt.
#[track_caller]
pub fn only_result(ended: &Ended) -> &Value {
    let results = ended.results();
    assert_eq!(
        results.len(),
        1,
        "results; it printed {} and complained: {}",
        ended.kinds(),
        ended.errors
    );
    results[0]
}

/// Returns the input tokens of each message of the main conversation, from the last line of each message. Messages of sub-agents
/// and those that the agent created are skipped.
pub fn readings(ended: &Ended) -> Vec<u64> {
    let mut readings: Vec<(&str, u64)> = Vec::new();
    for line in ended.of_type("assistant") {
        let message = &line["message"];
        let is_main = line["parent_tool_use_id"].is_null();
        if !is_main || message["model"] == "<synthetic>" {
            continue;
        }
        let id = message["id"].as_str().unwrap_or_default();
        let tokens = |name: &str| message["usage"][name].as_u64().unwrap_or_default();
        let sum = tokens("input_tokens")
            + tokens("cache_read_input_tokens")
            + tokens("cache_creation_input_tokens");
        match readings.last_mut() {
            Some((last, known)) if *last == id => *known = sum,
            _ => readings.push((id, sum)),
        }
    }
    readings.into_iter().map(|(_, sum)| sum).collect()
}

/// Returns the token counts of the model's answers in the main conversation.
pub fn usages(model: &ScriptedModel) -> Vec<Usage> {
    let main = model.asked_for(Kind::Main).into_iter();
    main.filter_map(|asked| asked.usage).collect()
}

/// Compares the agent's output with the model's answers, message by message, and with what tachikoma reads.
#[track_caller]
pub fn expect_readings(ended: &Ended, model: &ScriptedModel) -> usize {
    let (readings, sent) = (readings(ended), usages(model));
    let input_side = |usage: &Usage| usage.context() - usage.output;
    let expected: Vec<u64> = sent.iter().map(input_side).collect();
    assert_eq!(readings, expected, "tokens read, and tokens sent");
    let mut decoder = Decoder::default();
    let mut seen = Vec::new();
    for line in ended.raw.split(|byte| *byte == b'\n') {
        decoder.decode(line, &mut seen);
    }
    let decoded: Vec<u64> = seen
        .iter()
        .filter_map(|seen| match seen {
            // Estimates of the agent do not correspond to an answer.
            AgentEvent::Measured(reading) if !reading.estimated => Some(reading.tokens),
            _ => None,
        })
        .collect();
    expect_sent(&decoded, &sent);
    readings.len()
}

/// Checks that every reading is the start or the end of an answer, in order. Returns how many were read to their end.
#[track_caller]
pub fn expect_sent(readings: &[u64], sent: &[Usage]) -> usize {
    let (mut at, mut whole) = (0, 0);
    for tokens in readings {
        let is_its = |usage: &Usage| {
            let begun = usage.context() - usage.output + usage.output.min(1);
            *tokens == usage.context() || *tokens == begun
        };
        let Some(skipped) = sent.iter().skip(at).position(is_its) else {
            panic!("{tokens} tokens were read, and not sent from answer {at} of {sent:?} on");
        };
        at += skipped;
        whole += usize::from(*tokens == sent[at].context());
    }
    whole
}
