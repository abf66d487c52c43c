//! Recovers the state of a loop from the snapshot and later records, from the journal alone or, if the journal is damaged, from a
//! backup and later records.

mod backups;
mod open;
mod tail;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tachikoma_core::{LoopEvent, LoopId, State};
use tachikoma_fs::{FsError, RALPH_DIR};

use super::encryption::Encryption;
use super::epochs::Epochs;
use super::journal::{self, Journal, segment};
use super::migrate::{self, Chain};
use super::{StoreError, backup, compressed, key_check, snapshot};
use tachikoma_core::error_chain as chain;

pub use open::Taken;
use tail::{End, Tail};

/// Source of a recovered state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The snapshot and the records after it.
    Snapshot,
    /// The journal alone.
    Journal,
    /// A backup and the records after it.
    Backup,
}

/// A recovered state.
#[derive(Debug)]
pub struct Recovered {
    /// The state after the last record that could be used.
    pub state: State,
    /// Which files the state was recovered from.
    pub source: Source,
    /// Number of journal records that were read.
    pub records: u64,
    /// Warnings about unusable files and lost records.
    pub troubles: Vec<String>,
    encryption: Encryption,
    /// Path and version of the snapshot if it has an older format version; otherwise `None`.
    older: Option<(PathBuf, u32)>,
    /// A file at the path of the snapshot that does not belong to this loop; `None` if there is none.
    in_the_way: Option<InTheWay>,
    /// Segments with lost records. They move to the quarantine, except the first one up to its last usable line.
    cut: Vec<PathBuf>,
    /// The last segment of the journal; `None` if the journal has no segments.
    end: Option<End>,
    /// Whether the state is newer than the journal, so that a new segment with the full state is needed.
    newer_than_journal: bool,
    /// Whether the journal has damage that the snapshot covers. A new segment with the full state makes the damaged part unnecessary.
    tolerated: bool,
}

/// A file at the path of the snapshot that is not readable or belongs to another loop.
#[derive(Debug)]
enum InTheWay {
    Unreadable(PathBuf),
    OfAnother(PathBuf, LoopId),
}

/// What to do if a record is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Refuse to continue: return an error.
    Refuse,
    /// Continue from the last record before the loss.
    Accept,
}

/// Files that contain the state of a loop besides its journal.
#[derive(Clone, Debug)]
pub struct Copies {
    /// Path of the snapshot.
    pub snapshot: PathBuf,
    /// The directory of backups.
    pub backups: PathBuf,
    /// Encrypts and decrypts journal, snapshot and backups.
    pub encryption: Encryption,
}

impl Copies {
    /// Returns `Copies` with the snapshot and without backups.
    #[must_use]
    pub fn only(snapshot: &Path, encryption: &Encryption) -> Self {
        Self {
            snapshot: snapshot.to_owned(),
            backups: PathBuf::new(),
            encryption: encryption.clone(),
        }
    }
}

/// Recovers the state of the loop in `dir`. Changes nothing.
///
/// # Errors
/// The journal or the snapshot was written by a newer version, or a record that neither snapshot nor backups contain is lost and
/// `loss` is [`Loss::Refuse`].
pub fn read(
    dir: &Path,
    copies: &Copies,
    loop_id: LoopId,
    loss: Loss,
) -> Result<Recovered, StoreError> {
    let encrypted = key_check::segments_in(dir).chain(snapshot::all_places(&copies.snapshot));
    copies
        .encryption
        .check_opens(&encrypted.collect::<Vec<_>>())?;
    let place = Place {
        dir,
        copies,
        loop_id,
        journals: migrate::JOURNAL,
        snapshots: migrate::SNAPSHOT,
    };
    read_at(&place, loss)
}

/// Opens the journal in `dir` without snapshot and backups.
///
/// # Errors
/// The journal cannot be read, is damaged, or was written by a newer version.
pub fn open_journal(dir: &Path, encryption: &Encryption) -> Result<(Journal, State), StoreError> {
    let mut newest_first = journal::segments(dir)?.into_iter().rev();
    let first = newest_first
        .find_map(|(_, path)| journal::first_record(migrate::JOURNAL, &path, encryption));
    let loop_id = first.ok_or_else(|| journal::none_in(dir))?.loop_id;
    let copies = Copies::only(&dir.join("no snapshot"), encryption);
    let found = read(dir, &copies, loop_id, Loss::Refuse)?;
    let taken = found.open(dir, journal::working_dir_of(dir))?;
    Ok((taken.journal, taken.state))
}

/// Paths of a loop, and the format versions that can be read.
struct Place<'a> {
    dir: &'a Path,
    copies: &'a Copies,
    loop_id: LoopId,
    journals: Chain,
    snapshots: Chain,
}

fn read_at(place: &Place<'_>, loss: Loss) -> Result<Recovered, StoreError> {
    // Backups are listed first. Otherwise a new backup of a running loop would be ahead of the journal that was read.
    let listed = backup::list(&place.copies.backups, Some(place.loop_id));
    let (path, line, what) = match find(place, None) {
        Err(StoreError::Damaged { path, line, what }) => (path, line, what),
        Ok(found) => {
            let listed = listed.unwrap_or_default();
            return match backup::ahead_of(
                found.state.seq,
                listed,
                place.dir,
                &place.copies.encryption,
            ) {
                None => Ok(found),
                Some(_) if loss == Loss::Accept => Ok(backups::find(place, loss).unwrap_or(found)),
                Some(ahead) => Err(found.cut_short(place.dir, &ahead)),
            };
        }
        found => return found,
    };
    if let Some(found) = backups::find(place, loss) {
        return Ok(found);
    }
    match loss {
        Loss::Refuse => Err(StoreError::Damaged { path, line, what }),
        Loss::Accept => {
            let mut found = match find(place, Some((&path, line))) {
                // There is no record from which the loop could continue.
                Err(StoreError::File(FsError::Io { source, .. }))
                    if source.kind() == ErrorKind::NotFound =>
                {
                    return Err(StoreError::Damaged { path, line, what });
                }
                found => found?,
            };
            found.troubles.push(format!(
                "falling back to record {}: journal {} is damaged at line {line} ({what}); the records from \
                 there on are lost to the loop, and kept in {RALPH_DIR}/quarantine/",
                found.state.seq,
                path.display()
            ));
            Ok(found)
        }
    }
}

impl Recovered {
    /// Returns the error for a journal that ends before the last record of a backup.
    fn cut_short(&self, dir: &Path, ahead: &backup::Listed) -> StoreError {
        let end = self.end.as_ref();
        let path = end.map_or(dir, |end| &end.part.path);
        let line = end.map_or(0, |end| end.lines) + 1;
        StoreError::damaged(path, line, backup::cut_short(self.state.seq, ahead))
    }
}

/// The state to which the records of the journal are applied.
#[derive(Default)]
struct Base {
    state: Option<State>,
    /// Path of the backup that is used instead of the snapshot; `None` for the snapshot.
    backup: Option<PathBuf>,
    older: Option<(PathBuf, u32)>,
    in_the_way: Option<InTheWay>,
    /// Why the snapshot cannot be read; `None` if it can.
    trouble: Option<String>,
}

impl Base {
    fn read(place: &Place<'_>) -> Result<Self, StoreError> {
        let path = snapshot::place(&place.copies.snapshot, &place.copies.encryption);
        match snapshot::read_as(
            place.snapshots,
            &place.copies.snapshot,
            &place.copies.encryption,
        ) {
            Ok(None) => Ok(Self::default()),
            Ok(Some(found)) if found.state.loop_id != place.loop_id => Ok(Self {
                in_the_way: Some(InTheWay::OfAnother(path, found.state.loop_id)),
                ..Self::default()
            }),
            Ok(Some(found))
                if !Epochs::of(place.dir, &place.copies.encryption)
                    .may_have(&found.state.epoch, found.state.seq) =>
            {
                Ok(Self {
                    trouble: Some(format!(
                        "snapshot {} was written before the last restore",
                        path.display()
                    )),
                    in_the_way: Some(InTheWay::Unreadable(path)),
                    ..Self::default()
                })
            }
            Ok(Some(found)) => Ok(Self {
                older: (found.version < place.snapshots.latest()).then_some((path, found.version)),
                state: Some(found.state),
                ..Self::default()
            }),
            Err(
                error @ (StoreError::DamagedSnapshot { .. } | StoreError::File(FsError::Io { .. })),
            ) => Ok(Self {
                trouble: Some(chain(&error)),
                in_the_way: Some(InTheWay::Unreadable(path)),
                ..Self::default()
            }),
            Err(error) => Err(error),
        }
    }
}

fn find(place: &Place<'_>, stop_at: Option<(&Path, usize)>) -> Result<Recovered, StoreError> {
    find_from(place, Base::read(place)?, stop_at)
}

/// Recovers the state from a snapshot or backup and the records after it.
fn find_from(
    place: &Place<'_>,
    base: Base,
    stop_at: Option<(&Path, usize)>,
) -> Result<Recovered, StoreError> {
    let Base {
        state: base,
        backup,
        older,
        in_the_way,
        trouble,
    } = base;
    let name = backup.as_ref().map_or("the snapshot".to_owned(), |path| {
        format!("backup {}", path.display())
    });
    let segments = match journal::segments(place.dir) {
        Err(StoreError::File(FsError::Io { source, .. }))
            if source.kind() == ErrorKind::NotFound && base.is_some() =>
        {
            Vec::new()
        }
        segments => segments?,
    };
    let (first, base) = begin_at(place, &segments, base);
    let source = match base {
        Some(_) if backup.is_some() => Source::Backup,
        Some(_) => Source::Snapshot,
        None => Source::Journal,
    };
    let mut tail = Tail::new(place, base, name.clone());
    let mut cut = Vec::new();
    for (number, path) in &segments[first..] {
        match stop_at {
            Some((damaged, line)) if damaged == path => {
                if tail.read(*number, path, Some(line))? {
                    cut.push(path.clone());
                }
            }
            Some(_) if !cut.is_empty() => cut.push(path.clone()),
            Some(_) | None => {
                tail.read(*number, path, None)?;
            }
        }
    }
    let newer_than_journal = tail.base_is_newer();
    if let Some(end) = &tail.end
        && compressed::is_compressed(&end.part.path)
        && !newer_than_journal
        && stop_at.is_none()
    {
        return Err(segment::missing_next_segment(&end.part.path, end.lines + 1));
    }
    let Some(state) = tail.state else {
        return Err(journal::none_in(place.dir));
    };
    let mut troubles = tail.troubles;
    if let Some(trouble) = trouble {
        let whole = match stop_at {
            None => format!("the journal is undamaged up to record {}, and ", state.seq),
            Some(_) => String::new(),
        };
        let text = format!(
            "falling back to the journal: {trouble}; {whole}the snapshot file is kept in {RALPH_DIR}/quarantine/"
        );
        troubles.insert(0, text);
    }
    if newer_than_journal {
        let ends = match tail.last {
            Some(last) => format!("the journal ends at record {last}"),
            None => "the journal has no records".to_owned(),
        };
        troubles.push(format!(
            "falling back to {name}: {ends}, and {name} ends at record {}; later records, if there were any, are lost",
            state.seq
        ));
    }
    Ok(Recovered {
        encryption: place.copies.encryption.clone(),
        state,
        source,
        records: tail.records,
        troubles,
        older,
        in_the_way,
        cut,
        end: tail.end,
        newer_than_journal,
        tolerated: tail.tolerated,
    })
}

/// Returns the first segment to read, and the base if it is newer than that segment. Each segment starts with the full state, so
/// the last readable one is enough.
fn begin_at(
    place: &Place<'_>,
    segments: &[(u32, PathBuf)],
    base: Option<State>,
) -> (usize, Option<State>) {
    let stated = segments
        .iter()
        .enumerate()
        .rev()
        .find_map(|(at, (_, path))| {
            let first = journal::first_record(place.journals, path, &place.copies.encryption)?;
            if let LoopEvent::SegmentOpened { state, .. } = first.event
                && first.loop_id == place.loop_id
            {
                return Some((at, state.seq));
            }
            None
        });
    match stated {
        Some((at, seq)) => (at, base.filter(|base| base.seq >= seq)),
        None => (0, base),
    }
}

#[cfg(test)]
mod tests;
