//! What happens at a point of the loop, in words.

use tachikoma_core::{HookPoint, Phase, State};

/// Says what happens.
pub(super) fn of(point: HookPoint, state: &State) -> String {
    let iteration = iteration(point, state);
    match point {
        HookPoint::LoopStart => "the loop is taken up".to_owned(),
        HookPoint::LoopEnd => match ending(state) {
            Some(outcome) => format!("the loop ends: {outcome}"),
            None => "the loop ends".to_owned(),
        },
        HookPoint::IterationStart => format!("iteration {iteration} begins"),
        HookPoint::IterationEnd => {
            let how = outcome(point, state).unwrap_or_default();
            format!("iteration {iteration} is over: {how}")
        }
        HookPoint::SessionStart => format!("session {} begins", state.session.number),
        HookPoint::SessionEnd => match state.history.last() {
            Some(past) => format!("session {} is over: {}", past.number, past.reason),
            None => "a session is over".to_owned(),
        },
        HookPoint::BeforeReboot | HookPoint::AfterReboot => "the session is replaced".to_owned(),
        HookPoint::TestsChanged => match &state.progress.tests {
            Some(tests) => format!(
                "tests after iteration {iteration}: {} passed, {} failed",
                tests.passed, tests.failed
            ),
            None => "tests have run".to_owned(),
        },
        HookPoint::NoProgress => {
            let without = state.stats.no_progress_count;
            format!("nothing came of iteration {iteration}: {without} in a row")
        }
        HookPoint::Error => match &state.last_failure {
            Some(failure) => format!("iteration {iteration} failed: {failure}"),
            None => format!("iteration {iteration} failed"),
        },
        HookPoint::Question => match state.question() {
            Some(asked) => format!(
                "{}: `tachikoma answer {} CHOICE` with one of {}; {} when nobody does",
                asked.about,
                asked.id,
                asked.offers(),
                asked.default
            ),
            None => "the loop asked the operator".to_owned(),
        },
        HookPoint::LimitWait => {
            format!("the model's service is limited, and iteration {iteration} waits for it")
        }
    }
}

/// Returns the iteration that something happens to.
pub(super) fn iteration(point: HookPoint, state: &State) -> u32 {
    match point {
        HookPoint::IterationStart => state.next_iteration(),
        // The next one may have begun already.
        HookPoint::TestsChanged => {
            let tests = state.progress.tests.as_ref();
            tests.map_or(state.iteration, |tests| tests.iteration)
        }
        HookPoint::NoProgress => {
            let last = state.progress.recent.last();
            last.map_or(state.iteration, |last| last.iteration)
        }
        HookPoint::LoopStart
        | HookPoint::LoopEnd
        | HookPoint::IterationEnd
        | HookPoint::SessionStart
        | HookPoint::SessionEnd
        | HookPoint::BeforeReboot
        | HookPoint::AfterReboot
        | HookPoint::Error
        | HookPoint::Question
        | HookPoint::LimitWait => state.iteration,
    }
}

/// Returns how an iteration, or the loop, has ended.
pub(super) fn outcome(point: HookPoint, state: &State) -> Option<String> {
    match point {
        HookPoint::IterationEnd => Some(match state.frames.outcome {
            Some(outcome) => outcome.to_string(),
            None => "limited".to_owned(),
        }),
        HookPoint::LoopEnd => match &state.phase {
            Phase::Hooking { hooking } => hooking.outcome.as_ref().map(|it| it.kind().to_owned()),
            Phase::Ended { outcome } => Some(outcome.kind().to_owned()),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Keeping { .. }
            | Phase::Checking { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. } => None,
        },
        HookPoint::LoopStart
        | HookPoint::IterationStart
        | HookPoint::SessionStart
        | HookPoint::SessionEnd
        | HookPoint::BeforeReboot
        | HookPoint::AfterReboot
        | HookPoint::TestsChanged
        | HookPoint::NoProgress
        | HookPoint::Error
        | HookPoint::Question
        | HookPoint::LimitWait => None,
    }
}

fn ending(state: &State) -> Option<String> {
    let hooking = state.hooking().and_then(|hooking| hooking.outcome.as_ref());
    let outcome = hooking.or(state.outcome());
    outcome.map(ToString::to_string)
}
