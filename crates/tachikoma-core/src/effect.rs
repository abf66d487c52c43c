//! Effects: what the core asks the runner to do.

use serde::{Deserialize, Serialize};

use crate::{
    CommitOrder, Generation, HookPoint, LoopChanges, LoopState, RebootReason, Record, SessionNo,
    StopSignal, Ticket,
};

/// What came of one input: facts to be journalled and published, then effects to be carried out, in this order.
#[must_use = "facts must be journalled before effects are carried out"]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Records, already applied to the state.
    pub records: Vec<Record>,
    /// Effects, in the order in which they are carried out.
    pub effects: Vec<Effect>,
}

/// An order to the shell.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Start the agent on an iteration, and send [`AgentInput`](crate::AgentInput) about it.
    Launch {
        /// The number that its events must carry.
        generation: Generation,
        /// Number of the iteration to work on.
        iteration: u32,
        /// The attempt at it, from 1.
        attempt: u32,
        /// The session it belongs to.
        session: SessionNo,
        /// The conversation to go on in, by the agent's own name for it; none = a fresh one.
        resume: Option<String>,
    },
    /// Give the next prompt to the agent that is up.
    Prompt {
        /// Number of the launch that gets the prompt.
        generation: Generation,
        /// Number of the iteration to work on.
        iteration: u32,
        /// The attempt at it, from 1.
        attempt: u32,
        /// The session it belongs to.
        session: SessionNo,
    },
    /// Tell the agent, in the middle of its turn, that its context fills up.
    Advise {
        /// Number of the launch that gets the message.
        generation: Generation,
        /// The fill, in percent, rounded down.
        percent: u8,
    },
    /// Take the changes since the last look at the work tree for the loop's.
    AttributeChanges,
    /// Tell the agent, in the middle of its turn, what the operator has to say.
    SendMessage {
        /// Number of the launch that gets the message.
        generation: Generation,
        /// Text of the message.
        words: String,
    },
    /// Bring the work tree back to what it was before an iteration, and answer with
    /// [`Input::RolledBack`](crate::Input::RolledBack).
    RollBack {
        /// The work tree is restored to its content before this iteration.
        iteration: u32,
        /// Whether an earlier runner died over it, and may have done all or half of it.
        again: bool,
    },
    /// Ask the agent what its conversation has cost so far; answered by [`AgentInput::Cost`](crate::AgentInput::Cost), in a turn or between
    /// two.
    AskCost {
        /// Number of the launch that is asked.
        generation: Generation,
    },
    /// Ask the agent, in one turn, for what the next session has to know.
    AskHandOff {
        /// Number of the launch that is asked.
        generation: Generation,
    },
    /// Let an agent between two turns end by itself: nothing more is asked of it.
    Close {
        /// Number of the launch that is closed.
        generation: Generation,
    },
    /// Run the hooks of a point, those beside the loop behind each other, and answer with [`Input::HooksRan`](crate::Input::HooksRan).
    RunHooks {
        /// The point whose hooks run.
        point: HookPoint,
        /// Why the session is rebooted, if it is.
        reason: Option<RebootReason>,
    },
    /// Look at the work tree, commit what the loop changed there, and answer with [`Input::AutocommitFinished`](crate::Input::AutocommitFinished).
    Autocommit {
        /// The number that the answer must carry.
        number: u64,
        /// What to commit it as; none = only look.
        commit: Option<CommitOrder>,
        /// Which of the changes are the loop's.
        changes: LoopChanges,
    },
    /// End that at once, and answer all the same.
    CancelAutocommit,
    /// Read the objectives, ask the stop scripts, and answer with [`Input::ConditionsAnswered`](crate::Input::ConditionsAnswered).
    CheckConditions {
        /// The number that the answer must carry.
        number: u64,
    },
    /// Run gates, one after the other, and answer with [`Input::GatesRan`](crate::Input::GatesRan).
    RunGates {
        /// The number that the answer must carry.
        number: u64,
        /// Names of the gates to run.
        names: Vec<String>,
    },
    /// Signal everything of this launch.
    Signal {
        /// Number of the launch that is signaled.
        generation: Generation,
        /// The signal to send.
        signal: StopSignal,
    },
    /// Look at all processes of this launch for a moment and answer with [`AgentInput::ProcessesSampled`](crate::AgentInput::ProcessesSampled).
    SampleProcesses {
        /// Number of the launch whose processes are sampled.
        generation: Generation,
    },
    /// Open a fresh session, or an old conversation, without a prompt, and send [`AgentInput`](crate::AgentInput) about it: first of all
    /// [`AgentInput::Opened`](crate::AgentInput::Opened).
    OpenSession {
        /// The number that its events must carry.
        generation: Generation,
        /// Number of the session.
        session: SessionNo,
        /// The conversation to go on in, by the agent's own name for it; none = a fresh one.
        resume: Option<String>,
    },
    /// Answer a command of the operator.
    Reply {
        /// The command that is answered.
        ticket: Ticket,
        /// The answer.
        answer: Answer,
    },
    /// The loop has ended: put everything away.
    Finish,
}

impl Effect {
    /// Returns a short name of the effect, for people.
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
    /// It is done, or will be as the note says.
    Accepted {
        /// What the loop does now, for the operator.
        note: String,
    },
    /// It makes no sense in this state, and nothing was changed.
    Refused {
        /// State of the loop.
        current: LoopState,
        /// Why, and what to do instead.
        reason: String,
    },
}
