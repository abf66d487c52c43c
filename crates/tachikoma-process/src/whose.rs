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

use super::{Adoption, MARKER, Sender, cgroup, children};

/// The variable that guards have whose processes are not the operator's, and git; its value is the id of the loop or the server.
/// All below them inherit it, and who takes it away still stands below the guard.
pub const INSIDE: &str = "TACHIKOMA_INSIDE";

/// Children of this process that are the operator's own: the editor of a prompt, and those that a shell had which became this program.
static OPERATORS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Children of this process that an editor left running, such as the server of an editor. They are not ended with the run. They may not
/// command the loop: the agent can read the token in the editor's environment, and have a git hook start a daemon that carries it.
static LEFT_BY_EDITOR: Mutex<Vec<i32>> = Mutex::new(Vec::new());

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
pub struct Refused {
    pub pid: Option<i32>,
    /// Whether it was gone before it could be looked at.
    pub gone: bool,
}

/// Returns the name of a signal.
pub fn signal_name(signal: i32) -> String {
    let name = nix::sys::signal::Signal::try_from(signal);
    name.map_or_else(|_| format!("SIG{signal}"), |name| name.to_string())
}

/// Who stands how to one loop, or to one server.
#[derive(Debug)]
pub struct Family {
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
        let above = children::line(own).filter_map(inside_of);
        Self {
            adoption,
            above: above.chain(cgroup::ids_of(own)).collect(),
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

    /// Returns whether a signal is the operator's. If its sender is gone, it is if `in_doubt`. A signal with a sender that can be
    /// forged is refused on Linux.
    ///
    /// # Errors
    /// It is not: who sent it.
    pub fn judge(&self, sender: Sender, in_doubt: bool) -> Result<(), Refused> {
        let (pid, whose) = match sender {
            Sender::System => return Ok(()),
            Sender::Process(pid) => (Some(pid), self.whose(pid)),
            // Ctrl-C, `kill` and service managers never look like this. The agent may have sent it to hide its process id.
            Sender::Unknown if cfg!(target_os = "linux") => {
                return Err(Refused {
                    pid: None,
                    gone: true,
                });
            }
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
        // A process whose guard, standby and runner were killed has none of them above it.
        inside |= cgroup::ids_of(process)
            .iter()
            .any(|of| !self.above.contains(of));
        let ours = below_us && self.adoption == Adoption::All;
        match inside || ours {
            true => Whose::Inside,
            false => Whose::Operator,
        }
    }
}

/// Returns whether this process runs below a guard of a loop or a server, in a control group of one, or below git that a loop started.
/// Where that cannot be found out, it does.
#[must_use]
pub fn is_below_a_guard() -> bool {
    if !cgroup::ids_of(children::own_pid()).is_empty() {
        return true;
    }
    let line = children::whole_line(children::own_pid());
    let is_marked = |pid: Pid| {
        children::variables(pid, [INSIDE, MARKER])
            .iter()
            .any(Option::is_some)
    };
    line.is_none_or(|line| line.into_iter().any(is_marked))
}

fn inside_of(pid: Pid) -> Option<OsString> {
    children::variable(pid, INSIDE)
}

fn known_operators() -> MutexGuard<'static, Vec<i32>> {
    OPERATORS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn left_by_editor() -> MutexGuard<'static, Vec<i32>> {
    LEFT_BY_EDITOR
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// A program of the operator's, known as such until this is dropped: what it asks, the operator asks, and it is not ended with the run.
/// Whoever has it waits for it.
#[derive(Debug)]
pub struct Operators {
    pid: Pid,
    /// Value of `TACHIKOMA_EDITING` in the environment of the editor and of the processes that it starts.
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

/// The processes that the editor left running are children of this process by now.
impl Drop for Operators {
    fn drop(&mut self) {
        // Both locks, so that a sweep never sees a process in neither list.
        let (mut known, mut left) = (known_operators(), left_by_editor());
        known.retain(|known| *known != self.pid.as_raw_pid());
        let of_it = |pid: &Pid| {
            children::variable(*pid, EDITING).is_some_and(|token| *token == *self.token)
        };
        let found = children::own().into_iter().filter(of_it);
        left.extend(found.map(Pid::as_raw_pid));
    }
}

/// Returns the children of this process that are not ended with the run.
pub(super) fn operators() -> Vec<i32> {
    let (known, left) = (known_operators(), left_by_editor());
    known.iter().chain(left.iter()).copied().collect()
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
    fn a_process_in_the_cgroup_of_a_loop_is_not_the_operators() {
        let family = Family::new(Adoption::Marked);
        // Without the rights to make a group, no process is in one.
        let Ok(group) = cgroup::Cgroup::make(&format!("whose_{}", children::own_pid())) else {
            return;
        };
        let mut command = Command::new("sleep");
        let mut child = command.arg("1000").env_clear().spawn().unwrap();
        let pid = Pid::from_child(&child).as_raw_pid();
        let before = family.whose(pid);
        std::fs::write(group.path().join("cgroup.procs"), pid.to_string()).unwrap();
        let after = family.whose(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(group.end(std::time::Duration::from_secs(5)).is_empty());
        assert_eq!((before, after), (Whose::Operator, Whose::Inside));
    }

    #[test]
    fn who_is_gone_is_nobody() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child).as_raw_pid();
        child.wait().unwrap();
        assert_eq!(Family::new(Adoption::Marked).whose(pid), Whose::Gone);
    }
}
