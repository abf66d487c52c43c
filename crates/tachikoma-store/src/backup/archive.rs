//! Writes a backup. The tar archive is produced while it is read, so that it can be compressed and encrypted at the same time.

use std::fs::File;
use std::io::{self, BufRead, Cursor, Read, Seek as _, Write as _};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use tachikoma_core::{Seq, SessionNo};
use tachikoma_fs::safe_read;

use super::BUNDLE_NAME;
use super::container::{CHUNK_BYTES, MANIFEST, SNAPSHOT, Tee, hex};
use super::{Backups, Entry, FORMAT, Manifest, Moment};
use crate::encryption::{self, Encryption};
use crate::journal::JournalPart;
use crate::snapshot::Packing;
use crate::{checked_line, checkpoints, compressed, journal, test_history};

/// Block size of a tar archive in bytes.
const BLOCK: u64 = 512;

/// One file of a backup with its content.
struct Part {
    entry: Entry,
    content: Box<dyn Read>,
}

/// Writes a backup. Only its small files are loaded into memory.
pub fn write(
    target: &mut File,
    moment: &Moment,
    backups: &Backups,
    canceled: &AtomicBool,
) -> io::Result<()> {
    let mut archive = archive(moment, &backups.encryption)?;
    let mut target = backups.encryption.writer(target)?;
    match backups.packing {
        Packing::Compressed => compressed::pack(&mut archive, &mut target, canceled)?,
        Packing::Plain => {
            let mut chunk = vec![0; CHUNK_BYTES];
            loop {
                compressed::fail_if_canceled(canceled)?;
                let read = archive.read(&mut chunk)?;
                if read == 0 {
                    break;
                }
                target.write_all(&chunk[..read])?;
            }
        }
    }
    target.finish().map(drop)
}

/// Returns a reader of the tar archive before compression and encryption.
fn archive(moment: &Moment, encryption: &Encryption) -> io::Result<Box<dyn Read>> {
    let parts = parts(moment, encryption)?;
    let snapshot = &moment.snapshot;
    let manifest = Manifest {
        backup: FORMAT,
        tachikoma: env!("CARGO_PKG_VERSION").to_owned(),
        loop_id: snapshot.loop_id,
        seq: snapshot.seq,
        epoch: snapshot.state.epoch.clone(),
        before_restore: moment.before_restore,
        taken_at: snapshot.saved_at,
        iteration: snapshot.core.iteration,
        status: snapshot.core.status,
        segment: moment.journal.as_ref().map(|journal| journal.segment),
        files: parts.iter().map(|part| part.entry.clone()).collect(),
    };
    let mut line = Vec::new();
    checked_line::encode(&manifest, &mut line);
    let parts = std::iter::once(part_of(MANIFEST.to_owned(), line)).chain(parts);
    let seconds = u64::try_from(snapshot.saved_at.as_millis() / 1_000).unwrap_or(0);
    let mut archive: Box<dyn Read> = Box::new(io::empty());
    for Part { entry, content } in parts {
        let mut header = tar::Header::new_ustar();
        header.set_path(&entry.name)?;
        header.set_size(entry.bytes);
        header.set_mode(0o600);
        header.set_mtime(seconds);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        let padding = entry.bytes.next_multiple_of(BLOCK) - entry.bytes;
        let file = Cursor::new(*header.as_bytes())
            .chain(content.take(entry.bytes))
            .chain(io::repeat(0).take(padding));
        archive = Box::new(archive.chain(file));
    }
    Ok(Box::new(archive.chain(io::repeat(0).take(2 * BLOCK))))
}

fn parts(moment: &Moment, encryption: &Encryption) -> io::Result<Vec<Part>> {
    let snapshot = &moment.snapshot;
    let original = moment.original.clone();
    let text = original.unwrap_or_else(|| snapshot.encode().into_bytes());
    let mut parts = vec![part_of(SNAPSHOT.to_owned(), text)];
    if let Some(part) = &moment.journal {
        let open = || beginning(part, snapshot.seq, encryption);
        let mut crc = Tee::new(open()?, None);
        io::copy(&mut crc, &mut io::sink())?;
        let name = journal::segment_name(part.segment);
        let content = open()?;
        parts.push(Part {
            entry: crc.entry(name),
            content,
        });
    }
    let dir = &moment.loop_dir;
    let session = snapshot.state.session.number;
    // A backup without hand-off or test history is valid.
    if let Ok(Some(text)) = checkpoints::read(dir, session, encryption) {
        parts.push(part_of(checkpoint_name(session), text.into_bytes()));
    }
    if let Ok(bytes) = encryption.read(&test_history::path_of(dir), test_history::BYTES_MAX) {
        parts.push(part_of(test_history::NAME.to_owned(), bytes));
    }
    if let Some(path) = &moment.work {
        let mut file = safe_read::open(path)?;
        let mut crc = Tee::new(&mut file, None);
        io::copy(&mut crc, &mut io::sink())?;
        let entry = crc.entry(BUNDLE_NAME.to_owned());
        file.rewind()?;
        let content = Box::new(file);
        parts.push(Part { entry, content });
    }
    Ok(parts)
}

/// Returns the lines of a segment up to a record. The last line gets a line end, because more lines may follow after a restore.
fn beginning(part: &JournalPart, seq: Seq, encryption: &Encryption) -> io::Result<Box<dyn Read>> {
    let is_encrypted = encryption::is_encrypted(&part.path) || !encryption.is_plain();
    let content = compressed::open(&part.path, encryption)?.content;
    if !is_encrypted {
        let end: &[u8] = if part.unended { b"\n" } else { b"" };
        return Ok(Box::new(content.take(part.len).chain(end)));
    }
    // `part.len` is the encrypted length, so the decrypted lines are read up to the record number.
    let line = Cursor::new(Vec::new());
    Ok(Box::new(UpTo {
        content,
        seq,
        line,
        is_over: false,
    }))
}

/// Reader that returns the lines of a segment up to a record.
struct UpTo<R> {
    content: R,
    seq: Seq,
    line: Cursor<Vec<u8>>,
    is_over: bool,
}

impl<R: BufRead> Read for UpTo<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.line.read(buffer)?;
        if read > 0 || self.is_over || buffer.is_empty() {
            return Ok(read);
        }
        let mut line = std::mem::take(self.line.get_mut());
        line.clear();
        self.content.read_until(b'\n', &mut line)?;
        if line.last().is_some_and(|last| *last != b'\n') {
            line.push(b'\n');
        }
        self.is_over = line.is_empty() || journal::seq_of(&line) == Some(self.seq.0);
        self.line = Cursor::new(line);
        self.line.read(buffer)
    }
}

fn part_of(name: String, bytes: Vec<u8>) -> Part {
    let entry = Entry {
        name,
        bytes: bytes.len() as u64,
        crc32c: hex(crc32c::crc32c(&bytes)),
    };
    let content = Box::new(Cursor::new(bytes));
    Part { entry, content }
}

fn checkpoint_name(session: SessionNo) -> String {
    checkpoints::path_of(Path::new(checkpoints::DIR), session)
        .display()
        .to_string()
}
