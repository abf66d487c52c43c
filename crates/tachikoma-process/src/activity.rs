//! Measures the activity of a process and its descendants: CPU time, network traffic and file traffic.
//!
//! The kernel keeps these counters per process, and adds those of a child to its parent when the child is reaped. Therefore the sum over a
//! process tree includes children that have ended. Network bytes are counted per connection, because the counters of a process do not
//! include bytes received with `recv`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tachikoma_core::Activity;

use super::children;
use tachikoma_runtime::clock;

/// Time between two samples. It must be longer than the pauses in a model response that is streamed in bursts.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum real time of a sample. If it took longer, the machine was suspended, or all processes were stopped.
const SAMPLE_INTERVAL_MAX: Duration = Duration::from_secs(4);

/// Maximum number of attempts. If the last one was interrupted too, its result is used.
const TRIES_MAX: u32 = 3;

/// Maximum number of sockets that are counted per process. Hardly any program has more connections.
const SOCKETS_MAX: usize = 4096;

/// Measures the activity of a process and its descendants for a short time; `None` if the system does not support it.
pub async fn sample_activity(root: i32) -> Option<Activity> {
    let root = Pid::from_raw(root)?;
    let sample = || async move {
        let sampled = tokio::task::spawn_blocking(move || Sample::take(root)).await;
        sampled.ok().flatten()
    };
    let mut seen = None;
    for _ in 0..TRIES_MAX {
        let before = sample().await?;
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        let after = sample().await?;
        seen = Some(after.since(&before));
        if after.time.duration_since(before.time) <= SAMPLE_INTERVAL_MAX {
            break;
        }
    }
    seen
}

/// Returns the sum of the resident memory of all descendants of a process, in bytes. Shared memory is counted for each process. `None` if the
/// system does not report it.
pub async fn memory_below(root: i32) -> Option<u64> {
    let root = Pid::from_raw(root)?;
    let summed = tokio::task::spawn_blocking(move || {
        let tree = tree(root)?;
        let below = tree.into_keys().filter(|pid| *pid != root);
        Some(below.map(memory).sum())
    });
    summed.await.ok().flatten()
}

/// Returns the resident memory of a process, in bytes; zero if it has ended.
fn memory(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: u64| pages * rustix::param::page_size() as u64)
}

/// Counters of a process tree at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sample {
    time: Instant,
    cpu_ticks: u64,
    file_bytes: u64,
    /// Bytes per connection, by the inode of its socket. Closed connections are not included.
    network_bytes: BTreeMap<u64, u64>,
}

impl Sample {
    fn take(root: Pid) -> Option<Self> {
        let tree = tree(root)?;
        let sockets = |pid: &Pid| children::sockets(*pid).take(SOCKETS_MAX);
        let inodes: BTreeSet<u64> = tree.keys().flat_map(sockets).collect();
        let mut network_bytes = match inodes.is_empty() {
            true => BTreeMap::new(),
            // If the connections cannot be read, CPU time and file traffic are still measured.
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
fn connections() -> BTreeMap<u64, u64> {
    super::sockets::bytes().unwrap_or_default()
}

#[cfg(not(target_os = "linux"))]
fn connections() -> BTreeMap<u64, u64> {
    BTreeMap::new()
}

/// Returns a process and all its descendants; `None` if the process has ended.
fn tree(root: Pid) -> Option<HashMap<Pid, children::Stat>> {
    let mut others: Vec<(Pid, children::Stat)> = children::all()
        .into_iter()
        .filter_map(|pid| Some((pid, children::stat(pid)?)))
        .collect();
    let mut tree = HashMap::from([(root, children::stat(root)?)]);
    // Each round finds the children of the processes that are already in the tree.
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

/// Returns the bytes that a process and its reaped children have read and written; zero for a process of another user.
fn file_bytes(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines
        .filter(|(name, _)| matches!(*name, "rchar" | "wchar"))
        .filter_map(|(_, number)| number.parse::<u64>().ok())
        .sum()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn activity_separates_network_bytes_and_file_bytes() {
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
    fn activity_includes_new_connections_and_not_closed_ones() {
        let sample = |network: &[(u64, u64)], cpu_ticks| Sample {
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
    fn activity_includes_cpu_time_of_reaped_children() {
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
        assert_eq!(tree(pid), None, "an ended process has no tree");
    }
}
