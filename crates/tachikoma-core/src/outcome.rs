//! How iterations and loops end, with reasons for the user.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Exit, LoopState, Timestamp};

/// How a loop ended. It decides the final public state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// Completion was claimed, and every gate passed.
    Done,
    /// The maximum number of iterations is reached.
    LimitReached {
        /// Maximum number of iterations.
        iterations: u32,
    },
    /// A stop condition, script or hook ended the loop.
    Condition {
        /// The condition, script or hook, and the value or text that ended the loop.
        reason: String,
    },
    /// A budget is used up.
    Budget {
        /// The budget, its limit and the used amount.
        reason: String,
    },
    /// The operator's stop command ended the loop.
    Operator,
    /// A signal to the runner ended the loop.
    Signal {
        /// Number of the signal.
        signal: i32,
    },
    /// An error that the loop cannot recover from.
    Error {
        /// What happened and what to do next.
        reason: String,
    },
}

impl Outcome {
    /// Returns the public state that this outcome leads to.
    #[must_use]
    pub fn state(&self) -> LoopState {
        match self {
            Self::Done | Self::LimitReached { .. } => LoopState::Completed,
            Self::Condition { .. } | Self::Budget { .. } | Self::Operator | Self::Signal { .. } => {
                LoopState::Stopped
            }
            Self::Error { .. } => LoopState::Error,
        }
    }

    /// Returns the name of this kind of outcome, as `status --json` prints it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::LimitReached { .. } => "limit_reached",
            Self::Condition { .. } => "condition",
            Self::Budget { .. } => "budget",
            Self::Operator => "operator",
            Self::Signal { .. } => "signal",
            Self::Error { .. } => "error",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("the work is complete"),
            Self::LimitReached { iterations: 1 } => {
                f.write_str("the limit of 1 iteration is reached")
            }
            Self::LimitReached { iterations } => {
                write!(f, "the limit of {iterations} iterations is reached")
            }
            Self::Condition { reason } | Self::Budget { reason } | Self::Error { reason } => {
                f.write_str(reason)
            }
            Self::Operator => f.write_str("stopped by the operator"),
            Self::Signal { signal: 1 } => f.write_str("stopped by SIGHUP: the terminal went away"),
            Self::Signal { signal: 2 } => f.write_str("stopped by SIGINT (Ctrl-C)"),
            Self::Signal { signal: 15 } => f.write_str("stopped by SIGTERM"),
            Self::Signal { signal } => write!(f, "stopped by signal {signal}"),
        }
    }
}

/// Why a stop was requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Stop {
    /// The operator sent a stop command.
    Operator,
    /// The runner got a signal.
    Signal {
        /// Number of the signal.
        signal: i32,
    },
    /// A budget is used up.
    Budget {
        /// The budget, its limit and the used amount.
        reason: String,
    },
    /// A hook stopped the loop by its exit code.
    Hook {
        /// Name of the hook, and its output.
        reason: String,
    },
    /// A stop script stopped the loop by its exit code.
    Script {
        /// Name of the stop script, and its output.
        reason: String,
    },
    /// The loop cannot continue.
    Unable {
        /// Why the loop cannot continue, and what to do next.
        reason: String,
    },
}

impl From<Stop> for Outcome {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Operator => Self::Operator,
            Stop::Signal { signal } => Self::Signal { signal },
            Stop::Budget { reason } => Self::Budget { reason },
            Stop::Hook { reason } | Stop::Script { reason } => Self::Condition { reason },
            Stop::Unable { reason } => Self::Error { reason },
        }
    }
}

/// How an iteration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IterationOutcome {
    /// The agent's turn succeeded.
    Succeeded,
    /// The agent failed. A backoff follows.
    Failed,
    /// The iteration was ended for a reboot: neither success nor failure.
    HandedOver,
    /// The operator skipped the iteration.
    Skipped,
    /// A stop or an immediate pause ended the iteration.
    Interrupted,
}

impl fmt::Display for IterationOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::HandedOver => "handed over",
            Self::Skipped => "skipped",
            Self::Interrupted => "interrupted",
        })
    }
}

/// A finished iteration that did not fail. Its progress is measured later: see [`Measured`](crate::Measured).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IterationReport {
    /// Number of the iteration.
    pub iteration: u32,
    /// How the iteration ended.
    pub outcome: IterationOutcome,
    /// Duration of the last attempt at the iteration, in milliseconds.
    pub duration_ms: u64,
    /// How the agent's process ended; `None` if it still runs.
    pub exit: Option<Exit>,
    /// Whether the agent claimed that the whole work is complete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub claimed: bool,
    /// Whether its session has to be rebooted before the next prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_reboot: bool,
}

/// Why an iteration failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Failure {
    /// The agent's process ended with an error.
    Exited {
        /// Exit code or signal of the process.
        exit: Exit,
    },
    /// The agent's process ended without the final result of its turn.
    NoResult {
        /// Exit code or signal of the process.
        exit: Exit,
        /// Last line of the agent's standard error; `None` if it was empty.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_words: Option<String>,
        /// What the last line means for the loop; `None` if a retry is enough.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<Problem>,
    },
    /// The agent reported that its turn failed.
    Reported {
        /// How the agent's process ended after the report; `None` if it still runs.
        exit: Option<Exit>,
        /// Error message of the agent; `None` without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// What the failure means for the loop; `None` if a retry is enough.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<Problem>,
    },
    /// The agent could not be started: its prompt, its program or its directory is missing.
    NotLaunched {
        /// The error, with the path that was tried.
        reason: String,
    },
    /// A timeout ended the iteration.
    TimedOut {
        /// The timeout that ran out.
        timeout: Timeout,
        /// The last activity of the agent, in words; `None` if there was none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_seen: Option<String>,
    },
    /// The guard process of the agent was lost.
    GuardLost,
    /// The agent survived SIGKILL.
    Unkillable {
        /// Process id of the agent; `None` if it was never launched.
        pid: Option<u32>,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { exit } => write!(f, "the agent ended with {exit}"),
            Self::Reported { exit, reason, .. } => {
                f.write_str("the agent reported that its turn failed")?;
                if let Some(reason) = reason {
                    write!(f, ": {reason}")?;
                }
                match exit {
                    Some(exit) => write!(f, ", and ended with {exit}"),
                    None => Ok(()),
                }
            }
            Self::NoResult {
                exit, last_words, ..
            } => {
                write!(f, "the agent ended with {exit} and without a final result")?;
                match last_words {
                    Some(words) => write!(f, "; its last words: {words}"),
                    None => Ok(()),
                }
            }
            Self::NotLaunched { reason } => f.write_str(reason),
            Self::TimedOut { timeout, last_seen } => {
                timeout.fmt(f)?;
                match last_seen {
                    Some(seen) => write!(f, " (last seen: {seen})"),
                    None => Ok(()),
                }
            }
            Self::GuardLost => f.write_str("the guard process was lost, and the agent with it"),
            Self::Unkillable { pid: Some(pid) } => {
                write!(f, "the agent (pid {pid}) cannot be killed")
            }
            Self::Unkillable { pid: None } => f.write_str("the agent cannot be killed"),
        }
    }
}

/// What a failed turn means for the loop. Without a problem, the iteration is retried after a backoff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Problem {
    /// The model's service refuses requests for a while: a usage limit, or it is overloaded. Waiting helps.
    Limited {
        /// When the limit ends; `None` if the service did not say.
        until: Option<Timestamp>,
    },
    /// The model's service cannot be reached or answers with HTTP 5xx: a network outage, or one of the service. Waiting helps.
    Unreachable,
    /// This conversation is broken. A new one works.
    Poisoned,
    /// The agent's server or conversation was lost, and comes back. The iteration is repeated at once, and does not count as failed.
    Cut,
    /// The loop cannot solve the problem. A person has to act.
    Permanent {
        /// What a person has to do.
        advice: String,
    },
}

impl Failure {
    /// Returns what the failure means for the loop; `None` if a retry is enough.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Reported { problem, .. } | Self::NoResult { problem, .. } => problem.as_ref(),
            _ => None,
        }
    }

    /// Returns the error message of the agent; `None` without one.
    #[must_use]
    pub fn words(&self) -> Option<&str> {
        match self {
            Self::Reported { reason: words, .. }
            | Self::NoResult {
                last_words: words, ..
            } => words.as_deref(),
            _ => None,
        }
    }
}

/// Which timeout ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timeout {
    /// The guard did not confirm the launch of the agent in time.
    Launch,
    /// `session_timeout`: the iteration took too long.
    Session,
    /// `first_output_timeout`: the agent printed nothing after its launch.
    FirstOutput,
    /// `silence_timeout`: the agent printed nothing for too long.
    Silence,
    /// `tool_timeout`: a tool call took too long.
    Tool,
    /// The agent closed its output and still runs, so that no more events can arrive.
    StreamGone,
    /// `result_grace`: the agent's process did not end after its final result. The result counts.
    ResultGrace,
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Launch => "the launch was not answered in time",
            Self::Session => "session_timeout ran out",
            Self::FirstOutput => "first_output_timeout ran out: the agent said nothing at all",
            Self::Silence => "silence_timeout ran out: the agent fell silent",
            Self::Tool => "tool_timeout ran out: a tool call did not end",
            Self::StreamGone => "the agent closed its output and did not end",
            Self::ResultGrace => {
                "result_grace ran out: the agent did not end after its final result"
            }
        })
    }
}

/// Why a conversation cannot continue, as the agent reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spent {
    /// The context is full.
    Full,
    /// The agent no longer knows the conversation.
    Lost,
}

/// An attempt that a limit of the model's service ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitedAttempt {
    /// Number of the iteration.
    pub iteration: u32,
    /// Number of the attempt at the iteration, from 1.
    pub attempt: u32,
    /// Message of the agent about the limit.
    pub reason: String,
    /// When the limit ends; `None` if the service did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Number of attempts in a row that a limit ended, this one included.
    pub streak: u32,
    /// Whether the service could not be reached. Otherwise it refused the request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outage: bool,
    /// Whether the agent's process is up and waits for the next prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent_lives: bool,
}
