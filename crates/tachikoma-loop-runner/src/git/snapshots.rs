//! The snapshots of loops that need not run: found, listed, removed.

use tachikoma_core::LoopId;

use super::program::{CallOff, Git, GitError};

/// Where all references of loops are.
const REFS: &str = "refs/tachikoma";

/// Names the reference of the snapshot before an iteration.
#[must_use]
pub fn name(loop_id: LoopId, iteration: u32) -> String {
    format!("{REFS}/{loop_id}/{iteration}")
}

/// Lists the snapshots of a loop with their commits, by iteration.
///
/// # Errors
/// Git fails.
pub fn list(git: &Git, loop_id: LoopId) -> Result<Vec<(u32, String)>, GitError> {
    let below = format!("{REFS}/{loop_id}/");
    let order = git.order(&["for-each-ref", "--format=%(objectname) %(refname)"]);
    let answer = order.word(&below).ask(&CallOff::new())?;
    let text = String::from_utf8_lossy(&answer);
    let snapshot = |line: &str| {
        let (commit, name) = line.split_once(' ')?;
        let number = name.strip_prefix(&below)?;
        let iteration: u32 = number.parse().ok()?;
        (iteration.to_string() == number).then(|| (iteration, commit.to_owned()))
    };
    let mut found: Vec<_> = text.lines().filter_map(snapshot).collect();
    found.sort();
    Ok(found)
}

/// Finds the snapshot before an iteration: its commit, and the iteration whose reference that is. That may be an earlier
/// one, if nothing changed in between and the runner died before it named all of them.
///
/// # Errors
/// Git fails.
pub fn resolve(
    git: &Git,
    loop_id: LoopId,
    iteration: u32,
) -> Result<Option<(u32, String)>, GitError> {
    let mut found = list(git, loop_id)?;
    found.retain(|(of, _)| *of <= iteration);
    Ok(found.pop())
}

/// Removes all references of a loop: its snapshots, and what was kept before a rollback.
///
/// # Errors
/// Git fails; then none is removed.
pub fn delete_all(git: &Git, loop_id: LoopId) -> Result<(), GitError> {
    let below = format!("{REFS}/{loop_id}/");
    let order = git.order(&["for-each-ref", "--format=delete %(refname)"]);
    let orders = order.word(&below).ask(&CallOff::new())?;
    if orders.is_empty() {
        return Ok(());
    }
    let order = git.order(&["update-ref", "--stdin"]).stdin(&orders);
    order.ask(&CallOff::new())?;
    Ok(())
}
