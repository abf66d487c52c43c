//! Finding the state of a loop again: the snapshot and the tail of the journal, or the journal alone.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tachikoma_core::{LoopEvent, LoopId, Record, State};

use super::journal::{self, Journal};
use super::migrate::{self, Chain};
use super::quarantine::{keep_copy, quarantine};
use super::{RALPH_DIR, StoreError, compressed, snapshot, whole};

/// Where a state was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the snapshot and the records behind it.
    Snapshot,
    /// In the journal alone.
    Journal,
}

/// A state that was found again.
#[derive(Debug)]
pub struct Recovered {
    /// The state.
    pub state: State,
    /// Where it was found.
    pub source: Source,
    /// How many records of the journal were read for it.
    pub records: u64,
    /// What could not be used, and what that costs; empty when all is well.
    pub troubles: Vec<String>,
    /// The version of the snapshot, if it is an older one.
    older: Option<(PathBuf, u32)>,
    /// A snapshot that cannot be read.
    unreadable: Option<PathBuf>,
    /// Segments that are given up, the first of them from some line on.
    cut: Vec<PathBuf>,
    /// The last segment and how many of its bytes are whole records.
    end: End,
}

/// The end of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct End {
    path: PathBuf,
    segment: u32,
    len: u64,
    /// Whether the segment is of an older format, so that a new one has to follow.
    older: bool,
    /// Whether the state is ahead of what the segment holds, so that a new one has to follow.
    behind: bool,
}

/// What to do about a record that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Refuse to go on as if nothing had happened.
    Refuse,
    /// Go on from the last record before it.
    Accept,
}

/// Finds the state of the loop in `dir` without changing anything.
///
/// # Errors
/// The journal or the snapshot is newer than this version, or a record behind the snapshot is lost and that is not
/// accepted.
pub fn read(
    dir: &Path,
    snapshot: &Path,
    loop_id: LoopId,
    loss: Loss,
) -> Result<Recovered, StoreError> {
    let place = Place {
        dir,
        snapshot,
        loop_id,
        journals: migrate::JOURNAL,
        snapshots: migrate::SNAPSHOT,
    };
    read_at(&place, loss)
}

/// Where to look, and in which formats.
struct Place<'a> {
    dir: &'a Path,
    snapshot: &'a Path,
    loop_id: LoopId,
    journals: Chain,
    snapshots: Chain,
}

fn read_at(place: &Place<'_>, loss: Loss) -> Result<Recovered, StoreError> {
    match (find(place, None), loss) {
        (Err(StoreError::Damaged { path, line, what }), Loss::Accept) => {
            let mut found = match find(place, Some((&path, line))) {
                // Nothing is left to go on from.
                Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    return Err(StoreError::Damaged { path, line, what });
                }
                found => found?,
            };
            found.troubles.push(format!(
                "falling back to record {}: journal {} is damaged at line {line} ({what}); what follows is lost to the \
                 loop, and kept in {RALPH_DIR}/quarantine/",
                found.state.seq,
                path.display()
            ));
            Ok(found)
        }
        (found, Loss::Refuse | Loss::Accept) => found,
    }
}

fn find(place: &Place<'_>, stop_at: Option<(&Path, usize)>) -> Result<Recovered, StoreError> {
    let Place { dir, snapshot, .. } = *place;
    let mut troubles = Vec::new();
    let (mut unreadable, mut older) = (None, None);
    let base = match snapshot::read_as(place.snapshots, snapshot) {
        Ok(found) => {
            let found = found.filter(|found| found.state.loop_id == place.loop_id);
            older = found
                .as_ref()
                .filter(|found| found.version < place.snapshots.latest())
                .map(|found| (snapshot.to_owned(), found.version));
            found.map(|found| found.state)
        }
        Err(error @ StoreError::DamagedSnapshot { .. }) => {
            troubles.push(format!(
                "falling back to the journal: {error}; nothing is lost, and the file is kept in {RALPH_DIR}/quarantine/"
            ));
            unreadable = Some(snapshot.to_owned());
            None
        }
        Err(error) => return Err(error),
    };
    let source = if base.is_some() {
        Source::Snapshot
    } else {
        Source::Journal
    };
    let segments = journal::segments(dir)?;
    let first = first_to_read(place.journals, &segments, base.as_ref());
    let mut tail = Tail {
        formats: place.journals,
        state: base,
        records: 0,
        troubles,
        end: None,
    };
    let mut cut = Vec::new();
    for (segment, path) in &segments[first..] {
        match stop_at {
            Some((damaged, line)) if damaged == path => {
                tail.read(*segment, path, Some(line))?;
                cut.push(path.clone());
            }
            Some(_) if !cut.is_empty() => cut.push(path.clone()),
            Some(_) | None => tail.read(*segment, path, None)?,
        }
    }
    let nothing = || StoreError::io("find a journal in", dir)(ErrorKind::NotFound.into());
    let (Some(state), Some(end)) = (tail.state, tail.end) else {
        return Err(nothing());
    };
    if end.behind {
        tail.troubles.push(format!(
            "falling back to the snapshot: the journal ends before record {}, at which the snapshot stands; the state is whole",
            state.seq
        ));
    }
    Ok(Recovered {
        state,
        source,
        records: tail.records,
        troubles: tail.troubles,
        older,
        unreadable,
        cut,
        end,
    })
}

impl Recovered {
    /// Opens the journal where it ends, for the runner that holds the lock of the working directory. What cannot be
    /// read goes to the quarantine first: nothing is overwritten.
    ///
    /// # Errors
    /// It cannot be opened or written.
    pub fn open(self, dir: &Path, working_dir: &Path) -> Result<(Journal, State), StoreError> {
        let Self {
            mut state,
            source,
            end,
            older,
            unreadable,
            cut,
            ..
        } = self;
        if let Some((path, version)) = older {
            // The next one is written in today's version.
            whole::keep_beside(&path, &format!(".v{version}"))?;
        }
        if let Some(first) = cut.first() {
            // Its beginning is good.
            keep_copy(working_dir, first)?;
        }
        for path in unreadable.iter().chain(cut.iter().skip(1)) {
            quarantine(working_dir, path)?;
        }
        let mut journal = Journal::at(dir, end.path, end.segment, end.len)?;
        let now = state.time;
        if end.len == 0 {
            // The snapshot may be ahead of whatever lay before.
            let after_loss = source == Source::Snapshot;
            journal.begin_segment(&mut state, now, after_loss)?;
        } else if end.behind {
            journal.begin_anew(working_dir, &mut state, now)?;
        } else if end.older || !cut.is_empty() {
            journal.next_segment(&mut state, now)?;
        }
        Ok((journal, state))
    }
}

/// Returns the place of the segment at which to begin: the last that cannot have a record behind `base` before it.
fn first_to_read(formats: Chain, segments: &[(u32, PathBuf)], base: Option<&State>) -> usize {
    let holds_base = |path: &Path| {
        let first = journal::first_record(formats, path);
        match (first, base) {
            (Some(first), Some(base)) => first.seq <= base.seq.next() || is_after_loss(&first),
            // Every segment begins with the full state: the last one suffices.
            (Some(first), None) => matches!(first.event, LoopEvent::SegmentOpened { .. }),
            (None, _) => false,
        }
    };
    segments
        .iter()
        .rposition(|(_, path)| holds_base(path))
        .unwrap_or(0)
}

/// Returns whether a segment was begun because records before it were lost: its own full state is all there is.
fn is_after_loss(first: &Record) -> bool {
    matches!(
        first.event,
        LoopEvent::SegmentOpened {
            after_loss: true,
            ..
        }
    )
}

/// The end of a journal as it is read.
struct Tail {
    formats: Chain,
    state: Option<State>,
    /// How many records were read.
    records: u64,
    troubles: Vec<String>,
    end: Option<End>,
}

impl Tail {
    /// Reads a segment, up to a line if one is given.
    fn read(
        &mut self,
        segment: u32,
        path: &Path,
        stop_at: Option<usize>,
    ) -> Result<(), StoreError> {
        let mut reader = compressed::open(path)
            .map_err(StoreError::io("open", path))?
            .content;
        let (mut text, mut len, mut damaged) = (Vec::new(), 0, Vec::new());
        // The number of a record is that of its line, but for a constant.
        let mut offset = None;
        let mut last = None;
        let mut format = self.formats.latest();
        for line in 1_u64.. {
            text.clear();
            let read = reader
                .read_until(b'\n', &mut text)
                .map_err(StoreError::io("read", path))?;
            let stop =
                stop_at.is_some_and(|stop| u64::try_from(stop).is_ok_and(|stop| line >= stop));
            if text.pop() != Some(b'\n') || stop {
                break;
            }
            len += read as u64;
            if line == 1 {
                if let Some(error) = journal::newer(self.formats, path, &text) {
                    return Err(error);
                }
                format = journal::format_of(&text).unwrap_or(format);
            }
            let known = self.state.as_ref().map_or(0, |state| state.seq.0);
            let covered = |seq: i128| self.state.is_some() && seq <= i128::from(known);
            // By its place and not by what it says of itself: a number that was damaged must not hide its record.
            if let Some(seq) = offset.map(|offset| offset + i128::from(line))
                && covered(seq)
                && journal::seq_of(&text).map(i128::from) == Some(seq)
            {
                // Part of the snapshot already: `state verify` looks at it closely, a resumption need not.
                last = u64::try_from(seq).ok();
                continue;
            }
            match std::str::from_utf8(&text)
                .map_err(|_| "it is not UTF-8".to_owned())
                .and_then(|text| journal::decode_as(self.formats, format, text))
            {
                Ok(record) => {
                    let seq = i128::from(record.seq.0);
                    offset.get_or_insert(seq - i128::from(line));
                    last = Some(record.seq.0);
                    if covered(seq) {
                        continue;
                    }
                    self.records += 1;
                    // A gap is what a damaged line leaves; the line says more.
                    journal::take_in(&mut self.state, path, place(line), &record)
                        .map_err(|gap| damaged.first().map_or(gap, |first| damage(path, first)))?;
                }
                Err(what) => damaged.push((line, what)),
            }
        }
        self.judge(path, offset, damaged)?;
        let seq = self.state.as_ref().map(|state| state.seq.0);
        let behind = last.is_some() && last < seq;
        self.end = Some(End {
            path: path.to_owned(),
            segment,
            len,
            older: format < self.formats.latest(),
            behind,
        });
        Ok(())
    }

    /// Damage before the snapshot costs nothing; behind it, a fact is lost, and nobody may go on as if it were not.
    fn judge(
        &mut self,
        path: &Path,
        offset: Option<i128>,
        damaged: Vec<(u64, String)>,
    ) -> Result<(), StoreError> {
        let known = self
            .state
            .as_ref()
            .map_or(0, |state| i128::from(state.seq.0));
        for (line, what) in damaged {
            let seq = offset.map(|offset| i128::from(line) + offset);
            if seq.is_none_or(|seq| seq > known) {
                return Err(damage(path, &(line, what)));
            }
            self.troubles.push(format!(
                "falling back to the snapshot: journal {} is damaged at line {line} ({what}); the snapshot has what it held",
                path.display()
            ));
        }
        Ok(())
    }
}

fn place(line: u64) -> usize {
    usize::try_from(line).unwrap_or(usize::MAX)
}

fn damage(path: &Path, (line, what): &(u64, String)) -> StoreError {
    StoreError::Damaged {
        path: path.to_owned(),
        line: place(*line),
        what: what.clone(),
    }
}

#[cfg(test)]
mod tests;
