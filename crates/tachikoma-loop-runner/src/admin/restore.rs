//! Restores a loop from a backup: checks the whole backup, backs up the present loop, and then replaces its directory with one
//! rename.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rustix::fs::{CWD, RenameFlags};
use tachikoma_core::{Input, LoopId, Policy, Seq, State, Timestamp, step};
use tachikoma_fs::quarantine::{quarantine, quarantine_as};
use tachikoma_fs::{atomic_file, check_dir, make_dir, sync_dir};

use super::{paths_in, retention};
use crate::clock::Clock;
use crate::git::{ChangeOwner, bundle, snapshots};
use crate::loop_files::StoreConfig;
use crate::store::backup::{self, Backups, Content, Manifest};
use crate::store::encryption::is_encrypted;
use crate::store::journal::{self, Journal, rewrite, segments};
use crate::store::layout::{self, MOVED_AWAY, moved_away};
use crate::store::lock::WorkLock;
use crate::store::recover::{self, Loss, Recovered};
use crate::store::snapshot::{self, Durability, Snapshot};
use crate::store::{StoreError, archive, checkpoints, loops};
use tachikoma_core::error_chain as chain;

/// The result of a restore.
#[derive(Debug)]
pub struct Restored {
    /// Id of the restored loop.
    pub loop_id: LoopId,
    /// Number of the last record in the backup.
    pub seq: Seq,
    /// Number of the last iteration in the backup.
    pub iteration: u32,
    /// Path of the git bundle with the work; `None` if the backup has no bundle.
    pub work: Option<PathBuf>,
    /// Path of the backup that was made of the replaced loop; `None` if no loop was replaced.
    pub kept: Option<PathBuf>,
    /// Directory to which the files of the replaced loop were moved; `None` if no loop was replaced.
    pub moved: Option<PathBuf>,
    /// Warnings for the user.
    pub troubles: Vec<String>,
}

/// Restores a loop from a backup. The backup's manifest must still equal `looked_at`. The caller holds the lock of the working directory.
///
/// # Errors
/// The backup is damaged, the present loop cannot be backed up, or a file cannot be written. The present loop is unchanged then.
pub(crate) fn restore(
    lock: &WorkLock,
    store_config: &StoreConfig,
    file: &Path,
    looked_at: &Manifest,
) -> Result<Restored, StoreError> {
    let store_config = &encrypted_like(store_config, file);
    store_config.encryption.check(&[file.to_owned()])?;
    let working_dir = &store_config.working_dir;
    let all = layout::loops_dir(working_dir);
    check_dir(working_dir, &all)?;
    make_dir(&all)?;
    settle(working_dir)?;
    if let Err(error @ StoreError::NewerSnapshot { .. }) =
        snapshot::read(&store_config.snapshot, &store_config.encryption)
    {
        // Only the newer version that wrote this snapshot can read it.
        return Err(error);
    }
    store_config.encryption.prepare()?;
    let new = atomic_file::temporary(&all);
    make_dir(&new)?;
    let restored = put_in_place(lock, store_config, file, looked_at, &new);
    if restored.is_err() {
        // If the new directory cannot be removed now, the next restore moves it to the quarantine.
        let _ = std::fs::remove_dir_all(&new);
    }
    restored
}

/// Returns the paths and the encryption for the restore. Files of an encrypted backup stay encrypted, even if the settings say otherwise.
fn encrypted_like(store_config: &StoreConfig, file: &Path) -> StoreConfig {
    let encryption = store_config.encryption.for_files_from(file);
    StoreConfig {
        backups: Backups {
            encryption: encryption.clone(),
            ..store_config.backups.clone()
        },
        encryption,
        ..store_config.clone()
    }
}

fn put_in_place(
    lock: &WorkLock,
    store_config: &StoreConfig,
    file: &Path,
    looked_at: &Manifest,
    new: &Path,
) -> Result<Restored, StoreError> {
    let working_dir = &store_config.working_dir;
    let Content {
        manifest,
        mut state,
        ..
    } = backup::read_into(file, new, &store_config.encryption)?;
    if manifest != *looked_at {
        return Err(StoreError::DamagedBackup {
            path: file.to_owned(),
            what: "it was replaced while it was read".to_owned(),
        });
    }
    let loop_id = manifest.loop_id;
    let dir = layout::loop_dir(working_dir, loop_id);
    let mut troubles = Vec::new();
    if store_config.encryption.encrypts() && !is_encrypted(file) {
        troubles.push(format!(
            "{} is not encrypted although `state.encrypt` is set, so anyone with write access could have forged it",
            file.display()
        ));
    }
    let loops::Found {
        current,
        unreadable,
    } = loops::find(
        working_dir,
        &store_config.snapshot,
        &store_config.encryption,
    )?;
    let mut clock = Clock::starting_after(state.time);
    let kept = match current {
        Some(current) => {
            let found = found(store_config, current, &mut troubles)?;
            if current == loop_id {
                survey_work_tree(lock, store_config, current, found.as_ref(), &mut troubles);
            }
            back_up_present(store_config, current, found, clock.now(), &mut troubles)?
        }
        None => None,
    };
    let from = file.file_name().unwrap_or_default().to_string_lossy();
    let warning = format!(
        "restored from backup {from}, taken at record {}; later records of the previous loop are not part of it",
        manifest.seq
    );
    rebuild(
        store_config,
        (&dir, new),
        &manifest,
        &mut state,
        clock.now(),
        warning,
    )?;
    let was = switch(new, &dir)?;
    if let Err(error) = retire_present(store_config, current, loop_id) {
        let other = current.filter(|current| *current != loop_id);
        // If the other loop was archived in spite of the error, it no longer blocks the restored loop.
        if !other.is_some_and(|other| layout::is_archived(&layout::loop_dir(working_dir, other))) {
            switch_back(new, &dir, was.as_deref());
            return Err(error);
        }
        troubles.push(chain(&error));
    }
    // From here on the loop is restored. Errors become warnings.
    let mut tell = |error: StoreError| troubles.push(chain(&error));
    let moved = was.and_then(|was| {
        quarantine_as(working_dir, &was, &dir)
            .map_err(|error| tell(error.into()))
            .ok()
    });
    for (path, error) in unreadable {
        if path != dir {
            let moved = quarantine(working_dir, &path);
            moved.map(drop).unwrap_or_else(|error| tell(error.into()));
        }
        tell(error);
    }
    sync_dir(&layout::loops_dir(working_dir)).unwrap_or_else(|error| tell(error.into()));
    let snapshot = Snapshot::of(&state, working_dir, clock.now());
    if let Err(error) = snapshot.write(
        &store_config.snapshot,
        store_config.packing,
        Durability::Synced,
        &store_config.encryption,
    ) {
        // A missing snapshot is only a warning: the journal is complete, so the snapshot can be written later.
        troubles.push(format!("the snapshot is not up to date: {}", chain(&error)));
    }
    if let Err(why) = snapshots::rename_later_in(working_dir, loop_id, manifest.iteration) {
        troubles.push(format!(
            "git snapshots of iterations after {} belong to the replaced loop and could not be renamed: {why}",
            manifest.iteration
        ));
    }
    let work = manifest.files.iter().find(|file| file.name == bundle::NAME);
    Ok(Restored {
        work: work.map(|file| dir.join(&file.name)),
        loop_id,
        seq: manifest.seq,
        iteration: manifest.iteration,
        kept,
        moved,
        troubles,
    })
}

/// Reads the present loop. Returns `None` and adds a warning if the loop cannot be read.
fn found(
    store_config: &StoreConfig,
    current: LoopId,
    troubles: &mut Vec<String>,
) -> Result<Option<Recovered>, StoreError> {
    let dir = layout::loop_dir(&store_config.working_dir, current);
    match recover::read(&dir, &store_config.copies(), current, Loss::Refuse) {
        Ok(found) => Ok(Some(found)),
        Err(error @ StoreError::Locked { .. }) => Err(error),
        Err(error) => {
            troubles.push(format!(
                "{current} could not be backed up: {}",
                chain(&error)
            ));
            Ok(None)
        }
    }
}

/// Surveys the work tree for the present loop, as its next run would. The restored loop could not attribute these changes.
fn survey_work_tree(
    lock: &WorkLock,
    store_config: &StoreConfig,
    current: LoopId,
    found: Option<&Recovered>,
    troubles: &mut Vec<String>,
) {
    let dir = layout::loop_dir(&store_config.working_dir, current);
    let (owed, last) = match found {
        Some(found) => (found.state.needs_survey(), found.state.time),
        // A loop with an unreadable journal counts as not ended normally. The modification time of the journal replaces the time of the last record.
        None => (true, last_written(&dir)),
    };
    let owner = ChangeOwner::since_last_survey(owed, lock.died, last);
    if let Err(why) = bundle::update_work_record(&store_config.work_of(current), &dir, owner) {
        troubles.push(format!(
            "changes since the last survey cannot be attributed: {why}"
        ));
    }
}

/// Returns when a journal was last written.
fn last_written(dir: &Path) -> Timestamp {
    let segments = segments(dir).unwrap_or_default();
    let times = segments.iter().filter_map(|(_, path)| {
        let modified = path.metadata().and_then(|there| there.modified()).ok()?;
        let since = modified.duration_since(std::time::UNIX_EPOCH).ok()?;
        i64::try_from(since.as_millis()).ok()
    });
    Timestamp::from_millis(times.max().unwrap_or(0))
}

/// Backs up the present loop. If the loop is unreadable, no backup is made: its directory is only moved to the quarantine later.
fn back_up_present(
    store_config: &StoreConfig,
    current: LoopId,
    found: Option<Recovered>,
    now: Timestamp,
    troubles: &mut Vec<String>,
) -> Result<Option<PathBuf>, StoreError> {
    let dir = layout::loop_dir(&store_config.working_dir, current);
    let Some(found) = found else { return Ok(None) };
    let mut moment = found.moment(&dir, &store_config.working_dir, now);
    moment.before_restore = true;
    // The rotation of backups must not delete the one that is being restored.
    let backups = Backups {
        max: 0,
        ..store_config.backups.clone()
    };
    let taken = backup::take(&backups, &moment, &AtomicBool::new(false))?;
    troubles.extend(taken.troubles);
    Ok(Some(taken.path))
}

/// Completes the unpacked backup to the directory of a loop, with older segments and files of the present loop.
fn rebuild(
    store_config: &StoreConfig,
    (old, new): (&Path, &Path),
    manifest: &Manifest,
    state: &mut State,
    now: Timestamp,
    warning: String,
) -> Result<(), StoreError> {
    // A directory that cannot be listed has no segments to use.
    let there = segments(old).unwrap_or_default();
    let known = manifest.segment.unwrap_or(0);
    let told = join(store_config, new, &there, known, state)?;
    for (name, is_ours) in retention::SUBDIRECTORIES {
        for path in ours_in(&old.join(name), is_ours) {
            make_dir(&new.join(name))?;
            link(&path, &new.join(name))?;
        }
    }
    // Git bundles are not linked, because their state is known only if they were made in this directory.
    let is_gits = |name: &str| crate::git::is_ours_in_loop(name) && !crate::git::is_bundle(name);
    for path in ours_in(old, is_gits) {
        link(&path, new)?;
    }
    checkpoints::forget_after(new, state.session.number);
    // The new segment gets a higher number than any earlier segment, because segments of the replaced loop contain the same record numbers.
    let last = there.last().map_or(0, |(number, _)| *number).max(known);
    // The state in the backup may differ: an earlier version may have read less from the same records.
    let after_loss = told.is_none_or(|told| told != *state);
    let mut journal = Journal::begin_restored(
        new,
        last + 1,
        state,
        now,
        after_loss,
        &store_config.encryption,
    )?;
    let input = Input::Warning { warning };
    journal.append_synced(&step(&Policy::default(), state, now, input).records)?;
    for (name, _) in retention::SUBDIRECTORIES {
        let below = new.join(name);
        if below.is_dir() {
            sync_dir(&below)?;
        }
    }
    sync_dir(new)?;
    Ok(())
}

/// Links the segments that precede the segment of the backup, if they match. Returns the state of the joined journal.
fn join(
    store_config: &StoreConfig,
    new: &Path,
    there: &[(u32, PathBuf)],
    known: u32,
    state: &State,
) -> Result<Option<State>, StoreError> {
    let encryption = &store_config.encryption;
    let own = segments(new)?.into_iter().map(|(_, path)| path).next();
    let Some(own) = own else { return Ok(None) };
    rewrite::end_line(&own, encryption)?;
    for (_, path) in there.iter().filter(|(number, _)| *number < known) {
        // Segments that cannot be linked are left out of the joined journal.
        let _ = link(path, new);
    }
    let read = || {
        let told = journal::read_state(new, encryption).ok();
        told.filter(|told| told.seq == state.seq)
    };
    let begins = segments(new)?
        .first()
        .is_some_and(|(number, _)| *number == 1);
    if let Some(told) = read().filter(|_| begins) {
        return Ok(Some(told));
    }
    for (_, path) in segments(new)?.iter().filter(|(_, path)| *path != own) {
        std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
    }
    // A journal must start with the first record, or with a record that names the lost records.
    let marked = rewrite::mark_loss(&own, encryption)?;
    let told = read().filter(|_| marked);
    if told.is_none() {
        std::fs::remove_file(&own).map_err(StoreError::io("remove", &own))?;
    }
    Ok(told)
}

fn ours_in(dir: &Path, is_ours: fn(&str) -> bool) -> impl Iterator<Item = PathBuf> {
    let is_file = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_file());
    paths_in(dir, is_ours).into_iter().filter(is_file)
}

/// Links a closed file into another directory, unless a file of that name exists.
fn link(path: &Path, into: &Path) -> Result<(), StoreError> {
    let to = into.join(path.file_name().unwrap_or_default());
    if std::fs::symlink_metadata(&to).is_ok() {
        return Ok(());
    }
    // Not every file system supports hard links.
    std::fs::hard_link(path, &to).or_else(|_| atomic_file::copy_new(path, &to))?;
    Ok(())
}

/// Moves the snapshot of the replaced loop away, or archives the loop if it is another one. Until then the snapshot is ignored, because its
/// epoch differs.
fn retire_present(
    store_config: &StoreConfig,
    current: Option<LoopId>,
    restored: LoopId,
) -> Result<(), StoreError> {
    let path = &store_config.snapshot;
    let working_dir = &store_config.working_dir;
    if let Some(current) = current.filter(|current| *current != restored) {
        return archive::archive(working_dir, current, path, &store_config.encryption);
    }
    match snapshot::read(path, &store_config.encryption) {
        Ok(Some(found)) if found.loop_id == restored => {
            archive::move_away(working_dir, path, &store_config.encryption)
        }
        Ok(_) | Err(_) => archive::make_way(working_dir, None, path, &store_config.encryption),
    }
}

/// Replaces the directory of the loop atomically. Returns the new path of the replaced directory; `None` if there was none.
fn switch(new: &Path, dir: &Path) -> Result<Option<PathBuf>, StoreError> {
    if std::fs::symlink_metadata(dir).is_err() {
        std::fs::rename(new, dir).map_err(StoreError::io("replace", dir))?;
        return Ok(None);
    }
    match rustix::fs::renameat_with(CWD, new, CWD, dir, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(Some(new.to_owned())),
        // This file system cannot exchange two directories, so for a moment there is no directory of the loop.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            let was = dir.with_file_name(format!("{MOVED_AWAY}{name}"));
            std::fs::rename(dir, &was).map_err(StoreError::io("move away", dir))?;
            std::fs::rename(new, dir).map_err(|source| {
                // Undo the first rename.
                let _ = std::fs::rename(&was, dir);
                StoreError::io("replace", dir)(source)
            })?;
            Ok(Some(was))
        }
        Err(errno) => Err(StoreError::io("replace", dir)(errno.into())),
    }
}

/// Undoes [`switch`]. If this fails, the next run repairs it.
fn switch_back(new: &Path, dir: &Path, was: Option<&Path>) {
    if was == Some(new) {
        let _ = switch(new, dir);
    } else if std::fs::rename(dir, new).is_ok()
        && let Some(was) = was
    {
        let _ = std::fs::rename(was, dir);
    }
}

/// Returns whether a restore was interrupted.
pub(crate) fn is_interrupted(working_dir: &Path) -> bool {
    let is_moved = |name: &str| moved_away(name).is_some();
    !paths_in(&layout::loops_dir(working_dir), is_moved).is_empty()
}

/// Cleans up after interrupted restores: a loop that was moved away is moved back unless another one replaced it, and other
/// leftovers move to the quarantine. The caller holds the lock of the working directory.
///
/// # Errors
/// Something cannot be moved.
pub(crate) fn settle(working_dir: &Path) -> Result<(), StoreError> {
    let all = layout::loops_dir(working_dir);
    let entries = std::fs::read_dir(&all).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let Some(loop_id) = name.to_str().and_then(moved_away) else {
            continue;
        };
        let dir = layout::loop_dir(working_dir, loop_id);
        if std::fs::symlink_metadata(&dir).is_ok() {
            quarantine_as(working_dir, &entry.path(), &dir)?;
        } else {
            std::fs::rename(entry.path(), &dir).map_err(StoreError::io("put back", &dir))?;
        }
    }
    for left in remains(&all) {
        quarantine(working_dir, &left)?;
    }
    Ok(())
}

/// Finds the leftovers of interrupted restores: new directories that were not used, and replaced ones.
pub(super) fn remains(loops: &Path) -> Vec<PathBuf> {
    let mut found = paths_in(loops, atomic_file::is_temporary);
    found.retain(|path| path.symlink_metadata().is_ok_and(|found| found.is_dir()));
    found
}
