//! `run --detach`: the same run again in the background, in a session of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, ExitCode, Stdio};

use crate::failure::Failure;

/// The variable that tells the second process what it is. Not a setting.
const DETACHED: &str = "TACHIKOMA_DETACHED";

/// What the second process says when its loop is about to run.
const READY: &str = "ready";

/// Starts this program again with the same words, and waits until its loop runs.
pub fn detach() -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("the background process cannot be started: {error}"))
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    // Only our own: the agent's program may have one as well.
    if let Some(own) = words.iter().position(|word| word == "--detach") {
        words.remove(own);
    }
    let mut child = Command::new(program)
        .args(words)
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut word = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut word)
            .map_err(failed)?;
    }
    if word.trim_end() == READY {
        crate::out::line(&format!(
            "runs in the background, pid {}; `tachikoma status` shows it",
            child.id()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    // It has said why on our standard error.
    let status = child.wait().map_err(failed)?;
    Ok(ExitCode::from(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
    ))
}

/// Returns whether this is the second process.
pub fn is_detached() -> bool {
    std::env::var_os(DETACHED).is_some()
}

/// Tells the first process that all is well, and lets go of the terminal.
pub fn ready() {
    if !is_detached() {
        return;
    }
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
    let _ = rustix::process::setsid();
    if let Ok(null) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
    {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
