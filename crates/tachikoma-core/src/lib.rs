//! Decides what a loop does next: inputs in, records and effects out. Pure: no I/O, clock, randomness or async.
//!
//! [`step`] is a function from inputs ([`Input`]) to records ([`Record`]) and effects ([`Effect`]). It does no I/O,
//! reads no clock and uses no randomness: the runner around it passes the time, writes the records to disk, publishes
//! them, and only then carries out the effects. All output is derived from the records.
//!
//! ```
//! use std::time::Duration;
//! use tachikoma_core::{Input, Launch, LoopId, Policy, Runner, State, Timestamp, apply, next_deadline, step};
//!
//! let policy = Policy::default();
//! let mut state = State::new(LoopId::from_u128(7));
//! let now = Timestamp::from_millis(1_000);
//! let runner = Runner { pid: 1, since: now, containment: "guard".into(), follows_until: None, repository: None };
//! let first = step(&policy, &mut state, now, Input::Start { launch: Launch::default(), runner });
//!
//! // Replaying the facts gives the same state, so resuming after a crash is replay.
//! let mut replayed = State::new(LoopId::from_u128(7));
//! for record in &first.records {
//!     apply(&mut replayed, record);
//! }
//! assert_eq!(replayed, state);
//! assert!(next_deadline(&policy, &state).is_some(), "a launch that never answers must be noticed");
//! # let _ = Duration::ZERO;
//! ```
#![warn(clippy::disallowed_methods, clippy::disallowed_types)]

mod accounting;
mod activity;
mod apply;
mod autocommit;
mod commit_message;
mod completion;
mod context;
mod denials;
mod effect;
mod epoch;
mod error_chain;
mod event;
mod exit;
pub mod explain;
mod handoff;
mod hooking;
mod id;
mod incident;
mod input;
mod launch;
mod limits;
mod loop_state;
pub mod markdown;
mod number_format;
mod objectives;
mod operator;
mod outcome;
mod phase;
pub mod policy;
mod progress;
mod prompt_preamble;
mod reasons;
mod reboots;
mod record;
mod recorded_input;
mod repair;
pub mod replay;
mod serde_skip;
mod session;
mod state;
mod stats;
mod step;
mod stop_signal;
mod summary;
pub mod supervise;
mod tests_report;
pub mod tests_seen;
mod time;
mod uploads;
mod variables;
mod wait;

pub use accounting::{Accounting, ConversationUse, QuotaWindow, TurnSpending, microusd};
pub use activity::{Activity, Busy};
pub use apply::apply;
pub use autocommit::{
    Autocommit, AutocommitPurpose, AutocommitResult, CommitOrder, CommitStatus, Committed,
    LoopChanges, PastCommit, Snapshot, TrackedWork, short_commit,
};
pub use commit_message::{CommitFacts, CommitMessage, CommitMessageError};
pub use completion::{
    Answers, AttemptEnd, Check, CheckStage, Claim, Completion, GateResult, ObjectivesSeen, Owed,
    Refusal, ScriptResult, ScriptVerdict,
};
pub use context::Context;
pub use denials::{DENIALS_MAX, Denial, Permitted, remedies};
pub use effect::{Answer, Effect, Step};
pub use epoch::Epoch;
pub use error_chain::error_chain;
pub use event::LoopEvent;
pub use exit::{Exit, Leftover};
pub use handoff::{
    HAND_OFF_BYTES_MAX, LastSeen, WorkTree, checkpoint, checkpoint_now, handoff_due,
};
pub use hooking::{HookKind, HookPoint, HookResult, HooksEnd, HooksStart, PendingHooks};
pub use id::{Generation, LoopId, ParseLoopIdError, Seq, SessionNo, Ticket};
pub use incident::Incident;
pub use input::{AgentInput, Input, LoopCommand, TurnEnd, Urgency};
pub use launch::{Change, Launch, Override, PromptSource, Resumption, Runner};
pub use limits::Limits;
pub use loop_state::LoopState;
pub use objectives::Objectives;
pub use operator::{
    AnsweredBy, Choice, EditedPrompt, MESSAGES_MAX, Operator, OperatorEvent, OperatorMessage,
    OperatorRequest, PUT_OFF_ITERATIONS, Question, QuestionKind, RollingBack,
};
pub use outcome::{
    Failure, IterationOutcome, IterationReport, LimitedAttempt, Outcome, Problem, Spent, Stop,
    Timeout,
};
pub use phase::{Cause, Ending, Hooking, Phase, Reboot, RebootStage, Tool, TurnResult, Work};
pub use policy::Policy;
pub use policy::timeout::next_deadline;
pub use progress::{Evidence, Measured, Progress, SCORES_KEPT, Score};
pub use prompt_preamble::text_before_prompt;
pub use reboots::{PER_HOUR_MAX, RebootBook, RebootEntry, RebootReason, RebootResult};
pub use record::Record;
pub use recorded_input::RecordedInput;
pub use repair::Repair;
pub(crate) use serde_skip::is_zero;
pub use session::{
    Checkpoint, FailedCall, HandOff, LiveAgent, NOTE_BYTES_MAX, Note, PastSession, Sample, Session,
    Tally,
};
pub use state::{InvalidState, State};
pub use stats::LoopStats;
pub use step::step;
pub use stop_signal::{Escalation, StopSignal};
pub use summary::{
    CommitSummary, CompletionSummary, ConditionSummary, ContextSummary, GateSummary, GitSummary,
    OutcomeSummary, ProgressSummary, RebootSummary, SessionSummary, Status, WaitSummary,
};
pub use tests_report::{NAMED_MAX, TestCounts, TestsReport};
pub use tests_seen::{Standing, TestId, TestRun, TestsSeen, Verdict};
pub use time::Timestamp;
pub use uploads::{UploadFailures, UploadedBackup, Uploads};
pub use variables::{PASSPHRASE_VARIABLE, TRUST_VARIABLE};
pub use wait::{Wait, WaitReason};
