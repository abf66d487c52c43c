//! Kills a restore at each of its storage calls, or makes the call fail like a broken or full disk. Afterwards the loop is either
//! the old one or the restored one, complete, and can be restored and run.

use std::path::Path;
use std::time::Duration;

use tachikoma_core::LoopId;
use tachikoma_loop_runner::store::recover::{self, Copies, Loss};
use tachikoma_loop_runner::store::{layout, loops};

use super::audit::Books;
use super::encrypted;
use super::kill_boundary::{CALLS, FAULTS, calls_in, is_on_memory};
use super::tracer::{self, Call, trace_of};
use super::victim::{PATIENCE, Victim};
use crate::encryption;
use crate::product::{self, Live, text};

/// Iteration of the loop when it is backed up, when it has ended, and of the other loop that is started later.
const BACKED_UP: u32 = 2;
const ENDED: u32 = 4;
const OTHER: u32 = 1;

/// Time limit of a restore, which takes a fraction of a second.
const RUN: Duration = Duration::from_secs(30);

/// State of the working directory before the restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    /// The same loop with more iterations.
    Further,
    /// The same loop with more iterations and damage in the journal that only the snapshot can repair.
    Damaged,
    /// Another loop is the current one.
    Another,
    /// The same loop with more iterations, all encrypted.
    Encrypted,
}

impl There {
    const ALL: [Self; 4] = [Self::Further, Self::Damaged, Self::Another, Self::Encrypted];

    /// Returns the number of iterations of the current loop before the restore.
    fn iteration(self) -> u32 {
        match self {
            Self::Further | Self::Damaged | Self::Encrypted => ENDED,
            Self::Another => OTHER,
        }
    }
}

/// Tests `rounds` calls, spread evenly, each with each fault.
pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    tracer::require()?;
    let product = product::build(root)?;
    let (mut hits, mut old, mut new, mut all) = (0, 0, 0, 0);
    for there in There::ALL {
        let (victim, file) = victim(&product, there)?;
        let code =
            tracer::start(&victim, &["-e", &format!("trace={CALLS}")], &words(&file))?.wait(RUN)?;
        if code != Some(0) {
            return Err(format!(
                "{there:?}: nothing was restored: {code:?}: {}",
                victim.stderr()
            ));
        }
        let calls = calls_in(&trace_of(&victim)?);
        all += calls.len();
        let share = (rounds as usize).div_ceil(There::ALL.len()).max(1);
        let every = calls.len().div_ceil(share).max(1);
        for call in calls.iter().step_by(every) {
            for fault in FAULTS {
                let found = inject(&product, there, call, fault)
                    .map_err(|error| format!("{there:?}, {call}, {fault}: {error}"))?;
                match found {
                    None => continue,
                    Some(BACKED_UP) => new += 1,
                    Some(_) => old += 1,
                }
                hits += 1;
            }
        }
    }
    if hits == 0 {
        return Err("no call was hit".to_owned());
    }
    Ok(format!(
        "{hits} faults in restorations of {all} storage calls: {old} loops as they were, {new} restored, all of them whole and gone on with"
    ))
}

/// Creates a loop with a backup. Returns the path of the backup, too.
fn victim(product: &Path, there: There) -> Result<(Victim, String), String> {
    let victim = match there {
        There::Encrypted => Victim::new(product)?.configured(encrypted::SETTINGS)?,
        There::Further | There::Damaged | There::Another => Victim::new(product)?,
    };
    finish(&victim, victim.start_up_to(BACKED_UP)?)?;
    let backup = victim
        .ground()
        .tachikoma(&["state", "backup"])
        .stdout(std::process::Stdio::piped())
        .output()
        .map_err(text)?;
    let file = String::from_utf8_lossy(&backup.stdout).trim().to_owned();
    finish(&victim, victim.start_up_to(ENDED)?)?;
    match there {
        There::Further | There::Encrypted => {}
        There::Damaged => {
            let journal = victim.journal()?;
            let records = std::fs::read_to_string(&journal).map_err(text)?;
            let damaged = records.replacen("iteration_ended", "iteration_wended", 1);
            std::fs::write(&journal, damaged).map_err(text)?;
        }
        There::Another => {
            let mut words = victim.words(OTHER);
            words.insert(1, "--new".to_owned());
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut command = victim.ground().tachikoma(&words);
            let live = Live::start(victim.recorded(&mut command)?)?;
            finish(&victim, live)?;
        }
    }
    Ok((victim, file))
}

/// Returns the current loop and its iteration, as a run would find them.
fn current(dir: &Path) -> Result<(LoopId, u32), String> {
    let text = |error| tachikoma_loop_runner::chain(&error);
    let copies = Copies {
        snapshot: dir.join(".ralph/state.json"),
        backups: dir.join(".ralph/backups"),
        encryption: encryption::encryption_of(dir),
    };
    let found = loops::current(dir, &copies.snapshot, &copies.encryption).map_err(text)?;
    let loop_id = found.ok_or("the loop is gone")?;
    let found = recover::read(
        &layout::loop_dir(dir, loop_id),
        &copies,
        loop_id,
        Loss::Refuse,
    );
    Ok((loop_id, found.map_err(text)?.state.iteration))
}

fn finish(victim: &Victim, live: Live) -> Result<(), String> {
    match live.wait(PATIENCE)? {
        Some(3) => Ok(()),
        code => Err(format!("exit code {code:?}: {}", victim.stderr())),
    }
}

fn words(file: &str) -> Vec<String> {
    ["state", "restore", "--yes", file]
        .map(str::to_owned)
        .into()
}

/// Injects a fault into a call of a restore. Returns the iteration of the loop afterwards; `None` if the fault did not hit a call.
fn inject(product: &Path, there: There, call: &Call, fault: &str) -> Result<Option<u32>, String> {
    let (victim, file) = victim(product, there)?;
    let before = current(victim.ground().path())?;
    let trace = format!("trace={}", call.name);
    let inject = format!("inject={}:{fault}:when={}", call.name, call.nth);
    let code = tracer::start(&victim, &["-e", &trace, "-e", &inject], &words(&file))?.wait(RUN)?;
    if !is_on_memory(&trace_of(&victim)?, call) {
        return Ok(None);
    }
    let stderr = victim.stderr();
    match code {
        None | Some(0) => {}
        Some(1) if stderr.contains("error: ") => {}
        Some(code) => return Err(format!("exit code {code}: {stderr}")),
    }
    let dir = victim.ground().path();
    let (loop_id, iteration) = current(dir)?;
    let is_old = (loop_id, iteration) == before && iteration == there.iteration();
    if iteration != BACKED_UP && !is_old {
        return Err(format!("{loop_id} is at iteration {iteration}"));
    }
    if code == Some(0) && iteration != BACKED_UP {
        return Err("it was said to be restored, and is not".to_owned());
    }
    if matches!(there, There::Further | There::Encrypted) {
        Books::read(dir)?;
    }
    // A repeated restore succeeds, and the loop continues.
    let again = victim
        .ground()
        .tachikoma(&["state", "restore", "--yes", &file])
        .output()
        .map_err(text)?;
    if !again.status.success() {
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        return Err(format!("it can no longer be restored: {said}"));
    }
    finish(&victim, victim.start_up_to(BACKED_UP + 1)?)?;
    let books = Books::read(dir)?.ok_or("the loop is gone")?;
    if books.state.iteration != BACKED_UP + 1 {
        return Err("it did not go on".to_owned());
    }
    Ok(Some(iteration))
}
