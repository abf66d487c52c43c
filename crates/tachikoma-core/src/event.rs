//! What is remembered: facts in the past tense. The journal is a list of these, and the state a fold over them.
//! `docs/journal-format.md` describes each for readers outside this project.

use serde::{Deserialize, Serialize};

use crate::{
    Activity, Answers, Autocommit, AutocommitPurpose, AutocommitResult, Cause, Change, Check,
    Context, ConversationUse, Denial, Epoch, Exit, Failure, GateResult, Generation, HooksEnd,
    HooksStart, Incident, IterationReport, Launch, Leftover, LimitedAttempt, Limits, LoopStats,
    Measured, OperatorEvent, Outcome, QuotaWindow, RebootReason, Refusal, Repair, Resumption,
    Runner, SessionNo, State, Stop, StopSignal, TestsReport, Timeout, Timestamp, TurnEnd, Wait,
    is_zero,
};

/// A fact about a loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LoopEvent {
    /// A segment of the journal begins, with the full state before it.
    SegmentOpened {
        /// The format of the journal.
        format: u32,
        /// The number of the segment, from 1.
        segment: u32,
        /// The state before this record.
        state: Box<State>,
        /// Whether records before it are lost, because someone destroyed the file they were in.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        after_loss: bool,
        /// The epoch of the records from here on.
        #[serde(rename = "life", default, skip_serializing_if = "Epoch::is_unknown")]
        epoch: Epoch,
    },
    /// A runner took up the loop.
    Started {
        /// The agent, the prompt and the settings of the run.
        launch: Launch,
        /// The process that runs the loop.
        runner: Runner,
        /// Whether the loop is new, had ended, or lost its runner.
        resumption: Resumption,
        /// The stop conditions of the run.
        #[serde(default)]
        limits: Limits,
    },
    /// A runner took up the loop with other settings than the one before; they hold from here on.
    ConfigChanged {
        /// What changed, by key. Empty where the earlier runner did not record its settings, or only defaults differ.
        changes: Vec<Change>,
    },
    /// The loop pauses when the current iteration or reboot is over.
    PauseRequested,
    /// The pause that was requested is no longer wanted.
    PauseWithdrawn,
    /// The loop is paused.
    Paused {
        /// The wait that goes on afterwards if it is not over by then.
        then: Option<Wait>,
    },
    /// The loop goes on after a pause.
    Resumed,
    /// A stop was requested. The agent ends first.
    StopRequested {
        /// Why the loop has to stop.
        stop: Stop,
        /// Whether nothing is to be waited for, not even a commit.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        urgent: bool,
    },
    /// The loop waits.
    WaitStarted {
        /// What for, and until when.
        wait: Wait,
    },
    /// A session began.
    SessionStarted {
        /// Number of the session.
        session: SessionNo,
        /// The agent's own name for it, where it has one.
        agent_id: Option<String>,
    },
    /// A session ended.
    SessionEnded {
        /// Number of the session.
        session: SessionNo,
        /// How many iterations it had.
        iterations: u32,
        /// Why the session ended.
        reason: String,
    },
    /// An attempt at an iteration began; the agent is launched next.
    IterationStarted {
        /// The iteration, from 1 over the whole life of the loop.
        iteration: u32,
        /// The attempt at it, from 1.
        attempt: u32,
        /// The session it belongs to.
        session: SessionNo,
        /// The number of the launch.
        generation: Generation,
    },
    /// The agent's process is up.
    AgentLaunched {
        /// Process id of the agent.
        pid: u32,
    },
    /// The agent's process ended between two turns.
    AgentExited {
        /// Exit code or signal of the agent's process.
        exit: Exit,
    },
    /// The agent reported its id of the conversation.
    SessionNamed {
        /// The agent's id of the conversation.
        agent_id: String,
    },
    /// The agent wrote something, for the first time or after a while.
    OutputSeen,
    /// The agent reported the fill of its context.
    ContextMeasured {
        /// Tokens in the context, and its size.
        context: Context,
        /// Whether the model was in the middle of the answer that the reading belongs to.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        answering: bool,
        /// Where the session is replaced; said with the first reading, and when it changes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        redline_tokens: Option<u64>,
    },
    /// The agent was asked, during its turn, to finish and write down what matters.
    WrapUpAdvised {
        /// The fill of its context, in percent, rounded down.
        percent: u8,
    },
    /// A tool call began.
    ToolStarted {
        /// The agent's own id of the call.
        id: String,
        /// Name of the tool.
        name: String,
        /// What it was called with, in a few words.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        summary: String,
    },
    /// A tool call ended.
    ToolEnded {
        /// The agent's own id of the call.
        id: String,
        /// What went wrong, where something did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// The agent was not permitted to call a tool.
    ToolDenied(Denial),
    /// The agent changed a file for the first time in this session.
    FileTouched {
        /// Path of the file.
        path: String,
    },
    /// The agent reported the final result of its turn.
    TurnResulted(TurnEnd),
    /// A call of the model ended; recorded if the loop has a budget.
    CallEnded {
        /// The tokens that it used, those from the cache included.
        tokens: u64,
    },
    /// The agent reported the cost of its conversation so far; asked for if the loop has a budget.
    #[serde(rename = "cost_told")]
    CostReported {
        /// In millionths of a dollar.
        conversation_microusd: u64,
    },
    /// The agent worked while no iteration was under way, such as at a time that it had scheduled itself. Its changes and its cost are
    /// the loop's.
    WorkedOutside {
        /// The first tool that it called, with its input shortened; empty at the end of the turn.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        tool: String,
        /// What the turn cost, in millionths of a dollar; 0 until its end.
        #[serde(default, skip_serializing_if = "is_zero")]
        cost_microusd: u64,
        /// The tokens that the turn used; 0 until its end.
        #[serde(default, skip_serializing_if = "is_zero")]
        tokens: u64,
    },
    /// The agent took a conversation up again, which has used so much: attempts that were cut are counted now.
    #[serde(rename = "conversation_taken_up")]
    ConversationResumed(ConversationUse),
    /// The agent reported how much of a subscription's window is used.
    #[serde(rename = "quota_told")]
    QuotaReported(QuotaWindow),
    /// The agent's final words match a pattern that ends the loop.
    StopPatternMatched {
        /// The pattern of `stop_on_patterns` that matches.
        pattern: String,
    },
    /// The agent, or the operator, wrote a note for the sessions to come.
    Noted {
        /// Text of the note.
        text: String,
        /// Whether the next prompt must contain it, also in a conversation that goes on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tell: bool,
        /// Whether the operator wrote it. False for notes of the agent, and for all notes of journals before this field.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        operator: bool,
    },
    /// The iteration is to be ended before its time.
    EndingRequested {
        /// Why the iteration is ended early.
        cause: Cause,
        /// Until when a tool call in flight may go on.
        boundary_until: Timestamp,
    },
    /// A signal is sent to the agent to end it.
    #[serde(rename = "rung_climbed")]
    AgentSignaled {
        /// The signal that is sent.
        #[serde(rename = "rung")]
        signal: StopSignal,
        /// When the next signal follows.
        until: Timestamp,
    },
    /// The whole process, or the machine, was suspended; the timeouts under way are later by as much.
    #[serde(rename = "stood_still")]
    Suspended {
        /// Length of the suspension, in milliseconds.
        duration_ms: u64,
    },
    /// What the agent left behind was ended.
    LeftoversEnded {
        /// Processes that the agent left running, and that were ended.
        leftovers: Vec<Leftover>,
    },
    /// An iteration ended, and not by a failure.
    IterationCompleted {
        /// How the iteration ended.
        report: IterationReport,
        /// Whether the agent's process is up and waits for the next prompt.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        agent_lives: bool,
    },
    /// An iteration failed.
    IterationFailed {
        /// Number of the iteration.
        iteration: u32,
        /// Why the iteration failed.
        failure: Failure,
        /// How long its last attempt took.
        duration_ms: u64,
        /// Failures in a row, this one included.
        streak: u32,
        /// Whether the agent's process is up and waits for the next prompt.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        agent_lives: bool,
    },
    /// The model's service is limited: the iteration is repeated when it is not. Neither success nor failure.
    IterationLimited(LimitedAttempt),
    /// Nothing was heard of the agent for as long as a timeout allows: its processes are looked at before it is ended.
    #[serde(rename = "look_requested")]
    SilenceChecked {
        /// The timeout that ran out.
        timeout: Timeout,
        /// Until when the look has to be answered.
        until: Timestamp,
    },
    /// Its processes are at work, so the timeout begins anew.
    #[serde(rename = "busy_seen")]
    AgentBusy {
        /// What they were seen doing.
        activity: Activity,
    },
    /// The agent closed its output, and lives on.
    StreamEnded,
    /// An attempt was cut, by the death of a runner or of what the agent works in; its iteration is repeated at once.
    AttemptCut {
        /// Number of the iteration.
        iteration: u32,
        /// Number of the attempt at the iteration, from 1.
        attempt: u32,
        /// What cut it, where it was not the death of a runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Whether the agent's process is up and waits for the next prompt.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        agent_lives: bool,
    },
    /// The work tree before an iteration is saved as a commit that is not on a branch; said when it is another one than before.
    SnapshotTaken {
        /// The iteration that begins with this work tree.
        iteration: u32,
        /// Hash of the snapshot commit.
        commit: String,
        /// Files that the loop changed and that are not committed.
        uncommitted: u32,
    },
    /// The work tree is looked at, and what the loop changed is committed.
    #[serde(rename = "keep_started")]
    AutocommitStarted(Autocommit),
    /// That is to end at once.
    #[serde(rename = "keep_called_off")]
    AutocommitCanceled {
        /// When it is given up.
        until: Timestamp,
        /// What follows it, besides the next iteration.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<Wait>,
    },
    /// What came of it, where something did.
    #[serde(rename = "work_kept")]
    AutocommitFinished {
        /// At which point of the loop.
        purpose: AutocommitPurpose,
        /// Number of the iteration that was started last.
        iteration: u32,
        /// Changed files, the commit, or the error.
        kept: AutocommitResult,
    },
    /// The result is unknown; the next look takes in what this one missed.
    #[serde(rename = "keep_given_up")]
    AutocommitGivenUp {
        /// At which point of the loop.
        purpose: AutocommitPurpose,
        /// Why the autocommit was given up.
        reason: String,
    },
    /// `tachikoma done` claims that the whole work is complete. The claim is judged when the iteration is over.
    Claimed {
        /// Reason that the caller gave; `None` without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A check began. The loop goes on after it.
    CheckStarted {
        /// The check, its deadline, and the wait after it.
        check: Check,
    },
    /// The objectives were read, and the stop scripts have answered.
    ConditionsAnswered {
        /// The objectives, and the answers of the stop scripts.
        answers: Answers,
    },
    /// Gates have run.
    GatesRan {
        /// The iteration after which they ran.
        iteration: u32,
        /// How each went, in order.
        results: Vec<GateResult>,
    },
    /// What gates said of tests was read.
    TestsRan(TestsReport),
    /// An iteration is over, and it is known what came of it.
    ProgressMeasured(Measured),
    /// A check was given up; its result is unknown.
    CheckGivenUp {
        /// Why the check was given up.
        reason: String,
    },
    /// A claim of completion is not believed.
    ClaimRefused(Refusal),
    /// A stop condition ended the loop.
    StopConditionTriggered {
        /// Configuration key of the stop condition.
        #[serde(default)]
        condition: String,
        /// The measured value and the limit, in words.
        reason: String,
    },
    /// A reboot is wanted and follows as soon as the agent is at a boundary, or as the rules allow it.
    RebootRequested {
        /// Why the session has to be replaced.
        reason: RebootReason,
        /// The moment before which it may not happen: until then it is pending.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
    },
    /// A reboot began.
    RebootStarted {
        /// Why the session is replaced.
        reason: RebootReason,
        /// The iteration it happened at.
        iteration: u32,
        /// The session that is replaced.
        from: SessionNo,
        /// What follows it, besides the next iteration.
        then: Option<Wait>,
    },
    /// The old session is asked for its hand-off.
    HandOffRequested {
        /// Until when it may answer.
        until: Timestamp,
    },
    /// The old session wrote its hand-off.
    HandOffWritten {
        /// What the next one has to know, in its words.
        text: String,
        /// Whether this is only something that the session said while it is still asked: used where nothing better follows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        partial: bool,
    },
    /// Hooks run, and are waited for.
    HooksStarted(HooksStart),
    /// Hooks have run.
    HooksRan(HooksEnd),
    /// The agent's process is let go.
    ClosingStarted {
        /// When the next signal follows.
        until: Timestamp,
        /// Why the reboot has failed, if it has: then the process is killed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// A fresh session is being opened.
    SessionOpening {
        /// Number of the session.
        session: SessionNo,
        /// The number of the launch.
        generation: Generation,
    },
    /// A fresh session has replaced the old one.
    RebootCompleted {
        /// Why the session was replaced.
        reason: RebootReason,
        /// The iteration it happened at.
        iteration: u32,
        /// The session that was replaced.
        from: SessionNo,
        /// The session that replaced it.
        to: SessionNo,
        /// How long the reboot took, in milliseconds.
        duration_ms: u64,
    },
    /// The fresh session could not be opened; the old one goes on.
    RebootFailed {
        /// Why a reboot was wanted.
        reason: RebootReason,
        /// The iteration it happened at.
        iteration: u32,
        /// Why the reboot failed.
        error: String,
        /// Whether a hook forbade it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        aborted: bool,
    },
    /// The first reading of the fresh session shows what the reboot was worth.
    RebootVerified {
        /// The fill of its context, in percent, rounded down.
        percent: u8,
        /// Why it was for nothing, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        futile: Option<String>,
    },
    /// A hook or the operator wrote something down for later.
    CustomSet {
        /// The key that is set.
        key: String,
        /// What; null takes it away.
        value: serde_json::Value,
    },
    /// Something between the loop and its operator.
    Operator(OperatorEvent),
    /// Something went wrong that the loop survives.
    Warned {
        /// What, to which object, and what to do.
        warning: String,
    },
    /// There was no room on the disk, and there is again: nothing was decided or done in between.
    DiskWasFull {
        /// How long the disk was full, in milliseconds.
        duration_ms: u64,
    },
    /// Something of the loop's own was destroyed under its runner, and is whole again.
    Repaired {
        /// The file that was repaired.
        what: Repair,
        /// What was wrong with it, and what was done.
        how: String,
    },
    /// Something happened beside the loop.
    Incident(Incident),
    /// The loop ended with its work done or its limit reached.
    Completed {
        /// Whether the work is done or the limit is reached.
        outcome: Outcome,
        /// Totals of the loop.
        stats: LoopStats,
    },
    /// The loop was stopped.
    Stopped {
        /// Why the loop was stopped.
        outcome: Outcome,
        /// `outcome` in words.
        reason: String,
        /// Totals of the loop.
        stats: LoopStats,
    },
    /// The loop ended because it could not go on.
    Error {
        /// Why the loop cannot continue.
        outcome: Outcome,
        /// Totals of the loop.
        stats: LoopStats,
    },
}

impl LoopEvent {
    /// Returns whether this is how a run ends.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(
            self,
            Self::Completed { .. } | Self::Stopped { .. } | Self::Error { .. }
        )
    }

    /// Returns whether the event can be recorded while no runner runs the loop.
    pub(crate) fn may_come_without_runner(&self) -> bool {
        self.is_terminal()
            || matches!(
                self,
                Self::SegmentOpened { .. }
                    | Self::Warned { .. }
                    | Self::DiskWasFull { .. }
                    | Self::Incident(_)
                    | Self::Repaired { .. }
                    | Self::CustomSet { .. }
                    | Self::Noted { .. }
                    | Self::CheckGivenUp { .. }
                    | Self::AttemptCut { .. }
            )
    }

    /// Returns what holds from here on, where that is other settings.
    pub(crate) fn reloaded(&self) -> Option<&Launch> {
        if let Self::Operator(OperatorEvent::Reloaded { launch, .. }) = self {
            Some(launch)
        } else {
            None
        }
    }
}
