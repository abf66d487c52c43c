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

/// Minimum size of files that are compressed. It is the usual size of a disk block, so compressing smaller files saves no space.
const COMPRESSED_BYTES_MIN: u64 = 4 << 10;

/// A transcript file in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Number of the iteration in which the output was written.
    pub iteration: u64,
    /// Path of the file. [`compressed::open`] opens compressed and plain files.
    pub path: PathBuf,
}

/// The parts of a transcript's file name. They sort in the order in which the files were written.
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
/// The directory cannot be read. A missing directory is an empty list.
pub fn list(directory: &Path) -> io::Result<Vec<Listed>> {
    let mut found = Vec::new();
    for (name, form, path) in files(directory)? {
        // The names of the two tails do not show which one is older, so their modification times are compared.
        let written = match (form, name.part) {
            (Form::UnderWay, _) => continue,
            (Form::Plain | Form::Compressed, Part::Head) => None,
            (Form::Plain | Form::Compressed, Part::Tail) => modified(&path),
        };
        found.push((name, written, form, path));
    }
    found.sort();
    // If a file exists plain and compressed, only the plain one is listed.
    found.dedup_by(|later, first| later.0 == first.0 && first.0.part == Part::Head);
    let listed = found.into_iter().map(|(name, _, _, path)| Listed {
        iteration: name.iteration,
        path,
    });
    Ok(listed.collect())
}

/// Compresses a closed transcript, unless it is very small.
///
/// # Errors
/// The file cannot be compressed. It is left unchanged.
pub fn compress(path: &Path, encryption: &Encryption, canceled: &AtomicBool) -> io::Result<()> {
    if fs::symlink_metadata(path)?.len() < COMPRESSED_BYTES_MIN {
        return Ok(());
    }
    compressed::replace(path, encryption, canceled)
}

/// Compresses all closed transcripts of a loop, and deletes incomplete files of interrupted compressions. Call it while no transcript
/// is being written. A transcript with tails was never closed, and is not compressed.
///
/// # Errors
/// A file cannot be compressed. That file and all files after it are unchanged.
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

/// Deletes old transcripts. Keeps those of the last `keep` iterations that have one; 0 keeps all. Other files are kept.
///
/// # Errors
/// The directory cannot be read, or a file cannot be deleted. The other files are deleted, and the first error is returned.
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

/// Returns whether a file with this name is a transcript.
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
    // The attempt number may be followed by `-` and the label of a gate's transcript.
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

/// Parses a number that consists only of digits.
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
