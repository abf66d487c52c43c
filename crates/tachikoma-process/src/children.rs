//! Reads `/proc`: children, names, parents and start times of processes.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::Leftover;

/// Maximum length of a recorded command line. A prompt that is an argument must not fill the journal.
const COMMAND_BYTES_MAX: u64 = 256;

/// Maximum size of an environment that is read. The kernel's limit for arguments and environment together is lower.
const ENVIRONMENT_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Maximum length of a line of `/proc/<pid>/stat`. It has 52 numbers and a name.
const STAT_BYTES_MAX: u64 = 4096;

/// Initial size of the read buffer. Most files of `/proc` are shorter.
const PROC_FILE_BYTES: usize = 4096;

/// Maximum number of ancestors. No real process has as many. The limit ends a walk through a chain that changes during the walk.
const ANCESTORS_MAX: usize = 1024;

/// Maximum number of attempts to read the ancestors of a process. An attempt fails if an ancestor ends during it.
const ANCESTORS_TRIES: usize = 16;

/// Kernel flags (`linux/sched.h`): the process is exiting, and the process is a kernel thread.
const FLAG_EXITING: u64 = 0x4;
const FLAG_KERNEL_THREAD: u64 = 0x20_0000;

/// Returns the ids of the children of this process, including dead ones that were not reaped.
///
/// The kernel may leave out a child if others die while it writes the list. A caller that needs all of them has to ask again.
pub(super) fn own() -> Vec<Pid> {
    let mut found = Vec::new();
    // The kernel keeps a separate list of children for each thread.
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return found;
    };
    for thread in threads.flatten() {
        if let Ok(list) = fs::read_to_string(thread.path().join("children")) {
            found.extend(list.split_ascii_whitespace().filter_map(parse_pid));
        }
    }
    found
}

/// Continues all stopped children of this process. A stopped guard cannot clean up.
pub fn wake_children() {
    for child in own() {
        // The child may have ended already.
        let _ = rustix::process::kill_process(child, rustix::process::Signal::CONT);
    }
}

/// Returns the id of this process.
pub(super) fn own_pid() -> Pid {
    rustix::process::getpid()
}

/// Returns the name and the beginning of the command line of a process, as far as they can be read.
pub(super) fn describe(pid: Pid) -> Leftover {
    let base = format!("/proc/{pid}");
    let name = fs::read(format!("{base}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    let command = read_head(Path::new(&format!("{base}/cmdline")), COMMAND_BYTES_MAX);
    let words = command.unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    Leftover {
        pid: pid.as_raw_pid(),
        name: name.trim_end().to_owned(),
        command: words.trim_end().to_owned(),
        unkillable: false,
    }
}

/// Fields of `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    /// The parent process; `None` for the first process of a namespace.
    pub(super) parent: Option<Pid>,
    /// Start time in clock ticks after boot. Start time and id together identify one process.
    pub(super) started: u64,
    /// Whether the process has ended and was not reaped yet (a zombie).
    pub(super) dead: bool,
    /// Whether the process is exiting.
    pub(super) dying: bool,
    /// Whether the process is a kernel thread.
    pub(super) in_kernel: bool,
    /// Whether the program of the process was started with an empty environment.
    pub(super) bare: bool,
    /// CPU time of the process and of its reaped children, in clock ticks.
    pub(super) cpu_ticks: u64,
}

/// Returns the fields of a process; `None` if the process has ended.
pub(super) fn stat(pid: Pid) -> Option<Stat> {
    let path = format!("/proc/{pid}/stat");
    parse_stat(&read_head(Path::new(&path), STAT_BYTES_MAX).ok()?)
}

fn parse_stat(line: &[u8]) -> Option<Stat> {
    // The name is in parentheses and may contain any bytes, including parentheses.
    let name_ends = line.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(line.get(name_ends + 1..)?).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?;
    let flags: u64 = fields.nth(4)?.parse().ok()?;
    let times = fields.by_ref().skip(4).take(4);
    let cpu_ticks = times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    let started = fields.nth(4)?;
    let code = fields.nth(3);
    let environment = fields.nth(23).zip(fields.next());
    Some(Stat {
        parent: parse_pid(parent),
        started: started.parse().ok()?,
        dead: matches!(state, "Z" | "X"),
        dying: flags & FLAG_EXITING != 0,
        in_kernel: flags & FLAG_KERNEL_THREAD != 0,
        // The kernel sets the address of the code after that of the environment. If it is zero, the environment is not known yet.
        bare: code.is_some_and(|start| start != "0")
            && environment.is_some_and(|(start, end)| start == end),
        cpu_ticks,
    })
}

/// Returns whether a process is alive. A zombie is not alive.
pub fn is_alive(pid: i32) -> bool {
    let known = Pid::from_raw(pid);
    if !cfg!(target_os = "linux") {
        return known.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH));
    }
    known.and_then(stat).is_some_and(|stat| !stat.dead)
}

/// Returns a process and its ancestors, the nearest first.
pub(super) fn ancestors(pid: Pid) -> impl Iterator<Item = Pid> {
    let parent = |pid: &Pid| stat(*pid).and_then(|stat| stat.parent);
    std::iter::successors(Some(pid), parent).take(ANCESTORS_MAX)
}

/// Returns a process and all of its ancestors, the nearest first, up to init or to one that is hidden from this process. `None` if they cannot
/// be determined: an ancestor ended meanwhile, or there are too many.
pub(super) fn all_ancestors(pid: Pid) -> Option<Vec<Pid>> {
    if !cfg!(target_os = "linux") {
        return Some(ancestors(pid).collect());
    }
    (0..ANCESTORS_TRIES).find_map(|_| all_ancestors_now(pid))
}

fn all_ancestors_now(pid: Pid) -> Option<Vec<Pid>> {
    let mut found = vec![pid];
    let mut last = stat(pid)?;
    while let Some(parent) = last.parent {
        let Some(above) = stat(parent) else {
            let hidden = test_kill_process(parent) == Err(Errno::PERM);
            return hidden.then_some(found);
        };
        // A parent is older than its children, even if it adopted them. A younger process has reused the id of an ancestor that ended.
        if above.started > last.started || found.len() == ANCESTORS_MAX {
            return None;
        }
        found.push(parent);
        last = above;
    }
    Some(found)
}

/// Whether a process has the marker of a loop in its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marking {
    /// The process has the marker.
    Ours,
    /// The process does not have the marker, or has ended.
    Foreign,
    /// The process is exiting or in `exec`, so its environment cannot be read now. Try again.
    Undecided,
}

/// Returns whether the environment a process was started with has `name=value`.
pub(super) fn marking(pid: Pid, name: &str, value: &str) -> Marking {
    let wanted = format!("{name}={value}");
    let path = format!("/proc/{pid}/environ");
    let environment = match read_head(Path::new(&path), ENVIRONMENT_BYTES_MAX) {
        Ok(environment) => environment,
        // A process of another user does not belong to the loop.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Marking::Foreign,
        Err(_) => Vec::new(),
    };
    if environment.is_empty() {
        return without_environment(pid);
    }
    let mut entries = environment.split(|byte| *byte == 0);
    match entries.any(|entry| entry == wanted.as_bytes()) {
        true => Marking::Ours,
        false => Marking::Foreign,
    }
}

/// Returns a variable of the environment that a process was started with; `None` if it is not set or cannot be read.
pub(super) fn variable(pid: Pid, name: &str) -> Option<OsString> {
    let [value] = variables(pid, [name]);
    value
}

/// Returns several variables of the environment that a process was started with.
pub(super) fn variables<const N: usize>(pid: Pid, names: [&str; N]) -> [Option<OsString>; N] {
    let path = format!("/proc/{pid}/environ");
    let environment = read_head(Path::new(&path), ENVIRONMENT_BYTES_MAX).unwrap_or_default();
    names.map(|name| {
        let mut entries = environment.split(|byte| *byte == 0);
        entries.find_map(|entry| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(OsStr::from_bytes(value).to_owned())
        })
    })
}

/// Classifies a process without a readable environment. The children of an ended process already have other parents, those of an
/// exiting process do not. A process in `exec` has an environment a moment later.
fn without_environment(pid: Pid) -> Marking {
    match stat(pid) {
        Some(stat) if !stat.dead && !stat.in_kernel && (stat.dying || !stat.bare) => {
            Marking::Undecided
        }
        Some(_) | None => Marking::Foreign,
    }
}

/// Returns the path of the cgroup of a process, relative to the mount of cgroup version 2.
pub(super) fn cgroup_of(pid: Pid) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.trim_end_matches(" (deleted)").to_owned())
}

/// Returns the ids of all processes that are visible in `/proc`.
pub(super) fn all() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| parse_pid(entry.file_name().to_str()?))
        .collect()
}

/// Returns the inodes of the sockets that a process has open. A process of another user shows none.
pub(super) fn sockets(pid: Pid) -> impl Iterator<Item = u64> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let descriptors = descriptors.into_iter().flatten().flatten();
    descriptors.filter_map(|descriptor| {
        let target = fs::read_link(descriptor.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?;
        inode.strip_suffix(']')?.parse().ok()
    })
}

pub(super) fn parse_pid(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

fn read_head(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // Files in `/proc` report no size. Most fit into this buffer, so one call reads them.
    let mut bytes = Vec::with_capacity(PROC_FILE_BYTES);
    fs::File::open(path)?
        .take(bytes_max)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed_if_the_process_name_contains_parentheses() {
        let line = "42 (a) Z 1 (b) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2";
        assert_eq!(
            parse_stat(line.as_bytes()),
            Some(Stat {
                parent: Pid::from_raw(7),
                started: 9876,
                dead: false,
                dying: false,
                in_kernel: false,
                bare: false,
                cpu_ticks: 5 + 6 + 7 + 8,
            })
        );
        assert_eq!(parse_stat(b"42 (a"), None);
    }

    #[test]
    fn marker_is_read_from_the_initial_environment() {
        let check = |command: &mut std::process::Command, expected| {
            let mut child = command.arg("1000").spawn().unwrap();
            let pid = Pid::from_child(&child);
            let decided = || match marking(pid, "TACHIKOMA_TEST", "a") {
                Marking::Undecided => None,
                decided @ (Marking::Ours | Marking::Foreign) => Some(decided),
            };
            // The marker is undecided until `exec` is done.
            let decided = std::iter::repeat_with(decided).flatten().next();
            assert_eq!(decided, Some(expected));
            child.kill().unwrap();
            let dead = || stat(pid).is_some_and(|stat| stat.dead);
            while !dead() {
                std::thread::yield_now();
            }
            assert_eq!(
                marking(pid, "TACHIKOMA_TEST", "a"),
                Marking::Foreign,
                "dead"
            );
            child.wait().unwrap();
            assert_eq!(
                marking(pid, "TACHIKOMA_TEST", "a"),
                Marking::Foreign,
                "gone"
            );
        };
        let sleep = || std::process::Command::new("/bin/sleep");
        check(sleep().env("TACHIKOMA_TEST", "a"), Marking::Ours);
        check(sleep().env("TACHIKOMA_TEST", "ab"), Marking::Foreign);
        check(sleep().env_clear(), Marking::Foreign);
    }

    #[test]
    fn stat_of_own_process_is_parsed() {
        let me = stat(own_pid()).expect("this process is alive");
        assert_eq!(me.parent, rustix::process::getppid());
        assert!(!me.dead && !me.dying && !me.in_kernel && !me.bare);
        assert!(all().contains(&own_pid()));
    }
}
