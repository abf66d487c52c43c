//! Events of agents, common to all of them.

use tachikoma_core::{Context, Timestamp};

/// The context window that is assumed for an unknown model.
pub const UNKNOWN_WINDOW_TOKENS: u64 = 200_000;

/// An event in the output of an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentEvent {
    /// Text of the agent for the user.
    Said(String),
    /// The agent reported the fill of its context.
    Measured(Reading),
    /// A tool call began.
    ToolStarted {
        /// The agent's own id of the call.
        id: String,
        /// Name of the tool.
        name: String,
        /// The purpose of the call in one bounded line: a command, a path. Empty if it is unknown.
        about: String,
    },
    /// A tool call ended.
    ToolEnded {
        /// The agent's own id of the call.
        id: String,
        /// Whether the tool call failed.
        failed: bool,
        /// The end of the tool's output, with limited size.
        tail: String,
    },
    /// The turn's final result.
    Resulted(Box<TurnResult>),
    /// The conversation is known, or changed.
    SessionKnown(SessionInfo),
    /// The conversation was emptied and continues under another id; the fill of its context is unknown.
    SessionReset {
        /// The new id, if it is reported.
        session_id: Option<String>,
    },
    /// The agent reported the context window of a model.
    WindowKnown {
        /// Name of the model.
        model: String,
        /// Tokens that fit into the model's context window.
        window: u64,
    },
    /// The agent replaced its conversation by a summary. An estimated reading follows.
    Compacted {
        /// Whether the agent started the compaction by itself.
        automatic: bool,
        /// Tokens in the context before the compaction.
        tokens_before: u64,
    },
    /// A tool call that writes a file succeeded.
    FileTouched(String),
    /// The agent's own to-do list changed.
    PlanChanged(PlanChange),
    /// A request to the model failed and is retried.
    Retrying(Retry),
    /// The agent reported the state of a usage limit.
    Allowance(Allowance),
    /// The agent or a sub-agent finished a call to the model. The field is the number of tokens of the call.
    CallEnded(u64),
    /// The agent answered our request for the cost of its conversation in dollars; `None` if it does not know it.
    Cost(Option<f64>),
    /// A conversation was resumed, with its usage so far.
    TakenUp {
        /// Cost of the conversation so far, in dollars.
        usd: f64,
        /// Tokens of the conversation so far, including cached ones.
        tokens: u64,
    },
    /// The bridge to the OpenCode server waits for that server. The field is the reason.
    AwaitingServer(String),
    /// A tool call was not permitted.
    PermissionDenied {
        /// Name of the tool.
        tool: String,
        /// The agent's own id of the call; empty if it is not reported.
        id: String,
    },
    /// Number of running background tasks. A result does not end the turn while there are some.
    BackgroundTasks(usize),
    /// A model other than the requested one answers.
    ModelFellBack {
        /// The requested model; empty if it is not reported.
        from: String,
        /// The model that answers; empty if it is not reported.
        to: String,
    },
    /// The agent reports that a request failed. It may continue.
    RequestFailed {
        /// The agent's name for the kind of failure.
        error: String,
        /// Error message of the agent.
        text: String,
    },
    /// The agent answered our request.
    ControlAnswered {
        /// The id of the request.
        request_id: String,
        /// The answer or the error, unchanged.
        answer: Result<String, String>,
    },
    /// The agent sends a request and waits for the answer.
    ControlAsked {
        /// The id of the request.
        request_id: String,
        /// The kind of the request.
        subtype: String,
        /// The agent's whole request, as JSON and unchanged.
        request: String,
    },
    /// The connection is alive. This does not count as output.
    Ping,
    /// The start of a line that is not understood.
    NotUnderstood(String),
}

/// How full the context is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Tokens in the context.
    pub tokens: u64,
    /// Tokens that fit into the context window; `None` if unknown.
    pub window: Option<u64>,
    /// Name of the model; `None` if it is not reported.
    pub model: Option<String>,
    /// Whether the agent estimated the number.
    pub estimated: bool,
    /// Whether the model is still answering.
    pub answering: bool,
}

impl Reading {
    /// Returns the fill of the context. If the window is unknown, [`UNKNOWN_WINDOW_TOKENS`] is assumed.
    #[must_use]
    pub fn context(&self) -> Context {
        Context {
            tokens: self.tokens,
            window: self.window.unwrap_or(UNKNOWN_WINDOW_TOKENS),
            estimated: self.estimated,
        }
    }
}

/// A conversation, as the agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionInfo {
    /// The agent's id of the conversation.
    pub session_id: String,
    /// The requested model.
    pub model: Option<String>,
    /// The version of the agent.
    pub version: Option<String>,
    /// The agent's permission mode.
    pub permission_mode: Option<String>,
}

/// How a turn ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnResult {
    /// Whether the turn succeeded: the same as `outcome` being [`TurnOutcome::Ok`].
    pub success: bool,
    /// Final text of the turn, or its error message.
    pub text: String,
    /// Whether the turn succeeded, or the kind of failure.
    pub outcome: TurnOutcome,
    /// Why the turn failed; `None` if it succeeded.
    pub failure: Option<FailureClass>,
    /// When the usage limit is reset; `None` if no timestamp was reported. Then `text` may contain
    /// a time of day: [`crate::claude::resets_at`] reads it.
    pub limit_resets_at: Option<Timestamp>,
    /// The agent's reason for the end of the turn.
    pub terminal_reason: Option<String>,
    /// The agent's name for the error of the model's service.
    pub api_error: Option<String>,
    /// HTTP status of the error; `None` without one.
    pub api_error_status: Option<u64>,
    /// Number of requests to the model in this turn, as the agent counts them. Versions count differently.
    pub num_turns: Option<u64>,
    /// The cost of the turn in dollars. Never negative, always finite.
    pub cost_usd: f64,
    /// The cost of the conversation so far in dollars, including earlier processes.
    pub session_cost_usd: f64,
    /// Tokens of the turn's model calls, including cached ones and those of sub-agents; 0 if they are not reported.
    pub tokens: u64,
    /// Tool calls that were not permitted in this turn.
    pub permission_denials: usize,
    /// Number of prompts that came too late for this turn. Each of them starts another turn.
    pub queued: u64,
}

impl TurnResult {
    /// Returns a result without details.
    #[must_use]
    pub fn plain(success: bool, text: String) -> Self {
        let outcome = if success {
            TurnOutcome::Ok
        } else {
            TurnOutcome::ApiError
        };
        Self {
            success,
            text,
            outcome,
            ..Self::default()
        }
    }
}

/// Rounds dollars to remove the rounding errors of sums.
pub(crate) fn rounded(usd: f64) -> f64 {
    let rounded = (usd * 1e9).round() / 1e9;
    if rounded.is_finite() { rounded } else { 0.0 }
}

/// The kind of end of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnOutcome {
    /// The turn succeeded.
    #[default]
    Ok,
    /// The model's service or the agent returned an error.
    ApiError,
    /// The usage limit of a subscription was reached.
    UsageLimit,
    /// The agent's own limit of requests was reached.
    MaxTurns,
    /// The agent's own budget was spent.
    MaxBudget,
    /// The turn was interrupted, or failed for another reason.
    DuringExecution,
    /// The turn ended before any request to the model was sent.
    NoRequest,
}

impl TurnOutcome {
    /// Returns the outcome as one word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ApiError => "api_error",
            Self::UsageLimit => "usage_limit",
            Self::MaxTurns => "error_max_turns",
            Self::MaxBudget => "error_max_budget_usd",
            Self::DuringExecution => "error_during_execution",
            Self::NoRequest => "no_request",
        }
    }
}

/// Why a turn failed, by what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// The usage limit of a subscription: wait for its reset.
    UsageLimit,
    /// Too many requests, or the service is overloaded: wait.
    Overloaded,
    /// The service fails or is unreachable: wait.
    Unreachable,
    /// Authentication failed: the user has to log in, or correct the key.
    Authentication,
    /// Billing failed: the user has to pay.
    Billing,
    /// The model does not exist, or this user has no access to it.
    Model,
    /// The context is full: a new session is needed.
    PromptTooLong,
    /// The conversation does not exist: a new session is needed.
    Lost,
    /// The service rejects this conversation.
    Refused,
    /// The agent was interrupted.
    Interrupted,
    /// The agent reached its own configured maximum of turns or cost.
    OwnLimit,
    /// Any other failure.
    Other,
}

impl FailureClass {
    /// Returns the failure class as one word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::UsageLimit => "usage_limit",
            Self::Overloaded => "overloaded",
            Self::Unreachable => "unreachable",
            Self::Authentication => "authentication",
            Self::Billing => "billing",
            Self::Model => "model",
            Self::PromptTooLong => "prompt_too_long",
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Interrupted => "interrupted",
            Self::OwnLimit => "own_limit",
            Self::Other => "other",
        }
    }
}

/// A change of the agent's to-do list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanChange {
    /// The agent replaced the whole list.
    All(Vec<PlanItem>),
    /// The agent added an item.
    Added(PlanItem),
    /// The status of an item changed.
    Updated {
        /// The agent's id of the item.
        id: String,
        /// New status of the item.
        status: String,
    },
}

/// An item of the agent's to-do list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanItem {
    /// The text in one bounded line.
    pub text: String,
    /// `pending`, `in_progress`, `completed`, or another word of the agent.
    pub status: String,
}

/// A failed request to the model's service that the agent retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The number of the failed attempt, from 1.
    pub attempt: u64,
    /// Maximum number of attempts.
    pub attempts_max: u64,
    /// The delay before the next attempt in milliseconds.
    pub delay_ms: u64,
    /// The HTTP status; `None` if there was no answer.
    pub status: Option<u64>,
    /// The agent's name for the error.
    pub error: String,
}

/// The state of the usage limit of a subscription.
#[derive(Clone, Debug, PartialEq)]
pub struct Allowance {
    /// Whether requests are accepted.
    pub status: AllowanceStatus,
    /// The kind of limit, as the service names it.
    pub kind: String,
    /// When the usage limit is reset; `None` if it is not reported.
    pub resets_at: Option<Timestamp>,
    /// Used part of the limit, from 0 to 1. Always finite.
    pub utilization: Option<f64>,
    /// All time windows that the service reported.
    pub windows: Vec<Window>,
}

/// A time window of a usage limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Name of the window, as the service reports it.
    pub name: String,
    /// Used part of the window in percent. Finite and not negative.
    pub percent: f64,
    /// When the window is reset; `None` if it is not reported.
    pub resets_at: Option<Timestamp>,
}

/// Whether requests are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowanceStatus {
    /// Requests are accepted.
    Allowed,
    /// Requests are accepted, but the limit is near.
    Warning,
    /// Requests are rejected.
    Rejected,
    /// The status is not known.
    Unknown,
}
