//! Effects: what the core asks the runner to do.

use serde::{Deserialize, Serialize};

use crate::{
    CommitOrder, Generation, HookPoint, LoopChanges, LoopState, RebootReason, Record, SessionNo,
    StopSignal, Ticket,
};

/// Result of one input: records to journal and publish, then effects to carry out, in this order.
#[must_use = "records must be journaled before effects are performed"]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Records, already applied to the state.
    pub records: Vec<Record>,
    /// Effects, in the order in which they are carried out.
    pub effects: Vec<Effect>,
}

/// An order to the runner.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Start the agent on an iteration, and send [`AgentInput`](crate::AgentInput) about it.
    Launch {
        /// The number of the launch. Events of the launch must carry it.
        generation: Generation,
        /// Number of the iteration to work on.
        iteration: u32,
        /// The attempt at the iteration, from 1.
        attempt: u32,
        /// The session that the iteration belongs to.
        session: SessionNo,
        /// The agent's id of the conversation to resume; `None` = start a new one.
        resume: Option<String>,
    },
    /// Send the next prompt to the running agent.
    Prompt {
        /// Number of the launch that gets the prompt.
        generation: Generation,
        /// Number of the iteration to work on.
        iteration: u32,
        /// The attempt at the iteration, from 1.
        attempt: u32,
        /// The session that the iteration belongs to.
        session: SessionNo,
    },
    /// Ask the agent during its turn to finish, because its context fills up.
    Advise {
        /// Number of the launch that gets the message.
        generation: Generation,
        /// The fill of the context, in percent, rounded down.
        percent: u8,
    },
    /// Attribute all changes since the last survey to the loop.
    AttributeChanges,
    /// Send messages of the operator to the agent during its turn.
    SendMessage {
        /// Number of the launch that gets the message.
        generation: Generation,
        /// Text of the message.
        text: String,
    },
    /// Roll the work tree back to before an iteration, and answer with [`Input::RolledBack`](crate::Input::RolledBack).
    RollBack {
        /// The work tree is restored to its content before this iteration.
        iteration: u32,
        /// Whether an earlier runner died during this rollback, which may be done in part.
        again: bool,
    },
    /// Ask the agent for the cost of its conversation, during a turn or between two. The answer is
    /// [`AgentInput::Cost`](crate::AgentInput::Cost).
    AskCost {
        /// Number of the launch that is asked.
        generation: Generation,
    },
    /// Ask the agent for its hand-off, in one turn.
    AskHandOff {
        /// Number of the launch that is asked.
        generation: Generation,
    },
    /// Close the standard input of an agent between two turns, so that it ends by itself.
    Close {
        /// Number of the launch that is closed.
        generation: Generation,
    },
    /// Run the hooks of a point one after the other, and answer with [`Input::HooksRan`](crate::Input::HooksRan).
    RunHooks {
        /// The hook point at which the hooks run.
        point: HookPoint,
        /// Why the session is rebooted; `None` for hooks outside of a reboot.
        reason: Option<RebootReason>,
    },
    /// Survey the work tree, commit the changes of the loop, and answer with
    /// [`Input::AutocommitFinished`](crate::Input::AutocommitFinished).
    Autocommit {
        /// Number of this request. The answer must contain the same number.
        number: u64,
        /// Content of the commit message; `None` = only survey the work tree.
        commit: Option<CommitOrder>,
        /// Which changes belong to the loop.
        changes: LoopChanges,
    },
    /// Cancel the autocommit. The runner must still answer the original request.
    CancelAutocommit,
    /// Read the objectives, ask the stop scripts, and answer with [`Input::ConditionsAnswered`](crate::Input::ConditionsAnswered).
    CheckConditions {
        /// Number of this request. The answer must contain the same number.
        number: u64,
    },
    /// Run gates, one after the other, and answer with [`Input::GatesRan`](crate::Input::GatesRan).
    RunGates {
        /// Number of this request. The answer must contain the same number.
        number: u64,
        /// Names of the gates to run.
        names: Vec<String>,
    },
    /// Send a signal to all processes of this launch.
    Signal {
        /// Number of the launch that is signaled.
        generation: Generation,
        /// The signal to send.
        signal: StopSignal,
    },
    /// Sample all processes of this launch for two seconds, and answer with
    /// [`AgentInput::ProcessesSampled`](crate::AgentInput::ProcessesSampled).
    SampleProcesses {
        /// Number of the launch whose processes are sampled.
        generation: Generation,
    },
    /// Open a new session, or an old conversation, without a prompt. The first event is [`AgentInput::Opened`](crate::AgentInput::Opened).
    OpenSession {
        /// The number of the launch. Events of the launch must carry it.
        generation: Generation,
        /// Number of the session.
        session: SessionNo,
        /// The agent's id of the conversation to resume; `None` = start a new one.
        resume: Option<String>,
    },
    /// Answer a command of the operator.
    Reply {
        /// The command that is answered.
        ticket: Ticket,
        /// The answer.
        answer: Answer,
    },
    /// The loop has ended. Shut everything down.
    Finish,
}

impl Effect {
    /// Returns a short name of the effect, for the user.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Launch { .. } => "the agent started",
            Self::Prompt { .. } => "the agent prompted",
            Self::Advise { .. } => "the agent asked to finish",
            Self::AttributeChanges => "changes attributed to the loop",
            Self::SendMessage { .. } => "a message sent to the agent",
            Self::RollBack { .. } => "the work tree rolled back",
            Self::AskCost { .. } => "the agent asked for its cost",
            Self::AskHandOff { .. } => "the agent asked for its hand-off",
            Self::Close { .. } => "the agent's input closed",
            Self::RunHooks { .. } => "hooks run",
            Self::Autocommit { .. } => "the work committed",
            Self::CancelAutocommit => "the commit canceled",
            Self::CheckConditions { .. } => "stop scripts and objectives checked",
            Self::RunGates { .. } => "gates run",
            Self::Signal { .. } => "the agent signaled",
            Self::SampleProcesses { .. } => "the agent's processes sampled",
            Self::OpenSession { .. } => "a session opened",
            Self::Reply { .. } => "a request answered",
            Self::Finish => "the loop ended",
        }
    }
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    /// The command is accepted.
    Accepted {
        /// Message for the operator: what the loop does now.
        note: String,
    },
    /// The command is not possible in this state. Nothing was changed.
    Refused {
        /// State of the loop.
        current: LoopState,
        /// Why, and what to do instead.
        reason: String,
    },
}
