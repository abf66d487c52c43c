//! A terminal in single-key mode. Every exit of this program calls [`restore`].

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr,
    tcgetpgrp, tcsetattr,
};

/// The state of the terminal.
struct Known {
    /// The mode before single keys; `None` while it is unchanged.
    before: Option<Termios>,
    /// Another program has it: a shell while we are stopped, an editor, a pager.
    is_released: bool,
    /// How often the terminal was reclaimed.
    times_reclaimed: u32,
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
    before: None,
    is_released: false,
    times_reclaimed: 0,
});

fn known() -> MutexGuard<'static, Known> {
    // The state is valid after a panic too.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Switches the terminal to single keys. Returns whether keys can be read: not while another program has it, and not in
/// the background, where reading would stop this process.
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
    // Ctrl-C and Ctrl-Z stay signals.
    raw.local_modes
        .remove(LocalModes::ICANON | LocalModes::ECHO);
    raw.special_codes[SpecialCodeIndex::VMIN] = 1;
    raw.special_codes[SpecialCodeIndex::VTIME] = 0;
    // Input from before the question is not an answer.
    let flushed = tcflush(stdin(), QueueSelector::IFlush);
    let entered = flushed.and_then(|()| tcsetattr(stdin(), OptionalActions::Now, &raw));
    if entered.is_ok() {
        known.before = Some(before);
    }
    entered.is_ok()
}

/// Restores the terminal.
pub fn restore() {
    known().give_back();
}

/// Restores the terminal until [`reclaim`].
pub fn release() {
    let mut known = known();
    known.is_released = true;
    known.give_back();
}

/// Ends [`release`].
pub fn reclaim() {
    let mut known = known();
    known.is_released = false;
    known.times_reclaimed = known.times_reclaimed.wrapping_add(1);
}

/// Returns how often the terminal was reclaimed.
pub fn times_reclaimed() -> u32 {
    known().times_reclaimed
}

/// Makes a panic restore the terminal.
pub fn restore_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        before(panic);
    }));
}

impl Known {
    fn give_back(&mut self) {
        if let Some(before) = self.before.take()
            && is_ours()
        {
            // A terminal that is gone needs nothing.
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

    /// Set in the environment of this test where it is the program at the terminal.
    const INSIDE: &str = "RAW_TERMINAL_TEST_INSIDE";

    #[test]
    fn a_panic_restores_the_terminal() {
        if std::env::var_os(INSIDE).is_some() {
            restore_on_panic();
            assert!(enter(), "it gives keys");
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
