//! Reads the end of a journal line by line, after a snapshot or from the start of a segment.

use std::path::Path;

use tachikoma_core::{Record, Seq, State};
use tachikoma_fs::RALPH_DIR;

use super::Place;
use crate::checked_line::{self, Remainder};
use crate::journal::{self, JournalPart, segment};
use crate::{StoreError, compressed};

/// State of reading the end of a journal.
pub struct Tail<'a> {
    place: &'a Place<'a>,
    /// Number of the last record in the snapshot; `None` without one. Records up to it are not needed.
    base: Option<Seq>,
    /// Name of the snapshot or backup, for messages.
    name: String,
    pub state: Option<State>,
    /// Number of records that were read.
    pub records: u64,
    pub troubles: Vec<String>,
    /// Whether there is damage in records that the snapshot contains. Such damage is tolerated.
    pub tolerated: bool,
    /// Number of the last record that was read; `None` before the first one.
    pub last: Option<Seq>,
    pub end: Option<End>,
}

/// The last segment of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The part of the segment up to its last complete line.
    pub part: JournalPart,
    /// Number of complete lines in the segment.
    pub lines: usize,
    /// Whether the segment has an older format version, so that a new segment is needed.
    pub older: bool,
}

/// A damaged line.
struct Damage {
    line: usize,
    /// Number of the last record that is lost by this damage; `None` if it is unknown.
    seq: Option<i128>,
    what: String,
}

/// State of reading a segment.
struct Reading<'a> {
    path: &'a Path,
    /// Difference between record number and line number; `None` before the first record. A missing or additional line changes it.
    offset: Option<i128>,
    /// The first value of `offset` in this segment.
    first_offset: Option<i128>,
    damages: Vec<Damage>,
}

impl Reading<'_> {
    fn expected(&self, line: usize) -> Option<i128> {
        self.offset.map(|offset| offset + line as i128)
    }

    fn damaged(&mut self, line: usize, what: impl Into<String>) {
        let seq = self.expected(line);
        let what = what.into();
        self.damages.push(Damage { line, seq, what });
    }

    /// Notes that the rest of the file, with an unknown number of records, is lost.
    fn lost_from(&mut self, line: usize, what: String) {
        let seq = Some(i128::MAX);
        self.damages.push(Damage { line, seq, what });
    }

    fn error(&self, damage: &Damage) -> StoreError {
        StoreError::damaged(self.path, damage.line, damage.what.clone())
    }
}

impl<'a> Tail<'a> {
    pub fn new(place: &'a Place<'a>, base: Option<State>, name: String) -> Self {
        Self {
            place,
            base: base.as_ref().map(|base| base.seq),
            name,
            state: base,
            records: 0,
            troubles: Vec::new(),
            tolerated: false,
            last: None,
            end: None,
        }
    }

    /// Returns whether the snapshot is newer than all records that were read.
    pub fn base_is_newer(&self) -> bool {
        self.base
            .is_some_and(|base| self.last.is_none_or(|last| last < base))
    }

    fn covers(&self, seq: i128) -> bool {
        self.base.is_some_and(|base| seq <= i128::from(base.0))
    }

    /// Reads a segment, up to line `stop_at` if it is given. Returns whether that line exists.
    pub fn read(
        &mut self,
        number: u32,
        path: &Path,
        stop_at: Option<usize>,
    ) -> Result<bool, StoreError> {
        let opened = compressed::open_lines(path, &self.place.copies.encryption)
            .map_err(StoreError::io("open", path))?;
        let (mut content, place, first_line) = (opened.content, opened.place, opened.first_line);
        let mut reading = Reading {
            path,
            offset: None,
            first_offset: None,
            damages: Vec::new(),
        };
        let mut part = JournalPart {
            path: path.to_owned(),
            segment: number,
            len: 0,
            unended: false,
        };
        let mut lines = 0;
        let mut format = self.place.journals.latest();
        let mut text = Vec::new();
        let mut stopped = false;
        for line in first_line.. {
            text.clear();
            let read = journal::read_line(&mut content, &mut text);
            stopped = stop_at == Some(line) && !matches!(read, Ok(0));
            if stopped {
                break;
            }
            let read = match read.map_err(|error| segment::unread(path, line, error)) {
                Ok(read) => read,
                Err(StoreError::Damaged { what, .. }) => {
                    reading.lost_from(line, what);
                    break;
                }
                Err(error) => return Err(error),
            };
            if text.ends_with(b"\n") {
                text.pop();
            } else {
                if let Err(what) = segment::check_end(path, line, read) {
                    reading.lost_from(line, what);
                    break;
                }
                match checked_line::remainder(&text) {
                    Remainder::Record => part.unended = true,
                    Remainder::Spoilt => {
                        reading.damaged(line, checked_line::SPOILT);
                        break;
                    }
                    Remainder::Torn => {
                        self.say_torn(path, line, read);
                        break;
                    }
                }
            }
            part.len = match &place {
                // The position in the file is used, because encrypted lines are longer than their content.
                Some(place) => place.get(),
                None => part.len + read as u64,
            };
            lines = line;
            if line == first_line {
                if let Some(error) = journal::newer(self.place.journals, path, &text) {
                    return Err(error);
                }
                format = journal::format_of(&text).unwrap_or(format);
            }
            // The record is identified by its position, not by the number in the line, because a damaged number must not hide its record.
            if let Some(seq) = reading.expected(line)
                && self.covers(seq)
                && journal::seq_of(&text).map(i128::from) == Some(seq)
                && checked_line::is_whole(&text)
            {
                // The snapshot contains this record already.
                self.last = self.last.max(u64::try_from(seq).ok().map(Seq));
                continue;
            }
            match journal::decode_as(self.place.journals, format, &text) {
                Ok(record) => self.take(&mut reading, line, &record)?,
                Err(what) => reading.damaged(line, what),
            }
        }
        self.judge(&reading)?;
        let older = format < self.place.journals.latest();
        self.end = Some(End { part, lines, older });
        Ok(stopped)
    }

    fn say_torn(&mut self, path: &Path, line: usize, bytes: usize) {
        if bytes > 0 {
            self.troubles.push(format!(
                "line {line} of journal {} is incomplete ({bytes} bytes), because the runner died while it wrote the line; \
                 the line is removed, and kept in {RALPH_DIR}/quarantine/",
                path.display()
            ));
        }
    }

    fn take(
        &mut self,
        reading: &mut Reading<'_>,
        line: usize,
        record: &Record,
    ) -> Result<(), StoreError> {
        if record.loop_id != self.place.loop_id {
            reading.damaged(
                line,
                format!("the record belongs to another loop ({})", record.loop_id),
            );
            return Ok(());
        }
        let seq = i128::from(record.seq.0);
        if let Some(expected) = reading.expected(line).filter(|expected| *expected != seq) {
            reading.damages.push(Damage {
                line,
                seq: Some(expected.max(seq - 1)),
                what: format!("record {seq} follows record {}", expected - 1),
            });
        }
        let offset = seq - line as i128;
        reading.offset = Some(offset);
        reading.first_offset.get_or_insert(offset);
        self.last = self.last.max(Some(record.seq));
        if self.covers(seq) {
            return Ok(());
        }
        self.records += 1;
        // The gap is caused by a damaged line, and the error for that line is more precise.
        journal::apply_record(&mut self.state, reading.path, line, record).map_err(|gap| {
            let first = reading.damages.first();
            first.map_or(gap, |first| reading.error(first))
        })
    }

    /// Decides about damage: it is tolerated if the snapshot contains the damaged records, otherwise it is an error.
    fn judge(&mut self, reading: &Reading<'_>) -> Result<(), StoreError> {
        for damage in &reading.damages {
            let by_place = || {
                reading
                    .first_offset
                    .map(|first| first + damage.line as i128)
            };
            if !damage
                .seq
                .or_else(by_place)
                .is_some_and(|seq| self.covers(seq))
            {
                return Err(reading.error(damage));
            }
        }
        let Some(first) = reading.damages.first() else {
            return Ok(());
        };
        let more = match reading.damages.len() - 1 {
            0 => String::new(),
            more => format!(", and at {more} more lines"),
        };
        self.tolerated = true;
        let name = &self.name;
        self.troubles.push(format!(
            "falling back to {name}: journal {} is damaged at line {} ({}){more}; {name} has the damaged records",
            reading.path.display(),
            first.line,
            first.what
        ));
        Ok(())
    }
}
