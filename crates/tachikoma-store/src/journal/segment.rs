//! Files of journal segments: their names, and their compression after they are closed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::compressed::{self, Form, form_of};
use crate::encryption::Encryption;
use crate::{StoreError, is_damage};

/// The closed segments of a journal.
#[derive(Clone, Debug)]
pub struct Closed {
    /// The directory of the loop.
    pub dir: PathBuf,
    /// Encrypts and decrypts the segments.
    pub encryption: Encryption,
    /// Number of the open segment. All segments with a lower number are closed.
    pub before: u32,
}

impl Closed {
    /// Compresses the closed segments and removes temporary files of a process that died.
    ///
    /// # Errors
    /// A segment could not be compressed. That segment and later ones are unchanged.
    pub fn compress(&self, canceled: &AtomicBool) -> Result<(), StoreError> {
        self.remove_remains()
            .map_err(StoreError::io("remove temporary files in", &self.dir))?;
        for (number, path) in segments(&self.dir)? {
            if number < self.before && !compressed::is_compressed(&path) {
                compressed::replace(&path, &self.encryption, canceled)
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
    // If a segment exists plain and compressed, the plain file sorts first and is used.
    found.sort();
    found.dedup_by_key(|(number, _)| *number);
    Ok(found)
}

/// Returns the segment number of a file name, plain or compressed; `None` for temporary and other files.
pub fn number(name: &str) -> Option<u32> {
    match form_of(name) {
        (plain, Form::Plain | Form::Compressed) => number_of(plain),
        (_, Form::UnderWay) => None,
    }
}

/// Returns the form of a segment file; `None` if the name is not that of a segment.
pub fn form(name: &str) -> Option<Form> {
    let (plain, form) = form_of(name);
    number_of(plain).map(|_| form)
}

/// Returns whether a file name belongs to a journal: a segment in any form, or a temporary file of a process that died during a repair.
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

/// Returns the error for a compressed last segment. Segments are compressed only after the next one was started, so the next one
/// is missing.
pub fn missing_next_segment(path: &Path, line: usize) -> StoreError {
    let what = "the segment is closed, and the next segment is missing";
    StoreError::damaged(path, line, what)
}

/// Converts an I/O error that occurred while a line of a segment was read.
pub fn unread(path: &Path, line: usize, error: io::Error) -> StoreError {
    if is_damage(&error) {
        return StoreError::damaged(
            path,
            line,
            format!("the segment cannot be decompressed ({error})"),
        );
    }
    StoreError::io("read", path)(error)
}

/// Checks that a closed segment is not empty and does not end with an incomplete line. `torn_bytes` is the length of that line.
pub fn check_end(path: &Path, line: usize, torn_bytes: usize) -> Result<(), String> {
    if compressed::is_compressed(path) && (torn_bytes > 0 || line == 1) {
        return Err("the segment is closed, but does not end with a complete record".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
