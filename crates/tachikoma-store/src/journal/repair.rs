//! Detects damage to the journal file while a loop runs, and repairs the journal from the open file or from the state.

use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use tachikoma_core::{Epoch, Record, State, Timestamp};
use tachikoma_fs::quarantine::{quarantine, remake_dirs};
use tachikoma_fs::{make_dir, private};

use super::{Journal, StoreError, decode, dirs_to_sync, segment_name, segments, working_dir_of};
use crate::checked_line::is_whole;
use crate::encryption::Encryption;

/// Damage to the journal file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalDamage {
    /// The journal file is missing.
    Gone,
    /// Another file is at the path of the journal.
    Replaced,
    /// The content of the journal file was changed.
    Changed,
}

/// Result of repairing the journal.
#[derive(Debug)]
pub struct JournalRepair {
    /// Description of the damage and of the repair, for the user.
    pub how: String,
    /// First record of the new segment; `None` if none was started.
    pub opened: Option<Record>,
}

impl Journal {
    /// Checks that the journal file exists and ends with the last written lines. Reads only its end. If the file cannot be
    /// examined, it counts as undamaged.
    #[must_use]
    pub fn damage(&self) -> Option<JournalDamage> {
        let there = match std::fs::symlink_metadata(&self.path) {
            Ok(there) => there,
            Err(error) if is_gone(&error) => return Some(JournalDamage::Gone),
            Err(_) => return None,
        };
        let ours = self.file.metadata().ok()?;
        if (there.dev(), there.ino()) != (ours.dev(), ours.ino()) {
            return Some(JournalDamage::Replaced);
        }
        (!self.torn && !self.ends_as_written(&ours)).then_some(JournalDamage::Changed)
    }

    /// Repairs the journal. If the open file has the written content, it is written to its path again; otherwise a new segment
    /// starts with the full state. Another file at the path moves to the quarantine. All files are synced.
    ///
    /// `state` must be the state at the end of the journal.
    ///
    /// # Errors
    /// The repair failed and can be tried again.
    pub fn repair(
        &mut self,
        damage: JournalDamage,
        state: &mut State,
        now: Timestamp,
    ) -> Result<JournalRepair, StoreError> {
        let working_dir = working_dir_of(&self.dir).to_owned();
        remake_dirs(&working_dir, &self.dir)?;
        let moved = quarantine(&working_dir, &self.path)?;
        let bytes = match damage {
            JournalDamage::Gone | JournalDamage::Replaced => self.whole_content(),
            JournalDamage::Changed => None,
        };
        let (done, opened) = match bytes {
            Some(bytes) => {
                self.write_again(&bytes)?;
                ("the runner restored it from its open file".to_owned(), None)
            }
            None => {
                // No record is dropped and no number is used twice, so the epoch does not change.
                let epoch = state.epoch.clone();
                let opened = self.begin_anew(&working_dir, state, now, epoch)?;
                let segment = self.segment;
                let done = format!("segment {segment} continues from the full state");
                (done, Some(opened))
            }
        };
        let wrong = match damage {
            JournalDamage::Gone => "the file was missing",
            JournalDamage::Replaced => "another file was at its path",
            JournalDamage::Changed => "the file was changed",
        };
        let mut how = format!("{wrong}; {done}");
        if let Some(moved) = moved {
            let shown = moved.strip_prefix(&working_dir).unwrap_or(&moved);
            how += &format!("; the file at its path was moved to {}", shown.display());
        }
        let oldest = segments(&self.dir)?
            .first()
            .map_or(0, |(number, _)| *number);
        if oldest > 1 && opened.is_none() {
            how += &format!("; the segments before number {oldest} are lost");
        }
        Ok(JournalRepair { how, opened })
    }

    /// Writes the journal file again if the directory of the loop was deleted. Returns a description; `None` if nothing was wrong.
    ///
    /// # Errors
    /// The journal file cannot be written.
    pub fn rescue(&mut self) -> Result<Option<String>, StoreError> {
        let is_gone = std::fs::symlink_metadata(&self.dir).is_err_and(|error| is_gone(&error));
        let Some(bytes) = is_gone.then(|| self.whole_content()).flatten() else {
            return Ok(None);
        };
        if let Some(loops) = self.dir.parent() {
            make_dir(loops)?;
        }
        make_dir(&self.dir)?;
        self.write_again(&bytes)?;
        Ok(Some(
            "the directory of the loop was deleted; the runner restored the journal from its open file"
                .to_owned(),
        ))
    }

    /// Moves a foreign file at the path of the next segment to the quarantine. Returns a description; `None` if there was none.
    ///
    /// # Errors
    /// The foreign file cannot be moved.
    pub fn make_way_for_next(&self) -> Result<Option<String>, StoreError> {
        let working_dir = working_dir_of(&self.dir);
        remake_dirs(working_dir, &self.dir)?;
        let next = self.segment + 1;
        let moved = quarantine(working_dir, &self.dir.join(segment_name(next)))?;
        Ok(moved.map(|moved| {
            let shown = moved.strip_prefix(working_dir).unwrap_or(&moved);
            format!(
                "another file had the name of segment {next}; it was moved to {}",
                shown.display()
            )
        }))
    }

    fn ends_as_written(&self, ours: &std::fs::Metadata) -> bool {
        let last = self.buffer.len() as u64;
        let mut end = vec![0; self.buffer.len()];
        ours.len() == self.len
            && self
                .file
                .read_exact_at(&mut end, self.len.saturating_sub(last))
                .is_ok()
            && end == self.buffer
    }

    /// Reads the open journal file; `None` unless all its records are valid.
    fn whole_content(&self) -> Option<Vec<u8>> {
        let ours = self.file.metadata().ok()?;
        if !self.ends_as_written(&ours) {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(self.len).ok()?];
        self.file.read_exact_at(&mut bytes, 0).ok()?;
        let whole = |line: &[u8]| match self.line_encryptor {
            // Encrypted lines have a checksum of the encrypted text.
            Some(_) => is_whole(line),
            None => decode(line).is_ok(),
        };
        let mut lines = bytes.strip_suffix(b"\n")?.split(|byte| *byte == b'\n');
        lines.all(whole).then_some(bytes)
    }

    /// Writes the segment to its path again and uses the new file from now on.
    fn write_again(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let temporary = self.dir.join(format!(
            "{}.{}.tmp",
            segment_name(self.segment),
            std::process::id()
        ));
        // An earlier repair by this process may have left a temporary file.
        let _ = std::fs::remove_file(&temporary);
        let mut file = private()
            .create_new(true)
            .read(true)
            .append(true)
            .open(&temporary)
            .map_err(StoreError::io("create", &temporary))?;
        file.write_all(bytes)
            .map_err(StoreError::io("write", &temporary))
            .and_then(|()| file.sync_all().map_err(StoreError::sync(&temporary)))
            .and_then(|()| {
                let renamed = std::fs::rename(&temporary, &self.path);
                renamed.map_err(StoreError::io("restore", &self.path))
            })
            .inspect_err(|_| drop(std::fs::remove_file(&temporary)))?;
        self.file = file;
        self.unsynced_dirs = dirs_to_sync(&self.dir);
        self.sync()
    }

    /// Starts the next segment with the full state, because the previous segment cannot be trusted.
    pub fn begin_anew(
        &mut self,
        working_dir: &Path,
        state: &mut State,
        now: Timestamp,
        epoch: Epoch,
    ) -> Result<Record, StoreError> {
        let (next, opened) = Self::anew(
            &self.dir,
            working_dir,
            self.segment + 1,
            state,
            (now, epoch),
            &self.encryption,
        )?;
        *self = next;
        Ok(opened)
    }

    /// Starts a segment with the full state, because earlier records are lost or cannot be trusted.
    pub fn anew(
        dir: &Path,
        working_dir: &Path,
        segment: u32,
        state: &mut State,
        (now, epoch): (Timestamp, Epoch),
        encryption: &Encryption,
    ) -> Result<(Self, Record), StoreError> {
        quarantine(working_dir, &dir.join(segment_name(segment)))?;
        let mut next = Self::new_segment(dir, segment, encryption)?;
        let opened = next
            .open_segment(state, now, true, epoch)
            .inspect_err(|_| {
                let _ = std::fs::remove_file(&next.path);
            })?;
        next.unsynced_dirs = dirs_to_sync(&next.dir);
        next.sync()?;
        Ok((next, opened))
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests;
