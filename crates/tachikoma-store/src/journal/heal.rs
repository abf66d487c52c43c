//! The journal of a live runner after someone has laid hands on it: noticed by a look at its file, and made whole from
//! the file that is still open, or from the state.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use tachikoma_core::{Epoch, Record, State, Timestamp};
use tachikoma_fs::quarantine::{quarantine, remake_dirs};
use tachikoma_fs::{make_dir, private};

use super::{
    ABOVE_JOURNAL, Journal, StoreError, decode, segment_name, segments, way_to, working_dir_of,
};
use crate::checked_line::is_whole;
use crate::vault::Vault;

/// What is wrong with the file of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wound {
    /// There is none at its path.
    Gone,
    /// Something else is at its path.
    Replaced,
    /// It does not hold what was written.
    Changed,
}

/// A journal made whole.
#[derive(Debug)]
pub struct Healed {
    /// What was wrong with it, and what was done.
    pub how: String,
    /// The first record of the new segment, where one had to be begun.
    pub opened: Option<Record>,
}

impl Journal {
    /// Looks whether the file is there and ends with what was written last. Cheap: whether all of it is what was written,
    /// only reading all of it can tell. A file that may not be looked at is not known to be wounded.
    #[must_use]
    pub fn wound(&self) -> Option<Wound> {
        let there = match std::fs::symlink_metadata(&self.path) {
            Ok(there) => there,
            Err(error) if is_gone(&error) => return Some(Wound::Gone),
            Err(_) => return None,
        };
        let ours = self.file.metadata().ok()?;
        if (there.dev(), there.ino()) != (ours.dev(), ours.ino()) {
            return Some(Wound::Replaced);
        }
        (!self.torn && !self.ends_as_written(&ours)).then_some(Wound::Changed)
    }

    /// Makes the journal whole: the file that is still open is put back, if it holds what was written; else a new segment
    /// begins with the full state. What is found in its place moves to the quarantine. Everything is on disk afterwards.
    ///
    /// `state` must be what the journal stands at.
    ///
    /// # Errors
    /// It cannot be done; it may be tried again.
    pub fn heal(
        &mut self,
        wound: Wound,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Healed, StoreError> {
        let working_dir = working_dir_of(&self.dir).to_owned();
        remake_dirs(&working_dir, &self.dir)?;
        let moved = quarantine(&working_dir, &self.path)?;
        let bytes = match wound {
            Wound::Gone | Wound::Replaced => self.whole_content(),
            Wound::Changed => None,
        };
        let (done, opened) = match bytes {
            Some(bytes) => {
                self.put_back(&bytes)?;
                ("it was restored from the open file".to_owned(), None)
            }
            None => {
                // Nothing that was recorded is given up: no number comes twice.
                let life = state.life.clone();
                let opened = self.begin_anew(&working_dir, state, now, life)?;
                let segment = self.segment;
                let done = format!("segment {segment} goes on from the full state");
                (done, Some(opened))
            }
        };
        let wrong = match wound {
            Wound::Gone => "its file was gone",
            Wound::Replaced => "another file was in its place",
            Wound::Changed => "its file was changed",
        };
        let mut how = format!("{wrong}; {done}");
        if let Some(moved) = moved {
            let shown = moved.strip_prefix(&working_dir).unwrap_or(&moved);
            how += &format!("; what was found is at {}", shown.display());
        }
        let oldest = segments(&self.dir)?
            .first()
            .map_or(0, |(number, _)| *number);
        if oldest > 1 && opened.is_none() {
            how += &format!("; the segments before number {oldest} are lost");
        }
        Ok(Healed { how, opened })
    }

    /// Puts the file back if nothing at all is left of the loop's directory, and touches nothing else. Returns what was
    /// wrong and what was done, if something was.
    ///
    /// # Errors
    /// It cannot be done.
    pub fn rescue(&mut self) -> Result<Option<String>, StoreError> {
        let is_gone = std::fs::symlink_metadata(&self.dir).is_err_and(|error| is_gone(&error));
        let Some(bytes) = is_gone.then(|| self.whole_content()).flatten() else {
            return Ok(None);
        };
        if let Some(loops) = self.dir.parent() {
            make_dir(loops)?;
        }
        make_dir(&self.dir)?;
        self.put_back(&bytes)?;
        Ok(Some(
            "its file was gone; it was restored from the open file, where another runner works"
                .to_owned(),
        ))
    }

    /// Makes the way free to the file of the next segment: what stands there moves to the quarantine. Returns what was wrong
    /// and what was done, if something was.
    ///
    /// # Errors
    /// It cannot be moved.
    pub fn make_way_for_next(&self) -> Result<Option<String>, StoreError> {
        let working_dir = self.working_dir();
        remake_dirs(working_dir, &self.dir)?;
        let next = self.segment + 1;
        let moved = quarantine(working_dir, &self.dir.join(segment_name(next)))?;
        Ok(moved.map(|moved| {
            let shown = moved.strip_prefix(working_dir).unwrap_or(&moved);
            format!(
                "something was in the place of segment {next}; what was found is at {}",
                shown.display()
            )
        }))
    }

    fn working_dir(&self) -> &Path {
        let above = self.dir.ancestors().nth(ABOVE_JOURNAL - 1);
        above.unwrap_or(&self.dir)
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

    /// Reads the open file, if every record in it is whole.
    fn whole_content(&self) -> Option<Vec<u8>> {
        let ours = self.file.metadata().ok()?;
        if !self.ends_as_written(&ours) {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(self.len).ok()?];
        self.file.read_exact_at(&mut bytes, 0).ok()?;
        let whole = |line: &[u8]| match self.sealer {
            // Sealed lines have a checksum of their own.
            Some(_) => is_whole(line),
            None => std::str::from_utf8(line).is_ok_and(|line| decode(line).is_ok()),
        };
        let mut lines = bytes.strip_suffix(b"\n")?.split(|byte| *byte == b'\n');
        lines.all(whole).then_some(bytes)
    }

    /// Writes the segment again, and goes on in the new file.
    fn put_back(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let temporary = self.dir.join(format!(
            "{}.{}.tmp",
            segment_name(self.segment),
            std::process::id()
        ));
        // Left by an earlier try of ours: nobody else has this name.
        let _ = std::fs::remove_file(&temporary);
        let mut file = private()
            .create_new(true)
            .read(true)
            .append(true)
            .open(&temporary)
            .map_err(StoreError::io("create", &temporary))?;
        let written = write_synced(&mut file, bytes, &temporary).and_then(|()| {
            std::fs::rename(&temporary, &self.path).map_err(StoreError::io("restore", &self.path))
        });
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written?;
        self.file = file;
        self.unsynced_dirs = way_to(&self.dir);
        self.sync()
    }

    /// Begins the next segment with the full state, because what came before cannot be trusted.
    pub fn begin_anew(
        &mut self,
        working_dir: &Path,
        state: &mut State,
        now: Timestamp,
        life: Epoch,
    ) -> Result<Record, StoreError> {
        let (next, opened) = Self::anew(
            &self.dir,
            working_dir,
            self.segment + 1,
            state,
            (now, life),
            &self.vault,
        )?;
        *self = next;
        Ok(opened)
    }

    /// Begins a segment of that number with the full state: what came before is lost, or cannot be trusted.
    pub fn anew(
        dir: &Path,
        working_dir: &Path,
        segment: u32,
        state: &mut State,
        (now, life): (Timestamp, Epoch),
        vault: &Vault,
    ) -> Result<(Self, Record), StoreError> {
        quarantine(working_dir, &dir.join(segment_name(segment)))?;
        let mut next = Self::new_segment(dir, segment, vault)?;
        let opened = next.open_segment(state, now, true, life).inspect_err(|_| {
            let _ = std::fs::remove_file(&next.path);
        })?;
        next.unsynced_dirs = way_to(&next.dir);
        next.sync()?;
        Ok((next, opened))
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn write_synced(file: &mut File, bytes: &[u8], path: &Path) -> Result<(), StoreError> {
    file.write_all(bytes)
        .map_err(StoreError::io("write", path))?;
    file.sync_all().map_err(StoreError::sync(path))
}

#[cfg(test)]
mod tests;
