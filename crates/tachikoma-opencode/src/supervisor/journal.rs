//! The supervisor's journal: one file of checksummed lines with a limited size. A full file is replaced by one that starts with
//! the full state.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tachikoma_core::supervise::{ServerEvent, ServerRecord, ServerState, apply};
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::{FsError, is_missing, private, safe_read};

use tachikoma_store::StoreError;
use tachikoma_store::checked_line::{check_sum, encode};

/// Name of the supervisor's journal.
const NAME: &str = "journal.jsonl";

/// Name of a damaged journal that was moved away.
const DAMAGED: &str = "journal.damaged.jsonl";

/// Size in bytes at which the journal is replaced by one with the full state. It has thousands of events: a crash loop without
/// delays fills it in a minute.
const BYTES_MAX: u64 = 1 << 20;

/// Maximum size in bytes for reading. The records of one step may exceed `BYTES_MAX`.
const READ_BYTES_MAX: u64 = 2 * BYTES_MAX;

/// Returns whether a file name is that of a journal.
pub(super) fn is_ours(name: &str) -> bool {
    [NAME, DAMAGED].contains(&name)
}

/// An open journal. Only the supervisor that holds the lock has one.
#[derive(Debug)]
pub(super) struct ServerJournal {
    path: PathBuf,
    file: File,
    len: u64,
    buffer: Vec<u8>,
}

/// An opened journal and the state after its last record.
#[derive(Debug)]
pub(super) struct Opened {
    pub journal: ServerJournal,
    pub state: ServerState,
    /// Description of the damage; `None` if the file is undamaged. Records after the damage are lost; they have counters, not work.
    pub damage: Option<String>,
}

/// Content of a journal file.
#[derive(Debug, Default)]
struct Content {
    records: Vec<ServerRecord>,
    /// Length in bytes of the complete records at the beginning of the file.
    len: usize,
    /// The first damaged line, or why the file cannot be a journal; `None` if the file is undamaged.
    damage: Option<String>,
}

impl Content {
    /// Reads a journal file. A missing file has no records.
    fn read(path: &Path) -> Result<Self, StoreError> {
        match safe_read::read(path, READ_BYTES_MAX) {
            Ok(bytes) => Ok(parse(&bytes)),
            Err(error) if is_missing(&error) => Ok(Self::default()),
            Err(error) => Err(StoreError::io("read", path)(error)),
        }
    }
}

impl ServerJournal {
    /// Opens the journal in `dir`, or creates it.
    ///
    /// # Errors
    /// The journal cannot be read or written.
    pub fn open(dir: &Path) -> Result<Opened, StoreError> {
        let path = dir.join(NAME);
        let read = match Content::read(&path) {
            // It is a symbolic link, not a regular file, or too large.
            Err(StoreError::File(FsError::Io { source, .. }))
                if source.kind() == std::io::ErrorKind::InvalidData =>
            {
                Content {
                    damage: Some(source.to_string()),
                    ..Content::default()
                }
            }
            read => read?,
        };
        if read.damage.is_some() {
            // An earlier damaged journal at this path is overwritten.
            let aside = dir.join(DAMAGED);
            std::fs::rename(&path, &aside).map_err(StoreError::io("move away", &path))?;
        }
        let mut state = ServerState::default();
        read.records
            .iter()
            .for_each(|record| apply(&mut state, record));
        let file = append_to(&path)?;
        let len = match &read.damage {
            Some(_) => 0,
            None => read.len as u64,
        };
        // An incomplete last line is removed. No effect was performed for its record.
        file.set_len(len)
            .map_err(StoreError::io("truncate", &path))?;
        let journal = Self {
            path,
            file,
            len,
            buffer: Vec::new(),
        };
        Ok(Opened {
            journal,
            state,
            damage: read.damage,
        })
    }

    /// Appends records, and returns when they are on disk. After an error, a partially written record is removed.
    ///
    /// # Errors
    /// The records could not be written.
    pub fn append(&mut self, records: &[ServerRecord]) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        self.buffer.clear();
        for record in records {
            encode(record, &mut self.buffer);
        }
        if let Err(source) = self.file.write_all(&self.buffer) {
            // If this fails, too, the next start removes the incomplete record.
            let _ = self.file.set_len(self.len);
            return Err(StoreError::io("write", &self.path)(source));
        }
        self.len += self.buffer.len() as u64;
        self.file.sync_data().map_err(StoreError::sync(&self.path))
    }

    /// Replaces a full journal by one with the full state.
    ///
    /// # Errors
    /// The new file cannot be written. The old one stays in use.
    pub fn rotate(&mut self, state: &mut ServerState) -> Result<(), StoreError> {
        if self.len < BYTES_MAX {
            return Ok(());
        }
        self.renew(state)
    }

    /// Replaces the journal by one with the full state.
    ///
    /// # Errors
    /// The new file cannot be written.
    pub fn renew(&mut self, state: &mut ServerState) -> Result<(), StoreError> {
        let record = ServerRecord {
            seq: state.seq.next(),
            time: state.time,
            event: ServerEvent::JournalOpened {
                state: Box::new(state.clone()),
            },
        };
        let mut line = Vec::new();
        encode(&record, &mut line);
        write_whole(&self.path, &line, Durability::Synced)?;
        state.seq = record.seq;
        self.file = append_to(&self.path)?;
        self.len = line.len() as u64;
        Ok(())
    }
}

/// Reads the records in `dir`, oldest first, without changing the file. Damaged records are left out.
///
/// # Errors
/// The file cannot be read.
pub fn read_records(dir: &Path) -> Result<Vec<ServerRecord>, StoreError> {
    Ok(Content::read(&dir.join(NAME))?.records)
}

fn append_to(path: &Path) -> Result<File, StoreError> {
    private()
        .create(true)
        .read(true)
        .append(true)
        .open(path)
        .map_err(StoreError::io("open", path))
}

/// Parses the complete lines. An incomplete last line is the result of a crash. Any other invalid line counts as damage.
fn parse(bytes: &[u8]) -> Content {
    let mut read = Content::default();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match record(line) {
            Ok(record) => {
                read.records.push(record);
                read.len += line.len();
            }
            Err(_) if read.len + line.len() == bytes.len() && !line.ends_with(b"\n") => break,
            Err(what) => {
                let number = read.records.len() + 1;
                read.damage = Some(format!("line {number}: {what}"));
                break;
            }
        }
    }
    read
}

fn record(line: &[u8]) -> Result<ServerRecord, String> {
    let line = std::str::from_utf8(line).map_err(|error| error.to_string())?;
    let line = line.strip_suffix('\n').ok_or("the line is incomplete")?;
    check_sum(line)?;
    serde_json::from_str(line).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tachikoma_core::supervise::{Jitter, ServerInput, ServerPolicy, StartedBy, step};
    use tachikoma_core::{Exit, Timestamp};

    /// Simulates `times` crashes of a server and writes their records to the journal.
    fn crash(opened: &mut Opened, times: u64) {
        let policy = ServerPolicy {
            max_restart_attempts: 0,
            ..ServerPolicy::default()
        };
        let state = &mut opened.state;
        for _ in 0..times {
            let now = Timestamp::from_millis(state.time.as_millis() + 100_000);
            let input = match state.generation.0 {
                0 => ServerInput::Supervise {
                    pid: 1,
                    by: StartedBy::Command,
                },
                _ => ServerInput::Wake,
            };
            let started = step(&policy, state, now, Jitter(0), input);
            let died = ServerInput::Exited {
                generation: state.generation,
                exit: Exit::Code(1),
                leftovers: Vec::new(),
            };
            let died = step(&policy, state, now, Jitter(0), died);
            opened.journal.append(&started.records).unwrap();
            opened.journal.append(&died.records).unwrap();
            opened.journal.rotate(state).unwrap();
        }
    }

    #[test]
    fn journal_restores_counters_and_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = ServerJournal::open(dir.path()).unwrap();
        crash(&mut opened, 20);
        let again = ServerJournal::open(dir.path()).unwrap();
        assert_eq!(again.state, opened.state);
        assert_eq!((again.state.crashes_total, again.damage), (20, None));
        let size = || std::fs::metadata(dir.path().join(NAME)).unwrap().len();
        while size() < BYTES_MAX - 4096 {
            // Only the size matters here, so the records are written without syncs.
            let bytes = std::fs::read(dir.path().join(NAME)).unwrap();
            opened.journal.file.write_all(&bytes).unwrap();
            opened.journal.len += bytes.len() as u64;
        }
        crash(&mut opened, 40);
        assert!(size() < BYTES_MAX / 2, "{}", size());
        let again = ServerJournal::open(dir.path()).unwrap();
        assert_eq!(again.state, opened.state);
        assert_eq!(again.state.crashes_total, 60);
    }

    #[test]
    fn journal_drops_an_incomplete_last_line_and_renames_a_damaged_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = ServerJournal::open(dir.path()).unwrap();
        crash(&mut opened, 3);
        let path = dir.path().join(NAME);
        let whole = std::fs::read(&path).unwrap();
        for cut in 1..60 {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let again = ServerJournal::open(dir.path()).unwrap();
            assert_eq!(again.damage, None, "{cut}");
            assert!(std::fs::read(&path).unwrap().ends_with(b"}\n"), "{cut}");
        }
        let mut flipped = whole.clone();
        flipped[40] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        let again = ServerJournal::open(dir.path()).unwrap();
        assert_eq!(
            again.damage.as_deref(),
            Some("line 1: its checksum does not match")
        );
        assert_eq!(std::fs::read(dir.path().join(DAMAGED)).unwrap(), flipped);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn symbolic_link_is_an_error_for_readers_and_is_replaced_by_the_supervisor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        let error = read_records(dir.path()).unwrap_err();
        assert!(error.to_string().contains(NAME), "{error}");
        let opened = ServerJournal::open(dir.path()).unwrap();
        assert!(opened.damage.is_some());
        assert!(path.metadata().unwrap().is_file());
        assert!(dir.path().join(DAMAGED).is_symlink());
    }
}
