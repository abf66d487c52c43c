//! Checks all stored files: every line of every journal, every snapshot, every transcript, every backup. Only reads.

mod encrypted;
mod fold;

use std::io::{self, BufRead as _, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tachikoma_core::LoopId;
use tachikoma_fs::{FsError, quarantine};

use super::retention;
use crate::loop_files::StoreConfig;
use crate::session::transcripts;
use crate::store::encryption::{self, Encryption};
use crate::store::layout::{ARCHIVED, is_archived};
use crate::store::snapshot::{self, Snapshot};
use crate::store::{StoreError, backup, checkpoints, compressed, journal, key_check, layout};
use tachikoma_core::error_chain as chain;

use fold::Fold;

/// How often the files of a running loop are checked. Files that are renamed or compressed during a check look damaged once. Only damage
/// that is found in every check is reported.
const CHECKS_MAX: u32 = 3;

/// The finding for a journal without records.
const NO_RECORD: &str =
    "the journal has no records; a run continues from the snapshot if that is good";

/// The kind of a checked object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A segment of a journal.
    Journal,
    /// A snapshot.
    Snapshot,
    /// All transcripts of a loop, or one damaged transcript.
    Transcripts,
    /// All hand-offs of a loop, or one damaged hand-off.
    Checkpoints,
    /// The gate output of a loop, or one damaged output file.
    Gates,
    /// A backup.
    Backup,
    /// A file in the quarantine.
    Quarantine,
}

/// The result of checking one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The object is valid.
    Good,
    /// The object is valid, with a remark for the user.
    Note,
    /// The object is damaged.
    Wrong,
}

/// One checked object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The result of the check.
    pub verdict: Verdict,
    /// The kind of the object.
    pub kind: Kind,
    /// The path of the object.
    pub path: PathBuf,
    /// A summary of the object's content, or the damage that was found.
    pub what: String,
}

impl Checked {
    fn new(verdict: Verdict, kind: Kind, path: &Path, what: impl Into<String>) -> Self {
        Self {
            verdict,
            kind,
            path: path.to_owned(),
            what: what.into(),
        }
    }
}

/// Checks all stored files and passes each result to `each`. `is_live` returns whether a runner is running.
///
/// # Errors
/// The loops cannot be listed.
pub fn verify(
    store_config: &StoreConfig,
    is_live: impl Fn() -> bool,
    mut each: impl FnMut(Checked),
) -> Result<(), StoreError> {
    let encryption = &store_config.encryption;
    let encrypted = key_check::encrypted_files(&store_config.working_dir, &store_config.snapshot);
    let encrypted = encrypted.current.iter().chain(&encrypted.archived);
    let encrypted = encrypted.filter(|path| encryption::is_encrypted(path));
    let why = encrypted.map(|path| encryption.missing_key_error(path));
    if let Some([why, ..]) = why.collect::<Option<Vec<_>>>().as_deref() {
        encrypted::check_all(store_config, why, &mut each);
        return Ok(());
    }
    // Files of another key are reported as locked, and not as damaged.
    let mut each = |checked: Checked| {
        let wrong = (checked.verdict == Verdict::Wrong).then_some(&checked.path);
        match wrong.and_then(|path| encryption.missing_key_error(path)) {
            Some(why) => encrypted::one(checked.kind, &checked.path, &why, &mut each),
            None => each(checked),
        }
    };
    let all = layout::loops_dir(&store_config.working_dir);
    let current = store_config.current()?;
    let mut found = match retention::list(&all, &store_config.encryption) {
        Err(StoreError::File(FsError::Io { source, .. }))
            if source.kind() == ErrorKind::NotFound =>
        {
            Vec::new()
        }
        found => found?,
    };
    if let Some(current) = current
        && !found.iter().any(|(_, loop_id)| *loop_id == current)
    {
        // Only the snapshot of this loop is left, so its journal is reported as missing.
        let dir = layout::loop_dir(&store_config.working_dir, current);
        each(Checked::new(Verdict::Wrong, Kind::Journal, &dir, NO_RECORD));
    }
    found.sort();
    for (_, loop_id) in found {
        let mut checked = check_loop(store_config, loop_id, current);
        for _ in 1..CHECKS_MAX {
            let wrong = checked.iter().any(|one| one.verdict == Verdict::Wrong);
            if !wrong || !is_live() {
                break;
            }
            checked = check_loop(store_config, loop_id, current);
        }
        checked.into_iter().for_each(&mut each);
    }
    if current.is_none()
        && let Err(error) = snapshot::read(&store_config.snapshot, &store_config.encryption)
    {
        let path = snapshot::place(&store_config.snapshot, &store_config.encryption);
        each(unread_snapshot(&path, &error));
    }
    check_backups(store_config, &mut each)?;
    quarantined(store_config, &mut each);
    Ok(())
}

fn check_loop(
    store_config: &StoreConfig,
    loop_id: LoopId,
    current: Option<LoopId>,
) -> Vec<Checked> {
    let dir = layout::loop_dir(&store_config.working_dir, loop_id);
    let mut checked = Vec::new();
    // Backups and snapshots are read before the journal, because a running loop appends to the journal.
    let backups = backup::list(&store_config.backups.dir, Some(loop_id)).unwrap_or_default();
    let mut fold = Fold::new(loop_id, &store_config.encryption);
    let is_current = current == Some(loop_id);
    let path = snapshot::place(&store_config.snapshot, &store_config.encryption);
    match snapshot::read(&path, &store_config.encryption) {
        Ok(Some(found)) if found.loop_id == loop_id => fold.compare(&path, found),
        Ok(found) if is_current => checked.push(no_snapshot(&path, found.as_ref())),
        Err(error) if is_current => checked.push(unread_snapshot(&path, &error)),
        Ok(_) | Err(_) => {}
    }
    if is_archived(&dir) {
        let path = dir.join(ARCHIVED);
        match snapshot::read(&path, &store_config.encryption) {
            Ok(Some(found)) => fold.compare(&path, found),
            // No file was found: it was moved back in the meantime.
            Ok(None) => {}
            Err(_) if std::fs::metadata(&path).is_ok_and(|file| file.len() == 0) => {
                let what = "archived without a state, because its journal was not readable";
                checked.push(Checked::new(Verdict::Note, Kind::Snapshot, &path, what));
            }
            Err(error) => checked.push(unread_snapshot(&path, &error)),
        }
    }
    match journal::segments(&dir) {
        Ok(segments) => {
            if segments.is_empty() && is_current {
                checked.push(Checked::new(Verdict::Wrong, Kind::Journal, &dir, NO_RECORD));
            }
            let last = segments.len().saturating_sub(1);
            for (place, (number, path)) in segments.iter().enumerate() {
                checked.push(fold.segment(*number, path, place == last));
            }
            if let Some(end) = checked.last_mut()
                && end.kind == Kind::Journal
                && end.verdict == Verdict::Good
                && let Some(seq) = fold.last
                && let Some(ahead) = backup::ahead_of(seq, backups, &dir, &store_config.encryption)
            {
                end.verdict = Verdict::Wrong;
                end.what = backup::cut_short(seq, &ahead);
            }
        }
        // The loop was deleted in the meantime.
        Err(_) if !dir.exists() => return Vec::new(),
        Err(error) => {
            let what = chain(&error);
            checked.push(Checked::new(Verdict::Wrong, Kind::Journal, &dir, what));
        }
    }
    checked.extend(fold.finish());
    checked.extend(check_transcripts(
        Kind::Transcripts,
        &store_config.state_dir.join(loop_id.to_string()),
        &store_config.encryption,
    ));
    checked.extend(check_checkpoints(&dir, &store_config.encryption));
    checked.extend(check_transcripts(
        Kind::Gates,
        &layout::gates_dir(&dir),
        &store_config.encryption,
    ));
    checked
}

fn no_snapshot(path: &Path, found: Option<&Snapshot>) -> Checked {
    let what = match found {
        Some(other) => format!(
            "it belongs to another loop ({}), which the next run archives",
            other.loop_id
        ),
        None => "missing; a run continues from the journal alone".to_owned(),
    };
    Checked::new(Verdict::Note, Kind::Snapshot, path, what)
}

fn unread_snapshot(path: &Path, error: &StoreError) -> Checked {
    let what = match error {
        StoreError::DamagedSnapshot { what, .. } => {
            format!("{what}; the journal has the same content")
        }
        _ => chain(error),
    };
    Checked::new(Verdict::Wrong, Kind::Snapshot, path, what)
}

/// Returns one result for all valid files together, and one for each invalid file.
fn check_transcripts(kind: Kind, dir: &Path, encryption: &Encryption) -> Vec<Checked> {
    let listed = match transcripts::list(dir) {
        Ok(listed) => listed,
        Err(error) => {
            let what = error.to_string();
            return vec![Checked::new(Verdict::Wrong, kind, dir, what)];
        }
    };
    let read = listed
        .iter()
        .map(|file| (file.path.clone(), read_through(&file.path, encryption)));
    check_texts(kind, dir, read)
}

fn check_checkpoints(loop_dir: &Path, encryption: &Encryption) -> Vec<Checked> {
    let dir = checkpoints::dir(loop_dir);
    match checkpoints::list(loop_dir) {
        Ok(listed) => {
            let read = listed.iter().map(|session| {
                let read = checkpoints::read(loop_dir, *session, encryption).map(drop);
                (checkpoints::path_of(&dir, *session), read)
            });
            check_texts(Kind::Checkpoints, &dir, read)
        }
        Err(error) => {
            let what = error.to_string();
            vec![Checked::new(Verdict::Wrong, Kind::Checkpoints, &dir, what)]
        }
    }
}

fn check_texts(
    kind: Kind,
    dir: &Path,
    read: impl Iterator<Item = (PathBuf, io::Result<()>)>,
) -> Vec<Checked> {
    let mut checked = Vec::new();
    let mut good = 0_u32;
    for (path, read) in read {
        match read {
            Ok(()) => good += 1,
            // The file was deleted in the meantime.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                let what = format!("it cannot be read ({error}); only this text is lost");
                checked.push(Checked::new(Verdict::Wrong, kind, &path, what));
            }
        }
    }
    if good > 0 {
        let files = if good == 1 { "file" } else { "files" };
        let what = format!("{good} {files}");
        checked.insert(0, Checked::new(Verdict::Good, kind, dir, what));
    }
    checked
}

fn read_through(path: &Path, encryption: &Encryption) -> io::Result<()> {
    let mut content = compressed::open(path, encryption)?.content;
    loop {
        let read = content.fill_buf()?.len();
        if read == 0 {
            return Ok(());
        }
        content.consume(read);
    }
}

fn check_backups(
    store_config: &StoreConfig,
    each: &mut impl FnMut(Checked),
) -> Result<(), StoreError> {
    for listed in backup::list(&store_config.backups.dir, None)? {
        let path = &listed.path;
        each(match backup::read_through(path, &store_config.encryption) {
            Ok(_) => {
                let what = format!("complete, taken at record {}", listed.seq);
                Checked::new(Verdict::Good, Kind::Backup, path, what)
            }
            // The file was deleted in the meantime.
            Err(_) if !path.exists() => continue,
            Err(StoreError::DamagedBackup { what, .. }) => {
                Checked::new(Verdict::Wrong, Kind::Backup, path, what)
            }
            Err(error) => Checked::new(Verdict::Wrong, Kind::Backup, path, chain(&error)),
        });
    }
    Ok(())
}

fn quarantined(store_config: &StoreConfig, each: &mut impl FnMut(Checked)) {
    let dir = quarantine::dir(&store_config.working_dir);
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let bytes = quarantine::size(&path);
        let name = path.file_stem().and_then(|name| name.to_str());
        let is_loop = path.is_dir() && name.and_then(layout::exact_id).is_some();
        let what = match is_loop {
            true => format!("{bytes} bytes, a loop as it was before a restore"),
            false => format!("{bytes} bytes, moved away and not checked"),
        };
        each(Checked::new(Verdict::Note, Kind::Quarantine, &path, what));
    }
}

#[cfg(test)]
mod tests;
