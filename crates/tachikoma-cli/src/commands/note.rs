//! `tachikoma note`: adds a note for the next sessions, from the agent or the operator.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use tachikoma_core::NOTE_BYTES_MAX;
use tachikoma_loop_runner::control::ControlRequest;
use tachikoma_loop_runner::store::lock;

use super::control::{answered, ask, live_socket, unreachable_runner};
use crate::failure::Failure;
use crate::workspace::Workspace;

/// Sends a note to the running loop.
pub fn note(workspace: &Workspace, words: &[String]) -> Result<ExitCode, Failure> {
    let text = joined_text(words)?;
    if text.is_empty() {
        return Err(Failure::usage("the note is empty")
            .hint("say what the next session has to know: `tachikoma note \"...\"`"));
    }
    if text.len() > NOTE_BYTES_MAX {
        let what = format!(
            "the note has {} bytes; the limit is {NOTE_BYTES_MAX}",
            text.len()
        );
        return Err(Failure::usage(what)
            .hint("write the rest to a file in the work tree, and name that in the note"));
    }
    tell_own_loop(workspace, &ControlRequest::Note { text }, NOTE_HINT)
}

/// Returns the text from the command line, or from standard input if it is `-`.
pub fn joined_text(words: &[String]) -> Result<String, Failure> {
    let text = match words {
        [one] if one == "-" => {
            // At most one byte more than the limit is read, to detect a note that is too long.
            let mut stdin = std::io::stdin().lock().take(NOTE_BYTES_MAX as u64 + 1);
            let mut text = String::new();
            stdin
                .read_to_string(&mut text)
                .map_err(|error| Failure::usage(format!("standard input: {error}")))?;
            text
        }
        words => words.join(" "),
    };
    Ok(text.trim().to_owned())
}

/// Hint for a note without a running loop.
const NOTE_HINT: &str =
    "a note needs a running loop; `tachikoma run` starts one, or continues the last one";

/// Sends a request to the loop that started the caller, or to the loop in this directory.
pub fn tell_own_loop(
    workspace: &Workspace,
    request: &ControlRequest,
    hint: &str,
) -> Result<ExitCode, Failure> {
    let no_live_loop = |dir: &std::path::Path| no_live_loop(dir).hint(hint);
    let working_dir = working_dir(workspace, &no_live_loop)?;
    let socket = live_socket(&working_dir).ok_or_else(|| no_live_loop(&working_dir))?;
    let response = ask(&socket, request)?;
    answered(response.map_err(|error| unreachable_runner(&error))?)
}

/// Finds the loop that started the caller, in any directory; otherwise the loop in this directory.
fn working_dir(
    workspace: &Workspace,
    no_live_loop: &impl Fn(&std::path::Path) -> Failure,
) -> Result<PathBuf, Failure> {
    let Some(of_agent) = workspace.agents_loop() else {
        return workspace
            .working_dir()?
            .ok_or_else(|| no_live_loop(&workspace.directory));
    };
    let dir = of_agent.working_dir;
    let live = lock::holder(&dir).filter(|_| lock::is_held(&dir));
    match live {
        Some(holder) if of_agent.loop_id.is_some_and(|own| own != holder.loop_id) => {
            Err(Failure::new(format!(
                "{} runs a different loop now than the one that started this process",
                dir.display()
            ))
            .hint("the loop that started this process has ended"))
        }
        Some(_) | None => Ok(dir),
    }
}

fn no_live_loop(dir: &std::path::Path) -> Failure {
    Failure::new(format!("no loop runs in {}", dir.display()))
}
