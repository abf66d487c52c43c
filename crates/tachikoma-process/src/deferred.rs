//! Delays signals while a change must not be interrupted.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Blocks the signals that would end a program with a single thread until this is dropped.
#[derive(Debug)]
pub struct Deferred {
    before: SigSet,
}

impl Deferred {
    /// Blocks SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> io::Result<Self> {
        let ends = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        let before = ends.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Self { before })
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask();
    }
}
