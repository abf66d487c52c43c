//! Finds and ends processes that an earlier, dead runner and its guard left running.

use std::collections::HashSet;
use std::time::Duration;

use rustix::process::Pid;

use super::cgroup::{self, Cgroup};
use super::children::Marking;
use super::{Leftover, MARKER, children};
use tachikoma_runtime::clock;

/// How long to wait until leftovers have ended. SIGKILL takes effect at once unless a process is stuck in the kernel.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum wait for killed processes before the next search.
const ROUND_TIMEOUT: Duration = Duration::from_millis(500);

/// How long to wait for processes that are exiting or in `exec`, which takes microseconds. A process that hides its environment longer is skipped.
const UNDECIDED_TIMEOUT: Duration = Duration::from_millis(20);

/// Time between two searches for processes that should end by themselves.
const STRAGGLER_PAUSE: Duration = Duration::from_millis(50);

/// Kills the processes that have the marker of a loop, and the cgroups of the loop. Skips this process, its ancestors and its descendants.
/// Returns the killed processes.
///
/// Used at the start of a run if the earlier runner crashed. Hold the lock of the working directory, or this could kill the agents of a running
/// runner.
#[must_use]
pub fn end_leftovers(marker: &str) -> Vec<Leftover> {
    let mut ended = Vec::new();
    if marker.is_empty() {
        return ended;
    }
    let deadline = clock::monotonic() + END_TIMEOUT;
    for group in cgroup::stale(marker) {
        end_group(&group, &mut ended);
    }
    let spared = own_line();
    // The search is repeated until it finds no process, because a process may have forked while it was checked.
    loop {
        let found = marked(marker, &spared);
        if found.is_empty() {
            return ended;
        }
        for pid in &found {
            if let Some(group) = cgroup::of_process(*pid, marker) {
                end_group(&group, &mut ended);
            }
        }
        let killed = found.into_iter().filter_map(|pid| end(pid, marker));
        let killed: Vec<_> = killed.collect();
        for (leftover, _) in &killed {
            note(&mut ended, leftover.clone());
        }
        await_deaths(killed);
        if clock::monotonic() >= deadline {
            mark_unkillable(&mut ended, &marked(marker, &spared));
            return ended;
        }
    }
}

/// Waits up to `patience` for the processes of a runner that has just ended to end by themselves, and then kills them as
/// [`end_leftovers`] does.
pub(super) fn end_stragglers(marker: &str, patience: Duration) {
    if marker.is_empty() {
        return;
    }
    let deadline = clock::monotonic() + patience;
    let spared = own_line();
    while !marked(marker, &spared).is_empty() {
        if clock::monotonic() >= deadline {
            let _ = end_leftovers(marker);
            return;
        }
        std::thread::sleep(STRAGGLER_PAUSE);
    }
}

/// Returns whether `pid` is `of` or one of its descendants. Returns false if a process has ended or is not visible.
#[must_use]
pub fn is_descendant(pid: i32, of: i32) -> bool {
    let mut ancestors = Pid::from_raw(pid).into_iter().flat_map(children::ancestors);
    ancestors.any(|reached| reached.as_raw_pid() == of)
}

/// Returns this process and its ancestors. A loop may run inside the agent of another loop.
fn own_line() -> HashSet<Pid> {
    children::ancestors(children::own_pid()).collect()
}

/// Returns the processes with the marker. Processes that cannot be decided yet are checked again.
fn marked(marker: &str, spared: &HashSet<Pid>) -> Vec<Pid> {
    let deadline = clock::monotonic() + UNDECIDED_TIMEOUT;
    let mut candidates = children::all();
    candidates.retain(|pid| !spared.contains(pid));
    let mut found = Vec::new();
    loop {
        candidates.retain(|pid| match children::marking(*pid, MARKER, marker) {
            Marking::Ours => {
                found.push(*pid);
                false
            }
            Marking::Foreign => false,
            Marking::Undecided => true,
        });
        if candidates.is_empty() || clock::monotonic() >= deadline {
            break;
        }
        std::thread::yield_now();
    }
    let own = children::own_pid().as_raw_pid();
    found.retain(|pid| !is_descendant(pid.as_raw_pid(), own));
    found
}

fn end_group(group: &Cgroup, ended: &mut Vec<Leftover>) {
    for member in group.members() {
        note(ended, children::describe(member));
    }
    mark_unkillable(ended, &group.end(END_TIMEOUT));
}

fn mark_unkillable(ended: &mut [Leftover], survivors: &[Pid]) {
    for leftover in ended {
        leftover.unkillable |= survivors.iter().any(|pid| pid.as_raw_pid() == leftover.pid);
    }
}

/// Maximum number of leftovers that are reported by name. More of them add no information.
const NAMED_MAX: usize = 64;

fn note(ended: &mut Vec<Leftover>, leftover: Leftover) {
    if ended.len() < NAMED_MAX && !ended.iter().any(|known| known.pid == leftover.pid) {
        ended.push(leftover);
    }
}

/// The pidfd of a killed process, to wait for its end.
type Dying = std::os::fd::OwnedFd;

/// Kills one process through a descriptor, and only if it is still the process that was checked.
#[cfg(target_os = "linux")]
fn end(pid: Pid, marker: &str) -> Option<(Leftover, Dying)> {
    use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let before = children::stat(pid)?;
    let leftover = children::describe(pid);
    if before.dead || children::marking(pid, MARKER, marker) != Marking::Ours {
        return None;
    }
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // The start time did not change before the descriptor was opened, so the descriptor refers to the process that has the marker.
    if children::stat(pid)?.started != before.started {
        return None;
    }
    pidfd_send_signal(&pidfd, Signal::KILL).ok()?;
    Some((leftover, pidfd))
}

/// This is never called, because no process is found without `/proc`.
#[cfg(not(target_os = "linux"))]
fn end(_pid: Pid, _marker: &str) -> Option<(Leftover, Dying)> {
    None
}

fn await_deaths(killed: Vec<(Leftover, Dying)>) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let deadline = clock::monotonic() + ROUND_TIMEOUT;
    for (_, pidfd) in killed {
        let left = deadline.saturating_duration_since(clock::monotonic());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout));
    }
}
