//! Helpers that run the fake agent in a scratch directory.

use std::path::PathBuf;
use std::time::Duration;

use tachikoma_testkit::{Ended, Scenario, Scratch, Talk, Tool, fake_agent};

/// Time limit of waits: long enough for a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) const FORM_C: [&str; 6] = [
    "-p",
    "--input-format",
    "stream-json",
    "--output-format",
    "stream-json",
    "--verbose",
];

/// A scratch directory with a scenario, and a state directory.
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
        Talk::start(&mut tool.command(words), &self.scratch)
    }

    pub(crate) fn start(&self, more: &[&str]) -> Talk {
        let words = [&FORM_C[..], more].concat();
        Talk::start(&mut self.tool().command(words), &self.scratch)
    }

    /// Runs the agent with one prompt on stdin.
    pub(crate) fn run_once(&self, prompt: &str) -> Ended {
        let words = ["-p", "--output-format", "stream-json", "--verbose"];
        let mut talk = Talk::start(&mut self.tool().command(words), &self.scratch);
        talk.send_raw(prompt);
        talk.end(SOON)
    }
}

/// Waits for a file that a tool creates.
#[track_caller]
pub(crate) fn await_file(stage: &Stage, name: &str) {
    let path = stage.scratch.path().join(name);
    tachikoma_testkit::await_until(name, SOON, || path.exists());
}
