//! Network and process namespaces for checks: a check can reach only loopback, and all its processes end with the first process of
//! the namespace.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::product::await_that;

/// How long to wait for processes that their agent is ending.
const GRACE: Duration = Duration::from_secs(3);

/// Shell command that enables loopback, without which even this machine is unreachable.
const LOOPBACK_UP: &str = "ip link set lo up && exec \"$@\"";

/// Runs this program again in the namespaces, with other arguments.
pub fn run_inside(words: &[&str]) -> Result<(), String> {
    let probe = unshare(&["true"]).stdin(Stdio::null()).output();
    let probe = probe.map_err(|error| {
        format!("start unshare: {error}; install it (Debian: apt-get install util-linux)")
    })?;
    if !probe.status.success() {
        let why = String::from_utf8_lossy(&probe.stderr);
        let why = why.trim();
        return Err(format!(
            "no network of its own for the agent: {why}; this needs root's rights or user namespaces, and `ip` (Debian: apt-get install iproute2)"
        ));
    }
    let this = std::env::current_exe().map_err(|error| format!("find this program: {error}"))?;
    let this = this.to_string_lossy();
    let ended = unshare(&[&[this.as_ref()][..], words].concat()).status();
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("the real agent's checks failed".into()),
        Err(error) => Err(format!("start unshare: {error}")),
    }
}

fn unshare(words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", LOOPBACK_UP, "sh"])
        .args(words);
    command
}

/// Fails if another machine is reachable, or processes outside of the namespace are visible.
pub fn expect_only_loopback() -> Result<(), String> {
    let table = fs::read_to_string("/proc/net/dev")
        .map_err(|error| format!("read /proc/net/dev: {error}"))?;
    let interfaces = interfaces(&table);
    if interfaces != ["lo"] {
        let names = interfaces.join(", ");
        return Err(format!("the network has more than loopback: {names}"));
    }
    if std::process::id() != 1 {
        return Err("this is not the first process of its namespace".into());
    }
    Ok(())
}

/// Returns the names of network interfaces in the kernel's table.
fn interfaces(table: &str) -> Vec<&str> {
    let rows = table.lines().skip(2);
    rows.filter_map(|row| row.split_once(':'))
        .map(|(name, _)| name.trim())
        .collect()
}

/// Waits until only this process is left, kills the others, and returns their command lines.
pub fn clear_away() -> Vec<String> {
    if await_that("the end of all", GRACE, || others().is_empty()).is_ok() {
        return Vec::new();
    }
    let left = others();
    for (pid, _) in &left {
        // All processes of this namespace were started by this program.
        if let Some(pid) = Pid::from_raw(*pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    left.into_iter().map(|(_, line)| line).collect()
}

/// Returns all other living processes of the namespace. Zombies have no command line and are left out.
fn others() -> Vec<(i32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != 1)
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (!line.is_empty()).then(|| (pid, format!("{pid} {}", line.trim())))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_from_the_kernels_table() {
        let table =
            "Inter-|   Receive  |  Transmit\n face |bytes |bytes\n    lo:  0 0\n  eth0: 12 3\n";
        assert_eq!(interfaces(table), ["lo", "eth0"]);
    }

    #[test]
    fn without_isolation_nothing_runs() {
        let refused = expect_only_loopback().expect_err("a test is not the first process");
        assert!(
            refused.contains("more than loopback") || refused.contains("not the first process"),
            "{refused}"
        );
    }
}
