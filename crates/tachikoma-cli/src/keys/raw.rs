//! Single-key mode of a terminal. Every exit of this program calls [`restore`].

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr,
    tcgetpgrp, tcsetattr,
};

/// The state of this program's terminal.
struct Known {
    /// Terminal mode before single-key mode; `None` while the mode is unchanged.
    before: Option<Termios>,
    /// Whether another program has the terminal: the shell while this process is suspended, an editor, or a pager.
    is_released: bool,
    /// Number of calls of [`reclaim`].
    times_reclaimed: u32,
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
    before: None,
    is_released: false,
    times_reclaimed: 0,
});

fn known() -> MutexGuard<'static, Known> {
    // The state is valid even if a thread panicked while it held the lock.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Switches the terminal to single-key mode. Returns whether keys can be read: not while another program has the terminal, and not in
/// the background, where reading would suspend this process.
pub fn enter() -> bool {
    let mut known = known();
    if known.is_released || !is_ours() {
        return false;
    }
    if known.before.is_some() {
        return true;
    }
    let Ok(before) = tcgetattr(stdin()) else {
        return false;
    };
    let mut raw = before.clone();
    // Ctrl-C and Ctrl-Z still send signals.
    raw.local_modes
        .remove(LocalModes::ICANON | LocalModes::ECHO);
    raw.special_codes[SpecialCodeIndex::VMIN] = 1;
    raw.special_codes[SpecialCodeIndex::VTIME] = 0;
    // Input that was typed before the question is discarded, because it is not an answer.
    let flushed = tcflush(stdin(), QueueSelector::IFlush);
    let entered = flushed.and_then(|()| tcsetattr(stdin(), OptionalActions::Now, &raw));
    if entered.is_ok() {
        known.before = Some(before);
    }
    entered.is_ok()
}

/// Restores the mode that the terminal had before single-key mode.
pub fn restore() {
    known().restore();
}

/// Restores the terminal, and keeps it unchanged until [`reclaim`].
pub fn release() {
    let mut known = known();
    known.is_released = true;
    known.restore();
}

/// Allows single-key mode again after [`release`].
pub fn reclaim() {
    let mut known = known();
    known.is_released = false;
    known.times_reclaimed = known.times_reclaimed.wrapping_add(1);
}

/// Returns how often [`reclaim`] was called.
pub fn times_reclaimed() -> u32 {
    known().times_reclaimed
}

/// Installs a panic hook that restores the terminal.
pub fn restore_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        before(panic);
    }));
}

impl Known {
    fn restore(&mut self) {
        if let Some(before) = self.before.take()
            && is_ours()
        {
            // The call fails if the terminal was closed, which does not matter.
            let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
        }
    }
}

/// Returns whether this program is in the foreground of its terminal.
pub fn is_ours() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    /// Environment variable that is set when this test runs itself as the program in the terminal.
    const INSIDE: &str = "RAW_TERMINAL_TEST_INSIDE";

    #[test]
    fn a_panic_restores_the_terminal() {
        if std::env::var_os(INSIDE).is_some() {
            restore_on_panic();
            assert!(enter(), "single-key mode is on");
            let modes = tcgetattr(stdin()).unwrap().local_modes;
            assert!(!modes.intersects(LocalModes::ICANON | LocalModes::ECHO));
            std::fs::write(std::env::var_os(INSIDE).unwrap(), "").unwrap();
            panic!("on purpose");
        }
        let dir = tempfile::tempdir().unwrap();
        let gave_keys = dir.path().join("gave_keys");
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = File::from(rustix::fs::open(name, flags, Mode::empty()).unwrap());
        let before = tcgetattr(&slave).unwrap().local_modes;
        let output = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "keys::raw::tests::a_panic_restores_the_terminal"])
            .env(INSIDE, &gave_keys)
            .stdin(slave.try_clone().unwrap())
            .output()
            .unwrap();
        assert!(!output.status.success(), "it panicked");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(gave_keys.exists(), "{said}");
        assert_eq!(tcgetattr(&slave).unwrap().local_modes, before, "{said}");
    }
}
