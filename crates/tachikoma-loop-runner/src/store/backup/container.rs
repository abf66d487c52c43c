//! A backup as a file: a tar archive that begins with what is in it. This is its reader.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tachikoma_core::{LoopId, Seq, State};

use super::{Entry, FORMAT, Manifest};
use crate::git::bundle;
use crate::store::journal;
use crate::store::snapshot::{self, Snapshot};
use crate::store::vault::{Sealing, Vault, is_locked};
use crate::store::{StoreError, checkpoints, compressed, private, regular, tests_book};

/// The name of the first entry.
pub(super) const MANIFEST: &str = "manifest.json";

/// The name of the snapshot in it.
pub(super) const SNAPSHOT: &str = "state.json";

/// A manifest of ours has less than a thousand bytes.
const MANIFEST_BYTES_MAX: u64 = 64 << 10;

/// Snapshot, journal, hand-off, books of tests, work.
const FILES_MAX: usize = 5;

/// What is copied at a time.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// What a good backup holds.
#[derive(Debug)]
pub struct Content {
    /// What it says of itself.
    pub manifest: Manifest,
    /// What all of it adds up to.
    pub state: State,
}

/// Reads a backup to its end and checks all of it: every file against its checksum, and that snapshot and journal end at the
/// record that it says.
///
/// # Errors
/// It cannot be read, is damaged, or is newer than this version.
pub fn read_through(path: &Path, vault: &Vault) -> Result<Content, StoreError> {
    read(path, None, vault)
}

/// Reads a backup as [`read_through`] does, and puts what is in it, but for the snapshot, into `dir`, which is laid out like
/// the directory of a loop.
pub(in crate::store) fn read_into(
    path: &Path,
    dir: &Path,
    vault: &Vault,
) -> Result<Content, StoreError> {
    read(path, Some(dir), vault)
}

/// Returns whether a file begins like a backup of a loop, or of any. A name that was taken by a writer that died has an empty
/// file.
pub(in crate::store) fn is_ours(path: &Path, of: Option<LoopId>, vault: &Vault) -> bool {
    let is_empty =
        || std::fs::symlink_metadata(path).is_ok_and(|there| there.is_file() && there.len() == 0);
    let is_right = |manifest: Manifest| of.is_none_or(|loop_id| manifest.loop_id == loop_id);
    is_empty() || manifest_of(path, vault).is_ok_and(is_right)
}

/// Returns the number of the journal's segment that a backup has, as it says itself.
pub(in crate::store) fn segment_of(path: &Path, vault: &Vault) -> Option<u32> {
    manifest_of(path, vault).ok()?.segment
}

fn manifest_of(path: &Path, vault: &Vault) -> Result<Manifest, StoreError> {
    let mut archive = open(path, vault)?;
    let mut entries = archive.entries().map_err(unread(path))?;
    manifest(path, &mut entries)
}

type Archive = tar::Archive<Box<dyn io::BufRead>>;
type Entries<'a> = tar::Entries<'a, Box<dyn io::BufRead>>;

fn open(path: &Path, vault: &Vault) -> Result<Archive, StoreError> {
    let file = regular::open(path).map_err(StoreError::io("open", path))?;
    // By what it is, not by its name: anyone may have copied it.
    let content = compressed::content_of(file, vault).map_err(unread(path))?;
    Ok(tar::Archive::new(content))
}

pub(super) fn damaged(path: &Path, what: impl Into<String>) -> StoreError {
    StoreError::DamagedBackup {
        path: path.to_owned(),
        what: what.into(),
    }
}

/// What an error in the middle of a backup says.
fn unread(path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |error| match error.raw_os_error() {
        Some(_) => StoreError::io("read", path)(error),
        None if is_locked(&error) => StoreError::io("open", path)(error),
        // Not the disk's: what was read makes no sense.
        None => damaged(path, error.to_string()),
    }
}

fn manifest(path: &Path, entries: &mut Entries<'_>) -> Result<Manifest, StoreError> {
    #[derive(Deserialize)]
    struct Format {
        backup: u32,
    }
    let nothing = || damaged(path, "there is nothing in it");
    let entry = entries.next().ok_or_else(nothing)?.map_err(unread(path))?;
    let is_it = *entry.path_bytes() == *MANIFEST.as_bytes();
    if !is_it || entry.size() > MANIFEST_BYTES_MAX {
        return Err(damaged(path, "it does not begin with what is in it"));
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
    if !journal::is_whole(line.as_bytes()) {
        return Err(damaged(path, "the checksum of its list does not match"));
    }
    let manifest: Manifest = serde_json::from_str(line).map_err(shapeless)?;
    if manifest.files.len() > FILES_MAX {
        return Err(damaged(path, "its list is too long"));
    }
    Ok(manifest)
}

fn read(path: &Path, into: Option<&Path>, vault: &Vault) -> Result<Content, StoreError> {
    read_all(path, into, vault).map_err(|error| match error {
        StoreError::Damaged { line, what, .. } => {
            damaged(path, format!("line {line} of its journal: {what}"))
        }
        StoreError::DamagedSnapshot { what, .. } => damaged(path, format!("its snapshot: {what}")),
        StoreError::Io { .. }
        | StoreError::Sync { .. }
        | StoreError::DamagedBackup { .. }
        | StoreError::Locked { .. }
        | StoreError::Newer { .. }
        | StoreError::NewerBackup { .. }
        | StoreError::NewerSnapshot { .. } => error,
    })
}

fn read_all(path: &Path, into: Option<&Path>, vault: &Vault) -> Result<Content, StoreError> {
    let mut archive = open(path, vault)?;
    let mut entries = archive.entries().map_err(unread(path))?;
    let manifest = manifest(path, &mut entries)?;
    let mut reading = Reading {
        path,
        vault,
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
    let state = reading.finish()?;
    if entries.next().is_some() {
        return Err(damaged(path, "there is more in it than it says"));
    }
    // To the end: that is where the checksum of a compressed one is.
    let mut rest = archive.into_inner();
    loop {
        let left = rest.fill_buf().map_err(unread(path))?;
        if left.iter().any(|byte| *byte != 0) {
            return Err(damaged(path, "something stands behind its end"));
        }
        let length = left.len();
        if length == 0 {
            break;
        }
        rest.consume(length);
    }
    Ok(Content { manifest, state })
}

/// A backup as it is read.
struct Reading<'a> {
    path: &'a Path,
    vault: &'a Vault,
    into: Option<&'a Path>,
    manifest: &'a Manifest,
    snapshot: Option<Snapshot>,
    /// What the records so far add up to.
    state: Option<State>,
}

impl Reading<'_> {
    fn file<R: Read>(
        &mut self,
        expected: &Entry,
        entry: tar::Entry<'_, R>,
    ) -> Result<(), StoreError> {
        let name = &expected.name;
        let is_it = *entry.path_bytes() == *name.as_bytes();
        if !is_it || !entry.header().entry_type().is_file() || entry.size() != expected.bytes {
            return Err(damaged(
                self.path,
                format!("it does not hold {name} as it says"),
            ));
        }
        let copy = match self.into {
            // The next one is written anew.
            Some(dir) if name != SNAPSHOT => Some(create(&dir.join(name), self.vault)?),
            Some(_) | None => None,
        };
        let mut content = Tee::new(entry, copy);
        if name == SNAPSHOT {
            self.snapshot(&mut content)?;
        } else if self
            .manifest
            .segment
            .is_some_and(|number| journal::segment_name(number) == *name)
        {
            self.journal(name, &mut content)?;
        } else if !is_known(name) {
            return Err(damaged(self.path, format!("{name} is no part of a backup")));
        }
        io::copy(&mut content, &mut io::sink()).map_err(unread(self.path))?;
        if let Some(copy) = content.copy.take() {
            let copy = copy.finish().map_err(StoreError::io("write", self.path))?;
            copy.sync_all().map_err(StoreError::sync(self.path))?;
        }
        if content.entry(name.clone()) != *expected {
            return Err(damaged(
                self.path,
                format!("the checksum of {name} does not match"),
            ));
        }
        Ok(())
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
            return Err(damaged(self.path, "the snapshot does not come first"));
        };
        // What the records up to the snapshot add up to is not compared with it: an earlier version, which knew less, may have
        // written them. They only have to be whole.
        let mut state = Some(snapshot.state.clone());
        let mut last: Option<Seq> = None;
        let reader = BufReader::with_capacity(CHUNK_BYTES, content);
        journal::read_lines(&label, reader, Seq::default(), |line, record| {
            if let Some(last) = last.filter(|last| last.next() != record.seq) {
                let what = format!("record {} follows record {last}", record.seq);
                return Err(damaged(self.path, what));
            }
            last = Some(record.seq);
            if line == 1 && record.seq > snapshot.seq.next() {
                // It stands before all of them.
                state = None;
            }
            if record.seq > snapshot.seq {
                journal::take_in(&mut state, &label, line, &record)?;
            }
            Ok(())
        })?;
        if last.is_none_or(|last| last < snapshot.seq) {
            return Err(damaged(self.path, "its journal ends before its snapshot"));
        }
        self.state = state;
        Ok(())
    }

    /// Returns what all of it adds up to.
    fn finish(&mut self) -> Result<State, StoreError> {
        let lacks = || damaged(self.path, "it has no snapshot");
        let snapshot = self.snapshot.take().ok_or_else(lacks)?;
        let state = match self.state.take() {
            Some(state) => state,
            None if self.manifest.segment.is_none() => snapshot.state,
            None => return Err(damaged(self.path, "its journal has no record")),
        };
        if state.seq != self.manifest.seq || state.loop_id != self.manifest.loop_id {
            return Err(damaged(
                self.path,
                "it does not stand at the record that it says",
            ));
        }
        Ok(state)
    }
}

fn is_known(name: &str) -> bool {
    let checkpoint = || {
        let (dir, name) = name.split_once('/')?;
        (dir == checkpoints::DIR && checkpoints::is_ours(name)).then_some(())
    };
    name == tests_book::NAME || name == bundle::NAME || checkpoint().is_some()
}

fn create(path: &PathBuf, vault: &Vault) -> Result<Sealing<File>, StoreError> {
    if let Some(dir) = path.parent() {
        crate::store::make_dir(dir)?;
    }
    private()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|file| vault.writer(file))
        .map_err(StoreError::io("create", path))
}

/// Reads on, adds up a checksum, and may keep a copy.
pub(super) struct Tee<R> {
    source: R,
    copy: Option<Sealing<File>>,
    bytes: u64,
    crc: u32,
}

impl<R> Tee<R> {
    pub fn new(source: R, copy: Option<Sealing<File>>) -> Self {
        Self {
            source,
            copy,
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
            copy.write_all(&buffer[..read])?;
        }
        Ok(read)
    }
}

/// Returns a checksum as manifests have it.
pub(super) fn hex(crc: u32) -> String {
    format!("{crc:08x}")
}
