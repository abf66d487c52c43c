//! Lists, compresses and deletes the transcript files of a loop.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use super::transcript::TAIL_SUFFIXES;
use crate::store::compressed::{self, Form, form_of};
use crate::store::encryption::Encryption;

/// The usual size of a disk block. A smaller file would not take less space if it were compressed.
const COMPRESSED_BYTES_MIN: u64 = 4 << 10;

/// One file with the output of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The iteration in which the agent wrote it.
    pub iteration: u64,
    /// The file. [`compressed::open`] opens compressed and plain files.
    pub path: PathBuf,
}

/// The parts of a transcript's file name. Their order is the order in which the files were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    iteration: u64,
    attempt: u32,
    repeat: u32,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Head,
    Tail,
}

/// Lists the transcripts of a loop, oldest first. A transcript that was never closed, because its runner died, has up to three files.
///
/// # Errors
/// The directory cannot be read. A missing directory has no transcripts.
pub fn list(directory: &Path) -> io::Result<Vec<Listed>> {
    let mut found = Vec::new();
    for (name, form, path) in files(directory)? {
        // The names of the two tails do not say which one is older, so their times decide.
        let written = match (form, name.part) {
            (Form::UnderWay, _) => continue,
            (Form::Plain | Form::Compressed, Part::Head) => None,
            (Form::Plain | Form::Compressed, Part::Tail) => modified(&path),
        };
        found.push((name, written, form, path));
    }
    found.sort();
    // If a file exists plain and compressed, the plain one is used.
    found.dedup_by(|later, first| later.0 == first.0 && first.0.part == Part::Head);
    let listed = found.into_iter().map(|(name, _, _, path)| Listed {
        iteration: name.iteration,
        path,
    });
    Ok(listed.collect())
}

/// Compresses a closed transcript, unless it is too small.
///
/// # Errors
/// It could not be compressed, and stays as it is.
pub fn compress(path: &Path, encryption: &Encryption, canceled: &AtomicBool) -> io::Result<()> {
    if fs::symlink_metadata(path)?.len() < COMPRESSED_BYTES_MIN {
        return Ok(());
    }
    compressed::replace(path, encryption, canceled)
}

/// Compresses all closed transcripts of a loop, and deletes incomplete files of a compression that was interrupted. Call it while no transcript
/// is being written. A transcript with tails was never closed, and is not compressed.
///
/// # Errors
/// A file cannot be compressed. It and the files after it are unchanged.
pub fn compress_closed(
    directory: &Path,
    encryption: &Encryption,
    canceled: &AtomicBool,
) -> io::Result<()> {
    let files = files(directory)?;
    let unclosed = |head: &Name| {
        let tail = Name {
            part: Part::Tail,
            ..*head
        };
        files.iter().any(|(name, _, _)| *name == tail)
    };
    for (name, form, path) in &files {
        match form {
            Form::UnderWay => fs::remove_file(path)?,
            Form::Plain if name.part == Part::Head && !unclosed(name) => {
                compress(path, encryption, canceled)?;
            }
            Form::Plain | Form::Compressed => (),
        }
    }
    Ok(())
}

/// Deletes the transcripts of all iterations but the last `keep` that have one; 0 keeps all. Other files stay.
///
/// # Errors
/// The directory cannot be read, or a file cannot be deleted. All other files are deleted, and the first error is returned.
pub fn prune(directory: &Path, keep: usize) -> io::Result<()> {
    if keep == 0 {
        return Ok(());
    }
    let ours = files(directory)?;
    let iterations: BTreeSet<u64> = ours.iter().map(|(name, ..)| name.iteration).collect();
    let Some(first_kept) = iterations.iter().rev().nth(keep - 1) else {
        return Ok(());
    };
    let old = ours
        .iter()
        .filter(|(name, ..)| name.iteration < *first_kept);
    let deleted = old.map(|(_, _, path)| fs::remove_file(path));
    deleted.fold(Ok(()), io::Result::and)
}

/// Returns whether a file name is that of a transcript.
pub(crate) fn is_ours(name: &str) -> bool {
    parse(OsStr::new(name)).is_some()
}

fn files(directory: &Path) -> io::Result<Vec<(Name, Form, PathBuf)>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut ours = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let (Some((name, form)), true) =
            (parse(&entry.file_name()), entry.file_type()?.is_file())
        {
            ours.push((name, form, entry.path()));
        }
    }
    Ok(ours)
}

/// Parses a file name: `000012.1.log`, `000012.1.2.log` or `000012.1-tests.log`, and the same with the suffix of a tail or of compression.
fn parse(name: &OsStr) -> Option<(Name, Form)> {
    let (name, form) = form_of(name.to_str()?);
    let head = TAIL_SUFFIXES
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix));
    let part = match head {
        // Tails are never compressed: closing a transcript joins them first.
        Some(_) if form != Form::Plain => return None,
        Some(_) => Part::Tail,
        None => Part::Head,
    };
    let numbers = head.unwrap_or(name).strip_suffix(".log")?;
    let mut numbers = numbers.split('.');
    let iteration = numbers.next().filter(|number| number.len() >= 6)?;
    let attempt = numbers.next()?;
    // A label for people follows after `-`.
    let attempt = attempt
        .split_once('-')
        .map_or(attempt, |(number, _)| number);
    let repeat = numbers.next().unwrap_or("1");
    if numbers.next().is_some() {
        return None;
    }
    Some((
        Name {
            iteration: number(iteration)?,
            attempt: u32::try_from(number(attempt)?).ok()?,
            repeat: u32::try_from(number(repeat)?).ok()?,
            part,
        },
        form,
    ))
}

/// Parses a number that consists of digits only.
fn number(text: &str) -> Option<u64> {
    let ours = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| ours)
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::symlink_metadata(path)
        .and_then(|metadata| metadata.modified())
        .ok()
}

#[cfg(test)]
mod tests;
