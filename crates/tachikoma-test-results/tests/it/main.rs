//! Reads recordings of real test runners, whole and damaged.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod damaged;
mod recordings;

/// Returns the message of an error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}
