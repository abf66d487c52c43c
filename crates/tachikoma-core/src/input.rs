//! Inputs of the core: what happened outside of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Activity, Answers, AutocommitResult, Context, ConversationUse, Exit, GateResult, Generation,
    HookPoint, HookResult, Incident, Launch, Leftover, OperatorRequest, Problem, QuotaWindow,
    Repair, Runner, Spent, TestsReport, Ticket, is_zero,
};

/// Something that happened outside of the core. The journal stores it with the first record that follows from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A runner starts or resumes the loop: for the first time, after its end, or after the death of an earlier runner.
    Start {
        /// The agent, the prompt and the settings of the run.
        launch: Launch,
        /// The process that runs the loop.
        runner: Runner,
    },
    /// A deadline has passed. A wake before the deadline does nothing.
    Wake,
    /// The operator sends a command.
    Command {
        /// Identifies the caller that gets the answer.
        ticket: Ticket,
        /// The command.
        command: LoopCommand,
    },
    /// The runner's process got a signal to end. Handled before commands.
    Shutdown {
        /// Number of the signal.
        signal: i32,
        /// How fast the loop has to end.
        urgency: Urgency,
    },
    /// A signal arrived before this runner started the loop. The loop ends unchanged, without starting anything.
    Decline {
        /// Number of the signal.
        signal: i32,
    },
    /// A part of the runner itself failed, so the runner cannot supervise the agent reliably. The loop ends at once,
    /// and the running attempt has no result.
    Broken {
        /// The part that failed, and its error.
        reason: String,
    },
    /// The whole process, or the machine, was suspended: that time does not count toward any timeout.
    Suspended {
        /// Length of the suspension.
        duration: Duration,
    },
    /// An event of one launch. Events of an earlier generation are dropped.
    Agent {
        /// Number of the launch that the event belongs to.
        generation: Generation,
        /// The event.
        event: AgentInput,
    },
    /// The answer to [`Effect::RunHooks`](crate::Effect::RunHooks).
    HooksRan {
        /// The point whose hooks ran.
        point: HookPoint,
        /// Results of the hooks, in order. Hooks after one that failed did not run.
        results: Vec<HookResult>,
    },
    /// A snapshot of the work tree before an iteration was taken.
    SnapshotTaken {
        /// The iteration that begins with this work tree.
        iteration: u32,
        /// Hash of the snapshot commit.
        commit: String,
        /// Files that the loop changed and that are not committed.
        uncommitted: u32,
    },
    /// The answer to [`Effect::Autocommit`](crate::Effect::Autocommit).
    AutocommitFinished {
        /// Number of the order. An answer that is no longer awaited is dropped.
        number: u64,
        /// The result, or why it is unknown.
        result: Result<AutocommitResult, String>,
    },
    /// The answer to [`Effect::CheckConditions`](crate::Effect::CheckConditions).
    ConditionsAnswered {
        /// Number of the order. An answer that is no longer awaited is dropped.
        number: u64,
        /// Objectives, and the answers of the stop scripts.
        answers: Answers,
    },
    /// The answer to [`Effect::RunGates`](crate::Effect::RunGates).
    GatesRan {
        /// Number of the order. An answer that is no longer awaited is dropped.
        number: u64,
        /// Result of each gate, in order.
        results: Vec<GateResult>,
        /// Summary of the tests that ran in the gates; `None` if their output was not understood.
        tests: Option<TestsReport>,
    },
    /// `tachikoma done` of the agent or the operator: it claims that the whole work is complete.
    CompletionClaimed {
        /// Identifies the caller that gets the answer.
        ticket: Ticket,
        /// Reason that the caller gave; `None` without one.
        reason: Option<String>,
    },
    /// The agent, or the operator, wrote a note for the sessions to come.
    Note {
        /// Identifies the caller that gets the answer.
        ticket: Ticket,
        /// Text of the note.
        text: String,
        /// Whether the work tree was rolled back together with this note. Then the next prompt contains the note, and earlier
        /// claims are refused.
        tell: bool,
        /// Whether the operator wrote the note.
        operator: bool,
    },
    /// A request of the operator that is not a [`LoopCommand`]: an answer, a message, new settings.
    OperatorRequest {
        /// Identifies the caller that gets the answer.
        ticket: Ticket,
        /// The request.
        request: OperatorRequest,
    },
    /// The answer to [`Effect::RollBack`](crate::Effect::RollBack).
    RolledBack {
        /// The work tree was restored to its content before this iteration.
        iteration: u32,
        /// Text for the agent's next prompt, or the error.
        result: Result<String, String>,
    },
    /// A hook or the operator sets a key of the loop's custom data.
    CustomSet {
        /// Identifies the caller that gets the answer.
        ticket: Ticket,
        /// The key to set.
        key: String,
        /// The value; null removes the key.
        value: Value,
    },
    /// A warning for the user. The loop continues.
    Warning {
        /// Object, problem and remedy, in one sentence.
        warning: String,
    },
    /// The disk was full, and has room again.
    DiskWasFull {
        /// How long the disk was full.
        duration: Duration,
    },
    /// A notification or an upload failed or succeeded, or a caller was refused.
    Incident(Incident),
    /// A file of the loop was damaged, and is repaired.
    Repaired {
        /// The file that was repaired.
        what: Repair,
        /// The damage, and how it was repaired.
        how: String,
    },
}

/// A command of the operator to a running loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopCommand {
    /// Pause after the current iteration; with [`Urgency::Now`], interrupt it.
    Pause(Urgency),
    /// Continue a paused loop, or cancel a requested pause.
    Resume,
    /// Stop the loop.
    Stop(Urgency),
    /// Reboot: replace the session by a new one.
    ForceReboot,
    /// End the current iteration, wait, commit, check or hooks, and continue the loop.
    SkipIteration,
}

/// How fast an iteration is ended. A later request overrides an earlier one if it is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// At the next end of a tool call, after at most `graceful_timeout`. At once if the agent does not report tool calls.
    Graceful,
    /// End the iteration at once, with signals.
    Now,
    /// End the iteration at once, with SIGKILL.
    Kill,
}

/// The end of a turn, as the agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnEnd {
    /// Whether the agent reports success.
    pub success: bool,
    /// Error message of the agent; `None` after a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the failure means for the loop; `None` if a retry is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// Final text of the turn.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Whether the final text claims that the whole work is complete.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub claimed: bool,
    /// The pattern of the reboot rules that the text matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Whether background tasks still run, so that another result follows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// The pattern of the stop conditions that the text matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_pattern: Option<String>,
    /// What the turn cost, in millionths of a dollar.
    #[serde(skip_serializing_if = "is_zero")]
    pub cost_microusd: u64,
    /// Tokens of the turn; 0 if the agent does not report them.
    #[serde(skip_serializing_if = "is_zero")]
    pub tokens: u64,
    /// Why the conversation cannot continue; `None` if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<Spent>,
}

impl TurnEnd {
    /// Returns the end of the turn for the journal, without the agent's text and the stop pattern. The pattern has its own event.
    pub(crate) fn as_recorded(&self) -> Self {
        Self {
            text: String::new(),
            stop_pattern: None,
            ..self.clone()
        }
    }
}

/// Events of one launch, in order; [`AgentInput::Exited`] or [`AgentInput::NotLaunched`] is the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentInput {
    /// The agent's process is up.
    Launched {
        /// Process id of the agent.
        pid: u32,
    },
    /// The agent's process could not be started.
    NotLaunched {
        /// The error, with the path that was tried.
        reason: String,
    },
    /// The agent printed output. The runner sends one event for many lines.
    Output,
    /// The agent printed text while it writes its hand-off. The runner limits its size.
    HandOffText {
        /// A part of the hand-off.
        text: String,
    },
    /// A new session is open: its process runs and answers. The answer to [`Effect::OpenSession`](crate::Effect::OpenSession).
    Opened,
    /// The agent reported its id of the conversation.
    SessionNamed {
        /// The agent's id of the conversation.
        agent_id: String,
    },
    /// The agent reported the fill of its context.
    ContextMeasured {
        /// Tokens in the context, and its size.
        context: Context,
        /// Whether the model was still writing its answer when the context was measured.
        answering: bool,
    },
    /// A tool call began.
    ToolStarted {
        /// The agent's own id of the call.
        id: String,
        /// Name of the tool.
        name: String,
        /// Short description of the call, such as its command or path.
        summary: String,
    },
    /// A tool call ended.
    ToolEnded {
        /// The agent's own id of the call.
        id: String,
        /// Error of the tool call; `None` if it succeeded.
        error: Option<String>,
    },
    /// A tool call of the agent was denied.
    ToolDenied {
        /// Name of the tool.
        tool: String,
        /// The agent's own id of the call; empty if it is unknown.
        id: String,
    },
    /// The agent changed a file.
    FileTouched {
        /// Path of the file.
        path: String,
    },
    /// A call of the model ended, of the agent or of one of its sub-agents.
    CallEnded {
        /// Tokens of the call.
        tokens: u64,
    },
    /// The agent reported the cost of its conversation. The answer to [`Effect::AskCost`](crate::Effect::AskCost).
    Cost {
        /// Cost of the conversation in millionths of a dollar, including earlier processes.
        conversation_microusd: u64,
    },
    /// The agent resumed a conversation that has used this much so far.
    ConversationResumed(ConversationUse),
    /// The agent reported how much of a subscription's window is used.
    Quota(QuotaWindow),
    /// The agent reported the final result of its turn.
    TurnEnded(TurnEnd),
    /// The agent's process has ended, its pipes are drained, and the processes that it left running are ended too.
    Exited {
        /// Exit code or signal of the agent's process.
        exit: Exit,
        /// Whether its final text claims that the whole work is complete.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        claimed: bool,
        /// The pattern of the stop conditions that the text matches, for agents that report no result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_pattern: Option<String>,
        /// Processes that the agent left running, and that were ended.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        leftovers: Vec<Leftover>,
        /// Last line of the agent's standard error; `None` if it was empty.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_words: Option<String>,
        /// What the last line means for the loop; `None` if a retry is enough.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<Problem>,
    },
    /// The processes of the agent were sampled. The answer to [`Effect::SampleProcesses`](crate::Effect::SampleProcesses).
    ProcessesSampled {
        /// CPU time and bytes of the sample; `None` if the processes could not be sampled.
        activity: Option<Activity>,
    },
    /// The agent closed its output, but its process still runs.
    StreamEnded,
    /// The guard process died, and all processes of the agent were ended.
    GuardLost,
}

impl Input {
    /// Returns the kind of the input, for diagnostics: `gates_ran`, or `agent_exited` for an event of the agent.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Self::Agent { event, .. } => format!("agent_{}", variant_name(event)),
            input => variant_name(input),
        }
    }
}

/// Returns the name that the variant of an enum has in JSON.
fn variant_name(variant: &impl Serialize) -> String {
    match serde_json::to_value(variant) {
        Ok(Value::String(name)) => name,
        Ok(Value::Object(fields)) => fields.into_iter().map(|(name, _)| name).collect(),
        Ok(_) | Err(_) => String::new(),
    }
}
