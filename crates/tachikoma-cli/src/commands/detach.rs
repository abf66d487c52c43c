//! `--detach`: the same command again in the background, in a session of its own.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, ExitCode, Stdio};

use tachikoma_loop_runner::{LoopHandle, Notice};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::failure::Failure;

/// The flag that asks for a second process, and the one that tells it what it is. Not a variable: agents would inherit it.
const DETACH: &str = "--detach";
const DETACHED: &str = "--detached";

/// What the second process says when what it was started for is about to run.
const READY: &str = "ready";

/// What it says when it stays, but that does not run.
const UNWELL: &str = "unwell";

/// Starts this program again with the same words, and waits until it says that it runs. `shown_by` is the command that shows it.
pub fn detach(shown_by: &str) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("the background process cannot be started: {error}"))
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    // The first one is ours; another may be a word of the agent's program.
    if let Some(flag) = words.iter_mut().find(|word| *word == DETACH) {
        *flag = DETACHED.into();
    }
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut words = String::new();
    if let Some(stdout) = child.stdout.take() {
        let mut reader = BufReader::new(stdout);
        reader.read_line(&mut words).map_err(failed)?;
        if ![READY, UNWELL].contains(&words.trim_end()) {
            reader.read_to_string(&mut words).map_err(failed)?;
        }
    }
    if words.trim_end() == READY {
        crate::out::line(&format!(
            "runs in the background, pid {}; `{shown_by}` shows it",
            child.id()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    if words.trim_end() == UNWELL {
        crate::out::line(&format!(
            "waits in the background, pid {}; `{shown_by}` shows it",
            child.id()
        ));
        return Ok(ExitCode::FAILURE);
    }
    // It has said why, on our standard error and to us.
    if !words.is_empty() {
        crate::out::line(words.trim_end());
    }
    let status = child.wait().map_err(failed)?;
    Ok(ExitCode::from(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
    ))
}

/// Says that the loop runs, once it does. One that is at its end as soon as it starts does not: its outcome tells.
///
/// `notices` are those from before the run: where nothing more is recorded for a while, because the operator is asked, its beginning
/// is all there is to hear.
pub async fn announce(handle: LoopHandle, mut notices: Receiver<Notice>) {
    // Ends with the first record of this run, or when it is aborted with the run.
    loop {
        match notices.recv().await {
            Ok(Notice::Recorded(_)) | Err(RecvError::Lagged(_)) => break,
            Ok(Notice::Output { .. } | Notice::OutputSkipped { .. } | Notice::DiskFull { .. }) => {}
            Err(RecvError::Closed) => return,
        }
    }
    // All that one decision records is published before anybody else has a turn.
    if handle.status().outcome.is_none() {
        ready();
    }
}

/// Tells the first process that all is well, and lets go of the terminal.
pub fn ready() {
    let_go(READY);
}

/// Tells the first process that what it was started for does not run, and waits for orders without a terminal.
pub fn unwell() {
    let_go(UNWELL);
}

fn let_go(word: &str) {
    // First of all: when the first process ends, its terminal may hang up.
    let _ = rustix::process::setsid();
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
    if let Ok(null) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
    {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
