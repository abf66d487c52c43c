//! Decides which records cause a message, and collects the facts for it.

use std::path::Path;

use tachikoma_core::{HookPoint, LoopEvent, OperatorEvent, State, TestsReport};

use crate::hooks::{HookEvent, Past};

/// Returns the points for which a record causes a message. Each target gets the first one that it subscribes to. `tests` are the results of the
/// last test run before the record.
pub(super) fn points(event: &LoopEvent, tests: Option<&TestsReport>) -> Vec<HookPoint> {
    let point = match event {
        LoopEvent::IterationFailed { .. } => {
            return vec![HookPoint::Error, HookPoint::IterationEnd];
        }
        LoopEvent::IterationLimited(_) => {
            return vec![HookPoint::LimitWait, HookPoint::IterationEnd];
        }
        LoopEvent::Error { .. } => return vec![HookPoint::LoopEnd, HookPoint::Error],
        LoopEvent::IterationCompleted { .. } => HookPoint::IterationEnd,
        LoopEvent::IterationStarted { .. } => HookPoint::IterationStart,
        LoopEvent::RebootStarted { .. } => HookPoint::BeforeReboot,
        LoopEvent::RebootCompleted { .. } => HookPoint::AfterReboot,
        LoopEvent::ProgressMeasured(measured) if measured.score == 0 => HookPoint::NoProgress,
        LoopEvent::TestsRan(report) if report.is_news(tests) => HookPoint::TestsChanged,
        LoopEvent::Operator(OperatorEvent::Asked(_)) => HookPoint::Question,
        LoopEvent::Started { .. } => HookPoint::LoopStart,
        LoopEvent::SessionStarted { .. } => HookPoint::SessionStart,
        LoopEvent::SessionEnded { .. } => HookPoint::SessionEnd,
        event if event.is_terminal() => HookPoint::LoopEnd,
        _ => return Vec::new(),
    };
    vec![point]
}

/// Returns the facts of a message. Hooks get the same facts.
pub(super) fn facts(state: &State, dir: &Path, point: HookPoint, event: &LoopEvent) -> HookEvent {
    let facts = |point, reason| HookEvent::new(point, reason, state, dir);
    match event {
        LoopEvent::IterationFailed {
            iteration, failure, ..
        } => {
            let past = Past::Failed(Some(failure.to_string()));
            facts(point, None).of_iteration(*iteration, &past, state)
        }
        LoopEvent::IterationCompleted { report, .. } => {
            let past = Past::Over(report.outcome);
            facts(point, None).of_iteration(report.iteration, &past, state)
        }
        LoopEvent::IterationLimited(limited) => {
            facts(point, None).of_iteration(limited.iteration, &Past::Limited, state)
        }
        LoopEvent::IterationStarted { iteration, .. } => HookEvent {
            iteration: *iteration,
            reason_text: format!("iteration {iteration} begins"),
            ..facts(point, None)
        },
        LoopEvent::RebootStarted { reason, .. } | LoopEvent::RebootCompleted { reason, .. } => {
            facts(point, Some(reason.clone()))
        }
        event if event.is_terminal() => HookEvent {
            point,
            ..facts(HookPoint::LoopEnd, None)
        },
        _ => facts(point, None),
    }
}
