//! The journal: the truth about a loop, one checksummed record per line. `docs/journal-format.md` describes it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use tachikoma_core::{LoopEvent, LoopId, Record, Seq, State, Timestamp};

use super::{StoreError, make_dir, private, sync_dir};

mod heal;

pub use heal::{Healed, Wound};

/// The format that this version writes, and the newest it reads.
pub const FORMAT: u32 = 1;

/// A segment is closed when it has grown to this: small enough to read in a moment, large enough to be rare.
const SEGMENT_MAX_BYTES: u64 = 16 << 20;

/// The directories above a journal: the loop's, `loops`, `.ralph`, the working directory.
const ABOVE_JOURNAL: usize = 4;

/// Between the record and its checksum.
const CRC_MARK: &str = ",\"crc\":\"";

/// An open journal. Only the runner that holds the lock of the working directory has one.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
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
    ) -> Result<(Self, State), StoreError> {
        if let Some(loops) = dir.parent() {
            make_dir(loops)?;
        }
        make_dir(dir)?;
        let begun = Self::begin(dir, loop_id, now);
        if begun.is_err() {
            Self::discard(dir);
        }
        begun
    }

    fn begin(dir: &Path, loop_id: LoopId, now: Timestamp) -> Result<(Self, State), StoreError> {
        let mut state = State::new(loop_id);
        let mut journal = Self::new_segment(dir, 1)?;
        journal.unsynced_dirs = way_to(dir);
        journal.open_segment(&mut state, now, false)?;
        Ok((journal, state))
    }

    /// Takes back what [`Journal::create`] made, for a loop that never ran: left behind, it would stand in the way of
    /// the one before it.
    pub fn discard(dir: &Path) {
        // If it cannot be removed, the next run takes it up: an empty loop, and no harm.
        let _ = std::fs::remove_file(dir.join(segment_name(1)));
        let _ = std::fs::remove_dir(dir);
    }

    /// Opens the journal in `dir` and replays all of it.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or is newer than this version.
    pub fn open(dir: &Path) -> Result<(Self, State), StoreError> {
        let replayed = replay(dir)?;
        let file = private()
            .read(true)
            .append(true)
            .open(&replayed.path)
            .map_err(StoreError::io("open", &replayed.path))?;
        let mut journal = Self {
            dir: dir.to_owned(),
            path: replayed.path,
            file,
            segment: replayed.segment,
            len: replayed.len,
            synced: false,
            torn: false,
            // A runner that died young may not have come so far.
            unsynced_dirs: way_to(dir),
            buffer: Vec::new(),
        };
        journal.cut_tail()?;
        let mut state = replayed.state;
        if journal.len == 0 {
            // The runner died between making the segment and its first record.
            let now = state.time;
            journal.open_segment(&mut state, now, false)?;
        }
        Ok((journal, state))
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
        for record in records {
            encode(record, &mut self.buffer);
        }
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
        self.file
            .sync_data()
            .map_err(StoreError::sync(&self.path))?;
        let mut next = Self::new_segment(&self.dir, self.segment + 1)?;
        let opened = next.open_segment(state, now, false).inspect_err(|_| {
            // An empty segment that stays would stand in the way of the next try.
            let _ = std::fs::remove_file(&next.path);
        })?;
        next.sync()?;
        *self = next;
        Ok(opened)
    }

    fn new_segment(dir: &Path, segment: u32) -> Result<Self, StoreError> {
        let path = dir.join(segment_name(segment));
        let file = private()
            .create_new(true)
            .read(true)
            .append(true)
            .open(&path)
            .map_err(StoreError::io("create", &path))?;
        Ok(Self {
            dir: dir.to_owned(),
            path,
            file,
            segment,
            len: 0,
            synced: false,
            torn: false,
            unsynced_dirs: vec![dir.to_owned()],
            buffer: Vec::new(),
        })
    }

    fn open_segment(
        &mut self,
        state: &mut State,
        now: Timestamp,
        after_loss: bool,
    ) -> Result<Record, StoreError> {
        let record = Record {
            seq: state.seq.next(),
            time: now.max(state.time),
            loop_id: state.loop_id,
            event: LoopEvent::SegmentOpened {
                format: FORMAT,
                segment: self.segment,
                state: Box::new(state.clone()),
                after_loss,
            },
        };
        self.append(std::slice::from_ref(&record))?;
        state.apply(&record);
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

    fn cut_tail(&mut self) -> Result<(), StoreError> {
        self.file
            .set_len(self.len)
            .map_err(StoreError::io("truncate", &self.path))?;
        self.torn = false;
        Ok(())
    }
}

/// Returns the directories from a loop's own up to the working directory.
fn way_to(dir: &Path) -> Vec<PathBuf> {
    dir.ancestors()
        .take(ABOVE_JOURNAL)
        .map(Path::to_owned)
        .collect()
}

/// Returns the file name of a segment.
fn segment_name(segment: u32) -> String {
    format!("journal-{segment:04}.jsonl")
}

fn encode(record: &Record, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    serde_json::to_writer(&mut *buffer, record).expect("records are plain data with string keys");
    // The closing brace moves behind the checksum.
    buffer.pop();
    let crc = crc32c::crc32c(&buffer[start..]);
    let _ = writeln!(buffer, "{CRC_MARK}{crc:08x}\"}}");
}

fn decode(line: &str) -> Result<Record, String> {
    let (body, tail) = line.rsplit_once(CRC_MARK).ok_or("it has no checksum")?;
    // As text: a number could be written in other ways, and one flipped bit makes a capital of a letter.
    let expected = format!("{:08x}\"}}", crc32c::crc32c(body.as_bytes()));
    if tail != expected {
        return Err("its checksum does not match".to_owned());
    }
    serde_json::from_str(line).map_err(|error| format!("it is no record ({error})"))
}

/// A journal as it was read.
#[derive(Debug)]
struct Replayed {
    state: State,
    /// The last segment.
    path: PathBuf,
    segment: u32,
    /// The bytes of it that are whole records.
    len: u64,
}

/// Reads the state of the loop in `dir` without changing anything.
///
/// # Errors
/// The journal cannot be read, is damaged, or is newer than this version.
pub fn read_state(dir: &Path) -> Result<State, StoreError> {
    Ok(replay(dir)?.state)
}

/// Reads the records of the loop in `dir` that come after `after`, oldest first.
///
/// # Errors
/// The journal cannot be read or is damaged.
pub fn read_records(
    dir: &Path,
    after: Seq,
    mut each: impl FnMut(Record),
) -> Result<(), StoreError> {
    for (_, path) in segments(dir)? {
        read_segment(&path, |_, record| {
            if record.seq > after {
                each(record);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Returns when the loop in `dir` began; none where no record was ever written in full. A damaged first record may
/// still say when, and if it does not, the age of its file does.
pub(super) fn begun(dir: &Path) -> Result<Option<Timestamp>, StoreError> {
    #[derive(serde::Deserialize)]
    struct Begun {
        time: Timestamp,
    }
    let Some((_, path)) = segments(dir)?.into_iter().next() else {
        return Ok(None);
    };
    let file = File::open(&path).map_err(StoreError::io("open", &path))?;
    let mut line = Vec::new();
    BufReader::new(&file)
        .read_until(b'\n', &mut line)
        .map_err(StoreError::io("read", &path))?;
    if line.pop() != Some(b'\n') {
        return Ok(None);
    }
    if let Ok(begun) = serde_json::from_slice::<Begun>(&line) {
        return Ok(Some(begun.time));
    }
    let modified = file
        .metadata()
        .and_then(|metadata| metadata.modified())
        .map_err(StoreError::io("look at", &path))?;
    Ok(Some(crate::clock::timestamp_of(modified)))
}

fn replay(dir: &Path) -> Result<Replayed, StoreError> {
    let segments = segments(dir)?;
    let Some((segment, last)) = segments.last().cloned() else {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(StoreError::io("find a journal in", dir)(source));
    };
    let mut state: Option<State> = None;
    let mut len = 0;
    for (_, path) in &segments {
        len = read_segment(path, |line, record| {
            take_in(&mut state, path, line, &record)
        })?;
    }
    let state = state.ok_or_else(|| StoreError::Damaged {
        path: last.clone(),
        line: 1,
        what: "it holds no whole record".to_owned(),
    })?;
    Ok(Replayed {
        state,
        path: last,
        segment,
        len,
    })
}

fn take_in(
    state: &mut Option<State>,
    path: &Path,
    line: usize,
    record: &Record,
) -> Result<(), StoreError> {
    let damaged = |what: &str| StoreError::Damaged {
        path: path.to_owned(),
        line,
        what: what.to_owned(),
    };
    if let LoopEvent::SegmentOpened {
        state: full,
        after_loss,
        ..
    } = &record.event
    {
        // A loop goes on from the oldest segment that is there, and from one that was begun because others were lost.
        let known = state.get_or_insert_with(|| (**full).clone());
        if *after_loss && full.seq > known.seq {
            known.clone_from(full);
        }
    }
    let state = state
        .as_mut()
        .ok_or_else(|| damaged("the segment does not begin with the full state"))?;
    if record.seq != state.seq.next() {
        return Err(damaged(&format!(
            "record {} follows record {}",
            record.seq, state.seq
        )));
    }
    state.apply(record);
    Ok(())
}

/// Reads whole records and returns how many bytes they take. A last line without its end was never acknowledged:
/// the runner died while it wrote.
fn read_segment(
    path: &Path,
    mut each: impl FnMut(usize, Record) -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let file = File::open(path).map_err(StoreError::io("open", path))?;
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    let mut len = 0;
    for line in 1.. {
        text.clear();
        let read = reader
            .read_until(b'\n', &mut text)
            .map_err(StoreError::io("read", path))?;
        if text.pop() != Some(b'\n') {
            break;
        }
        if let Some(found) = format_of(&text).filter(|_| line == 1)
            && found > FORMAT
        {
            return Err(StoreError::Newer {
                path: path.to_owned(),
                found,
                supported: FORMAT,
            });
        }
        let record = std::str::from_utf8(&text)
            .map_err(|_| "it is not UTF-8".to_owned())
            .and_then(decode)
            .map_err(|what| StoreError::Damaged {
                path: path.to_owned(),
                line,
                what,
            })?;
        each(line, record)?;
        len += read as u64;
    }
    Ok(len)
}

/// Returns the format that the first record of a segment names, whatever else a newer version may have put there.
fn format_of(line: &[u8]) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct First {
        event: Opened,
    }
    #[derive(serde::Deserialize)]
    struct Opened {
        format: u32,
    }
    serde_json::from_slice::<First>(line)
        .ok()
        .map(|first| first.event.format)
}

fn segments(dir: &Path) -> Result<Vec<(u32, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(StoreError::io("list", dir))? {
        let entry = entry.map_err(StoreError::io("list", dir))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| {
            name.strip_prefix("journal-")?
                .strip_suffix(".jsonl")?
                .parse()
                .ok()
        });
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests;
