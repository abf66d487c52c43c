//! The report at the start of a resumed loop: which loop was found, and what happens next.

use tachikoma_core::{Phase, State};
use tachikoma_loop_runner::store::recover::Source;
use tachikoma_loop_runner::{FoundLoop, StateOrigin};

use crate::sanitize::sanitize;

/// Reports which loop is resumed, and how. Empty for a new loop. `limit` is the maximum number of iterations; 0
/// means no limit.
pub fn resuming(
    found: &FoundLoop,
    state: &State,
    origin: &StateOrigin,
    limit: u32,
) -> Option<String> {
    let (iteration, attempt) = (state.iteration, state.attempt);
    let (how, ended) = match found {
        FoundLoop::Nothing => return None,
        FoundLoop::Interrupted { leftovers, .. } => {
            let ended = match leftovers {
                0 => String::new(),
                count => format!("; {count} processes that its runner left behind are ended"),
            };
            let at = match iteration {
                0 => "before its first iteration".to_owned(),
                1.. => format!("at iteration {iteration}, attempt {attempt}"),
            };
            (format!("interrupted {at}"), ended)
        }
        FoundLoop::Ended { outcome } => {
            let outcome = sanitize(&outcome.to_string()).into_owned();
            (
                format!("ended at iteration {iteration} ({outcome})"),
                String::new(),
            )
        }
    };
    Some(format!(
        "resuming {}, {how}: {}; the state is from {}{ended}",
        state.loop_id,
        next(state, limit),
        origin_text(origin)
    ))
}

/// Returns what the loop does first.
fn next(state: &State, limit: u32) -> String {
    match &state.phase {
        Phase::Paused { .. } => "it is still paused, and `tachikoma resume` continues".to_owned(),
        Phase::Working { .. } => {
            format!("the iteration is repeated as attempt {}", state.attempt + 1)
        }
        Phase::Waiting { wait } => format!("its wait ({}) goes on", wait.reason),
        Phase::Autocommitting { .. } => "its changes are surveyed and committed again".to_owned(),
        Phase::Checking { .. } => "its gates and stop scripts are run again".to_owned(),
        Phase::Hooking { hooking } => match &hooking.outcome {
            Some(_) => "its end is decided again".to_owned(),
            None => format!("its hooks ({}) are run again", hooking.point),
        },
        Phase::Rebooting { .. } => "its reboot is repeated".to_owned(),
        Phase::Idle | Phase::Ended { .. }
            if state.claimed && state.completion.given_up.is_none() =>
        {
            "its claim of completion is checked first".to_owned()
        }
        Phase::Idle | Phase::Ended { .. } if limit != 0 && state.next_iteration() > limit => {
            let s = if limit == 1 { "" } else { "s" };
            format!("its limit of {limit} iteration{s} still holds")
        }
        Phase::Idle | Phase::Ended { .. } if state.cut => {
            let (iteration, attempt) = (state.next_iteration(), state.attempt + 1);
            format!("iteration {iteration} is repeated as attempt {attempt}")
        }
        Phase::Idle | Phase::Ended { .. } => {
            format!("iteration {} is next", state.next_iteration())
        }
    }
}

fn origin_text(origin: &StateOrigin) -> String {
    let records = |count: u64| match count {
        1 => "1 record".to_owned(),
        count => format!("{count} records"),
    };
    match (origin.source, origin.records) {
        (Some(Source::Snapshot), 0) => "the snapshot".to_owned(),
        (Some(Source::Snapshot), count) => format!("the snapshot and {} after it", records(count)),
        (Some(Source::Backup), count) => format!("a backup and {} after it", records(count)),
        (Some(Source::Journal) | None, count) => format!("the journal ({})", records(count)),
    }
}

/// Reports that an attempt was interrupted and will be repeated, and why.
pub fn cut(iteration: u32, attempt: u32, reason: Option<&str>) -> String {
    let cut = format!("iteration {iteration}, attempt {attempt}, was cut");
    match reason {
        None => cut + " by the death of its runner and is repeated",
        Some(reason) => format!("{cut} and is repeated: {}", sanitize(reason)),
    }
}
