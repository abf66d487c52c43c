//! `tachikoma answer`, `attend`, `tell`, `reload`: requests of the operator to a running loop.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tachikoma_core::{Choice, NOTE_BYTES_MAX};
use tachikoma_loop_runner::control::ControlRequest;

use super::control::ask_live;
use super::note::joined_text;
use crate::args::AnswerArgs;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// Answers the open question of the loop.
pub fn answer(workspace: &Workspace, args: &AnswerArgs) -> Result<ExitCode, Failure> {
    let (id, word) = match args.words.as_slice() {
        [word] => (None, Some(word)),
        [id, word] => (Some(number(id)?), Some(word)),
        [] | [_, _, ..] => (None, None),
    };
    let choice = match word {
        Some(word) => choice(word)?,
        None => Choice::Edit,
    };
    let prompt_file = args.prompt_file.as_deref().map(absolute).transpose()?;
    if (choice == Choice::Edit) != prompt_file.is_some() {
        return Err(Failure::usage("`edit` and `--prompt-file` go together")
            .hint("`tachikoma answer edit --prompt-file FILE`"));
    }
    let request = ControlRequest::Answer {
        id,
        choice,
        prompt_file,
    };
    ask_live(workspace, &request)
}

fn number(text: &str) -> Result<u32, Failure> {
    text.parse().map_err(|_| {
        Failure::usage(format!("`{text}` is not the number of a question"))
            .hint("`tachikoma status` shows the open question; without a number, the answer is for that one")
    })
}

fn choice(word: &str) -> Result<Choice, Failure> {
    let found = Choice::ALL.into_iter().find(|choice| choice.word() == word);
    found.ok_or_else(|| {
        let words: Vec<&str> = Choice::ALL.iter().map(|choice| choice.word()).collect();
        Failure::usage(format!("`{word}` is not an answer")).hint(format!(
            "an answer is one of {}; `tachikoma status` shows which of them the question offers",
            words.join(", ")
        ))
    })
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize()
        .map_err(|error| Failure::usage(format!("prompt {}: {error}", path.display())))
}

/// Sends a message to the agent of the running loop.
pub fn tell(workspace: &Workspace, words: &[String]) -> Result<ExitCode, Failure> {
    let text = joined_text(words)?;
    if text.is_empty() || text.len() > NOTE_BYTES_MAX {
        let what = format!(
            "a message to the agent has from 1 to {NOTE_BYTES_MAX} bytes, not {}",
            text.len()
        );
        return Err(Failure::usage(what)
            .hint("put longer texts into the prompt file, which is read before every iteration"));
    }
    ask_live(workspace, &ControlRequest::Tell { text })
}
