//! What an agent can be seen to do: one vocabulary for all agents.

use tachikoma_core::{Context, Timestamp};

/// The window of a model that nobody knows anything about.
pub const UNKNOWN_WINDOW_TOKENS: u64 = 200_000;

/// Something an agent was seen to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// It said something to the reader.
    Said(String),
    /// It reported the fill of its context.
    Measured(Reading),
    /// A tool call began.
    ToolStarted {
        /// The agent's own id of the call.
        id: String,
        /// The tool.
        name: String,
        /// What it is called for, in one bounded line: a command, a path. Empty where nothing says it.
        about: String,
    },
    /// A tool call ended.
    ToolEnded {
        /// The agent's own id of the call.
        id: String,
        /// Whether it failed.
        failed: bool,
        /// The end of its output, bounded.
        tail: String,
    },
    /// The turn's final result.
    Resulted(Box<TurnResult>),
    /// The conversation is known, or another than before.
    SessionKnown(SessionInfo),
    /// The conversation was emptied and goes on under another id; the fill of its context is unknown.
    SessionReset {
        /// The new id, where it is told.
        session_id: Option<String>,
    },
    /// The size of a model's window is known for certain.
    WindowKnown {
        /// The model.
        model: String,
        /// Tokens that fit.
        window: u64,
    },
    /// The agent replaced its conversation by a summary. An estimated reading follows.
    Compacted {
        /// Whether it did so by itself.
        automatic: bool,
        /// Tokens before.
        tokens_before: u64,
    },
    /// A tool call that writes a file succeeded.
    FileTouched(String),
    /// The agent's own list of things to do changed.
    PlanChanged(PlanChange),
    /// A request to the model failed and is tried again.
    Retrying(Retry),
    /// How much of the allowance is used.
    Allowance(Allowance),
    /// A call of the model is over, the agent's own or that of an agent below it; it used so many tokens.
    CallEnded(u64),
    /// What the conversation has cost so far, in dollars: the answer to a question of ours. None where it cannot be said.
    Cost(Option<f64>),
    /// A conversation was taken up again, which has used so much in all its turns.
    TakenUp {
        /// In dollars.
        usd: f64,
        /// Tokens, those from the cache included.
        tokens: u64,
    },
    /// The agent waits for the server that it works in, and why.
    AwaitingServer(String),
    /// A tool call was not permitted.
    PermissionDenied {
        /// The tool.
        tool: String,
        /// The agent's own id of the call; empty where it is not told.
        id: String,
    },
    /// So many tasks go on in the background: a result is not the end while there are some.
    BackgroundTasks(usize),
    /// Another model answers than the one that was asked for.
    ModelFellBack {
        /// The model that was asked for; empty where it is not told.
        from: String,
        /// The model that answers; empty where it is not told.
        to: String,
    },
    /// The agent itself says, in a message of its own making, that a request failed. It may go on.
    RequestFailed {
        /// The agent's word for the kind of failure.
        error: String,
        /// Its sentence.
        text: String,
    },
    /// An answer to a request of ours.
    ControlAnswered {
        /// The id of the request.
        request_id: String,
        /// The answer or, where it was refused, what was said, as it came.
        answer: Result<String, String>,
    },
    /// The agent requests something and waits for the answer.
    ControlAsked {
        /// The id of the request.
        request_id: String,
        /// What kind of request.
        subtype: String,
        /// The whole request as it came.
        request: String,
    },
    /// The connection is alive. A stream of these is not output.
    Ping,
    /// A line that is not understood; its beginning.
    NotUnderstood(String),
}

/// The fill of a context, as reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Tokens in the context.
    pub tokens: u64,
    /// Tokens that fit into it, if anyone knows.
    pub window: Option<u64>,
    /// The model whose context it is, if it is told.
    pub model: Option<String>,
    /// Whether the agent itself only estimates it.
    pub estimated: bool,
    /// Whether the model is in the middle of the answer that the reading belongs to.
    pub answering: bool,
}

impl Reading {
    /// Returns the reading with a window, whether or not anyone knows it.
    #[must_use]
    pub fn context(&self) -> Context {
        Context {
            tokens: self.tokens,
            window: self.window.unwrap_or(UNKNOWN_WINDOW_TOKENS),
            estimated: self.estimated,
        }
    }
}

/// A conversation, as far as its agent tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionInfo {
    /// The agent's id of it.
    pub session_id: String,
    /// The model that was asked for.
    pub model: Option<String>,
    /// The version of the agent.
    pub version: Option<String>,
    /// What the agent may do unasked.
    pub permission_mode: Option<String>,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnResult {
    /// Whether the agent calls it a success: the same as `outcome` being [`TurnOutcome::Ok`].
    pub success: bool,
    /// Its final words, or what it says about its failure.
    pub text: String,
    /// What kind of end it was.
    pub outcome: TurnOutcome,
    /// Why it failed, if it did.
    pub failure: Option<FailureClass>,
    /// When the usage limit that was hit is lifted, if that was told as a moment. Where it is not, `text` may name
    /// a time of day: [`crate::claude::resets_at`] reads it.
    pub limit_resets_at: Option<Timestamp>,
    /// The agent's word for why the turn ended.
    pub terminal_reason: Option<String>,
    /// The agent's word for what went wrong with the model's service.
    pub api_error: Option<String>,
    /// The HTTP status of what went wrong.
    pub api_error_status: Option<u64>,
    /// Requests to the model in this turn, as the agent counts them; versions count differently.
    pub num_turns: Option<u64>,
    /// What the turn cost, in dollars. Never negative, always finite.
    pub cost_usd: f64,
    /// What the conversation has cost so far, earlier processes included.
    pub session_cost_usd: f64,
    /// Tokens that its calls used, those from the cache and of agents below it included; 0 where it is not told.
    pub tokens: u64,
    /// Tool calls that were not permitted in this turn.
    pub permission_denials: usize,
    /// Prompts that came too late for this turn and have one of their own.
    pub queued: u64,
}

impl TurnResult {
    /// Returns a result of which nothing more is known.
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
            failure: None,
            limit_resets_at: None,
            terminal_reason: None,
            api_error: None,
            api_error_status: None,
            num_turns: None,
            cost_usd: 0.0,
            session_cost_usd: 0.0,
            tokens: 0,
            permission_denials: 0,
            queued: 0,
        }
    }
}

/// The kinds of end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnOutcome {
    /// It went well.
    Ok,
    /// The model's service or the agent itself refused.
    ApiError,
    /// The usage limit of a subscription was hit.
    UsageLimit,
    /// The agent's own limit of requests was met.
    MaxTurns,
    /// The agent's own budget was spent.
    MaxBudget,
    /// It was interrupted, or failed in a way that nobody foresaw.
    DuringExecution,
    /// It ended before any request to the model was sent.
    NoRequest,
}

impl TurnOutcome {
    /// Returns the word for it.
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

/// Why a turn failed, as far as someone could do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// The usage limit of a subscription: wait until it is lifted.
    UsageLimit,
    /// Too many requests, or the service has too much to do: wait.
    Overloaded,
    /// The service fails or cannot be reached: wait.
    Unreachable,
    /// Log in, or mend the key.
    Authentication,
    /// Pay.
    Billing,
    /// There is no such model, or not for this user.
    Model,
    /// The context is full: a new session is needed.
    PromptTooLong,
    /// There is no such conversation: a new session is needed.
    Lost,
    /// The service refuses this conversation.
    Refused,
    /// The agent was interrupted.
    Interrupted,
    /// A limit that was given to the agent.
    OwnLimit,
    /// Anything else.
    Other,
}

impl FailureClass {
    /// Returns the word for it.
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

/// A change of the agent's list of things to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanChange {
    /// This is the whole list now.
    All(Vec<PlanItem>),
    /// One was added.
    Added(PlanItem),
    /// One, named by the agent's own id, has another status.
    Updated {
        /// The agent's id of it.
        id: String,
        /// Its status now.
        status: String,
    },
}

/// Something the agent wants to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanItem {
    /// What, in one bounded line.
    pub text: String,
    /// `pending`, `in_progress`, `completed`, or whatever the agent calls it.
    pub status: String,
}

/// A request that is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Which attempt failed, from 1.
    pub attempt: u64,
    /// How many there will be at most.
    pub attempts_max: u64,
    /// How long the agent waits before the next, in milliseconds.
    pub delay_ms: u64,
    /// The HTTP status; none where there was no answer.
    pub status: Option<u64>,
    /// The agent's word for what went wrong.
    pub error: String,
}

/// How much of a subscription's allowance is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Allowance {
    /// Whether requests are still let through.
    pub status: AllowanceStatus,
    /// Which allowance, in the service's word.
    pub kind: String,
    /// When it is renewed.
    pub resets_at: Option<Timestamp>,
    /// The used part, 0 to 1; finite.
    pub utilization: Option<f64>,
    /// Every window that is told of.
    pub windows: Vec<Window>,
}

/// A window of a subscription's allowance.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Its name, in the service's word.
    pub name: String,
    /// The used part, in percent; finite, not negative.
    pub percent: f64,
    /// When it begins anew.
    pub resets_at: Option<Timestamp>,
}

/// Whether requests are let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowanceStatus {
    /// They are.
    Allowed,
    /// They are, but not for long.
    Warning,
    /// They are not.
    Rejected,
    /// A word that is not known.
    Unknown,
}
