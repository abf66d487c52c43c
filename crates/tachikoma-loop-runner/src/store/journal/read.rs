//! Reading a journal: its records, and the state that they add up to.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};

use tachikoma_core::{LoopEvent, Record, Seq, State, Timestamp};

use super::{CRC_MARK, FORMAT, segment};
use crate::store::migrate::{self, Chain};
use crate::store::{StoreError, compressed};

/// Reads a record of the format that is written today.
pub(in crate::store) fn decode(line: &str) -> Result<Record, String> {
    decode_as(migrate::JOURNAL, FORMAT, line)
}

/// Reads a record of any format up to the newest.
pub(in crate::store) fn decode_as(
    formats: Chain,
    format: u32,
    line: &str,
) -> Result<Record, String> {
    let (body, tail) = line.rsplit_once(CRC_MARK).ok_or("it has no checksum")?;
    // As text: a number could be written in other ways, and one flipped bit makes a capital of a letter.
    let expected = format!("{:08x}\"}}", crc32c::crc32c(body.as_bytes()));
    if tail != expected {
        return Err("its checksum does not match".to_owned());
    }
    let no_record = |error: serde_json::Error| format!("it is no record ({error})");
    let record = if format == formats.latest() {
        serde_json::from_str(line)
    } else {
        let value = serde_json::from_str(line).map_err(no_record)?;
        serde_json::from_value(formats.upgrade(format, value)?)
    };
    record.map_err(no_record)
}

/// A journal as it was read.
#[derive(Debug)]
pub(super) struct Replayed {
    pub state: State,
    /// The last segment.
    pub path: PathBuf,
    pub segment: u32,
    /// The format of the last segment.
    pub format: u32,
    /// The bytes of it that are whole records.
    pub len: u64,
}

/// Reads the state of the loop in `dir` without changing anything.
///
/// # Errors
/// The journal cannot be read, is damaged, or is newer than this version.
pub fn read_state(dir: &Path) -> Result<State, StoreError> {
    Ok(replay(dir)?.state)
}

/// Reads the records of the loop in `dir` that come after `after`, oldest first. What comes before is not looked at.
///
/// # Errors
/// The journal cannot be read or is damaged.
pub fn read_records(
    dir: &Path,
    after: Seq,
    mut each: impl FnMut(Record),
) -> Result<(), StoreError> {
    let segments = segments(dir)?;
    let begins_in_time = |path: &Path| {
        first_record(migrate::JOURNAL, path).is_some_and(|first| first.seq <= after.next())
    };
    let first = segments
        .iter()
        .rposition(|(_, path)| begins_in_time(path))
        .unwrap_or(0);
    for (_, path) in &segments[first..] {
        read_segment(path, after, |_, record| {
            if record.seq > after {
                each(record);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Returns the number of a record without reading the rest of it.
pub(in crate::store) fn seq_of(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(b"{\"seq\":")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// Reads the first record of a segment, if it is whole.
pub(in crate::store) fn first_record(formats: Chain, path: &Path) -> Option<Record> {
    let mut line = String::new();
    compressed::open(path)
        .ok()?
        .content
        .read_line(&mut line)
        .ok()?;
    let line = line.strip_suffix('\n')?;
    decode_as(formats, format_of(line.as_bytes())?, line).ok()
}

/// Returns the error that a first record of a newer format is.
pub(in crate::store) fn newer(formats: Chain, path: &Path, line: &[u8]) -> Option<StoreError> {
    let supported = formats.latest();
    let found = format_of(line).filter(|found| *found > supported)?;
    Some(StoreError::Newer {
        path: path.to_owned(),
        found,
        supported,
    })
}

/// Returns when the loop in `dir` began; none where no record was ever written in full. A damaged first record may
/// still say when, and if it does not, the age of its file does.
pub(in crate::store) fn begun(dir: &Path) -> Result<Option<Timestamp>, StoreError> {
    #[derive(serde::Deserialize)]
    struct Begun {
        time: Timestamp,
    }
    let Some((_, path)) = segments(dir)?.into_iter().next() else {
        return Ok(None);
    };
    let mut opened = compressed::open(&path).map_err(StoreError::io("open", &path))?;
    let mut line = Vec::new();
    match opened.content.read_until(b'\n', &mut line) {
        Err(error) if compressed::is_damage(&error) => line.clear(),
        Err(error) => return Err(StoreError::io("read", &opened.path)(error)),
        Ok(_) if line.pop() != Some(b'\n') => return Ok(None),
        Ok(_) => (),
    }
    if let Ok(begun) = serde_json::from_slice::<Begun>(&line) {
        return Ok(Some(begun.time));
    }
    let modified = std::fs::metadata(&opened.path)
        .and_then(|metadata| metadata.modified())
        .map_err(StoreError::io("look at", &opened.path))?;
    Ok(Some(crate::clock::timestamp_of(modified)))
}

pub(in crate::store) fn replay(dir: &Path) -> Result<Replayed, StoreError> {
    let segments = segments(dir)?;
    let Some((segment, last)) = segments.last().cloned() else {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(StoreError::io("find a journal in", dir)(source));
    };
    if compressed::is_compressed(&last) {
        return Err(segment::unfollowed(last));
    }
    let mut state: Option<State> = None;
    let (mut len, mut format) = (0, FORMAT);
    for (_, path) in &segments {
        let read = read_segment(path, Seq::default(), |line, record| {
            take_in(&mut state, path, line, &record)
        })?;
        (len, format) = (read.len, read.format);
    }
    let state = state.ok_or_else(|| StoreError::Damaged {
        path: last.clone(),
        line: 1,
        what: "it holds no whole record".to_owned(),
    })?;
    Ok(Replayed {
        state,
        path: last,
        segment,
        format,
        len,
    })
}

/// A segment as it was read.
pub(in crate::store) struct ReadSegment {
    /// The bytes of its whole records.
    pub len: u64,
    /// The format they are in.
    pub format: u32,
}

pub(in crate::store) fn take_in(
    state: &mut Option<State>,
    path: &Path,
    line: usize,
    record: &Record,
) -> Result<(), StoreError> {
    let damaged = |what: &str| StoreError::Damaged {
        path: path.to_owned(),
        line,
        what: what.to_owned(),
    };
    if let LoopEvent::SegmentOpened {
        state: full,
        after_loss,
        ..
    } = &record.event
    {
        // A loop goes on from the oldest segment that is there, and from one that was begun because others were lost.
        let known = state.get_or_insert_with(|| (**full).clone());
        if *after_loss && full.seq > known.seq {
            known.clone_from(full);
        }
    }
    let state = state
        .as_mut()
        .ok_or_else(|| damaged("the segment does not begin with the full state"))?;
    if record.seq != state.seq.next() {
        return Err(damaged(&format!(
            "record {} follows record {}",
            record.seq, state.seq
        )));
    }
    state.apply(record);
    Ok(())
}

/// Reads whole records behind `after`, without a look at those up to it but the first. A last line without its end was
/// never acknowledged: the runner died while it wrote.
///
/// Which lines are passed over is told by their place behind the first record, never by what they say of themselves: a
/// number that was damaged must not hide its record.
pub(in crate::store) fn read_segment(
    path: &Path,
    after: Seq,
    mut each: impl FnMut(usize, Record) -> Result<(), StoreError>,
) -> Result<ReadSegment, StoreError> {
    let opened = compressed::open(path).map_err(StoreError::io("open", path))?;
    let (path, mut reader) = (opened.path.as_path(), opened.content);
    let mut text = Vec::new();
    let mut whole = ReadSegment {
        len: 0,
        format: FORMAT,
    };
    let mut first = None;
    for line in 1.. {
        text.clear();
        let read = reader
            .read_until(b'\n', &mut text)
            .map_err(|error| segment::unread(path, line, error))?;
        if text.pop() != Some(b'\n') {
            segment::check_end(path, line, read)?;
            break;
        }
        if line == 1 {
            if let Some(error) = newer(migrate::JOURNAL, path, &text) {
                return Err(error);
            }
            // One that does not say is damaged, and that is found out next.
            whole.format = format_of(&text).unwrap_or(FORMAT);
        }
        whole.len += read as u64;
        let place = first.map(|first| first + line as u64 - 1);
        if place.is_some_and(|place| place <= after.0) {
            continue;
        }
        let decoded = std::str::from_utf8(&text)
            .map_err(|_| "it is not UTF-8".to_owned())
            .and_then(|text| decode_as(migrate::JOURNAL, whole.format, text));
        let record = match decoded {
            Ok(record) => record,
            // Not looked at, as far as it can be told; what follows it is.
            Err(_) if line == 1 && seq_of(&text).is_some_and(|seq| seq <= after.0) => continue,
            Err(what) => {
                return Err(StoreError::Damaged {
                    path: path.to_owned(),
                    line,
                    what,
                });
            }
        };
        if line == 1 {
            first = Some(record.seq.0);
        }
        if record.seq > after {
            each(line, record)?;
        }
    }
    Ok(whole)
}

/// Returns the format that the first record of a segment names, whatever else a newer version may have put there.
pub(in crate::store) fn format_of(line: &[u8]) -> Option<u32> {
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

pub(in crate::store) fn segments(dir: &Path) -> Result<Vec<(u32, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(StoreError::io("list", dir))? {
        let entry = entry.map_err(StoreError::io("list", dir))?;
        let name = entry.file_name();
        if let Some(number) = name.to_str().and_then(segment::number) {
            found.push((number, entry.path()));
        }
    }
    // The plain one of two stands first by its name, and counts.
    found.sort();
    found.dedup_by_key(|(number, _)| *number);
    Ok(found)
}
