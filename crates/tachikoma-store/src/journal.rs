//! The journal: the truth about a loop, one checksummed record per line. `docs/journal-format.md` describes it.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tachikoma_core::{Epoch, LoopEvent, LoopId, Record, Seq, State, Timestamp, apply};
use tachikoma_fs::{make_dir, private, sync_dir};

use super::checked_line::encode;
use super::vault::Vault;
use super::vault::lines::Sealer;
use super::{StoreError, compressed, migrate};

mod read;
pub mod rewrite;
pub mod segment;

mod heal;

pub use heal::{Healed, Wound};
pub use read::{JournalEnd, read_around, read_records, read_state};
pub use read::{
    begun, decode, decode_as, first_record, format_of, newer, none_in, read_line, read_lines,
    seq_of, take_in,
};
pub use segment::{segment_name, segments};

/// The format that this version writes, and the newest it reads.
pub const FORMAT: u32 = migrate::JOURNAL.latest();

/// A segment is closed when it has grown to this: small enough to read in a moment, large enough to be rare.
pub const SEGMENT_MAX_BYTES: u64 = 16 << 20;

/// The directories above a journal: the loop's, `loops`, `.ralph`, the working directory.
const ABOVE_JOURNAL: usize = 4;

/// An open journal. Only the runner that holds the lock of the working directory has one.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    vault: Vault,
    path: PathBuf,
    file: File,
    segment: u32,
    /// What is known to be written in full; whatever a failed write left behind it is cut off.
    len: u64,
    synced: bool,
    /// Whether a failed write left something behind that could not be cut off yet.
    torn: bool,
    /// Directories that have a new entry which is not known to be on disk.
    unsynced_dirs: Vec<PathBuf>,
    /// What was written last.
    buffer: Vec<u8>,
    /// What seals the lines of this segment.
    sealer: Option<Sealer>,
    /// A record before it is sealed.
    plain: Vec<u8>,
}

/// The beginning of a segment: never changed again, whatever is written behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalPart {
    /// The file.
    pub path: PathBuf,
    /// Its number.
    pub segment: u32,
    /// Bytes, as they are when they are not compressed.
    pub len: u64,
    /// Whether the line end behind its last record is missing.
    pub unended: bool,
}

impl JournalPart {
    /// Reads the segment, and returns what is wrong with it if it is damaged.
    pub fn damage(&self, vault: &Vault) -> Option<StoreError> {
        let mut state = None;
        let read = read::read_segment(&self.path, vault, Seq::default(), |line, record| {
            take_in(&mut state, &self.path, line, &record?)
        });
        read.err()
            .filter(|error| matches!(error, StoreError::Damaged { .. }))
    }
}

impl Journal {
    /// Begins the journal of a new loop in `dir`, which must not exist. Returns it with the state it stands on.
    ///
    /// It is on disk, with the directories that lead to it, when the first synced records are: before that there is no
    /// effect that could depend on it.
    ///
    /// # Errors
    /// The directory or file cannot be made or written.
    pub fn create(
        dir: &Path,
        loop_id: LoopId,
        now: Timestamp,
        vault: &Vault,
    ) -> Result<(Self, State), StoreError> {
        if let Some(loops) = dir.parent() {
            make_dir(loops)?;
        }
        make_dir(dir)?;
        let begun = Self::begin(dir, loop_id, now, vault);
        if begun.is_err() {
            Self::discard(dir);
        }
        begun
    }

    fn begin(
        dir: &Path,
        loop_id: LoopId,
        now: Timestamp,
        vault: &Vault,
    ) -> Result<(Self, State), StoreError> {
        let mut state = State::new(loop_id);
        let mut journal = Self::new_segment(dir, 1, vault)?;
        journal.unsynced_dirs = way_to(dir);
        journal.open_segment(&mut state, now, false, new_life())?;
        Ok((journal, state))
    }

    /// Takes back what [`Journal::create`] made, for a loop that never ran: left behind, it would stand in the way of
    /// the one before it.
    pub fn discard(dir: &Path) {
        // If it cannot be removed, the next run takes it up: an empty loop, and no harm.
        let _ = std::fs::remove_file(dir.join(segment_name(1)));
        let _ = std::fs::remove_dir(dir);
    }

    /// Opens a segment of which `len` bytes are whole records, and cuts off what follows them.
    pub fn at(
        dir: &Path,
        path: PathBuf,
        segment: u32,
        len: u64,
        vault: &Vault,
    ) -> Result<Self, StoreError> {
        if compressed::is_compressed(&path) {
            let source = std::io::Error::other("it is closed, and never written again");
            return Err(StoreError::io("append to", &path)(source));
        }
        let file = private()
            .read(true)
            .append(true)
            .open(&path)
            .map_err(StoreError::io("open", &path))?;
        // One of which nothing is left begins anew, in whatever form.
        let sealer = match len {
            0 => Ok(None),
            _ => file
                .try_clone()
                .and_then(|file| Sealer::resume(vault, file)),
        };
        let sealer = sealer.map_err(StoreError::io("read", &path))?;
        let mut journal = Self {
            dir: dir.to_owned(),
            vault: vault.clone(),
            path,
            file,
            segment,
            len,
            synced: false,
            torn: false,
            // A runner that died young may not have come so far.
            unsynced_dirs: way_to(dir),
            buffer: Vec::new(),
            sealer,
            plain: Vec::new(),
        };
        journal.cut_tail()?;
        Ok(journal)
    }

    /// Ends the last line, whose record is whole.
    pub fn end_line(&mut self) -> Result<(), StoreError> {
        self.file
            .write_all(b"\n")
            .map_err(StoreError::io("write", &self.path))?;
        self.len += 1;
        Ok(())
    }

    /// Begins the segment from which a loop goes on that was restored: another life of it.
    pub fn begin_restored(
        dir: &Path,
        segment: u32,
        state: &mut State,
        now: Timestamp,
        after_loss: bool,
        vault: &Vault,
    ) -> Result<Self, StoreError> {
        let mut journal = Self::new_segment(dir, segment, vault)?;
        journal.open_segment(state, now, after_loss, new_life())?;
        Ok(journal)
    }

    /// Begins a segment whose maker died between making it and its first record.
    pub fn begin_segment(
        &mut self,
        state: &mut State,
        now: Timestamp,
        after_loss: bool,
    ) -> Result<(), StoreError> {
        let life = if after_loss {
            new_life()
        } else {
            state.life.clone()
        };
        self.open_segment(state, now, after_loss, life).map(drop)
    }

    /// Appends records, and returns when they are on disk.
    ///
    /// # Errors
    /// They could not be written; the journal then ends where it did before. After a failed sync nothing is
    /// known any more, and the loop must end.
    pub fn append_synced(&mut self, records: &[Record]) -> Result<(), StoreError> {
        self.append(records)?;
        self.sync()
    }

    /// Appends records on which no effect depends: they survive the death of the runner at once, and that of the
    /// machine with the next synced ones.
    ///
    /// # Errors
    /// They could not be written; the journal then ends where it did before.
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

    /// Adds records to what is written next.
    fn add(&mut self, records: &[Record]) {
        for record in records {
            let Some(sealer) = &self.sealer else {
                encode(record, &mut self.buffer);
                continue;
            };
            self.plain.clear();
            encode(record, &mut self.plain);
            sealer.seal(record.seq.0, &self.plain, &mut self.buffer);
        }
    }

    fn write_buffer(&mut self) -> Result<(), StoreError> {
        if let Err(source) = self.file.write_all(&self.buffer) {
            self.buffer.clear();
            self.torn = true;
            // If that fails as well, it is done before anything else is written.
            let _ = self.cut_tail();
            return Err(StoreError::io("write", &self.path)(source));
        }
        self.len += self.buffer.len() as u64;
        self.synced = false;
        Ok(())
    }

    /// Returns what there is of the segment that is written, for whoever copies it: what is added later stands behind it.
    pub fn part(&self) -> JournalPart {
        JournalPart {
            path: self.path.clone(),
            segment: self.segment,
            len: self.len,
            unended: false,
        }
    }

    /// Returns whether the segment is sealed, or is not, as it should be.
    pub fn is_in_form(&self) -> bool {
        self.vault.is_in_form(&self.path)
    }

    /// Returns whether there are segments before this one.
    pub fn has_closed(&self) -> bool {
        self.segment > 1
    }

    /// Returns the closed segments: all before the one that is written.
    pub fn closed(&self) -> segment::Closed {
        segment::Closed {
            dir: self.dir.clone(),
            vault: self.vault.clone(),
            before: self.segment,
        }
    }

    /// Returns whether the segment is full and [`Journal::next_segment`] is due.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len >= SEGMENT_MAX_BYTES
    }

    /// Closes the segment and begins the next one with the full state. Returns the record that does so.
    ///
    /// # Errors
    /// The new segment cannot be made.
    pub fn next_segment(
        &mut self,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Record, StoreError> {
        let life = state.life.clone();
        self.next_segment_of(life, state, now)
    }

    /// Does the same, in another life of the loop: records that are given up have had the numbers that come next.
    pub fn next_segment_of(
        &mut self,
        life: Epoch,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Record, StoreError> {
        let begun = tachikoma_runtime::clock::monotonic();
        self.file
            .sync_data()
            .map_err(StoreError::sync(&self.path))?;
        let mut next = Self::new_segment(&self.dir, self.segment + 1, &self.vault)?;
        let opened = next
            .open_segment(state, now, false, life)
            .inspect_err(|_| {
                // An empty segment that stays would stand in the way of the next try.
                let _ = std::fs::remove_file(&next.path);
            })?;
        next.sync()?;
        tracing::info!(segment = next.segment, elapsed = ?begun.elapsed(), "journal segment begun");
        *self = next;
        Ok(opened)
    }

    fn new_segment(dir: &Path, segment: u32, vault: &Vault) -> Result<Self, StoreError> {
        let path = dir.join(segment_name(segment));
        let file = private()
            .create_new(true)
            .read(true)
            .append(true)
            .open(&path)
            .map_err(StoreError::io("create", &path))?;
        Ok(Self {
            dir: dir.to_owned(),
            vault: vault.clone(),
            path,
            file,
            segment,
            len: 0,
            synced: false,
            torn: false,
            unsynced_dirs: vec![dir.to_owned()],
            buffer: Vec::new(),
            sealer: None,
            plain: Vec::new(),
        })
    }

    fn open_segment(
        &mut self,
        state: &mut State,
        now: Timestamp,
        after_loss: bool,
        life: Epoch,
    ) -> Result<Record, StoreError> {
        // Of a loop that began before lives had names.
        let life = if life.is_unknown() { new_life() } else { life };
        let record = Record {
            seq: state.seq.next(),
            time: now.max(state.time),
            loop_id: state.loop_id,
            event: LoopEvent::SegmentOpened {
                format: FORMAT,
                segment: self.segment,
                state: Box::new(state.clone()),
                after_loss,
                life,
            },
            input: None,
        };
        let of = format!("{}/{}", state.loop_id, segment_name(self.segment));
        let begun = Sealer::begin(&self.vault, of, record.time);
        self.buffer.clear();
        self.sealer = None;
        if let Some((sealer, header)) = begun.map_err(StoreError::io("seal", &self.path))? {
            self.buffer = header;
            self.sealer = Some(sealer);
        }
        self.add(std::slice::from_ref(&record));
        self.write_buffer()?;
        apply(state, &record);
        Ok(record)
    }

    /// Returns when everything that was appended is on disk and can be found there.
    ///
    /// # Errors
    /// Nothing is known any more of what is on disk, and the loop must end.
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

    /// Returns whether all that was appended is on disk.
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

/// Draws a life that no loop has had.
pub fn new_life() -> Epoch {
    Epoch::new(uuid::Uuid::new_v4())
}

/// Returns the directories from a loop's own up to the working directory.
fn way_to(dir: &Path) -> Vec<PathBuf> {
    dir.ancestors()
        .take(ABOVE_JOURNAL)
        .map(Path::to_owned)
        .collect()
}

/// Returns the working directory above a loop's own.
pub fn working_dir_of(dir: &Path) -> &Path {
    dir.ancestors().nth(ABOVE_JOURNAL - 1).unwrap_or(dir)
}

#[cfg(test)]
mod tests;
