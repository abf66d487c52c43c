//! Checks of the machine: git, gates, disk, containment, clock and notification targets.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tachikoma_loop_runner::git::start;
use tachikoma_loop_runner::process::cgroup;
use tachikoma_loop_runner::settings::{Gate, Notify, NotifyTarget, Settings};

use super::check::Check;
use super::limited;
use crate::commands::known_agents::find_program;
use crate::secrets;
use crate::view::number;
use crate::workspace::Workspace;

/// Time limit for a connection to a notification target.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Below this much free space a build or a transcript can fill the disk.
const SPACE_WARNING_BYTES: u64 = 1 << 30;

/// Below this much free space a run stops soon.
const SPACE_ERROR_BYTES: u64 = 100 << 20;

/// A clock outside these years is wrong, and certificates and usage limits do not work with it.
const YEARS: std::ops::Range<i16> = 2025..2100;

/// Checks the repository, the identity for commits, and uncommitted changes.
pub fn git(workspace: &Workspace, working_dir: &Path, settings: &Settings) -> Vec<Check> {
    let commits = settings.git.auto_commit;
    let search_path = workspace.search_path();
    let state = match start::repository_state(working_dir, search_path.as_deref(), commits) {
        Ok(state) => state,
        Err(reason) => {
            let message = format!("{reason}: no commits, no diff, no rollback");
            return vec![Check::warning("git", message, "git init")];
        }
    };
    let mut checks = vec![Check::ok(
        "git",
        format!("repository {}", state.top.display()),
    )];
    checks.extend(state.no_identity.map(|reason| {
        let fix = "git config user.name \"Your Name\" && git config user.email you@example.org";
        Check::error("git identity", format!("commits will fail: {reason}"), fix)
    }));
    // Changes of these two files do not prevent a start.
    let inputs = [
        working_dir.join(&settings.prompt_path),
        workspace.directory.join("tachikoma.toml"),
    ];
    let inputs: Vec<_> = inputs
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    let dirty = state
        .dirty
        .iter()
        .filter(|file| !inputs.contains(&state.top.join(file)));
    let dirty: Vec<&str> = dirty.map(String::as_str).collect();
    if let Some(first) = dirty.first().filter(|_| commits) {
        let files = number::count(dirty.len() as u64, "tracked file");
        let message = format!(
            "{files} with uncommitted changes, such as {first}: a new loop refuses to start"
        );
        let fix = "commit or stash the changes, or use `tachikoma run --allow-dirty`";
        checks.push(Check::warning("uncommitted", message, fix));
    }
    checks
}

/// Runs a gate once.
pub fn gate(working_dir: &Path, gate: &Gate) -> Check {
    let subject = format!("gate {}", gate.name);
    let command_line = gate.command.trim();
    let mut command = Command::new("sh");
    command.args(["-c", &gate.command]).current_dir(working_dir);
    command
        .env("TACHIKOMA_GATE_NAME", &gate.name)
        .env("TACHIKOMA_DIR", working_dir);
    let began = Instant::now();
    let ran = limited::run(command, gate.timeout.limit());
    let took = number::duration(began.elapsed());
    // A gate may fail before the work is done, but its command has to exist.
    match ran {
        Ok((status, _)) if status.success() => {
            Check::ok(subject, format!("`{command_line}` passes now ({took})"))
        }
        Ok((status, output)) if matches!(status.code(), Some(126 | 127)) => {
            let last = output.lines().last().unwrap_or_default();
            let message = format!("`{command_line}` cannot run: {last}");
            Check::error(
                subject,
                message,
                "install the program, or change the command of the gate",
            )
        }
        Ok((status, _)) => Check::warning(
            subject,
            format!("`{command_line}` fails now ({status}, {took})"),
            "this is normal if the plan says to repair it; otherwise run the command and fix what fails",
        ),
        Err(problem) => Check::error(
            subject,
            format!("`{command_line}`: {problem} ({took})"),
            "use a faster command, or a longer `timeout` of the gate",
        ),
    }
}

/// Checks the free space on the disk of the working directory.
pub fn disk(working_dir: &Path) -> Check {
    let space = match rustix::fs::statvfs(working_dir) {
        Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
        Err(error) => {
            let fix = "check the disk of the working directory";
            return Check::warning("disk", format!("free space is unknown: {error}"), fix);
        }
    };
    let message = format!("{} MiB free", space >> 20);
    let fix = "free some space";
    match space {
        0..SPACE_ERROR_BYTES => Check::error("disk", message, fix),
        SPACE_ERROR_BYTES..SPACE_WARNING_BYTES => Check::warning("disk", message, fix),
        SPACE_WARNING_BYTES.. => Check::ok("disk", message),
    }
}

/// Checks how a run would contain the processes of the agent.
pub fn containment() -> Check {
    let message = match cgroup::check() {
        Ok(()) => "cgroup: no process of the agent can outlive the run".to_owned(),
        Err(reason) => format!("guard process; no cgroup: {reason}"),
    };
    Check::ok("containment", message)
}

/// Checks that the clock shows a possible year.
pub fn clock() -> Check {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    match YEARS.contains(&now.year()) {
        true => Check::ok("clock", now.strftime("%Y-%m-%d %H:%M UTC").to_string()),
        false => Check::error(
            "clock",
            format!("the year is {}", now.year()),
            "set the clock",
        ),
    }
}

/// Checks whether a notification target can be reached. Nothing is sent.
pub fn notification(workspace: &Workspace, number: usize, notify: &Notify) -> Check {
    let subject = format!("notify {number}");
    let word = notify.to.word();
    match notify.to {
        NotifyTarget::Command => return Check::ok(subject, "command; it is not run"),
        NotifyTarget::Desktop => {
            return match find_program(workspace, "notify-send")
                .or(find_program(workspace, "osascript"))
            {
                Some(_) => Check::ok(subject, "desktop"),
                None => Check::warning(
                    subject,
                    "desktop: `notify-send` was not found",
                    "install libnotify",
                ),
            };
        }
        _ => {}
    }
    let missing = notify
        .variables()
        .find(|name| secrets::value(name).is_none());
    if let Some(name) = missing {
        let message = format!("{word}: the variable `{name}` is not set");
        return Check::error(subject, message, format!("export {name}=..."));
    }
    let from_variable = notify
        .url_env
        .as_ref()
        .and_then(|name| secrets::value(name));
    let url = from_variable.or_else(|| notify.url.clone());
    let url = match &url {
        Some(url) => url.expose(),
        // The address of Telegram is optional in the configuration.
        None => "https://api.telegram.org",
    };
    let Some((host, port)) = host_and_port(url) else {
        return Check::error(
            subject,
            format!("{word}: the address is not valid"),
            "correct `url`",
        );
    };
    // The host alone is shown, because the path of an address can be a secret.
    let reached = (host, port).to_socket_addrs().and_then(|mut addresses| {
        let address = addresses.next().ok_or(std::io::ErrorKind::NotFound)?;
        TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
    });
    match reached {
        Ok(_) => Check::ok(subject, format!("{word}: {host}:{port} can be reached")),
        Err(error) => Check::warning(
            subject,
            format!("{word}: {host}:{port} cannot be reached directly: {error}"),
            "check the address and the network; `tachikoma notify test` sends a message",
        ),
    }
}

/// Returns the host and the port of an address; `None` if it has none.
fn host_and_port(url: &str) -> Option<(&str, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let default = match scheme {
        "https" => 443,
        "http" => 80,
        "smtps" => 465,
        "smtp" => 587,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    let parts = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => match host.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host, None),
        },
    };
    let port = parts.1.map_or(Some(default), |port| port.parse().ok());
    port.filter(|_| !parts.0.is_empty())
        .map(|port| (parts.0, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_read_from_addresses() {
        for (url, expected) in [
            ("https://ntfy.sh/topic", Some(("ntfy.sh", 443))),
            ("http://me:secret@host:8080/x", Some(("host", 8080))),
            ("smtp://[::1]:25", Some(("::1", 25))),
            ("smtps://mail.example.org", Some(("mail.example.org", 465))),
            ("https://host:port", None),
            ("host", None),
        ] {
            assert_eq!(host_and_port(url), expected, "{url}");
        }
    }
}
