//! What can be done to a loop that nobody runs. Each of these holds the lock of the working directory while it lasts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use tachikoma_core::{Answer, Effect, Input, LoopId, Policy, State, Ticket, step};
use tachikoma_fs::check_dir;

use crate::clock::Clock;
use crate::cloud::Cloud;
use crate::error::chain;
use crate::git::bundle::Work;
pub use crate::git::bundle::{InTheWay, Merge, Unpacked, copied, restored_head};
use crate::git::present::Bounds;
use crate::git::{CallOff, Whose};
use crate::process::orphans;
use crate::store::backup::{self, Backups, Manifest, Taken};
use crate::store::journal::Journal;
use crate::store::lock::{self, LockError, WorkLock};
use crate::store::purge::{self, Purged};
use crate::store::recover::{self, Copies, Loss};
pub use crate::store::restore::Restored;
use crate::store::snapshot::{self, Durability, Packing, Snapshot};
use crate::store::vault::Vault;
use crate::store::{StoreError, archive, loops, restore, temporary, vault};

/// The places of a working directory's loops.
#[derive(Clone, Debug)]
pub struct Premises {
    /// The working directory.
    pub working_dir: PathBuf,
    /// The snapshot of the current loop.
    pub snapshot: PathBuf,
    /// How that is written.
    pub packing: Packing,
    /// What opens all of it, and seals what is written.
    pub vault: Vault,
    /// The backups of all loops.
    pub backups: Backups,
    /// Where copies of them go, if they go anywhere.
    pub cloud: Option<Cloud>,
    /// What of the work tree is left alone.
    pub bounds: Bounds,
    /// Where programs are looked for.
    pub search_path: Option<OsString>,
    /// The transcripts of all loops.
    pub state_dir: PathBuf,
    /// The control sockets.
    pub runtime_dir: PathBuf,
    /// The stores of loops that are not kept.
    pub temporary_dir: PathBuf,
}

impl Premises {
    /// Returns where the state of the current loop is kept besides its journal.
    #[must_use]
    pub fn copies(&self) -> Copies {
        Copies {
            snapshot: self.snapshot.clone(),
            backups: self.backups.dir.clone(),
            vault: self.vault.clone(),
        }
    }

    pub(crate) fn work_of(&self, loop_id: LoopId) -> Work {
        Work {
            working_dir: self.working_dir.clone(),
            loop_id,
            search_path: self.search_path.clone(),
            // A command of the operator's has them out of its environment, or never had them there.
            hidden: Vec::new(),
            bounds: self.bounds.clone(),
        }
    }
}

/// Why something could not be done to a loop.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// Somebody runs it, or the lock cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is none.
    #[error("no loop in {}", .0.display())]
    NoLoop(PathBuf),
}

/// What came of [`set`] or [`note`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The core's answer.
    pub answer: Answer,
    /// Why the snapshot is not up to date, if it is not: the journal has all of it.
    pub unsaved: Option<String>,
}

/// Writes something down for later, in the free map of the current loop; null takes it away.
///
/// # Errors
/// Somebody runs the loop, there is none, or it cannot be read or written.
pub async fn set(premises: &Premises, key: String, value: Value) -> Result<Set, OfflineError> {
    let (_lock, loop_id) = hold(premises).await?;
    let ticket = Ticket(1);
    let input = Input::CustomSet { ticket, key, value };
    Ok(take_in(premises, loop_id, input)?)
}

/// Leaves a note that work was undone, if the loop is the current one: for the sessions to come and for the one that goes on; what
/// was claimed of that work is void. The lock of the working directory must be held.
///
/// # Errors
/// The loop cannot be read or written.
pub fn note(
    _lock: &WorkLock,
    premises: &Premises,
    loop_id: LoopId,
    text: String,
) -> Result<Option<Set>, OfflineError> {
    if loops::current(&premises.working_dir, &premises.snapshot, &premises.vault)? != Some(loop_id)
    {
        return Ok(None);
    }
    let ticket = Ticket(1);
    let input = Input::Note {
        ticket,
        text,
        tell: true,
        operator: true,
    };
    Ok(Some(take_in(premises, loop_id, input)?))
}

/// Takes a loop up, tells it something, and lets go of it.
fn take_in(premises: &Premises, loop_id: LoopId, input: Input) -> Result<Set, StoreError> {
    let dir = loops::dir(&premises.working_dir, loop_id);
    let found = recover::read(&dir, &premises.copies(), loop_id, Loss::Refuse)?;
    let taken = found.open(&dir, &premises.working_dir)?;
    let (mut journal, mut state) = (taken.journal, taken.state);
    let mut clock = Clock::starting_after(state.time);
    let effects = record(&mut journal, &mut state, &mut clock, input)?;
    journal.sync()?;
    let answer = effects.into_iter().find_map(|effect| match effect {
        Effect::Reply { answer, .. } => Some(answer),
        Effect::Launch { .. }
        | Effect::Prompt { .. }
        | Effect::Advise { .. }
        | Effect::SendMessage { .. }
        | Effect::RollBack { .. }
        | Effect::AskCost { .. }
        | Effect::AttributeChanges
        | Effect::AskHandOff { .. }
        | Effect::Close { .. }
        | Effect::OpenSession { .. }
        | Effect::RunHooks { .. }
        | Effect::Autocommit { .. }
        | Effect::CancelAutocommit
        | Effect::SampleProcesses { .. }
        | Effect::CheckConditions { .. }
        | Effect::RunGates { .. }
        | Effect::Signal { .. }
        | Effect::Finish => None,
    });
    let snapshot = Snapshot::of(&state, &premises.working_dir, clock.now());
    let saved = snapshot.write(
        &premises.snapshot,
        premises.packing,
        Durability::Synced,
        &premises.vault,
    );
    Ok(Set {
        answer: answer.unwrap_or(Answer::Refused {
            current: state.public(),
            reason: "it was not understood".to_owned(),
        }),
        unsaved: saved.err().map(|error| chain(&error)),
    })
}

/// Archives the current loop, so that the next run begins another one. Returns which it was.
///
/// # Errors
/// Somebody runs the loop, there is none, its snapshot is newer than this version, or it cannot be archived.
pub async fn clear(premises: &Premises) -> Result<LoopId, OfflineError> {
    let (_lock, loop_id) = hold(premises).await?;
    if let Err(error @ StoreError::NewerSnapshot { .. }) =
        snapshot::read(&premises.snapshot, &premises.vault)
    {
        // Only the version that wrote it knows what it is.
        return Err(error.into());
    }
    archive::archive(
        &premises.working_dir,
        loop_id,
        &premises.snapshot,
        &premises.vault,
    )?;
    Ok(loop_id)
}

/// Takes a backup of a loop. A loop that somebody runs is backed up as it stands. With somewhere to go, it has the work in it.
///
/// # Errors
/// It cannot be read, or the backup cannot be written.
pub async fn backup(premises: &Premises, loop_id: LoopId) -> Result<Taken, OfflineError> {
    let working_dir = &premises.working_dir;
    // Whoever runs it does not remove what we are about to write; whoever comes would.
    let lock = match lock::is_held(working_dir) {
        true => None,
        false => Some(WorkLock::acquire(working_dir).await?),
    };
    let dir = loops::dir(working_dir, loop_id);
    let found = recover::read(&dir, &premises.copies(), loop_id, Loss::Refuse)?;
    let now = Clock::starting_after(found.state.time).now();
    let mut moment = found.moment(&dir, working_dir, now);
    check_dir(working_dir, &premises.backups.dir).map_err(StoreError::from)?;
    let go_on = AtomicBool::new(false);
    let mut without_work = None;
    if premises.cloud.is_some() {
        let owed = found.state.owes_a_look();
        let whose = match &lock {
            Some(lock) => Whose::since_the_last_look(owed, lock.died(), found.state.time),
            None if owed => Whose::Loop,
            None => Whose::Others,
        };
        let work = premises.work_of(loop_id);
        let bundled = work.bundle(&dir, &Mutex::new(whose), &CallOff::new());
        moment.work = bundled.path();
        without_work = bundled.lacks().map(|what| format!("it goes {what}"));
    }
    let mut taken = backup::take(&premises.backups, &moment, &go_on)?;
    taken.troubles.extend(without_work);
    Ok(taken)
}

/// Brings a loop back from a backup, which has to be the one that was looked at, and keeps what is there. Runners that died are cleared up after first.
///
/// # Errors
/// Somebody runs the loop, the backup is not good, or it cannot be put in place: then all is as it was.
pub async fn restore(
    premises: &Premises,
    file: &Path,
    looked_at: &Manifest,
) -> Result<Restored, OfflineError> {
    // What is locked is not damaged, and not to be put away.
    vault::check_keys(&premises.vault, &premises.working_dir, &premises.snapshot)?;
    let lock = alone(&premises.working_dir).await?;
    Ok(restore::restore(&lock, premises, file, looked_at)?)
}

/// Puts a loop back in its place that a restoration has moved away which died, if there is one. To be called before anyone looks for
/// the loop to go on with.
///
/// # Errors
/// Somebody runs a loop, or it cannot be moved.
pub async fn settle(working_dir: &Path) -> Result<(), OfflineError> {
    if restore::is_interrupted(working_dir) {
        let _lock = WorkLock::acquire(working_dir).await?;
        restore::settle(working_dir)?;
    }
    Ok(())
}

/// Brings the work back that came with a restored loop. What it was made from is not needed any more then.
///
/// # Errors
/// Git cannot do it.
pub fn unpack(
    premises: &Premises,
    loop_id: LoopId,
    iteration: u32,
    bundle: &Path,
) -> Result<Unpacked, String> {
    let dir = loops::dir(&premises.working_dir, loop_id);
    let unpacked = premises.work_of(loop_id).unpack(bundle, &dir, iteration)?;
    let _ = std::fs::remove_file(bundle);
    Ok(unpacked)
}

/// Deletes everything that is ours in a working directory, after ending what a dead runner left.
///
/// # Errors
/// Somebody runs the loop, or something cannot be deleted.
pub async fn purge(premises: &Premises) -> Result<Purged, OfflineError> {
    // Without the key nobody knows what it is that would be deleted.
    vault::check_keys(&premises.vault, &premises.working_dir, &premises.snapshot)?;
    let lock = WorkLock::acquire(&premises.working_dir).await?;
    if let Some(dead) = lock.crashed() {
        // Without the lock's file nobody would know whose they are.
        let _ = orphans::end_leftovers(&dead.loop_id.to_string());
        temporary::clear(&premises.temporary_dir, dead.loop_id);
    }
    Ok(purge::purge(premises)?)
}

/// Keeps runners away from a working directory for as long as the lock is held, after ending what a dead one left: that could
/// still write there.
///
/// # Errors
/// Somebody runs a loop there, or the lock cannot be used.
pub async fn alone(working_dir: &Path) -> Result<WorkLock, OfflineError> {
    let lock = WorkLock::acquire(working_dir).await?;
    if let Some(dead) = lock.crashed() {
        let _ = orphans::end_leftovers(&dead.loop_id.to_string());
    }
    Ok(lock)
}

/// Takes the lock. It is not signed, and dropped as it was found: the next run still learns that a runner crashed.
async fn hold(premises: &Premises) -> Result<(WorkLock, LoopId), OfflineError> {
    let working_dir = &premises.working_dir;
    let lock = WorkLock::acquire(working_dir).await?;
    restore::settle(working_dir)?;
    let current = loops::current(working_dir, &premises.snapshot, &premises.vault)?;
    let loop_id = current.ok_or_else(|| OfflineError::NoLoop(working_dir.clone()))?;
    Ok((lock, loop_id))
}

fn record(
    journal: &mut Journal,
    state: &mut State,
    clock: &mut Clock,
    input: Input,
) -> Result<Vec<Effect>, StoreError> {
    let now = clock.now();
    let decided = step(&Policy::default(), state, now, input);
    journal.append(&decided.records)?;
    if journal.is_full() {
        journal.next_segment(state, now)?;
    }
    Ok(decided.effects)
}
