//! Reads recordings of real test runners, whole and damaged.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its body does")]

mod damaged;
mod recordings;

/// Returns an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}
