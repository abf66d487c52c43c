//! `--detach`: runs the same command in the background, in its own session.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, ExitCode, Stdio};

use tachikoma_loop_runner::{LoopHandle, Notice};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::failure::Failure;

/// The flag of the user, and the flag that replaces it in the background process. It is not a variable, because agents would inherit that.
const DETACH: &str = "--detach";
const DETACHED: &str = "--detached";

/// Message of the background process: the loop is about to run.
const READY: &str = "ready";

/// Message of the background process: it stays alive, but the loop does not run.
const UNHEALTHY: &str = "unwell";

/// Starts this program in the background with the same arguments and waits until it reports. `shown_by` is the status command to print.
pub fn detach(shown_by: &str) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("the background process cannot be started: {error}"))
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Only the first occurrence is replaced. Another one may be an argument of the agent's program.
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
        if ![READY, UNHEALTHY].contains(&words.trim_end()) {
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
    if words.trim_end() == UNHEALTHY {
        crate::out::line(&format!(
            "waits in the background, pid {}; `{shown_by}` shows it",
            child.id()
        ));
        return Ok(ExitCode::FAILURE);
    }
    // The background process has already printed the reason to the shared stderr.
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

/// Reports once that the loop runs. If the loop ends at its start, nothing is reported here, because its outcome is reported.
///
/// `notices` must be subscribed before the run: if the operator is asked a question first, the start of the run may be the only notice for
/// a long time.
pub async fn report_start(handle: LoopHandle, mut notices: Receiver<Notice>) {
    // The loop ends with the first record of this run, or when this task is aborted with the run.
    loop {
        match notices.recv().await {
            Ok(Notice::Recorded(_)) | Err(RecvError::Lagged(_)) => break,
            Ok(Notice::Output { .. } | Notice::OutputSkipped { .. } | Notice::DiskFull { .. }) => {}
            Err(RecvError::Closed) => return,
        }
    }
    // If the run ended at once, its outcome is already visible here, because all records of one decision are published together.
    if handle.status().outcome.is_none() {
        ready();
    }
}

/// Reports success to the foreground process, and detaches from the terminal.
pub fn ready() {
    release_parent(READY);
}

/// Reports to the foreground process that the loop does not run, and continues without a terminal.
pub fn report_unhealthy() {
    release_parent(UNHEALTHY);
}

fn release_parent(word: &str) {
    // The session is left first, because SIGHUP may arrive when the foreground process ends.
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
