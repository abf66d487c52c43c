//! Operations on a loop that is not running. Each of them holds the lock of the working directory while it works.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use tachikoma_core::{Answer, Effect, Input, LoopId, Policy, Ticket, step};
use tachikoma_fs::check_dir;

use crate::admin::purge::{self, Purged};
use crate::admin::restore;
pub use crate::admin::restore::Restored;
use crate::clock::Clock;
pub use crate::git::bundle::{InTheWay, Merge, Unpacked, copied_ref, restored_head};
use crate::git::{self, CancelToken, ChangeOwner};
use crate::process::orphans;
use crate::store::backup::{self, Manifest, Taken};
use crate::store::lock::{self, LockError, WorkLock};
use crate::store::recover::{self, Loss};
use crate::store::snapshot::{self, Durability, Snapshot};
use crate::store::{StoreError, archive, key_check, layout, temporary};
use tachikoma_core::error_chain as chain;

pub use crate::loop_files::StoreConfig;

/// Why an operation on a loop failed.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A runner is running the loop, or the lock cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The loop cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The working directory has no loop.
    #[error("no loop in {}", .0.display())]
    NoLoop(PathBuf),
}

/// The result of [`set`] or [`note`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The core's answer to the request.
    pub answer: Answer,
    /// Why the snapshot is not up to date; `None` if it is. The journal is always up to date.
    pub unsaved: Option<String>,
}

/// Stores a value in the custom values of the current loop; null removes it.
///
/// # Errors
/// A runner is running the loop, there is no loop, or it cannot be read or written.
pub async fn set(
    store_config: &StoreConfig,
    key: String,
    value: Value,
) -> Result<Set, OfflineError> {
    let (_lock, loop_id) = hold(store_config).await?;
    let ticket = Ticket(1);
    let input = Input::CustomSet { ticket, key, value };
    Ok(take_in(store_config, loop_id, input)?)
}

/// Adds a note for all later sessions that work was rolled back, if the loop is the current one.
/// Claims that this work is complete become invalid. The caller must
/// hold the lock of the working directory.
///
/// # Errors
/// The loop cannot be read or written.
pub fn note(
    _lock: &WorkLock,
    store_config: &StoreConfig,
    loop_id: LoopId,
    text: String,
) -> Result<Option<Set>, OfflineError> {
    if store_config.current()? != Some(loop_id) {
        return Ok(None);
    }
    let ticket = Ticket(1);
    let input = Input::Note {
        ticket,
        text,
        tell: true,
        operator: true,
    };
    Ok(Some(take_in(store_config, loop_id, input)?))
}

/// Opens a loop, gives the core one input, and closes the loop.
fn take_in(store_config: &StoreConfig, loop_id: LoopId, input: Input) -> Result<Set, StoreError> {
    let dir = layout::loop_dir(&store_config.working_dir, loop_id);
    let found = recover::read(&dir, &store_config.copies(), loop_id, Loss::Refuse)?;
    let taken = found.open(&dir, &store_config.working_dir)?;
    let (mut journal, mut state) = (taken.journal, taken.state);
    let mut clock = Clock::starting_after(state.time);
    let now = clock.now();
    let decided = step(&Policy::default(), &mut state, now, input);
    journal.append(&decided.records)?;
    if journal.is_full() {
        journal.next_segment(&mut state, now)?;
    }
    journal.sync()?;
    let answer = decided.effects.into_iter().find_map(|effect| match effect {
        Effect::Reply { answer, .. } => Some(answer),
        _ => None,
    });
    let snapshot = Snapshot::of(&state, &store_config.working_dir, clock.now());
    let saved = snapshot.write(
        &store_config.snapshot,
        store_config.packing,
        Durability::Synced,
        &store_config.encryption,
    );
    Ok(Set {
        answer: answer.unwrap_or(Answer::Refused {
            current: state.public(),
            reason: "the loop gave no answer to this request".to_owned(),
        }),
        unsaved: saved.err().map(|error| chain(&error)),
    })
}

/// Archives the current loop, so that the next run begins a new one. Returns the id of the archived loop.
///
/// # Errors
/// A runner is running the loop, there is no loop, its snapshot was written by a newer version, or it cannot be archived.
pub async fn clear(store_config: &StoreConfig) -> Result<LoopId, OfflineError> {
    let (_lock, loop_id) = hold(store_config).await?;
    if let Err(error @ StoreError::NewerSnapshot { .. }) =
        snapshot::read(&store_config.snapshot, &store_config.encryption)
    {
        // Only the newer version that wrote this snapshot can read it.
        return Err(error.into());
    }
    archive::archive(
        &store_config.working_dir,
        loop_id,
        &store_config.snapshot,
        &store_config.encryption,
    )?;
    Ok(loop_id)
}

/// Backs up a loop. The loop may be running. If the backup is to be uploaded, it contains the work.
///
/// # Errors
/// The loop cannot be read, or the backup cannot be written.
pub async fn backup(store_config: &StoreConfig, loop_id: LoopId) -> Result<Taken, OfflineError> {
    let working_dir = &store_config.working_dir;
    // The lock keeps a new runner from removing the unfinished backup. A runner that already has the lock does not remove it.
    let lock = match lock::is_held(working_dir) {
        true => None,
        false => Some(WorkLock::acquire(working_dir).await?),
    };
    let dir = layout::loop_dir(working_dir, loop_id);
    let found = recover::read(&dir, &store_config.copies(), loop_id, Loss::Refuse)?;
    let now = Clock::starting_after(found.state.time).now();
    let mut moment = found.moment(&dir, working_dir, now);
    check_dir(working_dir, &store_config.backups.dir).map_err(StoreError::from)?;
    let go_on = AtomicBool::new(false);
    let mut without_work = None;
    if store_config.cloud.is_some() {
        let owed = found.state.needs_survey();
        let owner = match &lock {
            Some(lock) => ChangeOwner::since_last_survey(owed, lock.died, found.state.time),
            None if owed => ChangeOwner::Loop,
            None => ChangeOwner::Others,
        };
        let work = store_config.work_of(loop_id);
        let bundled = work.bundle(&dir, &|| owner, &CancelToken::new());
        moment.work = bundled.path();
        without_work = bundled
            .lacks()
            .map(|what| format!("the backup does not contain {what}"));
    }
    let mut taken = backup::take(&store_config.backups, &moment, &go_on)?;
    taken.troubles.extend(without_work);
    Ok(taken)
}

/// Restores a loop from a backup, which must be the one that was inspected, and backs up the present loop. Processes of a dead runner are
/// ended
/// first.
///
/// # Errors
/// A runner is running the loop, the backup is damaged, or it cannot be put in place. Nothing is changed then.
pub async fn restore(
    store_config: &StoreConfig,
    file: &Path,
    looked_at: &Manifest,
) -> Result<Restored, OfflineError> {
    // Files that cannot be decrypted because a key is missing are not damaged, and must not be moved away.
    key_check::check_keys(
        &store_config.encryption,
        &store_config.working_dir,
        &store_config.snapshot,
    )?;
    let lock = alone(&store_config.working_dir).await?;
    Ok(restore::restore(&lock, store_config, file, looked_at)?)
}

/// Undoes or completes an interrupted restore. Call it before searching for the current loop.
///
/// # Errors
/// A runner is running a loop, or a directory cannot be moved.
pub async fn settle(working_dir: &Path) -> Result<(), OfflineError> {
    if restore::is_interrupted(working_dir) {
        let _lock = WorkLock::acquire(working_dir).await?;
        restore::settle(working_dir)?;
    }
    Ok(())
}

/// Restores the work of a restored loop from its bundle, and deletes the bundle.
///
/// # Errors
/// Git fails.
pub fn unpack(
    store_config: &StoreConfig,
    loop_id: LoopId,
    iteration: u32,
    bundle: &Path,
) -> Result<Unpacked, String> {
    let dir = layout::loop_dir(&store_config.working_dir, loop_id);
    let unpacked = git::bundle::unpack(&store_config.work_of(loop_id), bundle, &dir, iteration)?;
    let _ = std::fs::remove_file(bundle);
    Ok(unpacked)
}

/// Deletes all files of loops in a working directory, after ending processes of a dead runner.
///
/// # Errors
/// A runner is running the loop, or a file cannot be deleted.
pub async fn purge(store_config: &StoreConfig) -> Result<Purged, OfflineError> {
    // Without the key the contents of the files cannot be checked before they are deleted.
    key_check::check_keys(
        &store_config.encryption,
        &store_config.working_dir,
        &store_config.snapshot,
    )?;
    let lock = WorkLock::acquire(&store_config.working_dir).await?;
    if let Some(dead) = &lock.crashed {
        // The leftover processes are ended first, because their loop id is read from the lock file.
        let _ = orphans::end_leftovers(&dead.loop_id.to_string());
        temporary::clear(&store_config.temporary_dir, dead.loop_id);
    }
    Ok(purge::purge(store_config)?)
}

/// Takes the lock of a working directory. First ends processes of a dead runner, which could still write there.
///
/// # Errors
/// A runner is running a loop there, or the lock cannot be used.
pub async fn alone(working_dir: &Path) -> Result<WorkLock, OfflineError> {
    let lock = WorkLock::acquire(working_dir).await?;
    if let Some(dead) = &lock.crashed {
        let _ = orphans::end_leftovers(&dead.loop_id.to_string());
    }
    Ok(lock)
}

/// Takes the lock without changing the content of the lock file, so that the next run still notices that a runner crashed.
async fn hold(store_config: &StoreConfig) -> Result<(WorkLock, LoopId), OfflineError> {
    let working_dir = &store_config.working_dir;
    let lock = WorkLock::acquire(working_dir).await?;
    restore::settle(working_dir)?;
    let loop_id = store_config
        .current()?
        .ok_or_else(|| OfflineError::NoLoop(working_dir.clone()))?;
    Ok((lock, loop_id))
}
