//! Children of this process that somebody in it waits for: guards, and git. Whoever ends strays leaves them alone.
//!
//! A runner takes in the orphans of whatever it started, and has to end them. It cannot tell them from its own children by looking: those
//! are written down here before anyone can see them.

use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Pid;

static ATTENDED: Mutex<Vec<i32>> = Mutex::new(Vec::new());

fn attended() -> MutexGuard<'static, Vec<i32>> {
    ATTENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child that somebody waits for, known as such until this is dropped. To be dropped when it was reaped, or is nobody's any more.
#[derive(Debug)]
pub struct Attended(Pid);

impl Attended {
    /// Starts one.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<(Child, Self)> {
        let mut child = None;
        let known = Self::born(|| {
            let born = child.insert(command.spawn()?);
            Ok(Pid::from_child(born))
        })?;
        let child = child.ok_or(io::ErrorKind::NotFound)?;
        Ok((child, known))
    }

    /// The same for one that is started in another way.
    pub(super) fn born(start: impl FnOnce() -> io::Result<Pid>) -> io::Result<Self> {
        // Nobody looks at it before it is known.
        let mut known = attended();
        let pid = start()?;
        known.push(pid.as_raw_pid());
        Ok(Self(pid))
    }

    /// Returns its process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.0
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        let mut known = attended();
        // One: its number may be another child's by now.
        if let Some(at) = known.iter().position(|pid| *pid == self.0.as_raw_pid()) {
            known.swap_remove(at);
        }
    }
}

/// Returns those that are attended to now. To be asked after the children: one that was among them is known by then.
pub(super) fn now() -> Vec<i32> {
    attended().clone()
}
