//! The journal: the source of truth about a loop, one record with a checksum per line. `docs/journal-format.md` describes it.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tachikoma_core::{Epoch, LoopEvent, LoopId, Record, Seq, State, Timestamp, apply};
use tachikoma_fs::{make_dir, private, sync_dir};

use super::checked_line::encode;
use super::encryption::Encryption;
use super::encryption::lines::LineEncryptor;
use super::{StoreError, compressed, migrate};

mod read;
pub mod rewrite;
pub mod segment;

mod repair;

pub use read::{
    JournalEnd, apply_record, begun, decode, decode_as, first_record, format_of, newer, none_in,
    read_around, read_line, read_lines, read_records, read_state, seq_of,
};
pub use repair::{JournalDamage, JournalRepair};
pub use segment::{segment_name, segments};

/// Format version of the journal that this program writes, and the newest one that it reads.
pub const FORMAT: u32 = migrate::JOURNAL.latest();

/// Size in bytes at which a segment is closed. A segment of this size is read quickly, and a loop fills few of them.
pub const SEGMENT_MAX_BYTES: u64 = 16 << 20;

/// Number of directories to sync for a journal: the loop's, `loops`, `.ralph` and the working directory.
const ABOVE_JOURNAL: usize = 4;

/// An open journal. Only the process that holds the lock of the working directory has one.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    encryption: Encryption,
    path: PathBuf,
    file: File,
    segment: u32,
    /// Length in bytes of the complete lines. Bytes after it are left by a failed write and are cut off.
    len: u64,
    synced: bool,
    /// Whether a failed write left bytes that are not cut off yet.
    torn: bool,
    /// Directories that have a new entry and are not synced yet.
    unsynced_dirs: Vec<PathBuf>,
    /// The lines of the last write.
    buffer: Vec<u8>,
    /// Encrypts the lines of this segment; `None` without encryption.
    line_encryptor: Option<LineEncryptor>,
    /// Buffer for one record before it is encrypted.
    plain: Vec<u8>,
}

/// The first part of a segment. It never changes, because records are only appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalPart {
    /// Path of the segment.
    pub path: PathBuf,
    /// The number of the segment.
    pub segment: u32,
    /// Length in bytes of this part, after decompression.
    pub len: u64,
    /// Whether the last record has no line end.
    pub unended: bool,
}

impl JournalPart {
    /// Reads this part of the segment and returns the damage; `None` if it is undamaged.
    pub fn damage(&self, encryption: &Encryption) -> Option<StoreError> {
        let mut state = None;
        let read = read::read_segment(&self.path, encryption, Seq::default(), |line, record| {
            apply_record(&mut state, &self.path, line, &record?)
        });
        read.err()
            .filter(|error| matches!(error, StoreError::Damaged { .. }))
    }
}

impl Journal {
    /// Creates the journal of a new loop in `dir`, which must not exist. Returns the journal and its state.
    ///
    /// The journal and its directories are on disk after the first synced append, which comes before any effect.
    ///
    /// # Errors
    /// The directory or file cannot be created or written.
    pub fn create(
        dir: &Path,
        loop_id: LoopId,
        now: Timestamp,
        encryption: &Encryption,
    ) -> Result<(Self, State), StoreError> {
        if let Some(loops) = dir.parent() {
            make_dir(loops)?;
        }
        make_dir(dir)?;
        let begun = Self::begin(dir, loop_id, now, encryption);
        if begun.is_err() {
            Self::discard(dir);
        }
        begun
    }

    fn begin(
        dir: &Path,
        loop_id: LoopId,
        now: Timestamp,
        encryption: &Encryption,
    ) -> Result<(Self, State), StoreError> {
        let mut state = State::new(loop_id);
        let mut journal = Self::new_segment(dir, 1, encryption)?;
        journal.unsynced_dirs = dirs_to_sync(dir);
        journal.open_segment(&mut state, now, false, new_epoch())?;
        Ok((journal, state))
    }

    /// Removes the journal of a loop that never ran, so that the previous loop stays the current one.
    pub fn discard(dir: &Path) {
        // If it cannot be removed, the next run continues the empty loop.
        let _ = std::fs::remove_file(dir.join(segment_name(1)));
        let _ = std::fs::remove_dir(dir);
    }

    /// Opens a segment with `len` bytes of complete records and cuts off the bytes after them.
    pub fn at(
        dir: &Path,
        path: PathBuf,
        segment: u32,
        len: u64,
        encryption: &Encryption,
    ) -> Result<Self, StoreError> {
        if compressed::is_compressed(&path) {
            let source = std::io::Error::other("the segment is closed and is never written again");
            return Err(StoreError::io("append to", &path)(source));
        }
        let file = private()
            .read(true)
            .append(true)
            .open(&path)
            .map_err(StoreError::io("open", &path))?;
        // An empty segment has no first line yet, so it is encrypted as configured now.
        let line_encryptor = match len {
            0 => Ok(None),
            _ => file
                .try_clone()
                .and_then(|file| LineEncryptor::resume(encryption, file)),
        };
        let line_encryptor = line_encryptor.map_err(StoreError::io("read", &path))?;
        let mut journal = Self {
            len,
            // The runner may have died before it synced the directories.
            unsynced_dirs: dirs_to_sync(dir),
            line_encryptor,
            ..Self::empty(dir, path, file, segment, encryption)
        };
        journal.cut_tail()?;
        Ok(journal)
    }

    fn empty(dir: &Path, path: PathBuf, file: File, segment: u32, encryption: &Encryption) -> Self {
        Self {
            dir: dir.to_owned(),
            encryption: encryption.clone(),
            path,
            file,
            segment,
            len: 0,
            synced: false,
            torn: false,
            unsynced_dirs: vec![dir.to_owned()],
            buffer: Vec::new(),
            line_encryptor: None,
            plain: Vec::new(),
        }
    }

    /// Adds the missing line end after the last record.
    pub fn end_line(&mut self) -> Result<(), StoreError> {
        self.file
            .write_all(b"\n")
            .map_err(StoreError::io("write", &self.path))?;
        self.len += 1;
        Ok(())
    }

    /// Starts the first segment after a restore, with a new epoch.
    pub fn begin_restored(
        dir: &Path,
        segment: u32,
        state: &mut State,
        now: Timestamp,
        after_loss: bool,
        encryption: &Encryption,
    ) -> Result<Self, StoreError> {
        let mut journal = Self::new_segment(dir, segment, encryption)?;
        journal.open_segment(state, now, after_loss, new_epoch())?;
        Ok(journal)
    }

    /// Appends records and syncs them.
    ///
    /// # Errors
    /// The records could not be written, and the journal is unchanged. After a failed sync the content is unknown, and the loop must end.
    pub fn append_synced(&mut self, records: &[Record]) -> Result<(), StoreError> {
        self.append(records)?;
        self.sync()
    }

    /// Appends records on which no effect depends. They survive a crash of the runner at once, and a crash of the machine after
    /// the next sync.
    ///
    /// # Errors
    /// The records could not be written, and the journal is unchanged.
    pub fn append(&mut self, records: &[Record]) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        if self.torn {
            self.cut_tail()?;
        }
        self.buffer.clear();
        self.add(records);
        self.write_buffer()
    }

    /// Encodes records into the buffer.
    fn add(&mut self, records: &[Record]) {
        for record in records {
            let Some(line_encryptor) = &self.line_encryptor else {
                encode(record, &mut self.buffer);
                continue;
            };
            self.plain.clear();
            encode(record, &mut self.plain);
            line_encryptor.encrypt(record.seq.0, &self.plain, &mut self.buffer);
        }
    }

    fn write_buffer(&mut self) -> Result<(), StoreError> {
        if let Err(source) = self.file.write_all(&self.buffer) {
            self.buffer.clear();
            self.torn = true;
            // If the cut fails, it is repeated before the next write.
            let _ = self.cut_tail();
            return Err(StoreError::io("write", &self.path)(source));
        }
        self.len += self.buffer.len() as u64;
        self.synced = false;
        Ok(())
    }

    /// Returns the written part of the open segment, for backups. Later records are appended after it.
    pub fn part(&self) -> JournalPart {
        JournalPart {
            path: self.path.clone(),
            segment: self.segment,
            len: self.len,
            unended: false,
        }
    }

    /// Returns whether the open segment is encrypted as configured.
    pub fn is_in_form(&self) -> bool {
        self.encryption.is_in_form(&self.path)
    }

    /// Returns whether the journal has closed segments.
    pub fn has_closed(&self) -> bool {
        self.segment > 1
    }

    /// Returns the closed segments, which are no longer written.
    pub fn closed(&self) -> segment::Closed {
        segment::Closed {
            dir: self.dir.clone(),
            encryption: self.encryption.clone(),
            before: self.segment,
        }
    }

    /// Returns whether the segment is full and [`Journal::next_segment`] is due.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len >= SEGMENT_MAX_BYTES
    }

    /// Closes the segment and starts the next one with the full state. Returns its first record.
    ///
    /// # Errors
    /// The new segment cannot be created.
    pub fn next_segment(
        &mut self,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Record, StoreError> {
        let epoch = state.epoch.clone();
        self.next_segment_of(epoch, state, now)
    }

    /// Like [`Journal::next_segment`], with a new epoch, because the next record numbers were used before.
    pub fn next_segment_of(
        &mut self,
        epoch: Epoch,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Record, StoreError> {
        let begun = tachikoma_runtime::clock::monotonic();
        self.file
            .sync_data()
            .map_err(StoreError::sync(&self.path))?;
        let mut next = Self::new_segment(&self.dir, self.segment + 1, &self.encryption)?;
        let opened = next
            .open_segment(state, now, false, epoch)
            .inspect_err(|_| {
                // The empty segment is removed, because it would block the next attempt.
                let _ = std::fs::remove_file(&next.path);
            })?;
        next.sync()?;
        tracing::info!(segment = next.segment, elapsed = ?begun.elapsed(), "journal segment begun");
        *self = next;
        Ok(opened)
    }

    fn new_segment(dir: &Path, segment: u32, encryption: &Encryption) -> Result<Self, StoreError> {
        let path = dir.join(segment_name(segment));
        let file = private()
            .create_new(true)
            .read(true)
            .append(true)
            .open(&path)
            .map_err(StoreError::io("create", &path))?;
        Ok(Self::empty(dir, path, file, segment, encryption))
    }

    /// Writes the first record of an empty segment and returns it. An unknown epoch is replaced by a new one.
    pub fn open_segment(
        &mut self,
        state: &mut State,
        now: Timestamp,
        after_loss: bool,
        epoch: Epoch,
    ) -> Result<Record, StoreError> {
        // A loop of a version without epochs gets a new one.
        let epoch = match epoch.is_unknown() {
            true => new_epoch(),
            false => epoch,
        };
        let record = Record {
            seq: state.seq.next(),
            time: now.max(state.time),
            loop_id: state.loop_id,
            event: LoopEvent::SegmentOpened {
                format: FORMAT,
                segment: self.segment,
                state: Box::new(state.clone()),
                after_loss,
                epoch,
            },
            input: None,
            reasons: Vec::new(),
        };
        let of = format!("{}/{}", state.loop_id, segment_name(self.segment));
        let begun = LineEncryptor::begin(&self.encryption, of, record.time);
        self.buffer.clear();
        self.line_encryptor = None;
        if let Some((line_encryptor, header)) =
            begun.map_err(StoreError::io("encrypt", &self.path))?
        {
            self.buffer = header;
            self.line_encryptor = Some(line_encryptor);
        }
        self.add(std::slice::from_ref(&record));
        self.write_buffer()?;
        apply(state, &record);
        Ok(record)
    }

    /// Syncs all appended records and the directories.
    ///
    /// # Errors
    /// The content on disk is unknown, and the loop must end.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        if !self.synced {
            self.file
                .sync_data()
                .map_err(StoreError::sync(&self.path))?;
            self.synced = true;
        }
        for dir in self.unsynced_dirs.drain(..) {
            sync_dir(&dir)?;
        }
        Ok(())
    }

    /// Returns whether all appended records are synced.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    fn cut_tail(&mut self) -> Result<(), StoreError> {
        self.file
            .set_len(self.len)
            .map_err(StoreError::io("truncate", &self.path))?;
        self.torn = false;
        Ok(())
    }
}

/// Returns a new random epoch.
pub fn new_epoch() -> Epoch {
    Epoch::new(uuid::Uuid::new_v4())
}

/// Returns the directories from a loop's directory up to the working directory.
fn dirs_to_sync(dir: &Path) -> Vec<PathBuf> {
    dir.ancestors()
        .take(ABOVE_JOURNAL)
        .map(Path::to_owned)
        .collect()
}

/// Returns the working directory of a loop's directory.
pub fn working_dir_of(dir: &Path) -> &Path {
    dir.ancestors().nth(ABOVE_JOURNAL - 1).unwrap_or(dir)
}

#[cfg(test)]
mod tests;
