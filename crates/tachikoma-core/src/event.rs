//! Events: facts in the past tense. The journal is a list of events, and applying them gives the state.

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
        /// Whether records before this segment are lost, because their file was destroyed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        after_loss: bool,
        /// The epoch of the records from here on.
        #[serde(rename = "life", default, skip_serializing_if = "Epoch::is_unknown")]
        epoch: Epoch,
    },
    /// A runner started or resumed the loop.
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
    /// A runner resumed the loop with other settings than the run before.
    ConfigChanged {
        /// The changed settings, by key. Empty if the earlier runner did not record its settings, or if only defaults differ.
        changes: Vec<Change>,
    },
    /// The loop pauses when the current iteration or reboot is over.
    PauseRequested,
    /// The operator canceled the requested pause.
    PauseWithdrawn,
    /// The loop is paused.
    Paused {
        /// The wait that continues after the pause; `None` without one.
        then: Option<Wait>,
    },
    /// The operator ended the pause.
    Resumed,
    /// A stop was requested. The agent ends first.
    StopRequested {
        /// Why the loop has to stop.
        stop: Stop,
        /// Whether the stop is urgent: the loop does not wait for a commit.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        urgent: bool,
    },
    /// The loop waits.
    WaitStarted {
        /// Reason and end of the wait.
        wait: Wait,
    },
    /// A session began.
    SessionStarted {
        /// Number of the session.
        session: SessionNo,
        /// The agent's id of the conversation; `None` until it is known.
        agent_id: Option<String>,
    },
    /// A session ended.
    SessionEnded {
        /// Number of the session.
        session: SessionNo,
        /// Number of iterations of the session.
        iterations: u32,
        /// Why the session ended.
        reason: String,
    },
    /// An attempt at an iteration began; the agent is launched next.
    IterationStarted {
        /// The iteration, from 1 over the whole life of the loop.
        iteration: u32,
        /// The attempt at the iteration, from 1.
        attempt: u32,
        /// The session that the iteration belongs to.
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
    /// The agent printed output for the first time, or after a pause.
    OutputSeen,
    /// The agent reported the fill of its context.
    ContextMeasured {
        /// Tokens in the context, and its size.
        context: Context,
        /// Whether the model was still writing its answer when the context was measured.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        answering: bool,
        /// Redline in tokens; recorded with the first reading and when it changes.
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
        /// Short description of the call, such as its command or path.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        summary: String,
    },
    /// A tool call ended.
    ToolEnded {
        /// The agent's own id of the call.
        id: String,
        /// Error of the tool call; `None` if it succeeded.
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
        /// Tokens of the call, including cached ones.
        tokens: u64,
    },
    /// The agent reported the cost of its conversation so far. The loop asks for it if it has a budget.
    #[serde(rename = "cost_told")]
    CostReported {
        /// Cost of the conversation in millionths of a dollar.
        conversation_microusd: u64,
    },
    /// The agent worked without a prompt, for example at a time that it had scheduled itself. Its changes and its cost count for the loop.
    WorkedOutside {
        /// The first tool that the agent called, with its input shortened; empty at the end of the turn.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        tool: String,
        /// What the turn cost, in millionths of a dollar; 0 until its end.
        #[serde(default, skip_serializing_if = "is_zero")]
        cost_microusd: u64,
        /// The tokens that the turn used; 0 until its end.
        #[serde(default, skip_serializing_if = "is_zero")]
        tokens: u64,
    },
    /// The agent resumed a conversation and reported its usage. Usage of attempts that were cut is counted now.
    #[serde(rename = "conversation_taken_up")]
    ConversationResumed(ConversationUse),
    /// The agent reported how much of a usage window of the subscription is used.
    #[serde(rename = "quota_told")]
    QuotaReported(QuotaWindow),
    /// The agent's final text matches a pattern that ends the loop.
    StopPatternMatched {
        /// The pattern of `stop_on_patterns` that matches.
        pattern: String,
    },
    /// The agent, or the operator, wrote a note for the sessions to come.
    Noted {
        /// Text of the note.
        text: String,
        /// Whether the next prompt contains the note.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tell: bool,
        /// Whether the operator wrote the note. False for notes of the agent, and for all notes in journals without this field.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        operator: bool,
    },
    /// The early end of the iteration was requested.
    EndingRequested {
        /// Why the iteration is ended early.
        cause: Cause,
        /// Deadline of the running tool call, which may finish first.
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
    /// The machine was suspended. The timeouts are extended.
    #[serde(rename = "stood_still")]
    Suspended {
        /// Length of the suspension, in milliseconds.
        duration_ms: u64,
    },
    /// Processes that the agent left running were ended.
    LeftoversEnded {
        /// Processes that the agent left running, and that were ended.
        leftovers: Vec<Leftover>,
    },
    /// An iteration ended without a failure: it succeeded, or was skipped, interrupted or ended for a reboot.
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
        /// Duration of the last attempt at the iteration, in milliseconds.
        duration_ms: u64,
        /// Failures in a row, this one included.
        streak: u32,
        /// Whether the agent's process is up and waits for the next prompt.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        agent_lives: bool,
    },
    /// The model's service refused an attempt. The iteration is repeated later, and it is neither a success nor a failure.
    IterationLimited(LimitedAttempt),
    /// The agent was silent for the length of a timeout. Its processes are sampled before it is ended.
    #[serde(rename = "look_requested")]
    SilenceChecked {
        /// The timeout that ran out.
        timeout: Timeout,
        /// Deadline of the sample.
        until: Timestamp,
    },
    /// The processes of the silent agent are busy, so the timeout starts again.
    #[serde(rename = "busy_seen")]
    AgentBusy {
        /// CPU time and bytes of the sample.
        activity: Activity,
    },
    /// The agent closed its output, but its process still runs.
    StreamEnded,
    /// An attempt ended early: its runner died, or the agent's server or conversation was lost. It is repeated at once.
    AttemptCut {
        /// Number of the iteration.
        iteration: u32,
        /// Number of the attempt at the iteration, from 1.
        attempt: u32,
        /// Why the attempt ended early; `None` if its runner died.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Whether the agent's process is up and waits for the next prompt.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        agent_lives: bool,
    },
    /// A snapshot of the work tree before an iteration was taken, as a commit that is on no branch. Recorded if it differs from the last
    /// snapshot.
    SnapshotTaken {
        /// The iteration that begins with this work tree.
        iteration: u32,
        /// Hash of the snapshot commit.
        commit: String,
        /// Files that the loop changed and that are not committed.
        uncommitted: u32,
    },
    /// A survey of the work tree began. A commit follows, unless the autocommit only surveys.
    #[serde(rename = "keep_started")]
    AutocommitStarted(Autocommit),
    /// The commit was canceled, and ends soon.
    #[serde(rename = "keep_called_off")]
    AutocommitCanceled {
        /// When the loop stops waiting for the commit.
        until: Timestamp,
        /// The wait that is due after the commit; `None` without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<Wait>,
    },
    /// The autocommit ended. Not recorded if nothing changed since the previous survey.
    #[serde(rename = "work_kept")]
    AutocommitFinished {
        /// At which point of the loop the commit was made.
        purpose: AutocommitPurpose,
        /// Number of the iteration that was started last.
        iteration: u32,
        /// Changed files, the commit, or the error.
        #[serde(rename = "kept")]
        result: AutocommitResult,
    },
    /// The result of the autocommit is unknown. The next survey includes its changes.
    #[serde(rename = "keep_given_up")]
    AutocommitGivenUp {
        /// At which point of the loop the commit was made.
        purpose: AutocommitPurpose,
        /// Why the loop no longer waits for the autocommit.
        reason: String,
    },
    /// `tachikoma done` claims that the whole work is complete. The claim is judged when the iteration is over.
    Claimed {
        /// Reason that the caller gave; `None` without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A check began, and the loop waits for it.
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
        /// The iteration after which the gates ran; 0 before the first one.
        iteration: u32,
        /// Results of the gates, in order.
        results: Vec<GateResult>,
    },
    /// Test results in the output of gates were read.
    TestsRan(TestsReport),
    /// The progress of a finished iteration was measured.
    ProgressMeasured(Measured),
    /// The loop no longer waits for a check. The result of the check is unknown.
    CheckGivenUp {
        /// Why the check was canceled.
        reason: String,
    },
    /// A claim of completion was refused.
    ClaimRefused(Refusal),
    /// A stop condition ended the loop.
    StopConditionTriggered {
        /// Configuration key of the stop condition.
        #[serde(default)]
        condition: String,
        /// The measured value and the limit, in words.
        reason: String,
    },
    /// A reboot was requested. It follows at the next tool boundary, or when the rate limits allow it.
    RebootRequested {
        /// Why the session has to be replaced.
        reason: RebootReason,
        /// The rate limits do not allow the reboot before this time; `None` = it may happen now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
    },
    /// A reboot began.
    RebootStarted {
        /// Why the session is replaced.
        reason: RebootReason,
        /// Number of the iteration that was started last.
        iteration: u32,
        /// The session that is replaced.
        from: SessionNo,
        /// The wait that is due after the reboot; `None` without one.
        then: Option<Wait>,
    },
    /// The old session was asked for its hand-off.
    HandOffRequested {
        /// Deadline of the hand-off.
        until: Timestamp,
    },
    /// The old session wrote its hand-off.
    HandOffWritten {
        /// Text of the hand-off.
        text: String,
        /// Whether this is only a part of the hand-off, used if the session does not finish it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        partial: bool,
    },
    /// Hooks started, and the loop waits for them.
    HooksStarted(HooksStart),
    /// Hooks have run.
    HooksRan(HooksEnd),
    /// The agent's process was asked to end.
    ClosingStarted {
        /// When the next signal follows.
        until: Timestamp,
        /// Why the reboot failed, so that the process is killed; `None` if it did not fail.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// A new session is being opened, or the old one again for its hand-off.
    SessionOpening {
        /// Number of the session.
        session: SessionNo,
        /// The number of the launch.
        generation: Generation,
    },
    /// A new session replaced the old one.
    RebootCompleted {
        /// Why the session was replaced.
        reason: RebootReason,
        /// Number of the iteration that was started last.
        iteration: u32,
        /// The session that was replaced.
        from: SessionNo,
        /// The session that replaced it.
        to: SessionNo,
        /// How long the reboot took, in milliseconds.
        duration_ms: u64,
    },
    /// The reboot failed. The old session continues.
    RebootFailed {
        /// Why a reboot was wanted.
        reason: RebootReason,
        /// Number of the iteration that was started last.
        iteration: u32,
        /// Why the reboot failed.
        error: String,
        /// Whether a hook canceled the reboot.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        aborted: bool,
    },
    /// The first reading of the new session shows whether the reboot helped.
    RebootVerified {
        /// The fill of the new session's context, in percent, rounded down.
        percent: u8,
        /// Why the reboot did not help; `None` if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        futile: Option<String>,
    },
    /// A hook or the operator set a key of the custom data.
    CustomSet {
        /// The key that is set.
        key: String,
        /// The value; null removes the key.
        value: serde_json::Value,
    },
    /// A question, an answer or a request of the operator.
    Operator(OperatorEvent),
    /// A warning for the user. The loop continues.
    Warned {
        /// Object, problem and remedy, in one sentence.
        warning: String,
    },
    /// The disk was full, and has room again. Nothing was decided or done meanwhile.
    DiskWasFull {
        /// How long the disk was full, in milliseconds.
        duration_ms: u64,
    },
    /// A file of the loop was damaged while its runner ran, and is repaired.
    Repaired {
        /// The file that was repaired.
        what: Repair,
        /// The damage, and how it was repaired.
        how: String,
    },
    /// A notification or an upload failed or succeeded, or a caller was refused.
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
        /// The outcome as text for the user.
        reason: String,
        /// Totals of the loop.
        stats: LoopStats,
    },
    /// The loop ended with an error.
    Error {
        /// Why the loop cannot continue.
        outcome: Outcome,
        /// Totals of the loop.
        stats: LoopStats,
    },
}

impl LoopEvent {
    /// Returns whether the event ends a run.
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

    /// Returns the settings that apply from now on, if the event reloads them.
    pub(crate) fn reloaded(&self) -> Option<&Launch> {
        if let Self::Operator(OperatorEvent::Reloaded { launch, .. }) = self {
            Some(launch)
        } else {
            None
        }
    }
}
