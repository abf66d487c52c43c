//! Reads the records of a journal and computes the state from them.

use std::io::{self, BufRead, ErrorKind, Read as _};
use std::path::Path;

use tachikoma_core::{LoopEvent, Record, Seq, State, Timestamp, apply};
use tachikoma_fs::safe_read;

use super::FORMAT;
use super::segment::{self, segments};
use crate::checked_line::{Remainder, SPOILT, check_sum, is_whole, remainder};
use crate::encryption::Encryption;
use crate::encryption::lines::{self, HEADER_BYTES_MAX};
use crate::migrate::{self, Chain};
use crate::{StoreError, compressed, is_damage, is_locked, snapshot};

/// Maximum length of a line in bytes. The longest record contains the full state, which also has to fit into a snapshot.
const LINE_BYTES_MAX: u64 = snapshot::BYTES_MAX;

/// Reads a line with its line end, or the rest of the file. A line over the limit is an error.
pub fn read_line(reader: &mut (impl BufRead + ?Sized), text: &mut Vec<u8>) -> io::Result<usize> {
    let read = reader.take(LINE_BYTES_MAX + 1).read_until(b'\n', text)?;
    if read as u64 > LINE_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::InvalidData, "a line is too long"));
    }
    Ok(read)
}

/// Parses a record of the newest format version.
pub fn decode(line: &[u8]) -> Result<Record, String> {
    decode_as(migrate::JOURNAL, FORMAT, line)
}

/// Parses a record of any supported format version.
pub fn decode_as(formats: Chain, format: u32, line: &[u8]) -> Result<Record, String> {
    let line = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8".to_owned())?;
    check_sum(line)?;
    let not_a_record = |error: serde_json::Error| format!("the line is not a record ({error})");
    let record = if format == formats.latest() {
        serde_json::from_str(line)
    } else {
        let value = serde_json::from_str(line).map_err(not_a_record)?;
        serde_json::from_value(formats.upgrade(format, value)?)
    };
    record.map_err(not_a_record)
}

/// Computes the state of the loop in `dir` from all its records. A recovery reads fewer records and must produce the same state.
///
/// # Errors
/// The journal cannot be read, is damaged at any place, or was written by a newer version.
pub fn read_state(dir: &Path, encryption: &Encryption) -> Result<State, StoreError> {
    let segments = segments(dir)?;
    let Some((_, last)) = segments.last() else {
        return Err(none_in(dir));
    };
    if compressed::is_compressed(last) {
        return Err(segment::missing_next_segment(last, 1));
    }
    let mut state: Option<State> = None;
    for (_, path) in &segments {
        read_segment(path, encryption, Seq::default(), |line, record| {
            apply_record(&mut state, path, line, &record?)
        })?;
    }
    state.ok_or_else(|| StoreError::damaged(last, 1, "the segment has no complete record"))
}

/// Returns the error for a missing journal.
pub fn none_in(dir: &Path) -> StoreError {
    StoreError::io("find a journal in", dir)(ErrorKind::NotFound.into())
}

/// How a journal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalEnd {
    /// The journal ends with a complete record.
    Whole,
    /// The journal ends with part of a line. The writer died or is still writing.
    Torn,
}

/// Passes on the records after number `after`, oldest first. Earlier records are not checked.
///
/// # Errors
/// The journal cannot be read or is damaged. Records after the damage are not passed on.
pub fn read_records(
    dir: &Path,
    encryption: &Encryption,
    after: Seq,
    mut each: impl FnMut(Record),
) -> Result<JournalEnd, StoreError> {
    let mut damaged = None;
    let end = read_around(dir, encryption, after, |read| match read {
        Ok(record) if damaged.is_none() => each(record),
        Ok(_) => {}
        Err(error) => drop(damaged.get_or_insert(error)),
    })?;
    damaged.map_or(Ok(end), Err)
}

/// Passes on all readable records after number `after`. At a damaged record, an error is passed on instead.
///
/// # Errors
/// The journal cannot be read, or was written by a newer version.
pub fn read_around(
    dir: &Path,
    encryption: &Encryption,
    after: Seq,
    mut each: impl FnMut(Result<Record, StoreError>),
) -> Result<JournalEnd, StoreError> {
    let segments = segments(dir)?;
    if segments.is_empty() {
        return Err(none_in(dir));
    }
    let begins_in_time = |path: &Path| {
        first_record(migrate::JOURNAL, path, encryption)
            .is_some_and(|first| first.seq <= after.next())
    };
    let first = segments
        .iter()
        .rposition(|(_, path)| begins_in_time(path))
        .unwrap_or(0);
    let mut end = JournalEnd::Whole;
    for (_, path) in &segments[first..] {
        let read = read_segment(path, encryption, after, |_, record| {
            each(record);
            Ok(())
        });
        end = match read {
            Ok(found) => found,
            Err(error @ StoreError::Damaged { .. }) => {
                each(Err(error));
                JournalEnd::Whole
            }
            Err(error) => return Err(error),
        };
    }
    Ok(end)
}

/// Returns the record number of a line without parsing the rest.
pub fn seq_of(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(b"{\"seq\":")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// Reads the first record of a segment; `None` if it is not valid.
pub fn first_record(formats: Chain, path: &Path, encryption: &Encryption) -> Option<Record> {
    let mut line = Vec::new();
    let mut opened = compressed::open_lines(path, encryption).ok()?;
    read_line(&mut opened.content, &mut line).ok()?;
    let line = line.strip_suffix(b"\n").unwrap_or(&line);
    decode_as(formats, format_of(line)?, line).ok()
}

/// Returns the error for a segment of a newer format version; `None` if the version is supported.
pub fn newer(formats: Chain, path: &Path, line: &[u8]) -> Option<StoreError> {
    let supported = formats.latest();
    let found = format_of(line).filter(|found| *found > supported)?;
    Some(StoreError::Newer {
        path: path.to_owned(),
        found,
        supported,
    })
}

/// Returns when the loop in `dir` began; `None` if it has no complete record. If the first record is damaged, the time in it or
/// that of the file is used.
pub fn begun(dir: &Path, encryption: &Encryption) -> Result<Option<Timestamp>, StoreError> {
    #[derive(serde::Deserialize)]
    struct Begun {
        time: Timestamp,
    }
    let Some((_, path)) = segments(dir)?.into_iter().next() else {
        return Ok(None);
    };
    if let Some(begun) = encrypted_since(&path) {
        return Ok(Some(begun));
    }
    let mut opened = match compressed::open_lines(&path, encryption) {
        // Without the key, the time of the file is used.
        Err(error) if is_locked(&error) => return last_written(&path).map(Some),
        opened => opened.map_err(StoreError::io("open", &path))?,
    };
    let mut line = Vec::new();
    match read_line(&mut opened.content, &mut line) {
        Err(error) if is_damage(&error) => line.clear(),
        Err(error) => return Err(StoreError::io("read", &opened.path)(error)),
        Ok(_) if line.ends_with(b"\n") => (),
        Ok(_) => match remainder(&line) {
            Remainder::Torn => return Ok(None),
            Remainder::Record | Remainder::Spoilt => (),
        },
    }
    if let Ok(begun) = serde_json::from_slice::<Begun>(&line) {
        return Ok(Some(begun.time));
    }
    last_written(&opened.path).map(Some)
}

fn last_written(path: &Path) -> Result<Timestamp, StoreError> {
    let modified = std::fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .map_err(StoreError::io("examine", path))?;
    Ok(tachikoma_runtime::clock::timestamp_of(modified))
}

/// Returns when an encrypted segment was created, which needs no key; `None` if the segment has no complete record.
fn encrypted_since(path: &Path) -> Option<Timestamp> {
    let mut source = io::BufReader::new(safe_read::open(path).ok()?);
    let mut header = Vec::new();
    let mut first = Vec::new();
    let mut bounded = (&mut source).take(HEADER_BYTES_MAX);
    bounded.read_until(b'\n', &mut header).ok()?;
    let begun = lines::begun(header.strip_suffix(b"\n")?)?;
    source.read_until(b'\n', &mut first).ok()?;
    let is_whole = |line: &[u8]| is_whole(line.strip_suffix(b"\n").unwrap_or(line));
    is_whole(&first).then_some(begun)
}

/// Applies a record to the state. If the state is unknown, it is taken from the first record of a segment.
pub fn apply_record(
    state: &mut Option<State>,
    path: &Path,
    line: usize,
    record: &Record,
) -> Result<(), StoreError> {
    if let LoopEvent::SegmentOpened {
        state: full,
        after_loss,
        ..
    } = &record.event
    {
        // The state comes from the oldest segment, or from a segment that was started because records were lost.
        let known = state.get_or_insert_with(|| (**full).clone());
        if *after_loss && full.seq > known.seq {
            known.clone_from(full);
        }
    }
    let headless = "the segment does not begin with the full state";
    let state = state
        .as_mut()
        .ok_or_else(|| StoreError::damaged(path, line, headless))?;
    if record.seq != state.seq.next() {
        let what = format!("record {} follows record {}", record.seq, state.seq);
        return Err(StoreError::damaged(path, line, what));
    }
    apply(state, record);
    Ok(())
}

/// Passes on the complete records after number `after`. Earlier records, except the first, are not checked. An incomplete last
/// line is ignored, because the effects of its record were never executed.
///
/// Lines are skipped by their position in the file, not by the number in the line, because a damaged number must not hide its
/// record. At a damaged record, an error is passed on instead.
pub fn read_segment(
    path: &Path,
    encryption: &Encryption,
    after: Seq,
    each: impl FnMut(usize, Result<Record, StoreError>) -> Result<(), StoreError>,
) -> Result<JournalEnd, StoreError> {
    let opened = compressed::open_lines(path, encryption).map_err(StoreError::io("open", path))?;
    read_lines(
        (&opened.path, opened.first_line),
        opened.content,
        after,
        each,
    )
}

/// Reads records like `read_segment` from any reader. `path` and `first_line` are used in errors.
pub fn read_lines(
    (path, first_line): (&Path, usize),
    mut reader: impl BufRead,
    after: Seq,
    mut each: impl FnMut(usize, Result<Record, StoreError>) -> Result<(), StoreError>,
) -> Result<JournalEnd, StoreError> {
    let mut text = Vec::new();
    let mut format = FORMAT;
    let mut first = None;
    let mut tail = JournalEnd::Whole;
    for line in first_line.. {
        text.clear();
        let read = read_line(&mut reader, &mut text)
            .map_err(|error| segment::unread(path, line, error))?;
        if text.ends_with(b"\n") {
            text.pop();
        } else {
            segment::check_end(path, line, read)
                .map_err(|what| StoreError::damaged(path, line, what))?;
            match remainder(&text) {
                Remainder::Torn => {
                    if !text.is_empty() {
                        tail = JournalEnd::Torn;
                    }
                    break;
                }
                Remainder::Record => {}
                Remainder::Spoilt => return Err(StoreError::damaged(path, line, SPOILT)),
            }
        }
        if line == first_line {
            if let Some(error) = newer(migrate::JOURNAL, path, &text) {
                return Err(error);
            }
            // If the first line has no format version, it is damaged, and the check of that line reports it.
            format = format_of(&text).unwrap_or(FORMAT);
        }
        let place = first.map(|first| first + (line - first_line) as u64);
        if place.is_some_and(|place| place <= after.0) {
            continue;
        }
        let record = match decode_as(migrate::JOURNAL, format, &text) {
            Ok(record) => record,
            // The damaged first record is not needed, as far as its number shows. Reading continues after it.
            Err(_) if line == first_line && seq_of(&text).is_some_and(|seq| seq <= after.0) => {
                continue;
            }
            Err(what) => {
                each(line, Err(StoreError::damaged(path, line, what)))?;
                continue;
            }
        };
        if line == first_line {
            first = Some(record.seq.0);
        }
        if record.seq > after {
            each(line, Ok(record))?;
        }
    }
    Ok(tail)
}

/// Returns the format version in the first record of a segment. This program may be too old to read that version.
pub fn format_of(line: &[u8]) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct First {
        event: Opened,
    }
    #[derive(serde::Deserialize)]
    struct Opened {
        format: u32,
    }
    serde_json::from_slice::<First>(line)
        .ok()
        .map(|first| first.event.format)
}
