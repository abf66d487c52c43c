//! A terminal that gives single keys. Whoever ends this program finds it as it was: each way out calls [`restore`].

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr,
    tcgetpgrp, tcsetattr,
};

/// What is known of the terminal.
struct Known {
    /// As it was before keys were read from it; none while they are not.
    before: Option<Termios>,
    /// Somebody else has it: a shell while we are stopped, an editor, a pager.
    lent: bool,
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
    before: None,
    lent: false,
});

fn known() -> MutexGuard<'static, Known> {
    // What a panic leaves is still what is known.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the terminal give single keys, unless it does already. Returns whether keys can be read: not where it is lent, and not in
/// the background, where whoever reads is stopped.
pub fn enter() -> bool {
    let mut known = known();
    if known.lent || !is_ours() {
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
    // What was typed before anything was asked is no answer.
    let flushed = tcflush(stdin(), QueueSelector::IFlush);
    let entered = flushed.and_then(|()| tcsetattr(stdin(), OptionalActions::Now, &raw));
    if entered.is_ok() {
        known.before = Some(before);
    }
    entered.is_ok()
}

/// Makes the terminal what it was.
pub fn restore() {
    known().give_back();
}

/// Makes the terminal what it was, until [`take_back`].
pub fn lend() {
    let mut known = known();
    known.lent = true;
    known.give_back();
}

/// Ends [`lend`].
pub fn take_back() {
    known().lent = false;
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

fn is_ours() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}
