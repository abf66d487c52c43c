//! Starts and ends processes so that none of them outlives the runner: guard, cgroup, signals, callers. The only `unsafe`; knows no loop state.
//!
//! The guard is one small process per loop ([`Guard`] is the runner's end, [`serve`] the guard's own main). It is the
//! parent of every agent and a child subreaper, so that orphans of an agent become children of the guard. On Linux the guard is a child of its standby, a still smaller process that takes over if the guard is
//! killed. The runner is a subreaper too and takes over if both are killed. The runner knows the process id of the
//! standby only: [`Guard::pid`].

use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
pub use tachikoma_core::{Exit, Leftover, StopSignal};

mod activity;
mod adoption;
mod attended;
mod caller_role;
pub mod cgroup;
mod children;
pub mod control_socket;
mod guard;
mod input;
mod listener;
pub mod orphans;
pub mod peer;
mod protocol;
mod serve;
mod signals;
#[cfg(target_os = "linux")]
mod sockets;
mod spawn;

pub use activity::{memory_below, sample_activity};
pub use adoption::end_children;
pub use attended::Attended;
pub use caller_role::{
    CallerRole, Family, Hooks, INSIDE, OperatorProgram, is_below_a_guard, signal_name,
};
pub use children::{is_alive, wake_children};
pub use guard::{Guard, GuardError, GuardOptions};
pub use input::{handed, input, lines, output};
pub use listener::{Listener, ListenerError, Owner, verify};
pub use orphans::is_descendant;
pub use peer::Peer;
pub use protocol::{GuardReport, Spawn, SpawnSubject};
pub use serve::serve;
pub use signals::{Deferred, Sender, Signals, give_terminal};
pub use spawn::in_a_session_of_its_own;

/// Name of a guard in `ps`. It does not contain the name of the program, so that `killall -9 tachikoma` leaves guards alive to clean up.
#[cfg(target_os = "linux")]
const GUARD_NAME: &str = "loop-guard";

/// The environment variable that marks the processes of a loop. Its value is the loop's id.
pub const MARKER: &str = "TACHIKOMA_LOOP_ID";

/// Returns whether a file can be run by this user.
///
/// # Errors
/// The file does not exist, or may not be examined.
pub fn is_executable(path: &Path) -> io::Result<bool> {
    let metadata = std::fs::metadata(path)?;
    let runnable = rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    Ok(metadata.is_file() && runnable)
}

/// Returns the names and ids of processes as a list for a message.
#[must_use]
pub fn names_of(leftovers: &[Leftover]) -> String {
    let name = |left: &Leftover| format!("{} (pid {})", left.name, left.pid);
    let names: Vec<String> = leftovers.iter().map(name).collect();
    names.join(", ")
}

/// How an agent's processes are contained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A cgroup, which processes cannot leave.
    Cgroup,
    /// The guard as parent and subreaper, while the guard, its standby or the runner is alive.
    Guard,
    /// Only the process group, on systems without subreapers.
    Group,
}

impl fmt::Display for Containment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cgroup => "cgroup",
            Self::Guard => "guard",
            Self::Group => "group",
        })
    }
}

/// Which children of the runner's process are ended after the guard was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adoption {
    /// All children: for a process that has no other children.
    All,
    /// Only children that have the marker of the loop: for a program that embeds the runner and has other children. A child that cleared its
    /// environment is found only through its cgroup.
    Marked,
}
