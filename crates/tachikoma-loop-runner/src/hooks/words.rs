//! Texts that describe an event to hooks and notifications.

use tachikoma_core::{HookPoint, IterationOutcome, Outcome, Phase, State, Timestamp, WaitReason};

/// How an iteration ended, for hooks and notifications.
pub(crate) enum Past {
    /// The iteration failed, with the reason if it is known.
    Failed(Option<String>),
    Over(IterationOutcome),
    Limited,
}

impl Past {
    /// Returns how the last iteration ended.
    fn of(state: &State) -> Self {
        match state.pending_hooks.outcome {
            Some(IterationOutcome::Failed) => Self::failed(state),
            Some(outcome) => Self::Over(outcome),
            None => Self::Limited,
        }
    }

    fn failed(state: &State) -> Self {
        Self::Failed(state.last_failure.as_ref().map(ToString::to_string))
    }

    pub(super) fn outcome(&self) -> String {
        match self {
            Self::Failed(_) => IterationOutcome::Failed.to_string(),
            Self::Over(outcome) => outcome.to_string(),
            Self::Limited => "limited".to_owned(),
        }
    }

    pub(super) fn words(&self, iteration: u32, state: &State) -> String {
        match self {
            Self::Failed(Some(why)) => format!("iteration {iteration} failed: {why}"),
            Self::Failed(None) => format!("iteration {iteration} failed"),
            Self::Over(outcome) => format!("iteration {iteration} is over: {outcome}"),
            Self::Limited => {
                let until = limited_until(state);
                let until = until.map_or(String::new(), |until| format!(" until {until}"));
                format!(
                    "the model's service is limited, and iteration {iteration} waits for it{until}"
                )
            }
        }
    }
}

/// Returns until when the loop waits for a usage limit of the model's service, now or after its current phase.
fn limited_until(state: &State) -> Option<Timestamp> {
    let wait = match &state.phase {
        Phase::Waiting { wait } => Some(*wait),
        Phase::Autocommitting { autocommit: keep } => keep.then,
        Phase::Checking { check } => check.then,
        Phase::Hooking { hooking } => hooking.then,
        Phase::Paused { then } => *then,
        _ => None,
    };
    let service = [WaitReason::UsageLimit, WaitReason::Outage];
    let wait = wait.filter(|wait| service.contains(&wait.reason));
    wait.map(|wait| wait.until)
}

/// Returns the description of an event.
pub(super) fn of(point: HookPoint, state: &State) -> String {
    let iteration = iteration(point, state);
    match point {
        HookPoint::LoopStart => "the loop is taken up".to_owned(),
        HookPoint::LoopEnd => match ending(state) {
            Some(outcome) => format!("the loop ends: {outcome}"),
            None => "the loop ends".to_owned(),
        },
        HookPoint::IterationStart => format!("iteration {iteration} begins"),
        HookPoint::IterationEnd => Past::of(state).words(iteration, state),
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
        HookPoint::Error => Past::failed(state).words(iteration, state),
        HookPoint::Question => match state.question() {
            Some(asked) => format!(
                "{}: `tachikoma answer {} CHOICE` with one of {}; without an answer: {}",
                asked.about,
                asked.id,
                asked.offers(),
                asked.default
            ),
            None => "the loop asked the operator".to_owned(),
        },
        HookPoint::LimitWait => Past::Limited.words(iteration, state),
    }
}

/// Returns the number of the iteration that an event belongs to.
pub(super) fn iteration(point: HookPoint, state: &State) -> u32 {
    match point {
        HookPoint::IterationStart => state.next_iteration(),
        // The next iteration may already have begun when test results are reported.
        HookPoint::TestsChanged => {
            let tests = state.progress.tests.as_ref();
            tests.map_or(state.iteration, |tests| tests.iteration)
        }
        HookPoint::NoProgress => {
            let last = state.progress.recent.last();
            last.map_or(state.iteration, |last| last.iteration)
        }
        _ => state.iteration,
    }
}

/// Returns how the iteration or the loop ended.
pub(super) fn outcome(point: HookPoint, state: &State) -> Option<String> {
    match point {
        HookPoint::IterationEnd => Some(Past::of(state).outcome()),
        HookPoint::Error => Some(Past::failed(state).outcome()),
        HookPoint::LimitWait => Some(Past::Limited.outcome()),
        HookPoint::LoopEnd => ending(state).map(|outcome| outcome.kind().to_owned()),
        _ => None,
    }
}

/// Returns the outcome of a loop that ends: from the phase of its end hooks, or from the ended loop.
fn ending(state: &State) -> Option<&Outcome> {
    let hooking = state.hooking().and_then(|hooking| hooking.outcome.as_ref());
    hooking.or(state.outcome())
}
