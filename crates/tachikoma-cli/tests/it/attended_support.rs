//! Helpers for tests of attended loops.

use serde_json::Value;
use tachikoma_testkit::{Scratch, Tool};

use crate::live_support::{await_status, events};

/// The arguments that run `agent.sh` in attended mode.
pub(crate) const ATTENDED: [&str; 7] =
    ["run", "--attended", "--delay", "0s", "--", "sh", "agent.sh"];

/// What is said of a rollback that a stop ended.
pub(crate) const CALLED_OFF: &str = "it was canceled, and nothing was changed";

/// Returns a repository with a prompt and an agent that runs `script`; what else is to be committed is written by `more`.
pub(crate) fn repository(script: &str, more: impl FnOnce(&Scratch)) -> Scratch {
    let scratch = Scratch::with_git();
    scratch.write("prompt.md", "work\n");
    scratch.write("agent.sh", format!("{script}\n"));
    more(&scratch);
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "-qm", "begin"]);
    scratch
}

/// Waits for the question of a number.
#[track_caller]
pub(crate) fn await_question(tool: &Tool<'_>, id: u32) -> Value {
    let asked = await_status(tool, "asked", |status| status["question"]["id"] == id);
    asked["question"].clone()
}

/// What was said of rollbacks: the errors.
pub(crate) fn rolled_back(tool: &Tool<'_>) -> Vec<Value> {
    let records = events(tool).into_iter();
    let records = records.map(|record| record["event"].clone());
    records
        .filter(|event| event["what"] == "rolled_back")
        .map(|event| event["error"].clone())
        .collect()
}
