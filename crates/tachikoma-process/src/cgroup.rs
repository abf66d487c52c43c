//! A cgroup (version 2) for one guard and its agents. Processes cannot leave it, and one write kills all of them.
//!
//! Failures are not errors: the guard then runs without a cgroup, and the reason is stored as text.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use super::children;
use tachikoma_runtime::clock;

/// Prefix of the names of Tachikoma's cgroups. The loop's id and a number follow.
const PREFIX: &str = "tachikoma-";

/// Maximum number of cgroups of one loop. A lost guard leaves a cgroup until it is empty. More of them mean that cgroups are not cleaned up.
const GROUPS_PER_LOOP_MAX: u32 = 16;

/// Time between two checks of a cgroup that is being emptied. Its processes have ended, and the kernel needs a moment to remove them.
const EMPTY_TICK: Duration = Duration::from_millis(2);

/// The cgroup of one guard.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates a cgroup below that of this process, or returns why that is not possible.
    pub(super) fn make(marker: &str) -> Result<Self, String> {
        if !is_name(marker) {
            return Err("the loop's id cannot be a directory name".to_owned());
        }
        let base = own_directory()?;
        for number in 1..=GROUPS_PER_LOOP_MAX {
            let path = base.join(format!("{PREFIX}{marker}.{number}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let group = Self { path };
                    if group.path.join("cgroup.kill").exists() {
                        return Ok(group);
                    }
                    group.remove();
                    return Err("the kernel has no cgroup.kill".to_owned());
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => (),
                Err(error) => return Err(format!("create {}: {error}", path.display())),
            }
        }
        Err(format!(
            "{GROUPS_PER_LOOP_MAX} cgroups of earlier guards of this loop still exist"
        ))
    }

    /// Returns the cgroup at a path. Another process created it.
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the directory of the cgroup.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the directory of the cgroup for `clone3`.
    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&self.path, flags, Mode::empty())?)
    }

    /// Returns the processes in the cgroup.
    pub(super) fn members(&self) -> Vec<Pid> {
        fs::read_to_string(self.path.join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
            .filter_map(children::parse_pid)
            .collect()
    }

    /// Kills every process in the cgroup, including this process if it is a member.
    pub(super) fn kill(&self) {
        // The write fails if the cgroup was removed. Then it has no processes.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Moves this process to the parent cgroup, so that it survives [`Self::kill`], and also its standby if that is in the cgroup. Returns whether
    /// that succeeded.
    pub(super) fn leave(&self) -> bool {
        let move_out = |pid: Pid| {
            let above = self.path.parent();
            above
                .is_some_and(|above| fs::write(above.join("cgroup.procs"), pid.to_string()).is_ok())
        };
        let standby = rustix::process::getppid().filter(|parent| self.has(*parent));
        move_out(children::own_pid()) && standby.is_none_or(move_out)
    }

    /// Kills all processes in the cgroup and removes it, within `patience`. Returns the processes that are still in it.
    pub(super) fn end(&self, patience: Duration) -> Vec<Pid> {
        let deadline = clock::monotonic() + patience;
        loop {
            if self.remove() {
                return Vec::new();
            }
            let members = self.members();
            if clock::monotonic() >= deadline {
                return members;
            }
            if !members.is_empty() {
                self.kill();
            }
            thread::sleep(EMPTY_TICK);
        }
    }

    /// Removes the cgroup. Returns false while processes are in it.
    pub(super) fn remove(&self) -> bool {
        match fs::remove_dir(&self.path) {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// Returns whether a process is in the cgroup, or was in it until it ended.
    pub(super) fn has(&self, pid: Pid) -> bool {
        let Some(of_process) = children::cgroup_of(pid) else {
            return false;
        };
        let own = self.path.file_name();
        own.is_some() && Path::new(&of_process).file_name() == own
    }
}

/// Checks whether a run can create a cgroup below that of this process. The error is the cause.
///
/// # Errors
/// No cgroup can be created.
pub fn check() -> Result<(), String> {
    Cgroup::make(&format!("check-{}", std::process::id())).map(|group| {
        group.remove();
    })
}

/// Returns the cgroups that an earlier runner of this loop left.
pub(super) fn stale(marker: &str) -> Vec<Cgroup> {
    let Ok(entries) = own_directory().and_then(|base| fs::read_dir(base).map_err(text)) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| is_of(marker, entry.file_name().to_str().unwrap_or_default()))
        .map(|entry| Cgroup::at(entry.path()))
        .collect()
}

/// Returns the cgroup of the loop that contains a process; `None` if the process is in none of them.
pub(super) fn of_process(pid: Pid, marker: &str) -> Option<Cgroup> {
    let path = children::cgroup_of(pid)?;
    let name = Path::new(&path).file_name()?.to_str()?;
    if !is_of(marker, name) {
        return None;
    }
    let mount = mount().ok()?;
    Some(Cgroup::at(mount.directory(&path)?))
}

/// Returns the ids of the loops and servers that have a cgroup with this process. A process cannot hide this by clearing its environment.
pub(super) fn ids_of(pid: Pid) -> Vec<OsString> {
    let path = children::cgroup_of(pid).unwrap_or_default();
    let id = |name: &str| {
        let (id, number) = name.strip_prefix(PREFIX)?.rsplit_once('.')?;
        number.parse::<u32>().is_ok().then(|| id.into())
    };
    path.split('/').filter_map(id).collect()
}

fn is_name(marker: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !marker.is_empty() && marker.len() <= 200 && marker.chars().all(plain)
}

fn is_of(marker: &str, name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .and_then(|rest| rest.strip_prefix(marker))
        .and_then(|rest| rest.strip_prefix('.'))
        .is_some_and(|number| number.parse::<u32>().is_ok())
}

fn own_directory() -> Result<PathBuf, String> {
    let own =
        children::cgroup_of(children::own_pid()).ok_or("this process is not in a cgroup v2")?;
    mount()?
        .directory(&own)
        .ok_or_else(|| format!("the control group {own} is outside of the mount"))
}

/// Mount point of the cgroup version 2 hierarchy, and which part of the hierarchy is mounted.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    root: String,
    point: PathBuf,
}

impl Mount {
    fn directory(&self, cgroup: &str) -> Option<PathBuf> {
        let below = cgroup.strip_prefix(self.root.trim_end_matches('/'))?;
        Some(self.point.join(below.trim_start_matches('/')))
    }
}

fn mount() -> Result<Mount, String> {
    let table = fs::read_to_string("/proc/self/mountinfo").map_err(text)?;
    table
        .lines()
        .find_map(parse_mount)
        .ok_or_else(|| "cgroup v2 is not mounted".to_owned())
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    if kind.split(' ').next() != Some("cgroup2") {
        return None;
    }
    let mut fields = place.split(' ').skip(3);
    let root = unescape(fields.next()?);
    let point = PathBuf::from(unescape(fields.next()?));
    Some(Mount { root, point })
}

/// Decodes a field of the mount table, which has spaces and backslashes in octal.
fn unescape(field: &str) -> String {
    field
        .replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "used as a function value for `map_err`"
)]
fn text(error: io::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cgroup2_mounts_are_parsed() {
        let line =
            "41 31 0:38 / /sys/fs/cgroup/my\\040unified rw,relatime shared:9 - cgroup2 cgroup2 rw";
        let found = parse_mount(line).expect("the line is a cgroup2 mount");
        assert_eq!(
            found.directory("/user/a"),
            Some("/sys/fs/cgroup/my unified/user/a".into())
        );
        assert_eq!(
            parse_mount("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"),
            None
        );
        let part = Mount {
            root: "/docker/x".to_owned(),
            point: "/c".into(),
        };
        assert_eq!(part.directory("/docker/x/y"), Some("/c/y".into()));
        assert_eq!(part.directory("/elsewhere"), None);
    }

    #[test]
    fn only_groups_of_the_same_loop_are_ours() {
        assert!(is_of("loop_a", "tachikoma-loop_a.1"));
        assert!(!is_of("loop_a", "tachikoma-loop_ab.1"));
        assert!(!is_of("loop_a", "tachikoma-loop_a.x"));
        assert!(!is_name("../a"));
        assert!(!is_name(""));
    }
}
