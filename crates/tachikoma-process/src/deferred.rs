//! Signals that have to wait until something is whole.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// While this lives, what would end the calling thread's program waits. Holds for programs of one thread.
#[derive(Debug)]
pub struct Deferred {
    before: SigSet,
}

impl Deferred {
    /// Lets interrupts, terminations and hang-ups wait.
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
