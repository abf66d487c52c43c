//! The fake agent in a scratch directory, with a hand on its input.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tachikoma_testkit::{Scenario, Scratch, Tool, fake_agent};

/// Long enough for a loaded machine, short enough to notice.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) const FORM_C: [&str; 6] = [
    "-p",
    "--input-format",
    "stream-json",
    "--output-format",
    "stream-json",
    "--verbose",
];

/// A scratch directory with a scenario, and a state beside it.
pub(crate) struct Stage {
    pub(crate) scratch: Scratch,
}

impl Stage {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let scratch = Scratch::new();
        let text = serde_json::to_string(scenario).expect("it is data");
        scratch.write("scenario.json", text);
        Self { scratch }
    }

    fn tool(&self) -> Tool<'_> {
        let path = |name| self.scratch.path().join(name);
        Tool::new(env!("CARGO_BIN_EXE_fake-agent"), &self.scratch)
            .env(fake_agent::SCENARIO_VAR, path("scenario.json"))
            .env(fake_agent::STATE_VAR, path("state"))
    }

    pub(crate) fn replaying(&self, transcript: PathBuf, words: &[&str]) -> Talk {
        let tool = self.tool().env(fake_agent::REPLAY_VAR, transcript);
        Talk::start(tool.command(words), &self.scratch)
    }

    pub(crate) fn start(&self, more: &[&str]) -> Talk {
        let words = [&FORM_C[..], more].concat();
        Talk::start(self.tool().command(words), &self.scratch)
    }

    /// One prompt on standard input.
    pub(crate) fn run_once(&self, prompt: &str) -> Ended {
        let words = ["-p", "--output-format", "stream-json", "--verbose"];
        let mut talk = Talk::start(self.tool().command(words), &self.scratch);
        talk.send_raw(prompt);
        talk.end()
    }
}

/// A running agent.
pub(crate) struct Talk {
    child: std::process::Child,
    stdin: Option<ChildStdin>,
    output: PathBuf,
    errors: PathBuf,
}

/// One that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) lines: Vec<Value>,
    pub(crate) raw: Vec<u8>,
    pub(crate) errors: String,
}

impl Talk {
    fn start(mut command: Command, scratch: &Scratch) -> Self {
        let name = tachikoma_testkit::unique();
        let output = scratch.path().join(format!("{name}.out"));
        let errors = scratch.path().join(format!("{name}.err"));
        let file = |path| std::fs::File::create(path).expect("the directory is ours");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(file(&output))
            .stderr(file(&errors))
            .spawn()
            .expect("the fake agent starts");
        Self {
            stdin: child.stdin.take(),
            child,
            output,
            errors,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send_raw(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("its input is open");
        stdin.write_all(text.as_bytes()).expect("it reads");
    }

    pub(crate) fn send(&mut self, line: &Value) {
        self.send_raw(&format!("{line}\n"));
    }

    pub(crate) fn prompt(&mut self, text: &str) {
        let message = json!({"role": "user", "content": text});
        self.send(&json!({"type": "user", "message": message}));
    }

    pub(crate) fn control(&mut self, subtype: &str) {
        let request = json!({"subtype": subtype});
        let line = json!({"type": "control_request", "request_id": subtype, "request": request});
        self.send(&line);
    }

    fn raw(&self) -> Vec<u8> {
        std::fs::read(&self.output).expect("its output is there")
    }

    /// The whole lines so far that are JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        lines_of(&self.raw())
    }

    /// Waits for so many lines of a type.
    #[track_caller]
    pub(crate) fn await_lines(&self, kind: &str, count: usize) {
        let what = format!("{count} lines of type {kind}");
        tachikoma_testkit::await_until(&what, SOON, || {
            let lines = self.lines();
            let found = lines.iter().filter(|line| line["type"] == kind);
            found.count() >= count
        });
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child is ours").is_none()
    }

    pub(crate) fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Closes its input and waits for its end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        self.close_input();
        tachikoma_testkit::await_until("the agent's end", SOON, || !self.is_running());
        let status = self.child.wait().expect("it has ended");
        let raw = self.raw();
        Ended {
            code: status.code(),
            lines: lines_of(&raw),
            raw,
            errors: std::fs::read_to_string(&self.errors).expect("its errors are there"),
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // Both fail only when it has been reaped before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(raw: &[u8]) -> Vec<Value> {
    let whole = raw.split_inclusive(|byte| *byte == b'\n');
    whole
        .filter(|line| line.ends_with(b"\n"))
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect()
}

impl Ended {
    /// The types of its lines, with subtypes, in order.
    pub(crate) fn kinds(&self) -> String {
        let kind = |line: &Value| match (line["type"].as_str(), line["subtype"].as_str()) {
            (Some("stream_event"), _) => line["event"]["type"].as_str().unwrap_or("?").to_owned(),
            (Some(kind), Some(subtype)) => format!("{kind}/{subtype}"),
            (kind, _) => kind.unwrap_or("?").to_owned(),
        };
        self.lines.iter().map(kind).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn results(&self) -> Vec<&Value> {
        let lines = self.lines.iter();
        lines.filter(|line| line["type"] == "result").collect()
    }
}

/// Waits for a file that a tool makes.
#[track_caller]
pub(crate) fn await_file(stage: &Stage, name: &str) {
    let path = stage.scratch.path().join(name);
    tachikoma_testkit::await_until(name, SOON, || path.exists());
}
