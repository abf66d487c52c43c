//! Bringing a loop back from a backup. Everything is read and checked first, what is there is kept, and one rename
//! puts the restored loop in its place.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rustix::fs::{CWD, RenameFlags};
use tachikoma_core::{Input, LoopId, Policy, Seq, State, Timestamp, step};
use tachikoma_fs::quarantine::{quarantine, quarantine_as};
use tachikoma_fs::{atomic_file, check_dir, make_dir, sync_dir};

use super::retention;
use crate::clock::Clock;
use crate::git::{ChangeOwner, bundle, snapshots};
use crate::loop_files::Premises;
use crate::store::backup::{self, Backups, Content, Manifest};
use crate::store::journal::{self, Journal, rewrite, segments};
use crate::store::layout::{self, MOVED_AWAY, moved_away};
use crate::store::lock::WorkLock;
use crate::store::recover::{self, Loss, Recovered};
use crate::store::snapshot::{self, Durability, Snapshot};
use crate::store::vault::is_sealed;
use crate::store::{StoreError, archive, checkpoints, loops};
use tachikoma_core::error_chain as chain;

/// What came of a restoration.
#[derive(Debug)]
pub struct Restored {
    /// The loop.
    pub loop_id: LoopId,
    /// The record that it stands at in the backup.
    pub seq: Seq,
    /// Its last iteration.
    pub iteration: u32,
    /// A bundle of the work, if the backup had one.
    pub work: Option<PathBuf>,
    /// The backup of what was there before.
    pub kept: Option<PathBuf>,
    /// Where the directory of the loop as it was before lies.
    pub moved: Option<PathBuf>,
    /// What a person should know.
    pub troubles: Vec<String>,
}

/// Brings a loop back from a backup, which has to be the one that was looked at. The lock of the working directory must be held.
///
/// # Errors
/// The backup is not good, what is there cannot be kept, or something cannot be written: the loop is then as it was.
pub(crate) fn restore(
    lock: &WorkLock,
    premises: &Premises,
    file: &Path,
    looked_at: &Manifest,
) -> Result<Restored, StoreError> {
    let premises = &sealed_as(premises, file);
    premises.vault.check(&[file.to_owned()])?;
    let working_dir = &premises.working_dir;
    let all = layout::loops_dir(working_dir);
    check_dir(working_dir, &all)?;
    make_dir(&all)?;
    settle(working_dir)?;
    if let Err(error @ StoreError::NewerSnapshot { .. }) =
        snapshot::read(&premises.snapshot, &premises.vault)
    {
        // Only the version that wrote it knows what it is.
        return Err(error);
    }
    premises.vault.prepare()?;
    let new = atomic_file::temporary(&all);
    make_dir(&new)?;
    let restored = put_in_place(lock, premises, file, looked_at, &new);
    if restored.is_err() {
        // What cannot be removed is moved away by the next one.
        let _ = std::fs::remove_dir_all(&new);
    }
    restored
}

/// What comes out of a backup that is encrypted stays encrypted, whatever the settings are.
fn sealed_as(premises: &Premises, file: &Path) -> Premises {
    let vault = premises.vault.as_sealed_as(file);
    Premises {
        backups: Backups {
            vault: vault.clone(),
            ..premises.backups.clone()
        },
        vault,
        ..premises.clone()
    }
}

fn put_in_place(
    lock: &WorkLock,
    premises: &Premises,
    file: &Path,
    looked_at: &Manifest,
    new: &Path,
) -> Result<Restored, StoreError> {
    let working_dir = &premises.working_dir;
    let Content {
        manifest,
        mut state,
        ..
    } = backup::read_into(file, new, &premises.vault)?;
    if manifest != *looked_at {
        return Err(StoreError::DamagedBackup {
            path: file.to_owned(),
            what: "it is another one than a moment ago".to_owned(),
        });
    }
    let loop_id = manifest.loop_id;
    let dir = layout::loop_dir(working_dir, loop_id);
    let mut troubles = Vec::new();
    if premises.vault.seals() && !is_sealed(file) {
        troubles.push(format!(
            "{} is in clear text, though `state.encrypt` is set: whoever could write it could write what they liked",
            file.display()
        ));
    }
    let loops::Found {
        current,
        unreadable,
    } = loops::find(working_dir, &premises.snapshot, &premises.vault)?;
    let mut clock = Clock::starting_after(state.time);
    let kept = match current {
        Some(current) => {
            let found = found(premises, current, &mut troubles)?;
            if current == loop_id {
                look(lock, premises, current, found.as_ref(), &mut troubles);
            }
            keep(premises, current, found, clock.now(), &mut troubles)?
        }
        None => None,
    };
    let from = file.file_name().unwrap_or_default().to_string_lossy();
    let warning = format!(
        "restored from backup {from}, taken at record {}; what came behind it in the loop that was here is no part of this one",
        manifest.seq
    );
    rebuild(
        premises,
        (&dir, new),
        &manifest,
        &mut state,
        clock.now(),
        warning,
    )?;
    let was = switch(new, &dir)?;
    if let Err(error) = make_way(premises, current, loop_id) {
        let other = current.filter(|current| *current != loop_id);
        // Archived, it is out of the way, whatever else went wrong.
        if !other.is_some_and(|other| layout::is_archived(&layout::loop_dir(working_dir, other))) {
            switch_back(new, &dir, was.as_deref());
            return Err(error);
        }
        troubles.push(chain(&error));
    }
    // From here on the loop is restored, and what goes wrong is told.
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
        &premises.snapshot,
        premises.packing,
        Durability::Synced,
        &premises.vault,
    ) {
        // The journal has all of it.
        troubles.push(format!("the snapshot is not up to date: {}", chain(&error)));
    }
    if let Err(why) = snapshots::set_aside_around(working_dir, loop_id, manifest.iteration) {
        troubles.push(format!(
            "snapshots of iterations behind {} are of the loop before it was restored, and could not be set aside: {why}",
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

/// Reads the loop that is there.
fn found(
    premises: &Premises,
    current: LoopId,
    troubles: &mut Vec<String>,
) -> Result<Option<Recovered>, StoreError> {
    let dir = layout::loop_dir(&premises.working_dir, current);
    match recover::read(&dir, &premises.copies(), current, Loss::Refuse) {
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

/// Looks at the work tree as the next run of the loop that is there would: what it did, and nobody looked at, is its own. The restored
/// one knows nothing of that.
fn look(
    lock: &WorkLock,
    premises: &Premises,
    current: LoopId,
    found: Option<&Recovered>,
    troubles: &mut Vec<String>,
) {
    let dir = layout::loop_dir(&premises.working_dir, current);
    let (owed, last) = match found {
        Some(found) => (found.state.owes_a_look(), found.state.time),
        // What cannot be read has not ended well; its last record is as old as the file.
        None => (true, written(&dir)),
    };
    let owner = ChangeOwner::since_last_survey(owed, lock.died(), last);
    if let Err(why) = bundle::look(&premises.work_of(current), &dir, owner) {
        troubles.push(format!(
            "nobody knows what the loop changed since it last looked at the work tree: {why}"
        ));
    }
}

/// When a journal was last written to.
fn written(dir: &Path) -> Timestamp {
    let segments = segments(dir).unwrap_or_default();
    let times = segments.iter().filter_map(|(_, path)| {
        let modified = path.metadata().and_then(|there| there.modified()).ok()?;
        let since = modified.duration_since(std::time::UNIX_EPOCH).ok()?;
        i64::try_from(since.as_millis()).ok()
    });
    Timestamp::from_millis(times.max().unwrap_or(0))
}

/// Backs up the loop that is there. One that cannot be read any more is moved away whole, which must do.
fn keep(
    premises: &Premises,
    current: LoopId,
    found: Option<Recovered>,
    now: Timestamp,
    troubles: &mut Vec<String>,
) -> Result<Option<PathBuf>, StoreError> {
    let dir = layout::loop_dir(&premises.working_dir, current);
    let Some(found) = found else { return Ok(None) };
    let mut moment = found.moment(&dir, &premises.working_dir, now);
    moment.before_restore = true;
    // The one that is restored must not go because of it.
    let backups = Backups {
        max: 0,
        ..premises.backups.clone()
    };
    let taken = backup::take(&backups, &moment, &AtomicBool::new(false))?;
    troubles.extend(taken.troubles);
    Ok(Some(taken.path))
}

/// Makes what was taken out of the backup a whole directory of a loop, with what else there is of it.
fn rebuild(
    premises: &Premises,
    (old, new): (&Path, &Path),
    manifest: &Manifest,
    state: &mut State,
    now: Timestamp,
    warning: String,
) -> Result<(), StoreError> {
    // What cannot be listed has none that fit.
    let there = segments(old).unwrap_or_default();
    let known = manifest.segment.unwrap_or(0);
    let told = join(premises, new, &there, known, state)?;
    for (name, is_ours) in retention::BELOW {
        for path in ours_in(&old.join(name), is_ours) {
            make_dir(&new.join(name))?;
            link(&path, &new.join(name))?;
        }
    }
    // What is in a bundle is known only of the one that was made here.
    let is_gits = |name: &str| crate::git::is_ours_in_loop(name) && !crate::git::is_bundle(name);
    for path in ours_in(old, is_gits) {
        link(&path, new)?;
    }
    checkpoints::forget_after(new, state.session.number);
    // Above all that there ever was: records of the same numbers are in segments of other ones.
    let last = there.last().map_or(0, |(number, _)| *number).max(known);
    // An earlier version may have known less of the same records.
    let after_loss = told.is_none_or(|told| told != *state);
    let mut journal =
        Journal::begin_restored(new, last + 1, state, now, after_loss, &premises.vault)?;
    let input = Input::Warning { warning };
    journal.append_synced(&step(&Policy::default(), state, now, input).records)?;
    for (name, _) in retention::BELOW {
        let below = new.join(name);
        if below.is_dir() {
            sync_dir(&below)?;
        }
    }
    sync_dir(new)?;
    Ok(())
}

/// Puts the segments before the one of the backup to it, if they fit. Returns what the journal adds up to then.
fn join(
    premises: &Premises,
    new: &Path,
    there: &[(u32, PathBuf)],
    known: u32,
    state: &State,
) -> Result<Option<State>, StoreError> {
    let vault = &premises.vault;
    let own = segments(new)?.into_iter().map(|(_, path)| path).next();
    let Some(own) = own else { return Ok(None) };
    rewrite::end_line(&own, vault)?;
    for (_, path) in there.iter().filter(|(number, _)| *number < known) {
        // One that cannot be had does not fit.
        let _ = link(path, new);
    }
    let read = || {
        let told = journal::read_state(new, vault).ok();
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
    // A journal must begin at its beginning, or say itself that something is lost.
    let marked = rewrite::mark_loss(&own, vault)?;
    let told = read().filter(|_| marked);
    if told.is_none() {
        std::fs::remove_file(&own).map_err(StoreError::io("remove", &own))?;
    }
    Ok(told)
}

fn ours_in(dir: &Path, is_ours: fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .filter(|entry| entry.file_name().to_str().is_some_and(is_ours))
        .map(|entry| entry.path())
        .collect()
}

/// Puts a file that nobody changes any more into another directory, unless one of that name is there.
fn link(path: &Path, into: &Path) -> Result<(), StoreError> {
    let to = into.join(path.file_name().unwrap_or_default());
    if std::fs::symlink_metadata(&to).is_ok() {
        return Ok(());
    }
    // Not every file system has links.
    std::fs::hard_link(path, &to).or_else(|_| atomic_file::copy_new(path, &to))?;
    Ok(())
}

/// Makes way for the restored loop, which is in its place. The snapshot of what it was before moves away, and until then it is known
/// as one of another life; another loop is archived.
fn make_way(
    premises: &Premises,
    current: Option<LoopId>,
    restored: LoopId,
) -> Result<(), StoreError> {
    let path = &premises.snapshot;
    let working_dir = &premises.working_dir;
    if let Some(current) = current.filter(|current| *current != restored) {
        return archive::archive(working_dir, current, path, &premises.vault);
    }
    match snapshot::read(path, &premises.vault) {
        Ok(Some(found)) if found.loop_id == restored => {
            archive::move_away(working_dir, path, &premises.vault)
        }
        Ok(_) | Err(_) => archive::make_way(working_dir, None, path, &premises.vault),
    }
}

/// Puts the restored loop in its place, in one step. Returns where what was there lies now.
fn switch(new: &Path, dir: &Path) -> Result<Option<PathBuf>, StoreError> {
    if std::fs::symlink_metadata(dir).is_err() {
        std::fs::rename(new, dir).map_err(StoreError::io("replace", dir))?;
        return Ok(None);
    }
    match rustix::fs::renameat_with(CWD, new, CWD, dir, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(Some(new.to_owned())),
        // This file system cannot exchange: for a moment there is none of them.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            let was = dir.with_file_name(format!("{MOVED_AWAY}{name}"));
            std::fs::rename(dir, &was).map_err(StoreError::io("move away", dir))?;
            std::fs::rename(new, dir).map_err(|source| {
                // As it was.
                let _ = std::fs::rename(&was, dir);
                StoreError::io("replace", dir)(source)
            })?;
            Ok(Some(was))
        }
        Err(errno) => Err(StoreError::io("replace", dir)(errno.into())),
    }
}

/// Takes a restored loop out of its place again, and puts back what was there. What cannot be is put back by the next run.
fn switch_back(new: &Path, dir: &Path, was: Option<&Path>) {
    if was == Some(new) {
        let _ = switch(new, dir);
    } else if std::fs::rename(dir, new).is_ok()
        && let Some(was) = was
    {
        let _ = std::fs::rename(was, dir);
    }
}

/// Returns whether a loop is between two places.
pub(crate) fn is_interrupted(working_dir: &Path) -> bool {
    let entries = std::fs::read_dir(layout::loops_dir(working_dir));
    let mut entries = entries.into_iter().flatten().flatten();
    entries.any(|entry| {
        entry
            .file_name()
            .to_str()
            .is_some_and(|name| moved_away(name).is_some())
    })
}

/// Ends what restorations have begun that died: a loop that was moved away goes back to its place if none took that, and
/// what else they left moves to the quarantine. The lock of the working directory must be held.
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

/// Finds what restorations left that died: a loop that was not put in its place yet, or the one that was there before.
pub(super) fn remains(loops: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(loops).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(atomic_file::is_temporary)
        })
        .map(|entry| entry.path())
        .collect()
}
