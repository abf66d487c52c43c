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
    /// A runner takes up the loop: for the first time, after its end, or after the death of an earlier runner.
    Start {
        /// The agent, the prompt and the settings of the run.
        launch: Launch,
        /// The process that runs the loop.
        runner: Runner,
    },
    /// Time has passed. A spurious one does nothing.
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
    /// A signal came before this runner took up the loop: it is ended as it was found, without starting anything.
    Decline {
        /// Number of the signal.
        signal: i32,
    },
    /// A part of the runner itself failed, so that it cannot be trusted to see the agent's work through: the loop ends as
    /// it is, and the attempt under way is written off.
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
        /// How each went, in order; those behind one that failed were not run.
        results: Vec<HookResult>,
    },
    /// The work tree before an iteration was kept.
    SnapshotTaken {
        /// The iteration that begins with this work tree.
        iteration: u32,
        /// The commit that holds it.
        commit: String,
        /// Files that the loop changed and that are not committed.
        uncommitted: u32,
    },
    /// The answer to [`Effect::Autocommit`](crate::Effect::Autocommit).
    AutocommitFinished {
        /// The number that the order carried. An answer that is no longer awaited is dropped.
        number: u64,
        /// The result, or why it is unknown.
        #[serde(rename = "result")]
        kept: Result<AutocommitResult, String>,
    },
    /// The answer to [`Effect::CheckConditions`](crate::Effect::CheckConditions).
    ConditionsAnswered {
        /// The number that the question carried. An answer that is no longer awaited is dropped.
        number: u64,
        /// What objectives and scripts say.
        answers: Answers,
    },
    /// The answer to [`Effect::RunGates`](crate::Effect::RunGates).
    GatesRan {
        /// The number that the order carried.
        number: u64,
        /// How each went, in order.
        results: Vec<GateResult>,
        /// What the tests in them came to, where that could be read.
        tests: Option<TestsReport>,
    },
    /// The agent, or the operator, says that the whole work is complete.
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
        /// Whether the work tree was rolled back with it. Then the next prompt contains the note, and earlier
        /// claims are refused.
        tell: bool,
        /// Whether the operator wrote it.
        operator: bool,
    },
    /// The operator answers, or wants something else than a command says.
    OperatorRequest {
        /// Identifies the caller that gets the answer.
        ticket: Ticket,
        /// The request.
        request: OperatorRequest,
    },
    /// The answer to [`Effect::RollBack`](crate::Effect::RollBack).
    RolledBack {
        /// The iteration before which the work tree was so.
        iteration: u32,
        /// What the agent has to know of it, or why it could not be.
        result: Result<String, String>,
    },
    /// Something is to be written down for later.
    CustomSet {
        /// Identifies the caller that gets the answer.
        ticket: Ticket,
        /// The key to set.
        key: String,
        /// The value; null takes it away.
        value: Value,
    },
    /// Something went wrong that the loop survives and a person should know.
    Warning {
        /// What, to which object, and what to do.
        warning: String,
    },
    /// There was no room on the disk, and there is again.
    DiskWasFull {
        /// How long the disk was full.
        duration: Duration,
    },
    /// Something happened beside the loop.
    Incident(Incident),
    /// Something of the loop's own was destroyed, and is whole again.
    Repaired {
        /// The file that was repaired.
        what: Repair,
        /// What was wrong with it, and what was done.
        how: String,
    },
}

/// What the operator can ask of a live loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopCommand {
    /// Pause after the current iteration; with [`Urgency::Now`], interrupt it.
    Pause(Urgency),
    /// Go on after a pause.
    Resume,
    /// Stop the loop.
    Stop(Urgency),
    /// Replace the session by a fresh one.
    ForceReboot,
    /// Give up the current iteration, or the current wait, and go on.
    SkipIteration,
}

/// How fast an iteration is to be ended. Ordered: a worse one overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// At the next tool boundary, at most `graceful_timeout`; at once where the agent has no boundaries.
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
    /// Whether it calls the turn a success.
    pub success: bool,
    /// What it says went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What that means for the loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// Final text of the turn.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Whether that text claims that the whole work is complete.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub claimed: bool,
    /// The pattern of the reboot rules that the text matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Whether work in the background is announced, after which another result follows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// The pattern of the stop conditions that the text matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_pattern: Option<String>,
    /// What the turn cost, in millionths of a dollar.
    #[serde(skip_serializing_if = "is_zero")]
    pub cost_microusd: u64,
    /// The tokens that it used; 0 where the agent does not tell.
    #[serde(skip_serializing_if = "is_zero")]
    pub tokens: u64,
    /// Why its conversation cannot go on, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<Spent>,
}

impl TurnEnd {
    /// Returns the end as the journal stores it: without the agent's text, and without the stop pattern, which has an event of its own.
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
    /// It could not be started.
    NotLaunched {
        /// What is missing and where it was looked for.
        reason: String,
    },
    /// It wrote something (coalesced by the shell).
    Output,
    /// It said something while it was asked for its hand-off; bounded by the shell.
    HandOffText {
        /// A part of the hand-off.
        text: String,
    },
    /// A fresh session is open: its process is up and answers. The answer to [`Effect::OpenSession`](crate::Effect::OpenSession).
    Opened,
    /// It reported its id of the conversation.
    SessionNamed {
        /// The agent's id of the conversation.
        agent_id: String,
    },
    /// It reported the fill of its context.
    ContextMeasured {
        /// Tokens in the context, and its size.
        context: Context,
        /// Whether the model is in the middle of the answer that the reading belongs to.
        answering: bool,
    },
    /// A tool call began.
    ToolStarted {
        /// The agent's own id of the call.
        id: String,
        /// Name of the tool.
        name: String,
        /// What it was called with, in a few words.
        summary: String,
    },
    /// A tool call ended.
    ToolEnded {
        /// The agent's own id of the call.
        id: String,
        /// What went wrong, where something did.
        error: Option<String>,
    },
    /// It was not permitted to call a tool.
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
    /// A call of the model is over, its own or that of an agent below it.
    CallEnded {
        /// The tokens that it used.
        tokens: u64,
    },
    /// It reported the cost of its conversation. The answer to [`Effect::AskCost`](crate::Effect::AskCost).
    Cost {
        /// In millionths of a dollar, earlier processes included.
        conversation_microusd: u64,
    },
    /// It took a conversation up again, which has used so much.
    ConversationResumed(ConversationUse),
    /// It reported how much of a subscription's window is used.
    Quota(QuotaWindow),
    /// It reported the final result of its turn.
    TurnEnded(TurnEnd),
    /// Its process has ended, its pipes are drained, and what it left behind is ended too.
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
        /// Its last line on standard error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_words: Option<String>,
        /// What that means for the loop.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<Problem>,
    },
    /// Its processes were looked at. The answer to [`Effect::SampleProcesses`](crate::Effect::SampleProcesses).
    ProcessesSampled {
        /// What they did; none where that cannot be seen.
        activity: Option<Activity>,
    },
    /// Its output ended, and it did not.
    StreamEnded,
    /// The guard died, and every process of the agent was ended.
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
