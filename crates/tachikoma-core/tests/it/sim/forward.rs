//! Independent check of progress: the score of each iteration, and the end of loops without progress.

use tachikoma_core::{AutocommitPurpose, LoopEvent, Policy};

/// Progress of the last iteration that started.
#[derive(Default)]
pub struct Forward {
    live: bool,
    iteration: u32,
    /// Whether the iteration changed files, made a commit, or made a test pass.
    worked: bool,
    measured: bool,
    failed: bool,
    /// Iterations in a row without progress.
    pub streak: u32,
}

impl Forward {
    pub fn take(&mut self, policy: &Policy, event: &LoopEvent) {
        match event {
            LoopEvent::Started { .. } => {
                if !self.live {
                    self.streak = 0;
                }
                self.live = true;
            }
            LoopEvent::IterationStarted {
                iteration, attempt, ..
            } => {
                let limit = policy.max_no_progress_iterations;
                let excused = self.failed && policy.max_consecutive_failures > 0;
                assert!(
                    limit == 0 || self.streak < limit || excused,
                    "a loop without progress ends"
                );
                self.iteration = *iteration;
                self.worked &= *attempt > 1;
                self.measured = false;
            }
            LoopEvent::IterationFailed { .. } => self.failed = true,
            LoopEvent::IterationCompleted { report, .. } => {
                self.failed &= report.outcome != tachikoma_core::IterationOutcome::Succeeded;
            }
            LoopEvent::AutocommitFinished {
                purpose, result, ..
            } => {
                let here = *purpose == AutocommitPurpose::Iteration;
                self.worked |= here && (result.changed > 0 || result.head_moved);
            }
            LoopEvent::TestsRan(report) => self.worked |= report.newly_passing > 0,
            LoopEvent::ProgressMeasured(measured) => {
                assert!(!self.measured, "an iteration is measured once");
                assert_eq!(measured.iteration, self.iteration);
                let ticked = measured.evidence.ticked > 0;
                assert_eq!(measured.score > 0, self.worked || ticked, "{measured:?}");
                self.measured = true;
                self.streak = if measured.score > 0 {
                    0
                } else {
                    self.streak + 1
                };
            }
            LoopEvent::Completed { .. } | LoopEvent::Stopped { .. } | LoopEvent::Error { .. } => {
                self.live = false;
                self.failed = false;
            }
            _ => {}
        }
    }
}
