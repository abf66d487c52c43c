//! Finds the processes of a test by a unique argument.

use std::fs;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a word that no other process or test run uses.
///
/// Give it to a process as an argument (`sh -c '...' MARKER`) and [`processes_with`] finds it.
#[must_use]
pub fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("mark-{}-{nanos:x}-{number}", process::id())
}

/// Returns the ids of all living processes with `marker` in their command line, in order.
///
/// Zombies have no command line and are not found; neither is the calling process.
///
/// # Panics
///
/// If there is no `/proc`: an empty list would let every test pass.
#[must_use]
pub fn processes_with(marker: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("processes are listed in /proc");
    let mut found: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != process::id() && has_marker(pid, marker))
        .collect();
    found.sort_unstable();
    found
}

/// Returns whether a process has the marker in its command line. False if it ends meanwhile.
fn has_marker(pid: u32, marker: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| String::from_utf8_lossy(&line).contains(marker))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::await_until;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn each_process_marker_is_unique() {
        assert_ne!(unique(), unique());
    }

    #[test]
    fn a_marked_process_is_found_only_while_it_runs() {
        let marker = unique();
        assert!(processes_with(&marker).is_empty());

        // `read` blocks on the pipe until the test closes it. The marker is the name of the script.
        let mut child = Command::new("sh")
            .args(["-c", "read line", &marker])
            .stdin(Stdio::piped())
            .spawn()
            .expect("sh starts");
        await_until("the marked process", Duration::from_secs(10), || {
            processes_with(&marker) == [child.id()]
        });

        child.kill().expect("the test started this process");
        await_until("the zombie to be ignored", Duration::from_secs(10), || {
            processes_with(&marker).is_empty()
        });
        child.wait().expect("the child is reaped");
    }
}
