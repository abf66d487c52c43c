//! Ends the children of a killed guard, which have become children of the runner.

use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};

use super::cgroup::Cgroup;
use super::children::Marking;
use super::{Adoption, Leftover, MARKER, attended, caller_role, children};
use tachikoma_runtime::clock;

/// Timeout of a sweep. SIGKILL takes effect at once unless a process is stuck in the kernel.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for processes that are exiting or in `exec`, which takes microseconds. A process that hides its environment longer is skipped.
const UNDECIDED_TIMEOUT: Duration = Duration::from_millis(200);

/// Time between two searches for new children of this process after a guard was killed.
const SWEEP_TICK: Duration = Duration::from_millis(5);

/// Kills and reaps the children of this process that belong to the loop, until none is left. Returns the processes that cannot be killed. The
/// guard must have ended, because its children become children of this process only then. `agent` is the last agent that the guard started.
///
/// Cancel-safe: a second call continues the work of the first.
pub(super) async fn sweep(
    adoption: Adoption,
    marker: &str,
    cgroup: Option<&Cgroup>,
    agent: Option<Pid>,
) -> Vec<Leftover> {
    let began = clock::monotonic();
    let mut known = Vec::new();
    loop {
        let in_cgroup = cgroup.map(Cgroup::members).unwrap_or_default();
        if let (Some(cgroup), false) = (cgroup, in_cgroup.is_empty()) {
            cgroup.kill();
        }
        let round = search(adoption, marker, cgroup, agent, &known);
        known.extend(round.ours);
        // This is decided before processes are reaped, because the children of a dead process become children of this process.
        let undecided = round.undecided && began.elapsed() < UNDECIDED_TIMEOUT;
        if known.is_empty() && in_cgroup.is_empty() && !undecided {
            return Vec::new();
        }
        for child in &known {
            end(*child);
        }
        known.retain(|child| !reaped(*child));
        if began.elapsed() >= SWEEP_TIMEOUT {
            return known.into_iter().map(survivor).collect();
        }
        if !known.is_empty() || !in_cgroup.is_empty() || undecided {
            tokio::time::sleep(SWEEP_TICK).await;
        }
    }
}

/// Ends processes that git hooks and git filters left. All guards of agents must have ended. Children that another part of this process
/// waits for are not ended: git that packs a backup, and canceled commands that are about to end.
pub async fn end_children(adoption: Adoption, marker: &str) {
    // The result is ignored: a process that cannot be killed is stuck in the kernel, and ends when it leaves the kernel.
    let _ = sweep(adoption, marker, None, None).await;
}

/// Result of one search among the children of this process.
#[derive(Default)]
struct Round {
    ours: Vec<Pid>,
    /// Whether a child was undecided: it may belong to the loop, or may have children that do.
    undecided: bool,
}

fn search(
    adoption: Adoption,
    marker: &str,
    cgroup: Option<&Cgroup>,
    agent: Option<Pid>,
    known: &[Pid],
) -> Round {
    let mut round = Round::default();
    let mut found = children::own();
    // The registered processes are read after the list of children, so that each child that this process started is registered by now.
    let (attended, operators) = (attended::now(), caller_role::operators());
    found.retain(|child| {
        let pid = child.as_raw_pid();
        !known.contains(child) && !attended.contains(&pid) && !operators.contains(&pid)
    });
    for child in found {
        let in_cgroup = cgroup.is_some_and(|cgroup| cgroup.has(child));
        let marking = match adoption {
            Adoption::All => Marking::Ours,
            // The agent ends with its guard, and the marker of an ended process cannot be read. Its process id is valid until it is reaped.
            Adoption::Marked if in_cgroup || agent == Some(child) => Marking::Ours,
            // A guard becomes a child of this process when its standby is killed. Guards have no marker.
            Adoption::Marked if is_guard(child) => Marking::Ours,
            Adoption::Marked => children::marking(child, MARKER, marker),
        };
        match marking {
            Marking::Ours => round.ours.push(child),
            Marking::Undecided => round.undecided = true,
            Marking::Foreign => (),
        }
    }
    round
}

#[cfg(target_os = "linux")]
fn is_guard(child: Pid) -> bool {
    children::describe(child).name == super::GUARD_NAME
}

#[cfg(not(target_os = "linux"))]
fn is_guard(_child: Pid) -> bool {
    false
}

/// Kills a child through a pidfd, so that no other process is hit if the embedding program reaps the child meanwhile.
#[cfg(target_os = "linux")]
fn end(child: Pid) {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
    // The child may have ended already.
    if let Ok(pidfd) = pidfd_open(child, PidfdFlags::empty()) {
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
}

#[cfg(not(target_os = "linux"))]
fn end(child: Pid) {
    let _ = rustix::process::kill_process(child, Signal::KILL);
}

fn reaped(child: Pid) -> bool {
    match rustix::process::waitpid(Some(child), WaitOptions::NOHANG) {
        Ok(None) => false,
        // The child was reaped now, or earlier by other code.
        Ok(Some(_)) | Err(_) => true,
    }
}

fn survivor(pid: Pid) -> Leftover {
    Leftover {
        unkillable: true,
        ..children::describe(pid)
    }
}
