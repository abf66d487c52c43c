//! Measures the activity of a process and its descendants: CPU time, network traffic and file traffic.
//!
//! The kernel keeps these sums per process, and adds those of a child to its parent's when it is reaped, so that the sum
//! over a whole tree forgets nothing that was short-lived. Connections are counted apart: what a program receives with
//! `recv` is in no sum of its process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tachikoma_core::Activity;

use super::children;
use tachikoma_runtime::clock;

/// Time between two samples. It has to be longer than the pauses of an answer that comes in bursts.
const LOOK: Duration = Duration::from_secs(2);

/// A longer time means that the machine was suspended, or that all processes were stopped.
const LOOK_MAX: Duration = Duration::from_secs(4);

/// Attempts after which an interrupted sample is used.
const TRIES_MAX: u32 = 3;

/// Descriptors that are looked at per process. Hardly any program has more connections.
const DESCRIPTORS_MAX: usize = 4096;

/// Measures the activity of a process and its descendants for a moment; `None` if the system does not support it.
pub async fn look(root: i32) -> Option<Activity> {
    let root = Pid::from_raw(root)?;
    let sample = || async move {
        let sampled = tokio::task::spawn_blocking(move || Sample::take(root)).await;
        sampled.ok().flatten()
    };
    let mut seen = None;
    for _ in 0..TRIES_MAX {
        let before = sample().await?;
        tokio::time::sleep(LOOK).await;
        let after = sample().await?;
        seen = Some(after.since(&before));
        if after.time.duration_since(before.time) <= LOOK_MAX {
            break;
        }
    }
    seen
}

/// Returns the memory of all descendants of a process together. What they share counts for each. Nothing where the system does
/// not tell.
pub async fn memory_below(root: i32) -> Option<u64> {
    let root = Pid::from_raw(root)?;
    let summed = tokio::task::spawn_blocking(move || {
        let tree = tree(root)?;
        let below = tree.into_keys().filter(|pid| *pid != root);
        Some(below.map(memory).sum())
    });
    summed.await.ok().flatten()
}

/// Returns the memory of a process that is there; none of one that is gone.
fn memory(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: u64| pages * rustix::param::page_size() as u64)
}

/// Sums over a tree of processes at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sample {
    time: Instant,
    cpu_ticks: u64,
    file_bytes: u64,
    /// By connection, because one that is closed takes its figure with it.
    network_bytes: BTreeMap<u32, u64>,
}

impl Sample {
    fn take(root: Pid) -> Option<Self> {
        let tree = tree(root)?;
        let inodes: BTreeSet<u32> = tree.keys().copied().flat_map(sockets_of).collect();
        let mut network_bytes = match inodes.is_empty() {
            true => BTreeMap::new(),
            // Where connections cannot be asked for, the rest still tells something.
            false => connections(),
        };
        network_bytes.retain(|inode, _| inodes.contains(inode));
        Some(Self {
            time: clock::monotonic(),
            cpu_ticks: tree.values().map(|stat| stat.cpu_ticks).sum(),
            file_bytes: tree.keys().copied().map(file_bytes).sum(),
            network_bytes,
        })
    }

    fn since(&self, before: &Self) -> Activity {
        let network = self.network_bytes.iter().map(|(inode, bytes)| {
            let known = before.network_bytes.get(inode).copied();
            bytes.saturating_sub(known.unwrap_or(0))
        });
        let ticks = self.cpu_ticks.saturating_sub(before.cpu_ticks);
        let over = self.time.duration_since(before.time).as_millis();
        Activity {
            over_ms: u64::try_from(over).unwrap_or(u64::MAX),
            cpu_ms: ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1),
            network_bytes: network.sum(),
            file_bytes: self.file_bytes.saturating_sub(before.file_bytes),
        }
    }
}

#[cfg(target_os = "linux")]
fn connections() -> BTreeMap<u32, u64> {
    super::sockets::bytes().unwrap_or_default()
}

#[cfg(not(target_os = "linux"))]
fn connections() -> BTreeMap<u32, u64> {
    BTreeMap::new()
}

/// Returns a process and all its descendants, or nothing if it is gone.
fn tree(root: Pid) -> Option<HashMap<Pid, children::Stat>> {
    let mut others: Vec<(Pid, children::Stat)> = children::all()
        .into_iter()
        .filter_map(|pid| Some((pid, children::stat(pid)?)))
        .collect();
    let mut tree = HashMap::from([(root, children::stat(root)?)]);
    // Each round finds those one step further down.
    loop {
        let known = tree.len();
        others.retain(|(pid, stat)| {
            let below = stat.parent.is_some_and(|parent| tree.contains_key(&parent));
            if below {
                tree.insert(*pid, *stat);
            }
            !below
        });
        if tree.len() == known {
            return Some(tree);
        }
    }
}

/// Bytes that a process, and those of its children that it reaped, have read and written. None for another user's.
fn file_bytes(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines
        .filter(|(name, _)| matches!(*name, "rchar" | "wchar"))
        .filter_map(|(_, number)| number.parse::<u64>().ok())
        .sum()
}

/// Returns the sockets that a process has open.
fn sockets_of(pid: Pid) -> Vec<u32> {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    descriptors
        .flatten()
        .take(DESCRIPTORS_MAX)
        .filter_map(|descriptor| {
            let target = fs::read_link(descriptor.path()).ok()?;
            let inode = target.to_str()?.strip_prefix("socket:[")?;
            inode.strip_suffix(']')?.parse().ok()
        })
        .collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_a_socket_receives_is_seen_as_network_and_what_a_file_gives_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut here, _) = listener.accept().unwrap();
        let before = Sample::take(children::own_pid()).unwrap();
        there.write_all(&[7; 50_000]).unwrap();
        here.read_exact(&mut [0; 50_000]).unwrap();
        let read = fs::read(std::env::current_exe().unwrap()).unwrap().len() as u64;
        let seen = Sample::take(children::own_pid()).unwrap().since(&before);
        assert!(seen.network_bytes >= 100_000, "sent and received: {seen}");
        assert!(seen.file_bytes >= read, "{read} bytes of a file: {seen}");
    }

    #[test]
    fn a_connection_that_is_new_counts_whole_and_one_that_is_gone_does_not() {
        let sample = |network: &[(u32, u64)], cpu_ticks| Sample {
            time: clock::monotonic(),
            cpu_ticks,
            file_bytes: 5,
            network_bytes: network.iter().copied().collect(),
        };
        let seen = sample(&[(2, 30), (3, 400)], 7).since(&sample(&[(1, 1_000), (2, 10)], 9));
        assert_eq!(
            (seen.network_bytes, seen.cpu_ms, seen.file_bytes),
            (420, 0, 0)
        );
    }

    #[test]
    fn children_and_what_they_used_before_they_were_reaped_count() {
        let before = Sample::take(children::own_pid()).unwrap();
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        assert!(tree(children::own_pid()).unwrap().contains_key(&pid));
        child.wait().unwrap();
        let seen = Sample::take(children::own_pid()).unwrap().since(&before);
        assert!(seen.cpu_ms >= 10, "{seen}");
        assert!(!tree(children::own_pid()).unwrap().contains_key(&pid));
        assert_eq!(tree(pid), None, "gone");
    }
}
