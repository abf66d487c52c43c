//! Reads a backup: a tar archive that starts with a manifest.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tachikoma_core::{Seq, State};
use tachikoma_fs::{private, safe_read};

use super::{BUNDLE_BYTES_MAX, BUNDLE_NAME, Entry, FORMAT, Manifest};
use crate::encryption::{EncryptingWriter, Encryption};
use crate::snapshot::{self, Snapshot};
use crate::{StoreError, checked_line, checkpoints, compressed, is_locked, journal, test_history};

/// Name of the first entry of a backup.
pub const MANIFEST: &str = "manifest.json";

/// Name of the entry with the snapshot.
pub const SNAPSHOT: &str = "state.json";

/// Maximum size of a manifest in bytes. A real one has less than a thousand.
const MANIFEST_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of files: snapshot, journal, hand-off, test history and git bundle.
const FILES_MAX: usize = 5;

/// Maximum size of the journal segment in a backup, in bytes. A segment is closed long before it is that large.
const JOURNAL_BYTES_MAX: u64 = 16 * journal::SEGMENT_MAX_BYTES;

/// Maximum number of zero bytes after the last entry. Tar adds them as padding.
const PADDING_BYTES_MAX: usize = 1 << 20;

/// Size of the read buffer in bytes.
pub const CHUNK_BYTES: usize = 64 << 10;

/// Content of a valid backup.
#[derive(Debug)]
pub struct Content {
    /// The manifest of the backup.
    pub manifest: Manifest,
    /// The state after the last record.
    pub state: State,
    /// The working directory of the loop.
    pub working_dir: PathBuf,
}

/// Reads a backup to its end and checks the checksums of all files. Also checks that snapshot and journal end at the record in the
/// manifest.
///
/// # Errors
/// The backup cannot be read, is damaged, or was written by a newer version.
pub fn read_through(path: &Path, encryption: &Encryption) -> Result<Content, StoreError> {
    read(path, None, encryption)
}

/// Checks a backup like [`read_through`] and extracts all files except the snapshot into `dir`, which gets the layout of a loop's
/// directory.
pub fn read_into(path: &Path, dir: &Path, encryption: &Encryption) -> Result<Content, StoreError> {
    read(path, Some(dir), encryption)
}

/// Reads only the manifest of a backup.
pub fn manifest_of(path: &Path, encryption: &Encryption) -> Result<Manifest, StoreError> {
    let mut archive = open(path, encryption)?;
    manifest(path, &mut entries(path, &mut archive)?)
}

type Archive = tar::Archive<Box<dyn io::BufRead>>;
type Entries<'a> = tar::Entries<'a, Box<dyn io::BufRead>>;

fn open(path: &Path, encryption: &Encryption) -> Result<Archive, StoreError> {
    let file = safe_read::open(path).map_err(StoreError::io("open", path))?;
    // The format is recognized by the content, because the file may have been renamed.
    let content = compressed::content_of(file, encryption).map_err(unread(path))?;
    Ok(tar::Archive::new(content))
}

/// Returns the entries without tar extensions such as long names, which this program does not write.
fn entries<'a>(path: &Path, archive: &'a mut Archive) -> Result<Entries<'a>, StoreError> {
    Ok(archive.entries().map_err(unread(path))?.raw(true))
}

pub fn damaged(path: &Path, what: impl Into<String>) -> StoreError {
    StoreError::DamagedBackup {
        path: path.to_owned(),
        what: what.into(),
    }
}

/// Returns a conversion of errors while a backup is read: errors of the format become damage.
fn unread(path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |error| match error.raw_os_error() {
        Some(_) => StoreError::io("read", path)(error),
        None if is_locked(&error) => StoreError::io("open", path)(error),
        // Errors without an error code of the system are errors of the format.
        None => damaged(path, error.to_string()),
    }
}

fn manifest(path: &Path, entries: &mut Entries<'_>) -> Result<Manifest, StoreError> {
    #[derive(Deserialize)]
    struct Format {
        backup: u32,
    }
    let nothing = || damaged(path, "it is empty");
    let entry = entries.next().ok_or_else(nothing)?.map_err(unread(path))?;
    let is_it =
        entry.header().entry_type().is_file() && *entry.path_bytes() == *MANIFEST.as_bytes();
    if !is_it || entry.size() > MANIFEST_BYTES_MAX {
        return Err(damaged(path, "it does not begin with its manifest"));
    }
    let mut text = String::new();
    let mut entry = entry.take(MANIFEST_BYTES_MAX);
    entry.read_to_string(&mut text).map_err(unread(path))?;
    let line = text.trim_end_matches('\n');
    let shapeless = |error: serde_json::Error| damaged(path, error.to_string());
    let Format { backup } = serde_json::from_str(line).map_err(shapeless)?;
    if backup > FORMAT {
        return Err(StoreError::NewerBackup {
            path: path.to_owned(),
            found: backup,
            supported: FORMAT,
        });
    }
    if !checked_line::is_whole(line.as_bytes()) {
        return Err(damaged(path, "the checksum of its manifest does not match"));
    }
    let manifest: Manifest = serde_json::from_str(line).map_err(shapeless)?;
    // After this number, there is no number for the next segment.
    if manifest.segment == Some(u32::MAX) {
        return Err(damaged(
            path,
            "the number of its journal segment is invalid",
        ));
    }
    if manifest.files.len() > FILES_MAX {
        return Err(damaged(path, "its manifest lists too many files"));
    }
    let mut names = BTreeSet::new();
    for Entry { name, bytes, .. } in &manifest.files {
        let Some(max) = bytes_max(&manifest, name) else {
            return Err(damaged(path, format!("{name} does not belong in a backup")));
        };
        if !names.insert(name) {
            return Err(damaged(path, format!("its manifest lists {name} twice")));
        }
        if *bytes > max {
            return Err(damaged(path, format!("{name} exceeds the size limit")));
        }
    }
    Ok(manifest)
}

/// Returns the size limit of a file in a backup; `None` if backups have no such file.
fn bytes_max(manifest: &Manifest, name: &str) -> Option<u64> {
    let is_checkpoint = |name: &str| {
        let below = name.split_once('/');
        below.is_some_and(|(dir, name)| dir == checkpoints::DIR && checkpoints::is_ours(name))
    };
    match name {
        SNAPSHOT => Some(snapshot::BYTES_MAX),
        test_history::NAME => Some(test_history::BYTES_MAX),
        BUNDLE_NAME => Some(BUNDLE_BYTES_MAX),
        name if is_journal(manifest, name) => Some(JOURNAL_BYTES_MAX),
        name if is_checkpoint(name) => Some(checkpoints::BYTES_MAX),
        _ => None,
    }
}

fn is_journal(manifest: &Manifest, name: &str) -> bool {
    let segment = manifest.segment.map(journal::segment_name);
    segment.is_some_and(|segment| segment == name)
}

fn read(path: &Path, into: Option<&Path>, encryption: &Encryption) -> Result<Content, StoreError> {
    read_all(path, into, encryption).map_err(|error| match error {
        StoreError::Damaged { line, what, .. } => {
            damaged(path, format!("line {line} of its journal: {what}"))
        }
        StoreError::DamagedSnapshot { what, .. } => damaged(path, format!("its snapshot: {what}")),
        _ => error,
    })
}

fn read_all(
    path: &Path,
    into: Option<&Path>,
    encryption: &Encryption,
) -> Result<Content, StoreError> {
    let mut archive = open(path, encryption)?;
    let mut entries = entries(path, &mut archive)?;
    let manifest = manifest(path, &mut entries)?;
    let mut reading = Reading {
        path,
        encryption,
        into,
        manifest: &manifest,
        snapshot: None,
        state: None,
    };
    for expected in &manifest.files {
        let missing = || damaged(path, format!("{} is missing", expected.name));
        let entry = entries.next().ok_or_else(missing)?.map_err(unread(path))?;
        reading.file(expected, entry)?;
    }
    let (state, working_dir) = reading.finish()?;
    if entries.next().is_some() {
        return Err(damaged(
            path,
            "it has files that its manifest does not list",
        ));
    }
    // The rest is read to check the checksum at the end of a compressed file.
    let mut rest = archive.into_inner();
    let mut padding = 0;
    loop {
        let left = rest.fill_buf().map_err(unread(path))?;
        padding += left.len();
        if left.iter().any(|byte| *byte != 0) || padding > PADDING_BYTES_MAX {
            return Err(damaged(path, "there is data after the end of the archive"));
        }
        let length = left.len();
        if length == 0 {
            break;
        }
        rest.consume(length);
    }
    Ok(Content {
        manifest,
        state,
        working_dir,
    })
}

/// State of reading a backup.
struct Reading<'a> {
    path: &'a Path,
    encryption: &'a Encryption,
    into: Option<&'a Path>,
    manifest: &'a Manifest,
    snapshot: Option<Snapshot>,
    /// State of the loop after the records that were read; `None` before the snapshot is read.
    state: Option<State>,
}

impl Reading<'_> {
    fn damaged(&self, what: impl Into<String>) -> StoreError {
        damaged(self.path, what)
    }

    fn file<R: Read>(
        &mut self,
        expected: &Entry,
        entry: tar::Entry<'_, R>,
    ) -> Result<(), StoreError> {
        let name = &expected.name;
        let is_it = *entry.path_bytes() == *name.as_bytes();
        if !is_it || !entry.header().entry_type().is_file() || entry.size() != expected.bytes {
            return Err(self.damaged(format!("{name} is not as its manifest describes it")));
        }
        // The snapshot is not extracted, because the restored loop writes a new one.
        let copy = self.into.filter(|_| name != SNAPSHOT);
        let copy = copy.map(|dir| dir.join(name));
        let encryption = match name.as_str() {
            // The bundle is extracted without encryption, because git has to read it.
            BUNDLE_NAME => Encryption::plain(),
            _ => self.encryption.clone(),
        };
        let file = copy
            .as_ref()
            .map(|copy| create(copy, &encryption))
            .transpose()?;
        let mut content = Tee::new(entry, file);
        let read = self.content(name, &mut content);
        if let (Some(failed), Some(copy)) = (content.failed.take(), &copy) {
            return Err(StoreError::io("write", copy)(failed));
        }
        read?;
        if let (Some(file), Some(copy)) = (content.copy.take(), &copy) {
            let file = file.finish().map_err(StoreError::io("write", copy))?;
            file.sync_all().map_err(StoreError::sync(copy))?;
        }
        if content.entry(name.clone()) != *expected {
            return Err(self.damaged(format!("the checksum of {name} does not match")));
        }
        Ok(())
    }

    /// Reads a file of the backup to its end. Snapshot and journal are also parsed.
    fn content(&mut self, name: &str, content: &mut impl Read) -> Result<(), StoreError> {
        if name == SNAPSHOT {
            self.snapshot(content)?;
        } else if is_journal(self.manifest, name) {
            self.journal(name, content)?;
        }
        let read = io::copy(content, &mut io::sink());
        read.map(drop).map_err(unread(self.path))
    }

    fn snapshot(&mut self, content: &mut impl Read) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        content
            .take(snapshot::BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(unread(self.path))?;
        let label = self.path.join(SNAPSHOT);
        self.snapshot = Some(snapshot::from_bytes(&label, &bytes)?);
        Ok(())
    }

    fn journal(&mut self, name: &str, content: &mut impl Read) -> Result<(), StoreError> {
        let label = self.path.join(name);
        let Some(snapshot) = &self.snapshot else {
            return Err(self.damaged("its snapshot does not come before its journal"));
        };
        // Records before the snapshot only have to be valid. Their state is not compared with the snapshot, because an earlier
        // version may have written it.
        let mut state = Some(snapshot.state.clone());
        let mut last: Option<Seq> = None;
        let reader = BufReader::with_capacity(CHUNK_BYTES, content);
        journal::read_lines((&label, 1), reader, Seq::default(), |line, record| {
            let record = record?;
            if let Some(last) = last.filter(|last| last.next() != record.seq) {
                let what = format!("record {} follows record {last}", record.seq);
                return Err(self.damaged(what));
            }
            last = Some(record.seq);
            if line == 1 && record.seq > snapshot.seq.next() {
                // All records are newer than the snapshot, so the state comes from the first record of the segment.
                state = None;
            }
            if record.seq > snapshot.seq {
                journal::apply_record(&mut state, &label, line, &record)?;
            }
            Ok(())
        })?;
        if last.is_none_or(|last| last < snapshot.seq) {
            return Err(self.damaged("its journal ends before its snapshot"));
        }
        self.state = state;
        Ok(())
    }

    /// Returns the state after the last record, and the working directory of the loop.
    fn finish(&mut self) -> Result<(State, PathBuf), StoreError> {
        let Some(snapshot) = self.snapshot.take() else {
            return Err(self.damaged("it has no snapshot"));
        };
        let state = match self.state.take() {
            Some(state) => state,
            None if self.manifest.segment.is_none() => snapshot.state,
            None => return Err(self.damaged("its journal has no record")),
        };
        if state.seq != self.manifest.seq || state.loop_id != self.manifest.loop_id {
            return Err(self.damaged("it does not end at the record that its manifest names"));
        }
        Ok((state, snapshot.core.working_dir))
    }
}

fn create(path: &PathBuf, encryption: &Encryption) -> Result<EncryptingWriter<File>, StoreError> {
    if let Some(dir) = path.parent() {
        tachikoma_fs::make_dir(dir)?;
    }
    private()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|file| encryption.writer(file))
        .map_err(StoreError::io("create", path))
}

/// Reader that computes a checksum of the data and can write a copy.
pub struct Tee<R> {
    source: R,
    copy: Option<EncryptingWriter<File>>,
    /// Error while the copy was written, which made it incomplete; `None` if there was none.
    failed: Option<io::Error>,
    bytes: u64,
    crc: u32,
}

impl<R> Tee<R> {
    pub fn new(source: R, copy: Option<EncryptingWriter<File>>) -> Self {
        Self {
            source,
            copy,
            failed: None,
            bytes: 0,
            crc: 0,
        }
    }

    pub fn entry(&self, name: String) -> Entry {
        Entry {
            name,
            bytes: self.bytes,
            crc32c: hex(self.crc),
        }
    }
}

impl<R: Read> Read for Tee<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.crc = crc32c::crc32c_append(self.crc, &buffer[..read]);
        self.bytes += read as u64;
        if let Some(copy) = &mut self.copy {
            copy.write_all(&buffer[..read]).map_err(|error| {
                self.failed = Some(error);
                io::Error::other("its copy cannot be written")
            })?;
        }
        Ok(read)
    }
}

/// Returns a checksum in the format of the manifest.
pub fn hex(crc: u32) -> String {
    format!("{crc:08x}")
}
