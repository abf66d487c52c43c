//! Messages for the events of a server.

use std::time::Duration;

use super::{ServerEnd, ServerEvent, StayReason};

/// Severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Detail.
    Debug,
    /// Normal operation.
    Info,
    /// A fault that the supervisor handles.
    Warning,
    /// The user has to act.
    Error,
}

/// Returns the lines of the log for an event.
#[must_use]
pub fn messages(event: &ServerEvent) -> Vec<(Level, String)> {
    match event {
        ServerEvent::JournalOpened { .. } => Vec::new(),
        ServerEvent::Supervising { pid } => {
            single_line(Level::Debug, format!("supervised by process {pid}"))
        }
        ServerEvent::Started { generation, .. } => single_line(
            Level::Info,
            format!("starting OpenCode (start {generation})"),
        ),
        ServerEvent::Spawned { pid, .. } => {
            single_line(Level::Debug, format!("OpenCode runs as process {pid}"))
        }
        ServerEvent::Ready { url, version, .. } => {
            let version = version.as_deref().unwrap_or("of unknown version");
            single_line(Level::Info, format!("OpenCode {version} is ready at {url}"))
        }
        ServerEvent::TooLarge {
            rss_bytes,
            max_rss_bytes,
            ..
        } => single_line(
            Level::Warning,
            format!(
                "OpenCode has grown to {rss_bytes} bytes, more than `opencode.max_rss_bytes` ({max_rss_bytes}): it is \
                 replaced as soon as no session is busy"
            ),
        ),
        ServerEvent::Ending { purpose, .. } => {
            let level = match purpose.is_fault() {
                true => Level::Warning,
                false => Level::Debug,
            };
            let end = ServerEnd::Ended {
                purpose: purpose.clone(),
            };
            single_line(level, format!("ending OpenCode: {end}"))
        }
        ServerEvent::Hurried { signal, .. } => {
            single_line(Level::Debug, format!("ending OpenCode: {signal}"))
        }
        ServerEvent::Stopped {
            end,
            uptime_ms,
            leftovers,
            ..
        } => stopped(end, *uptime_ms, leftovers.len()),
        ServerEvent::CrashLoop { .. } => single_line(
            Level::Warning,
            "OpenCode crash loop detected, backing off".to_owned(),
        ),
        ServerEvent::Restarting {
            attempt,
            delay_ms,
            end,
            ..
        } => restarting(*attempt, *delay_ms, end),
        ServerEvent::Rescheduled { .. } => single_line(
            Level::Info,
            "OpenCode is restarted sooner: the settings were read again".to_owned(),
        ),
        ServerEvent::Stayed { reason } => single_line(
            match reason {
                StayReason::ByUser | StayReason::Stopped | StayReason::NormalExit => Level::Info,
                StayReason::NoRestarts | StayReason::Unknown => Level::Warning,
            },
            match reason {
                StayReason::ByUser => "OpenCode stopped by user, not restarting".to_owned(),
                StayReason::Stopped
                | StayReason::NoRestarts
                | StayReason::NormalExit
                | StayReason::Unknown => format!("OpenCode is not restarted: {reason}"),
            },
        ),
        ServerEvent::GaveUp { attempts, why } => single_line(
            Level::Error,
            format!(
                "gave up on OpenCode after {attempts} {}: {why}; `tachikoma opencode logs` shows its output, \
                 `tachikoma opencode restart` tries again",
                if *attempts == 1 {
                    "restart"
                } else {
                    "restarts"
                }
            ),
        ),
        ServerEvent::Cleared => single_line(
            Level::Debug,
            "earlier failures of OpenCode no longer count".to_owned(),
        ),
        ServerEvent::Suspended { duration_ms } => single_line(
            Level::Debug,
            format!("the machine was suspended for {}", span(*duration_ms)),
        ),
        ServerEvent::AccessRefused { request, pid } => {
            let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            single_line(
                Level::Warning,
                format!("`opencode {request}` is refused: the caller is not the operator{pid}"),
            )
        }
        ServerEvent::Closed => single_line(Level::Info, "OpenCode is stopped".to_owned()),
    }
}

fn single_line(level: Level, text: String) -> Vec<(Level, String)> {
    vec![(level, text)]
}

fn stopped(end: &ServerEnd, uptime_ms: u64, leftovers: usize) -> Vec<(Level, String)> {
    let level = match end.is_crash() {
        true => Level::Warning,
        false => Level::Info,
    };
    let uptime = match uptime_ms {
        0 => String::new(),
        ready => format!(", after {} of service", span(ready)),
    };
    let left = match leftovers {
        0 => String::new(),
        1 => "; a process that it left running was ended".to_owned(),
        many => format!("; {many} processes that it left running were ended"),
    };
    single_line(level, format!("OpenCode has ended: {end}{uptime}{left}"))
}

fn restarting(attempt: u32, delay_ms: u64, end: &ServerEnd) -> Vec<(Level, String)> {
    let when = match delay_ms {
        0 => "now".to_owned(),
        delay => format!("in {}", span(delay)),
    };
    let attempt = match attempt {
        0 => String::new(),
        number => format!(" (attempt {number})"),
    };
    let mut lines = single_line(Level::Info, format!("restarting OpenCode {when}{attempt}"));
    if *end == ServerEnd::Unexpected {
        let why = "Restarting OpenCode after unexpected exit".to_owned();
        lines.insert(0, (Level::Info, why));
    }
    lines
}

fn span(millis: u64) -> String {
    let duration = Duration::from_millis(millis);
    match duration.as_secs() {
        0 => format!("{millis} ms"),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}
