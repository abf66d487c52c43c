//! The transcripts of a loop as files: which there are, and how they are compressed and pruned.

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

/// A file takes whole blocks on disk, mostly of this size: a smaller one would not become smaller there.
const COMPRESSED_BYTES_MIN: u64 = 4 << 10;

/// One file with what an agent wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// In which iteration.
    pub iteration: u64,
    /// The file; [`compressed::open`] opens it, whether it is compressed or not.
    pub path: PathBuf,
}

/// What the name of a file of ours says, in the order in which it was written: iteration, attempt, repeat, tail or not.
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

/// Lists the transcripts of a loop, oldest first. One whose runner died before it was closed has up to three files.
///
/// # Errors
/// The directory cannot be read. One that is not there has no transcripts.
pub fn list(directory: &Path) -> io::Result<Vec<Listed>> {
    let mut found = Vec::new();
    for (name, form, path) in files(directory)? {
        // Which of two tails is the older one is not in their names.
        let written = match (form, name.part) {
            (Form::UnderWay, _) => continue,
            (Form::Plain | Form::Compressed, Part::Head) => None,
            (Form::Plain | Form::Compressed, Part::Tail) => modified(&path),
        };
        found.push((name, written, form, path));
    }
    found.sort();
    // The plain one of two counts.
    found.dedup_by(|later, first| later.0 == first.0 && first.0.part == Part::Head);
    let listed = found.into_iter().map(|(name, _, _, path)| Listed {
        iteration: name.iteration,
        path,
    });
    Ok(listed.collect())
}

/// Compresses a transcript that was closed, if it is worth it.
///
/// # Errors
/// It could not be compressed, and stays as it is.
pub fn compress(path: &Path, encryption: &Encryption, called_off: &AtomicBool) -> io::Result<()> {
    if fs::symlink_metadata(path)?.len() < COMPRESSED_BYTES_MIN {
        return Ok(());
    }
    compressed::replace(path, encryption, called_off)
}

/// Compresses all closed transcripts of a loop, while none is being written, and removes what a compressor that died
/// had begun. One with tails was never closed, and stays as it is.
///
/// # Errors
/// The first one that could not be compressed stays as it is, and so do those behind it.
pub fn compress_closed(
    directory: &Path,
    encryption: &Encryption,
    called_off: &AtomicBool,
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
                compress(path, encryption, called_off)?;
            }
            Form::Plain | Form::Compressed => (),
        }
    }
    Ok(())
}

/// Deletes the transcripts of all iterations but the last `keep` that have one; 0 keeps all. Other files stay.
///
/// # Errors
/// If the directory cannot be read, or with the first file that cannot be deleted, after trying all.
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

/// Returns whether a file of that name is one of a transcript.
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

/// Reads a file's name: `000012.1.log`, `000012.1.2.log`, `000012.1-tests.log`, with a tail's suffix or compressed or neither.
fn parse(name: &OsStr) -> Option<(Name, Form)> {
    let (name, form) = form_of(name.to_str()?);
    let head = TAIL_SUFFIXES
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix));
    let part = match head {
        // Tails are joined before anything is compressed.
        Some(_) if form != Form::Plain => return None,
        Some(_) => Part::Tail,
        None => Part::Head,
    };
    let numbers = head.unwrap_or(name).strip_suffix(".log")?;
    let mut numbers = numbers.split('.');
    let iteration = numbers.next().filter(|number| number.len() >= 6)?;
    let attempt = numbers.next()?;
    // Behind a `-` there are words for people.
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

/// Reads a number of digits and nothing else.
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
