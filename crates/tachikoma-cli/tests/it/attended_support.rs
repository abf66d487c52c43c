//! Helpers for tests of attended loops.

use serde_json::Value;
use tachikoma_testkit::{Scratch, Tool};

use crate::live_support::{await_status, events};

/// The arguments that run `agent.sh` in attended mode.
pub(crate) const ATTENDED: [&str; 7] =
    ["run", "--attended", "--delay", "0s", "--", "sh", "agent.sh"];

/// Error message of a rollback that a stop interrupted.
pub(crate) const CALLED_OFF: &str = "it was canceled, and nothing was changed";

/// Returns a repository with a prompt and an agent that runs `script`. `more` writes further files before the commit.
pub(crate) fn repository(script: &str, more: impl FnOnce(&Scratch)) -> Scratch {
    let scratch = Scratch::with_git();
    scratch.write("prompt.md", "work\n");
    scratch.write("agent.sh", format!("{script}\n"));
    more(&scratch);
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "-qm", "begin"]);
    scratch
}

/// Waits until a question with the given number is open.
#[track_caller]
pub(crate) fn await_question(tool: &Tool<'_>, id: u32) -> Value {
    let asked = await_status(tool, "asked", |status| status["question"]["id"] == id);
    asked["question"].clone()
}

/// Returns the error of each rollback in the journal; null for a successful one.
pub(crate) fn rolled_back(tool: &Tool<'_>) -> Vec<Value> {
    let records = events(tool).into_iter();
    let records = records.map(|record| record["event"].clone());
    records
        .filter(|event| event["what"] == "rolled_back")
        .map(|event| event["error"].clone())
        .collect()
}
