//! Who may stop, pause and command a loop: finds the role of the calling process by its ancestors (operator, hook or agent).
//!
//! The operator and hooks may do everything. Everything else below a guard may only ask for the status, leave a note and claim completion.
//! Requests of other users than root and the owner of the loop are refused before that, by the control server of the loop runner.
//!
//! Every process that an agent starts is a descendant of a guard. A process that leaves its session, its parent or its environment becomes a
//! child of the guard or of this process, because both are subreapers.

use std::collections::HashSet;
use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Pid;

use super::{Adoption, MARKER, Peer, Sender, cgroup, children};

/// Environment variable of git and of guards that run other processes than hooks. Its value is the id of the loop or the server. Descendants
/// inherit it. A process that removes it is still a descendant of the guard.
pub const INSIDE: &str = "TACHIKOMA_INSIDE";

/// Children of this process that belong to the operator: the editor of a prompt, and children of a shell that executed this program.
static OPERATORS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Children of this process that an editor left running, such as the server of an editor. They are not ended with the run. They may not
/// control the loop: the agent can read the token in the editor's environment, and could make a git hook start a daemon that has it.
static LEFT_BY_EDITOR: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// The role of a process that makes a request or sends a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerRole {
    /// The operator: every process that has no other role.
    Operator,
    /// A hook, which may control the loop.
    Hook(Hooks),
    /// The agent, or a program that the agent may have written: gates, scripts, git hooks, tools of a server, notification commands.
    Inside,
    /// The process has ended, so its role is unknown.
    Gone,
}

impl CallerRole {
    /// Returns whether the process may control the loop.
    #[must_use]
    pub fn may_control(self) -> bool {
        match self {
            Self::Operator | Self::Hook(_) => true,
            // Gone callers are rejected: an operator waits for the answer, so a caller that has ended may be the agent.
            Self::Inside | Self::Gone => false,
        }
    }
}

/// Kind of hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// Hooks that the loop waits for.
    Blocking,
    /// Hooks that run in the background.
    Background,
}

/// The sender of a refused signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub pid: Option<i32>,
    /// Whether the sender ended before its role could be determined.
    pub gone: bool,
}

/// Returns the name of a signal.
pub fn signal_name(signal: i32) -> String {
    let name = nix::sys::signal::Signal::try_from(signal);
    name.map_or_else(|_| format!("SIG{signal}"), |name| name.to_string())
}

/// Determines the roles of processes for one loop or one server.
#[derive(Debug)]
pub struct Family {
    adoption: Adoption,
    /// Ids of the outer loops that this process runs in. Other processes in these loops have the same rights as this one.
    above: HashSet<OsString>,
    /// Process ids of the guards of hooks; 0 if there is no guard.
    blocking: AtomicI32,
    background: AtomicI32,
}

impl Family {
    /// `adoption` says whether all children of this process belong to the loop, or only children with its marker.
    pub fn new(adoption: Adoption) -> Self {
        let own = children::own_pid();
        if adoption == Adoption::All {
            // These children existed before the loop, because no process of the loop runs yet.
            let found = children::own().into_iter().map(Pid::as_raw_pid);
            known_operators().extend(found);
        }
        let above = children::ancestors(own).filter_map(inside_of);
        Self {
            adoption,
            above: above.chain(cgroup::ids_of(own)).collect(),
            blocking: AtomicI32::new(0),
            background: AtomicI32::new(0),
        }
    }

    fn guard(&self, hooks: Hooks) -> &AtomicI32 {
        match hooks {
            Hooks::Blocking => &self.blocking,
            Hooks::Background => &self.background,
        }
    }

    /// Registers the guard of hooks.
    pub fn hooks_are_below(&self, hooks: Hooks, guard: i32) {
        self.guard(hooks).store(guard, Ordering::Relaxed);
    }

    /// Unregisters a guard of hooks that has ended. Does nothing if another guard was registered since.
    pub fn hooks_are_gone(&self, hooks: Hooks, guard: i32) {
        let (set, order) = (self.guard(hooks), Ordering::Relaxed);
        let _ = set.compare_exchange(guard, 0, order, order);
    }

    /// Checks that the operator sent a signal. A signal of a sender that has ended is accepted if `in_doubt`. On Linux, a signal is refused if
    /// its sender could be forged.
    ///
    /// # Errors
    /// Another process sent the signal.
    pub fn judge(&self, sender: Sender, in_doubt: bool) -> Result<(), Refused> {
        let (pid, role) = match sender {
            Sender::System => return Ok(()),
            Sender::Process(pid) => (Some(pid), self.role_of(pid)),
            // Signals from Ctrl-C, `kill` and service managers have a known sender. An unknown sender may be the agent hiding its id.
            Sender::Unknown if cfg!(target_os = "linux") => {
                return Err(Refused {
                    pid: None,
                    gone: true,
                });
            }
            Sender::Unknown => (None, CallerRole::Gone),
        };
        match role {
            CallerRole::Operator | CallerRole::Hook(_) => Ok(()),
            CallerRole::Gone if in_doubt => Ok(()),
            CallerRole::Gone => Err(Refused { pid, gone: true }),
            CallerRole::Inside => Err(Refused { pid, gone: false }),
        }
    }

    /// Returns the role of the process that connected to a socket.
    pub fn role_of_peer(&self, caller: &Peer) -> CallerRole {
        let Some(pid) = caller.pid() else {
            return CallerRole::Inside;
        };
        let role = self.role_of(pid);
        // This is checked last: if the process still runs now, its id belonged to it all the time.
        match pid == 0 || caller.runs() {
            true => role,
            false => CallerRole::Gone,
        }
    }

    /// Returns the role of a process.
    pub fn role_of(&self, pid: i32) -> CallerRole {
        let own = children::own_pid();
        // The id of the caller is not visible here: it runs outside of the container of this process, so it is not a descendant of a guard.
        let Some(process) = Pid::from_raw(pid) else {
            return CallerRole::Operator;
        };
        if process == own {
            return CallerRole::Operator;
        }
        // A caller with unknown ancestors is rejected.
        let Some(line) = children::all_ancestors(process) else {
            return CallerRole::Gone;
        };
        let mut below_us = false;
        let mut inside = false;
        for reached in line {
            if reached == own {
                below_us = true;
                break;
            }
            let pid = reached.as_raw_pid();
            for hooks in [Hooks::Blocking, Hooks::Background] {
                if self.guard(hooks).load(Ordering::Relaxed) == pid {
                    return CallerRole::Hook(hooks);
                }
            }
            if known_operators().contains(&pid) {
                return CallerRole::Operator;
            }
            inside |= inside_of(reached).is_some_and(|of| !self.above.contains(&of));
        }
        // If guard, standby and runner were killed, none of them is an ancestor. The cgroup still identifies the process.
        inside |= cgroup::ids_of(process)
            .iter()
            .any(|of| !self.above.contains(of));
        let ours = below_us && self.adoption == Adoption::All;
        match inside || ours {
            true => CallerRole::Inside,
            false => CallerRole::Operator,
        }
    }
}

/// Returns whether this process is a descendant of a guard or of a loop's git, or in the cgroup of a guard. Returns true if that cannot be
/// determined.
#[must_use]
pub fn is_below_a_guard() -> bool {
    if !cgroup::ids_of(children::own_pid()).is_empty() {
        return true;
    }
    let line = children::all_ancestors(children::own_pid());
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

/// A program that the operator uses, such as an editor. Until this value is dropped, its requests count as the operator's, and it is not ended
/// with the
/// run. The owner of this value waits until the program ends.
#[derive(Debug)]
pub struct OperatorProgram {
    pid: Pid,
    /// Value of [`EDITING`] in the environment of the editor and of the processes that it starts.
    token: String,
}

/// Environment variable with the token of an editor.
const EDITING: &str = "TACHIKOMA_EDITING";

impl OperatorProgram {
    /// Starts a program and registers it.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(command: &mut Command) -> std::io::Result<Self> {
        // The list stays locked during the start, so that the program is registered before another thread sees it.
        let mut known = known_operators();
        let token = uuid::Uuid::new_v4().to_string();
        let pid = Pid::from_child(&command.env(EDITING, &token).spawn()?);
        known.push(pid.as_raw_pid());
        Ok(Self { pid, token })
    }

    /// Returns the process id of the program.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }
}

/// When the editor ends, the processes that it left running have become children of this process.
impl Drop for OperatorProgram {
    fn drop(&mut self) {
        // Both lists are locked, so that another thread always finds a process in one of them.
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
    fn caller_outside_the_container_is_the_operator() {
        let family = Family::new(Adoption::Marked);
        assert_eq!(family.role_of(0), CallerRole::Operator);
    }

    #[test]
    fn process_in_the_cgroup_of_a_loop_is_not_the_operator() {
        let family = Family::new(Adoption::Marked);
        // If this user may not create a cgroup, no process is in one, and there is nothing to test.
        let Ok(group) = cgroup::Cgroup::make(&format!("caller_role_{}", children::own_pid()))
        else {
            return;
        };
        let mut command = Command::new("sleep");
        let mut child = command.arg("1000").env_clear().spawn().unwrap();
        let pid = Pid::from_child(&child).as_raw_pid();
        let before = family.role_of(pid);
        std::fs::write(group.path().join("cgroup.procs"), pid.to_string()).unwrap();
        let after = family.role_of(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(group.end(std::time::Duration::from_secs(5)).is_empty());
        assert_eq!((before, after), (CallerRole::Operator, CallerRole::Inside));
    }

    #[test]
    fn role_of_an_ended_process_is_unknown() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child).as_raw_pid();
        child.wait().unwrap();
        assert_eq!(Family::new(Adoption::Marked).role_of(pid), CallerRole::Gone);
    }
}
