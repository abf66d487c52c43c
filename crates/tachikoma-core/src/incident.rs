//! Incidents: events outside of the loop's own work that the user should know.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::HookPoint;

/// An event outside of the loop's own work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Incident {
    /// A notification was not delivered.
    NotifyFailed {
        /// The kind of the target, and its number in the configuration, from 1.
        target: String,
        /// The event that the notification is about.
        point: HookPoint,
        /// Why the notification was not delivered.
        error: String,
        /// Number of attempts; 0 = the notification was dropped before the first attempt.
        attempts: u32,
    },
    /// A backup was uploaded.
    CloudCopied {
        /// File name of the backup.
        name: String,
        /// Size of the backup in bytes.
        bytes: u64,
    },
    /// A backup was not uploaded, or older uploads were not removed.
    CloudFailed {
        /// File name of the backup.
        name: String,
        /// Why the upload or the cleanup failed.
        error: String,
        /// Number of attempts to upload or clean up.
        attempts: u32,
    },
    /// A caller without permission asked for something that only the operator may do.
    AccessRefused {
        /// The request that was refused.
        request: String,
        /// Process id of the caller; `None` if it is unknown.
        pid: Option<i32>,
        /// Whether the caller belongs to the agent. Otherwise it belongs to another user.
        agent: bool,
        /// Whether the caller had exited, so that it could not be identified.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        gone: bool,
    },
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotifyFailed {
                target,
                point,
                error,
                attempts,
            } => {
                write!(f, "the message about `{point}` to {target} is not ")?;
                match attempts {
                    0 => write!(f, "sent: {error}"),
                    1 => write!(f, "delivered after 1 attempt: {error}"),
                    many => write!(f, "delivered after {many} attempts: {error}"),
                }
            }
            Self::CloudCopied { name, bytes } => {
                write!(f, "backup {name} is copied ({bytes} bytes)")
            }
            Self::CloudFailed {
                name,
                error,
                attempts,
            } => {
                write!(f, "backup {name} is not copied")?;
                match attempts {
                    0 => write!(f, ": {error}"),
                    1 => write!(f, " after 1 attempt: {error}"),
                    many => write!(f, " after {many} attempts: {error}"),
                }
            }
            Self::AccessRefused {
                request,
                pid,
                agent,
                gone,
            } => {
                let who = match (agent, gone) {
                    (true, true) => "a process that has exited",
                    (true, false) => "the agent, or a program that the loop runs,",
                    (false, _) => "another user",
                };
                match request.starts_with("SIG") {
                    true => write!(f, "{who} sent {request} and was refused")?,
                    false => write!(f, "{who} asked for `{request}` and was refused")?,
                }
                pid.map_or(Ok(()), |pid| write!(f, " (pid {pid})"))
            }
        }
    }
}
