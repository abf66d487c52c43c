//! Registers the children of this process that it waits for: guards and git. They are not ended as orphans.
//!
//! Orphans of the runner's descendants become its children, and the runner has to end them. They look like the children
//! that the runner started, so these are registered here before another thread can see them.

use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Pid;

static ATTENDED: Mutex<Vec<i32>> = Mutex::new(Vec::new());

fn attended() -> MutexGuard<'static, Vec<i32>> {
    ATTENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child that this process waits for. Drop it after the child was reaped, or when no code waits for the child.
#[derive(Debug)]
pub struct Attended(Pid);

impl Attended {
    /// Starts a child and registers it.
    ///
    /// # Errors
    /// The child cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<(Child, Self)> {
        let mut child = None;
        let known = Self::born(|| {
            let born = child.insert(command.spawn()?);
            Ok(Pid::from_child(born))
        })?;
        let child = child.ok_or(io::ErrorKind::NotFound)?;
        Ok((child, known))
    }

    /// Registers a child that `start` starts.
    pub(super) fn born(start: impl FnOnce() -> io::Result<Pid>) -> io::Result<Self> {
        // The list stays locked during the start, so that the child is registered before another thread sees it.
        let mut known = attended();
        let pid = start()?;
        known.push(pid.as_raw_pid());
        Ok(Self(pid))
    }

    /// Returns the id of the registered process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.0
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        let mut known = attended();
        // Only one entry is removed, because another child may have got the same id by now.
        if let Some(at) = known.iter().position(|pid| *pid == self.0.as_raw_pid()) {
            known.swap_remove(at);
        }
    }
}

/// Returns the registered children. Call it after reading the list of children, so that each of them is registered.
pub(super) fn now() -> Vec<i32> {
    attended().clone()
}
