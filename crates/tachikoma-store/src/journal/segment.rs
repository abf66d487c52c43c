//! The segments of a journal as files: their names, and their compression once they are closed.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use tachikoma_core::LoopEvent;
use tachikoma_fs::sync_dir;
use tachikoma_fs::whole::{Durability, write_whole};

use super::{StoreError, segments};
use crate::compressed::{self, Form, form_of};
use crate::vault::Vault;

/// The segments of a journal that are never written to again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The directory of the loop.
    pub dir: PathBuf,
    /// Encrypts and decrypts the segments.
    pub vault: Vault,
    /// The number of the segment that is written.
    pub before: u32,
}

impl Closed {
    /// Compresses those that are not yet, and removes what a writer that died had begun.
    ///
    /// # Errors
    /// The first one that could not be compressed stays as it is, and so do those behind it.
    pub fn compress(&self, called_off: &AtomicBool) -> Result<(), StoreError> {
        self.remove_remains()
            .map_err(StoreError::io("tidy up", &self.dir))?;
        for (number, path) in segments(&self.dir)? {
            if number < self.before && !compressed::is_compressed(&path) {
                compressed::replace(&path, &self.vault, called_off)
                    .map_err(StoreError::io("compress", &path))?;
            }
        }
        Ok(())
    }

    fn remove_remains(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_name().to_str().and_then(form) == Some(Form::UnderWay) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Returns the number of the segment that a whole file holds, plain or compressed.
pub fn number(name: &str) -> Option<u32> {
    match form_of(name) {
        (plain, Form::Plain | Form::Compressed) => number_of(plain),
        (_, Form::UnderWay) => None,
    }
}

/// Returns in which form a file of that name holds a segment; none if it is no file of a journal.
pub fn form(name: &str) -> Option<Form> {
    let (plain, form) = form_of(name);
    number_of(plain).map(|_| form)
}

/// Returns whether a file of that name in the directory of a loop is one of a journal, in whatever form: also one that a
/// runner left which died while it restored a segment.
pub fn is_ours(name: &str) -> bool {
    let restored = || {
        let (plain, pid) = name.strip_suffix(".tmp")?.rsplit_once('.')?;
        pid.parse::<u32>().ok()?;
        number_of(plain)
    };
    form(name).is_some() || restored().is_some()
}

fn number_of(plain: &str) -> Option<u32> {
    let digits = plain.strip_prefix("journal-")?.strip_suffix(".jsonl")?;
    let ours = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| ours)
}

/// A segment is compressed when the next one has begun. If that one is not there, what it held is lost.
pub fn unfollowed(path: &Path, line: usize) -> StoreError {
    StoreError::Damaged {
        path: path.to_owned(),
        line,
        what: "it is closed, and the segment that followed it is missing".to_owned(),
    }
}

/// What it means that a segment could not be read on from a line.
pub fn unread(path: &Path, line: usize, error: io::Error) -> StoreError {
    if compressed::is_damage(&error) {
        return StoreError::Damaged {
            path: path.to_owned(),
            line,
            what: format!("it cannot be unpacked ({error})"),
        };
    }
    StoreError::io("read", path)(error)
}

/// Puts the first `len` bytes of a compressed segment, whole records all of them, in its place: the rest is damaged. A copy
/// of it must be kept already. Of none nothing is left.
pub fn keep_beginning(path: &Path, len: u64, vault: &Vault) -> Result<(), StoreError> {
    let mut content = compressed::open_lines(path, vault)
        .map_err(StoreError::io("open", path))?
        .content;
    let mut bytes = Vec::new();
    // Line by line, as it was read before: a larger piece might reach into what cannot be unpacked.
    while (bytes.len() as u64) < len {
        let read = super::read_line(&mut content, &mut bytes);
        if read.map_err(StoreError::io("read", path))? == 0 {
            let source = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(StoreError::io("read", path)(source));
        }
    }
    if !bytes.is_empty() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let plain = path.with_file_name(form_of(&name).0);
        // From here on the plain one counts.
        write_sealed(&plain, &bytes, vault)?;
        if plain == path {
            return Ok(());
        }
    }
    std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
    path.parent().map_or(Ok(()), sync_dir)?;
    Ok(())
}

/// Ends the last line of a segment, whose record is whole, if its line end is missing.
pub fn end_line(path: &Path, vault: &Vault) -> Result<(), StoreError> {
    let mut bytes = content(path, vault)?;
    if bytes.last().is_some_and(|last| *last != b'\n') {
        bytes.push(b'\n');
        write_sealed(path, &bytes, vault)?;
    }
    Ok(())
}

/// Has the first record of a segment say that what came before it is lost. Returns whether it can be read.
pub fn mark_loss(path: &Path, vault: &Vault) -> Result<bool, StoreError> {
    let Some(mut first) = super::first_record(super::migrate::JOURNAL, path, vault) else {
        return Ok(false);
    };
    let LoopEvent::SegmentOpened { after_loss, .. } = &mut first.event else {
        return Ok(false);
    };
    *after_loss = true;
    let bytes = content(path, vault)?;
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let rest = &bytes[end.map_or(bytes.len(), |end| end + 1)..];
    let mut text = Vec::new();
    super::encode(&first, &mut text);
    text.extend_from_slice(rest);
    write_sealed(path, &text, vault)?;
    Ok(true)
}

fn write_sealed(path: &Path, bytes: &[u8], vault: &Vault) -> Result<(), StoreError> {
    let bytes = vault.seal(bytes).map_err(StoreError::io("seal", path))?;
    write_whole(path, &bytes, Durability::Synced)?;
    Ok(())
}

fn content(path: &Path, vault: &Vault) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    compressed::open(path, vault)
        .and_then(|mut opened| opened.content.read_to_end(&mut bytes))
        .map_err(StoreError::io("read", path))?;
    Ok(bytes)
}

/// Checks the end of a segment. A closed one has no torn line, and is not empty.
pub fn check_end(path: &Path, line: usize, torn_bytes: usize) -> Result<(), String> {
    if compressed::is_compressed(path) && (torn_bytes > 0 || line == 1) {
        return Err("it is closed, and does not end with a whole record".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
