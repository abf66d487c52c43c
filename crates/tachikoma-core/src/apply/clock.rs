//! How time that passes changes the state.

use std::time::Duration;

use super::reboot::with_reboot;
use super::work::with_work;
use crate::{LoopEvent, Phase, RebootStage, State, Timestamp};

/// Counts the time up to a record.
pub(super) fn pass_time(state: &mut State, event: &LoopEvent, time: Timestamp) {
    match event {
        LoopEvent::Started { runner, .. } => {
            if let Some(until) = runner.follows_until {
                state.accounting.count(&state.phase, until.min(time));
            }
            state.accounting.runner_took_up(time);
        }
        LoopEvent::Suspended { duration_ms } => {
            state
                .accounting
                .stood_still(Duration::from_millis(*duration_ms));
        }
        // These may come before a runner takes the loop up, or from one that does not: if time was run, the next record
        // counts it.
        LoopEvent::SegmentOpened { .. }
        | LoopEvent::Warned { .. }
        | LoopEvent::DiskWasFull { .. }
        | LoopEvent::Incident(_)
        | LoopEvent::Repaired { .. }
        | LoopEvent::CustomSet { .. }
        | LoopEvent::Noted { .. }
        | LoopEvent::CheckGivenUp { .. }
        | LoopEvent::AttemptCut { .. }
        | LoopEvent::Stopped { .. }
        | LoopEvent::Error { .. }
        | LoopEvent::Completed { .. } => {}
        LoopEvent::ConfigChanged { .. }
        | LoopEvent::Operator(_)
        | LoopEvent::PauseRequested
        | LoopEvent::PauseWithdrawn
        | LoopEvent::Paused { .. }
        | LoopEvent::Resumed
        | LoopEvent::StopRequested { .. }
        | LoopEvent::WaitStarted { .. }
        | LoopEvent::SessionStarted { .. }
        | LoopEvent::SessionEnded { .. }
        | LoopEvent::IterationStarted { .. }
        | LoopEvent::AgentLaunched { .. }
        | LoopEvent::AgentExited { .. }
        | LoopEvent::SessionNamed { .. }
        | LoopEvent::OutputSeen
        | LoopEvent::ContextMeasured { .. }
        | LoopEvent::WrapUpAdvised { .. }
        | LoopEvent::ToolStarted { .. }
        | LoopEvent::ToolEnded { .. }
        | LoopEvent::ToolDenied { .. }
        | LoopEvent::FileTouched { .. }
        | LoopEvent::TurnResulted(_)
        | LoopEvent::CallEnded { .. }
        | LoopEvent::CostReported { .. }
        | LoopEvent::WorkedOutside { .. }
        | LoopEvent::ConversationResumed(_)
        | LoopEvent::QuotaReported(_)
        | LoopEvent::StopPatternMatched { .. }
        | LoopEvent::EndingRequested { .. }
        | LoopEvent::AgentSignaled { .. }
        | LoopEvent::LeftoversEnded { .. }
        | LoopEvent::IterationCompleted { .. }
        | LoopEvent::IterationFailed { .. }
        | LoopEvent::IterationLimited(_)
        | LoopEvent::StreamEnded
        | LoopEvent::StopConditionTriggered { .. }
        | LoopEvent::RebootRequested { .. }
        | LoopEvent::RebootStarted { .. }
        | LoopEvent::HandOffRequested { .. }
        | LoopEvent::HandOffWritten { .. }
        | LoopEvent::HooksStarted { .. }
        | LoopEvent::HooksRan { .. }
        | LoopEvent::ClosingStarted { .. }
        | LoopEvent::SessionOpening { .. }
        | LoopEvent::RebootCompleted { .. }
        | LoopEvent::RebootFailed { .. }
        | LoopEvent::RebootVerified { .. }
        | LoopEvent::SnapshotTaken { .. }
        | LoopEvent::AutocommitStarted { .. }
        | LoopEvent::AutocommitCanceled { .. }
        | LoopEvent::AutocommitFinished { .. }
        | LoopEvent::AutocommitGivenUp { .. }
        | LoopEvent::Claimed { .. }
        | LoopEvent::CheckStarted { .. }
        | LoopEvent::ConditionsAnswered { .. }
        | LoopEvent::GatesRan { .. }
        | LoopEvent::TestsRan(_)
        | LoopEvent::ProgressMeasured(_)
        | LoopEvent::ClaimRefused(_)
        | LoopEvent::SilenceChecked { .. }
        | LoopEvent::AgentBusy { .. } => state.accounting.count(&state.phase, time),
    }
}

/// Moves every deadline by the time in which nothing could happen.
pub(super) fn postpone_deadlines(state: &mut State, duration: Duration) {
    with_reboot(state, |reboot| match &mut reboot.stage {
        RebootStage::Begun => {}
        RebootStage::HandOff { until, .. } | RebootStage::Hooks { until, .. } => {
            *until = until.after(duration);
        }
        RebootStage::Autocommitting { autocommit } => autocommit.postpone(duration),
        RebootStage::Closing { escalation, .. } => {
            escalation.until = escalation.until.after(duration);
        }
        RebootStage::Opening { since, .. } => *since = since.after(duration),
    });
    if let Phase::Autocommitting { autocommit } = &mut state.phase {
        autocommit.postpone(duration);
    }
    if let Phase::Hooking { hooking } = &mut state.phase {
        hooking.until = hooking.until.after(duration);
    }
    if let Phase::Checking { check } = &mut state.phase {
        check.until = check.until.map(|until| until.after(duration));
    }
    with_work(state, |work| work.postpone(duration));
}
