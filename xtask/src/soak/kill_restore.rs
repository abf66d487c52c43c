//! A restoration is killed, or told of a broken or a full disk, at each of its storage calls in turn. Afterwards the loop is the
//! one that was there or the one that was restored, whole, and can be restored and run.

use std::path::Path;
use std::time::Duration;

use super::audit::Books;
use super::kill_boundary::{CALLS, FAULTS, calls_in, is_on_memory};
use super::tracer::{self, Call, trace_of};
use super::victim::{PATIENCE, Victim};
use crate::product::{self, Live, text};

/// The iteration of the backup, and that of the loop when it is restored.
const BACKED_UP: u32 = 2;
const ENDED: u32 = 4;

/// A restoration takes a fraction of a second.
const RUN: Duration = Duration::from_secs(30);

/// `rounds` calls, spread evenly, each with each fault.
pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    tracer::require()?;
    let product = product::build(root)?;
    let (victim, file) = victim(&product)?;
    let code =
        tracer::start(&victim, &["-e", &format!("trace={CALLS}")], &words(&file))?.wait(RUN)?;
    if code != Some(0) {
        return Err(format!(
            "nothing was restored: {code:?}: {}",
            victim.complaints()
        ));
    }
    let calls = calls_in(&trace_of(&victim)?);
    let every = calls.len().div_ceil(rounds as usize).max(1);
    let (mut hits, mut old, mut new) = (0, 0, 0);
    for call in calls.iter().step_by(every) {
        for fault in FAULTS {
            let found = inject(&product, call, fault)
                .map_err(|error| format!("{call}, {fault}: {error}"))?;
            match found {
                None => continue,
                Some(BACKED_UP) => new += 1,
                Some(_) => old += 1,
            }
            hits += 1;
        }
    }
    if hits == 0 {
        return Err("no call was hit".to_owned());
    }
    Ok(format!(
        "{hits} faults in restorations of {} storage calls: {old} loops as they were, {new} restored, all of them whole and gone on with",
        calls.len()
    ))
}

/// A loop with a backup behind it, and where that is.
fn victim(product: &Path) -> Result<(Victim, String), String> {
    let victim = Victim::new(product)?;
    finish(&victim, victim.start_up_to(BACKED_UP)?)?;
    let backup = victim
        .ground()
        .tachikoma(&["state", "backup"])
        .stdout(std::process::Stdio::piped())
        .output()
        .map_err(text)?;
    let file = String::from_utf8_lossy(&backup.stdout).trim().to_owned();
    finish(&victim, victim.start_up_to(ENDED)?)?;
    Ok((victim, file))
}

fn finish(victim: &Victim, live: Live) -> Result<(), String> {
    match live.wait(PATIENCE)? {
        Some(3) => Ok(()),
        code => Err(format!("exit code {code:?}: {}", victim.complaints())),
    }
}

fn words(file: &str) -> Vec<String> {
    ["state", "restore", "--yes", file]
        .map(str::to_owned)
        .into()
}

/// Puts a fault into a call. Returns the iteration at which the loop stands then; none if the fault missed.
fn inject(product: &Path, call: &Call, fault: &str) -> Result<Option<u32>, String> {
    let (victim, file) = victim(product)?;
    let trace = format!("trace={}", call.name);
    let inject = format!("inject={}:{fault}:when={}", call.name, call.nth);
    let code = tracer::start(&victim, &["-e", &trace, "-e", &inject], &words(&file))?.wait(RUN)?;
    if !is_on_memory(&trace_of(&victim)?, call) {
        return Ok(None);
    }
    let complaints = victim.complaints();
    match code {
        None | Some(0) => {}
        Some(1) if complaints.contains("error: ") => {}
        Some(code) => return Err(format!("exit code {code}: {complaints}")),
    }
    let dir = victim.ground().path();
    let lost = || "the loop is gone".to_owned();
    let books = Books::read(dir)?.ok_or_else(lost)?;
    let iteration = books.state.iteration;
    if iteration != BACKED_UP && iteration != ENDED {
        return Err(format!("the loop stands at iteration {iteration}"));
    }
    if code == Some(0) && iteration != BACKED_UP {
        return Err("it was said to be restored, and is not".to_owned());
    }
    // Whatever was left in the way, it can be done again, and the loop goes on.
    let again = victim
        .ground()
        .tachikoma(&["state", "restore", "--yes", &file])
        .output()
        .map_err(text)?;
    if !again.status.success() {
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        return Err(format!("it cannot be restored any more: {said}"));
    }
    finish(&victim, victim.start_up_to(BACKED_UP + 1)?)?;
    let books = Books::read(dir)?.ok_or_else(lost)?;
    if books.state.iteration != BACKED_UP + 1 {
        return Err("it did not go on".to_owned());
    }
    Ok(Some(iteration))
}
