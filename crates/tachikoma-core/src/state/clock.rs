//! Time passes, and at some moment the loop has run long enough.

use std::time::Duration;

use super::State;
use crate::event::LoopEvent;
use crate::phase::{Phase, RebootStage, WaitReason};
use crate::policy::Policy;
use crate::time::Timestamp;

impl State {
    /// Returns the moment at which `max_duration` is over; none without it, and when the loop ends anyway.
    #[must_use]
    pub fn out_of_time(&self, policy: &Policy) -> Option<Timestamp> {
        let looked_at = match &self.phase {
            // Work that is being kept is seen through, and the time is looked at behind it.
            Phase::Rebooting { reboot } => !matches!(reboot.stage, RebootStage::Keeping { .. }),
            // Whoever waits for a person is not out of time.
            Phase::Waiting { wait } => wait.reason != WaitReason::Operator,
            Phase::Working { .. } | Phase::Checking { .. } => true,
            Phase::Hooking { hooking } => hooking.outcome.is_none(),
            Phase::Idle | Phase::Keeping { .. } | Phase::Paused { .. } | Phase::Ended { .. } => {
                false
            }
        };
        let limit = policy.budgets.duration;
        let since = self.ledger.counted_to?;
        let left = limit.saturating_sub(Duration::from_millis(self.ledger.ran_ms));
        (looked_at && !limit.is_zero() && self.stop.is_none()).then(|| since.after(left))
    }

    /// Counts the time up to a record.
    pub(super) fn pass_time(&mut self, event: &LoopEvent, time: Timestamp) {
        match event {
            LoopEvent::Started { runner, .. } => {
                if let Some(until) = runner.follows_until {
                    self.ledger.count(&self.phase, until.min(time));
                }
                self.ledger.taken_up(time);
            }
            LoopEvent::StoodStill { duration_ms } => {
                self.ledger.stood_still(Duration::from_millis(*duration_ms));
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
            | LoopEvent::CostTold { .. }
            | LoopEvent::QuotaTold(_)
            | LoopEvent::StopPatternMatched { .. }
            | LoopEvent::EndingRequested { .. }
            | LoopEvent::RungClimbed { .. }
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
            | LoopEvent::KeepStarted { .. }
            | LoopEvent::KeepCalledOff { .. }
            | LoopEvent::WorkKept { .. }
            | LoopEvent::KeepGivenUp { .. }
            | LoopEvent::Claimed { .. }
            | LoopEvent::CheckStarted { .. }
            | LoopEvent::ConditionsAnswered { .. }
            | LoopEvent::GatesRan { .. }
            | LoopEvent::TestsRan(_)
            | LoopEvent::ProgressMeasured(_)
            | LoopEvent::ClaimRefused(_)
            | LoopEvent::LookRequested { .. }
            | LoopEvent::BusySeen { .. } => self.ledger.count(&self.phase, time),
        }
    }
}
