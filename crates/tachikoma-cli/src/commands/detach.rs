//! `--detach`: runs the same command in the background, in its own session.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, ExitCode, Stdio};

use tachikoma_loop_runner::{LoopHandle, Notice};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::failure::Failure;

/// The flag of the user, and the flag of the background process. Not a variable, because agents would inherit it.
const DETACH: &str = "--detach";
const DETACHED: &str = "--detached";

/// Sent by the background process when the loop is about to run.
const READY: &str = "ready";

/// Sent by the background process when it stays alive but the loop does not run.
const UNWELL: &str = "unwell";

/// Starts this program in the background with the same arguments and waits until it reports. `shown_by` is the status command to print.
pub fn detach(shown_by: &str) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("the background process cannot be started: {error}"))
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Only the first occurrence is our flag. Another one may be an argument of the agent's program.
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
    // The background process has printed the reason to our stderr.
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

/// Reports once that the loop runs. A loop that ends at its start does not: its outcome is reported.
///
/// `notices` begin before the run: if nothing else is recorded for a while, because the operator is asked, the start of the run
/// is the only notice.
pub async fn announce(handle: LoopHandle, mut notices: Receiver<Notice>) {
    // Ends with the first record of this run, or when it is aborted with the run.
    loop {
        match notices.recv().await {
            Ok(Notice::Recorded(_)) | Err(RecvError::Lagged(_)) => break,
            Ok(Notice::Output { .. } | Notice::OutputSkipped { .. } | Notice::DiskFull { .. }) => {}
            Err(RecvError::Closed) => return,
        }
    }
    // All records of one decision are published before another task runs.
    if handle.status().outcome.is_none() {
        ready();
    }
}

/// Reports success to the first process, and closes the terminal.
pub fn ready() {
    let_go(READY);
}

/// Reports to the first process that the loop does not run, and continues without a terminal.
pub fn unwell() {
    let_go(UNWELL);
}

fn let_go(word: &str) {
    // First, because SIGHUP may arrive when the foreground process ends.
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
