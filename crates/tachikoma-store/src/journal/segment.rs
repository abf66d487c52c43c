//! The segments of a journal as files: their names, and their compression once they are closed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::compressed::{self, Form, form_of};
use crate::vault::Vault;
use crate::{StoreError, is_damage};

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

/// Returns the file name of a segment.
pub fn segment_name(segment: u32) -> String {
    format!("journal-{segment:04}.jsonl")
}

/// Returns the segments of a journal with their numbers, oldest first.
pub fn segments(dir: &Path) -> Result<Vec<(u32, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(StoreError::io("list", dir))? {
        let entry = entry.map_err(StoreError::io("list", dir))?;
        let name = entry.file_name();
        if let Some(number) = name.to_str().and_then(number) {
            found.push((number, entry.path()));
        }
    }
    // The plain one of two stands first by its name, and counts.
    found.sort();
    found.dedup_by_key(|(number, _)| *number);
    Ok(found)
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
    if is_damage(&error) {
        return StoreError::Damaged {
            path: path.to_owned(),
            line,
            what: format!("it cannot be unpacked ({error})"),
        };
    }
    StoreError::io("read", path)(error)
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
