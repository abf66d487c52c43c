//! Misbehavior of a server before its first answer.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;

use super::Misbehavior;

/// A line of output that has no meaning.
const NOISE: &str = "the quick brown fox jumps over the lazy dog and says nothing that matters";

pub(super) fn at_start(misbehavior: &Misbehavior) -> Result<(), String> {
    if misbehavior.ignore_sigterm || misbehavior.exit_on_sigterm.is_some() {
        let code = misbehavior.exit_on_sigterm;
        let failed = |error: std::io::Error| error.to_string();
        let (mut heard, note) = UnixStream::pair().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, note)
            .map_err(failed)?;
        // The thread ends with the program.
        thread::spawn(move || {
            while heard.read_exact(&mut [0]).is_ok() {
                if let Some(code) = code {
                    std::process::exit(i32::from(code));
                }
            }
        });
    }
    for _ in 0..misbehavior.noise_bytes / NOISE.len() {
        super::say(NOISE);
    }
    if misbehavior.leak_bytes > 0 {
        let mut leak = vec![0_u8; misbehavior.leak_bytes];
        // Each page is written, because untouched pages use no memory.
        leak.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::mem::forget(leak);
    }
    Ok(())
}

/// Leaves a process running in its own session, and returns its id.
pub(super) fn leave(marker: &str) -> i32 {
    let child = Command::new("setsid")
        // This single process follows a file that never grows and ignores the missing file.
        .args(["tail", "-f", "/dev/null", marker])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    child.map_or(0, |child| i32::try_from(child.id()).unwrap_or(0))
}

pub(super) fn for_ever() -> ! {
    loop {
        thread::park();
    }
}
