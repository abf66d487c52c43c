//! Whose a process is to a loop: the operator's, a hook's of the operator's, or that of the agent and of what it may have written.
//!
//! Below a guard stands whoever is held by it, also who left its session, its parent and its environment: it comes back to the
//! guard, which is a subreaper, or to this process, which is one too.

use std::collections::HashSet;
use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Pid;

use super::{Adoption, Sender, children};

/// The variable that guards have whose processes are not the operator's, and git; its value is the id of the loop or the server.
/// All below them inherit it, and who takes it away still stands below the guard.
pub const INSIDE: &str = "TACHIKOMA_INSIDE";

/// Children of this process that are the operator's own: the editor of a prompt with what it left behind, and those that a shell had
/// which became this program.
static OPERATORS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Whose a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The operator's: whoever is nobody else's.
    Operator,
    /// A hook's of the operator's, which may command the loop.
    Hook(Hooks),
    /// The agent's, or that of something that the agent may have written: gates, scripts, what git runs, tools of a server. Or a
    /// message's.
    Inside,
    /// It is gone, and nobody can tell any more.
    Gone,
}

/// Which hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// Those that the loop waits for.
    Framing,
    /// Those that it does not.
    Beside,
}

/// The sender of a signal that is not obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub pid: Option<i32>,
    /// Whether it was gone before it could be looked at.
    pub gone: bool,
}

/// Returns the name of a signal.
pub(crate) fn signal_name(signal: i32) -> String {
    let name = nix::sys::signal::Signal::try_from(signal);
    name.map_or_else(|_| format!("SIG{signal}"), |name| name.to_string())
}

/// Who stands how to one loop, or to one server.
#[derive(Debug)]
pub(crate) struct Family {
    adoption: Adoption,
    /// What this process itself stands below: those who stand there too are as good as whoever started it.
    above: HashSet<OsString>,
    /// The guards of hooks, 0 for none.
    framing: AtomicI32,
    beside: AtomicI32,
}

impl Family {
    /// `adoption` says whether all children of this process are the loop's.
    pub fn new(adoption: Adoption) -> Self {
        let own = children::own_pid();
        if adoption == Adoption::All {
            // Nothing of the loop runs yet.
            let found = children::own().into_iter().map(Pid::as_raw_pid);
            known_operators().extend(found);
        }
        Self {
            adoption,
            above: children::line(own).filter_map(inside_of).collect(),
            framing: AtomicI32::new(0),
            beside: AtomicI32::new(0),
        }
    }

    fn guard(&self, hooks: Hooks) -> &AtomicI32 {
        match hooks {
            Hooks::Framing => &self.framing,
            Hooks::Beside => &self.beside,
        }
    }

    /// Says which process is the guard of hooks.
    pub fn hooks_are_below(&self, hooks: Hooks, guard: i32) {
        self.guard(hooks).store(guard, Ordering::Relaxed);
    }

    /// Says that this guard of hooks is gone; another may have been named since.
    pub fn hooks_are_gone(&self, hooks: Hooks, guard: i32) {
        let (set, order) = (self.guard(hooks), Ordering::Relaxed);
        let _ = set.compare_exchange(guard, 0, order, order);
    }

    /// Returns whether a signal is the operator's. In doubt, because its sender is gone or says itself who it is, it is if `in_doubt`.
    ///
    /// # Errors
    /// It is not: who sent it.
    pub fn judge(&self, sender: Sender, in_doubt: bool) -> Result<(), Refused> {
        let (pid, whose) = match sender {
            Sender::System => return Ok(()),
            Sender::Process(pid) => (Some(pid), self.whose(pid)),
            Sender::Unknown => (None, Whose::Gone),
        };
        match whose {
            Whose::Operator | Whose::Hook(_) => Ok(()),
            Whose::Gone if in_doubt => Ok(()),
            Whose::Gone => Err(Refused { pid, gone: true }),
            Whose::Inside => Err(Refused { pid, gone: false }),
        }
    }

    /// Returns whose a process is.
    pub fn whose(&self, pid: i32) -> Whose {
        let own = children::own_pid();
        // Not to be seen from here: it stands outside of the container that this process is in, and so below nothing of ours.
        let Some(process) = Pid::from_raw(pid) else {
            return Whose::Operator;
        };
        if process == own {
            return Whose::Operator;
        }
        // Who stands nowhere is not the operator.
        let Some(line) = children::whole_line(process) else {
            return Whose::Gone;
        };
        let mut below_us = false;
        let mut inside = false;
        for reached in line {
            if reached == own {
                below_us = true;
                break;
            }
            let pid = reached.as_raw_pid();
            for hooks in [Hooks::Framing, Hooks::Beside] {
                if self.guard(hooks).load(Ordering::Relaxed) == pid {
                    return Whose::Hook(hooks);
                }
            }
            if known_operators().contains(&pid) {
                return Whose::Operator;
            }
            inside |= inside_of(reached).is_some_and(|of| !self.above.contains(&of));
        }
        let ours = below_us && self.adoption == Adoption::All;
        match inside || ours {
            true => Whose::Inside,
            false => Whose::Operator,
        }
    }
}

fn inside_of(pid: Pid) -> Option<OsString> {
    children::variable(pid, INSIDE)
}

fn known_operators() -> MutexGuard<'static, Vec<i32>> {
    OPERATORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program of the operator's, known as such until this is dropped: what it asks, the operator asks, and it is not ended with the run.
/// Whoever has it waits for it.
#[derive(Debug)]
pub struct Operators {
    pid: Pid,
    /// What the environment of all that it starts has, and of nobody else.
    token: String,
}

/// The variable with it.
const EDITING: &str = "TACHIKOMA_EDITING";

impl Operators {
    /// Starts one.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(command: &mut Command) -> std::io::Result<Self> {
        // Nobody looks at it before it is known.
        let mut known = known_operators();
        let token = uuid::Uuid::new_v4().to_string();
        let pid = Pid::from_child(&command.env(EDITING, &token).spawn()?);
        known.push(pid.as_raw_pid());
        Ok(Self { pid, token })
    }

    /// Returns its process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }
}

/// What it leaves behind is our child by now, and the operator's as it was: the server of an editor, for example.
impl Drop for Operators {
    fn drop(&mut self) {
        let mut known = known_operators();
        known.retain(|known| *known != self.pid.as_raw_pid());
        let of_it = |pid: &Pid| {
            children::variable(*pid, EDITING).is_some_and(|token| *token == *self.token)
        };
        let left = children::own().into_iter().filter(of_it);
        known.extend(left.map(Pid::as_raw_pid));
    }
}

/// Returns the children of this process that are the operator's own.
pub(super) fn operators() -> Vec<i32> {
    known_operators().clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_calls_from_outside_of_the_container_is_the_operator() {
        let family = Family::new(Adoption::Marked);
        assert_eq!(family.whose(0), Whose::Operator);
    }

    #[test]
    fn who_is_gone_is_nobody() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child).as_raw_pid();
        child.wait().unwrap();
        assert_eq!(Family::new(Adoption::Marked).whose(pid), Whose::Gone);
    }
}
