//! Runs the unmodified binary under `strace`, which counts its system calls and injects faults.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::victim::Victim;
use crate::product::{Live, text};

/// Offsets to try if a system call is not at its earlier position, counted in calls of the same name.
pub const NEAR: [i32; 11] = [0, 0, 1, -1, 2, -2, 3, -3, 0, 1, -1];

/// At most one of this many calls may be missed by a fault.
pub const MISSED_OF: u32 = 20;

/// Name and number of a system call: the `nth` call of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    pub nth: u32,
}

impl Call {
    /// Returns the call of the same name that is `offset` calls later or earlier.
    pub fn near(&self, offset: i32) -> Self {
        Self {
            name: self.name.clone(),
            nth: self.nth.saturating_add_signed(offset).max(1),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.nth)
    }
}

/// Fails if `strace` is not installed.
pub fn require() -> Result<(), String> {
    let version = Command::new("strace").arg("--version").output();
    version
        .map(drop)
        .map_err(|error| format!("this machine cannot show it: strace: {error}"))
}

/// Starts a runner under `strace`, which traces only the runner and not its children.
pub fn start(victim: &Victim, words: &[&str], run: &[String]) -> Result<Live, String> {
    let log = format!("{}/trace", victim.outside());
    let product = victim.ground().product().to_string_lossy().into_owned();
    let mut all = vec!["-y", "-o", &log];
    all.extend(words);
    all.extend(["--", &product]);
    all.extend(run.iter().map(String::as_str));
    let mut command = victim.ground().quietly(Path::new("strace"), &all);
    Live::start(victim.recorded(&mut command)?)
}

/// Returns the trace of the requested calls of the runner.
pub fn trace_of(victim: &Victim) -> Result<String, String> {
    let bytes = fs::read(format!("{}/trace", victim.outside())).map_err(text)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses a trace. Calls are counted separately for each name, like in `strace`. Returns only those that `wanted` selects by their
/// arguments and result.
pub fn calls_in<T>(
    trace: &str,
    names: &str,
    wanted: impl Fn(&str, &str) -> Option<T>,
) -> Vec<(Call, T)> {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut found = Vec::new();
    for line in trace.lines() {
        let Some((name, rest)) = line.split_once('(') else {
            continue;
        };
        if !names.split(',').any(|call| call == name) {
            continue;
        }
        let nth = counts.entry(name).or_default();
        *nth += 1;
        if let Some(kind) = wanted(name, rest) {
            let name = name.to_owned();
            found.push((Call { name, nth: *nth }, kind));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_are_counted_by_name_and_only_selected_ones_are_returned() {
        let trace = concat!(
            "openat(AT_FDCWD</d>, \"/etc/ld.so.cache\", O_RDONLY) = 3\n",
            "mkdir(\"/d/.ralph\", 0700) = 0\n",
            "openat(AT_FDCWD</d>, \"/d/.ralph/lock\", O_RDWR) = 9</d/.ralph/lock>\n",
            "--- SIGCHLD {si_signo=SIGCHLD} ---\n",
            "write(4<anon_inode:[eventfd]>, \"1\", 8) = 8\n",
            "write(9</d/.ralph/lock>, \"{\", 1) = 1\n",
            "close(9</d/.ralph/lock>) = 0\n",
        );
        let call = |name: &str, nth| {
            let name = name.to_owned();
            (Call { name, nth }, ())
        };
        let expected = [call("mkdir", 1), call("openat", 2), call("write", 2)];
        let found = calls_in(trace, "openat,mkdir,write", |_, rest| {
            rest.contains("/.ralph").then_some(())
        });
        assert_eq!(found, expected);
    }
}
