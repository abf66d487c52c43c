//! Finding the state of a loop again: the snapshot and the tail of the journal, or the journal alone; where that is damaged, a
//! backup and the tail.

mod backups;
mod open;
mod tail;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tachikoma_core::{LoopEvent, LoopId, State};
use tachikoma_fs::{FsError, RALPH_DIR};

use super::journal::{self, Journal, segment};
use super::lives::Lives;
use super::migrate::{self, Chain};
use super::vault::Vault;
use super::{StoreError, backup, compressed, key_check, snapshot};
use tachikoma_core::error_chain as chain;

pub use open::Taken;
use tail::{End, Tail};

/// Where a state was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the snapshot and the records behind it.
    Snapshot,
    /// In the journal alone.
    Journal,
    /// In a backup and the records behind it.
    Backup,
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
    vault: Vault,
    /// The version of the snapshot, if it is an older one.
    older: Option<(PathBuf, u32)>,
    /// What is in the place of the snapshot, and is none of this loop.
    in_the_way: Option<InTheWay>,
    /// Segments that are given up, the first of them from some line on.
    cut: Vec<PathBuf>,
    /// The last segment, if there is any.
    end: Option<End>,
    /// Whether the state is ahead of what the journal holds, so that a new segment has to say it.
    behind: bool,
    /// Whether the journal has damage that costs nothing: only as long as the snapshot is there, unless a new segment
    /// says it all again.
    tolerated: bool,
}

/// What is in the place of the snapshot, and is none of this loop.
#[derive(Debug)]
enum InTheWay {
    Unreadable(PathBuf),
    OfAnother(PathBuf, LoopId),
}

/// What to do about a record that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Refuse to go on as if nothing had happened.
    Refuse,
    /// Go on from the last record before it.
    Accept,
}

/// Where the state of a loop is kept besides its journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies {
    /// The snapshot.
    pub snapshot: PathBuf,
    /// The directory of backups.
    pub backups: PathBuf,
    /// What opens all of it, and seals what is written.
    pub vault: Vault,
}

impl Copies {
    /// The snapshot alone, without backups.
    #[must_use]
    pub fn only(snapshot: &Path, vault: &Vault) -> Self {
        Self {
            snapshot: snapshot.to_owned(),
            backups: PathBuf::new(),
            vault: vault.clone(),
        }
    }
}

/// Finds the state of the loop in `dir` without changing anything.
///
/// # Errors
/// The journal or the snapshot is newer than this version, or a record behind snapshot and backups is lost and that is not
/// accepted.
pub fn read(
    dir: &Path,
    copies: &Copies,
    loop_id: LoopId,
    loss: Loss,
) -> Result<Recovered, StoreError> {
    let encrypted = key_check::segments_in(dir).chain(snapshot::all_places(&copies.snapshot));
    copies.vault.check_opens(&encrypted.collect::<Vec<_>>())?;
    let place = Place {
        dir,
        snapshot: &copies.snapshot,
        backups: Some(&copies.backups),
        loop_id,
        vault: &copies.vault,
        journals: migrate::JOURNAL,
        snapshots: migrate::SNAPSHOT,
    };
    read_at(&place, loss)
}

/// Opens the journal in `dir` without a snapshot and without backups.
///
/// # Errors
/// It cannot be read, is damaged, or is newer than this version.
pub fn open_journal(dir: &Path, vault: &Vault) -> Result<(Journal, State), StoreError> {
    let mut newest_first = journal::segments(dir)?.into_iter().rev();
    let first =
        newest_first.find_map(|(_, path)| journal::first_record(migrate::JOURNAL, &path, vault));
    let loop_id = first.ok_or_else(|| journal::none_in(dir))?.loop_id;
    let copies = Copies::only(&dir.join("no snapshot"), vault);
    let found = read(dir, &copies, loop_id, Loss::Refuse)?;
    let taken = found.open(dir, journal::working_dir_of(dir))?;
    Ok((taken.journal, taken.state))
}

/// Where to look, and in which formats.
struct Place<'a> {
    dir: &'a Path,
    snapshot: &'a Path,
    backups: Option<&'a Path>,
    loop_id: LoopId,
    vault: &'a Vault,
    journals: Chain,
    snapshots: Chain,
}

fn read_at(place: &Place<'_>, loss: Loss) -> Result<Recovered, StoreError> {
    // Before the journal, which grows while it is run.
    let listed = place
        .backups
        .map(|dir| backup::list(dir, Some(place.loop_id)));
    let (path, line, what) = match find(place, None) {
        Err(StoreError::Damaged { path, line, what }) => (path, line, what),
        Ok(found) => {
            let listed = listed.and_then(Result::ok).unwrap_or_default();
            return match backup::ahead_of(found.state.seq, listed, place.dir, place.vault) {
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
                // Nothing is left to go on from.
                Err(StoreError::File(FsError::Io { source, .. }))
                    if source.kind() == ErrorKind::NotFound =>
                {
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
    }
}

impl Recovered {
    /// The end of the journal is gone: a backup has what was there.
    fn cut_short(&self, dir: &Path, ahead: &backup::Listed) -> StoreError {
        let end = self.end.as_ref();
        StoreError::Damaged {
            path: end.map_or(dir, |end| &end.path).to_owned(),
            line: end.map_or(0, |end| end.lines) + 1,
            what: backup::cut_short(self.state.seq, ahead),
        }
    }
}

/// The snapshot, as far as it is of use, or what stands for it.
#[derive(Default)]
struct Base {
    state: Option<State>,
    /// The backup that stands for it.
    backup: Option<PathBuf>,
    older: Option<(PathBuf, u32)>,
    in_the_way: Option<InTheWay>,
    /// Why it cannot be read.
    trouble: Option<String>,
}

impl Base {
    fn read(place: &Place<'_>) -> Result<Self, StoreError> {
        let path = snapshot::place(place.snapshot, place.vault);
        match snapshot::read_as(place.snapshots, place.snapshot, place.vault) {
            Ok(None) => Ok(Self::default()),
            Ok(Some(found)) if found.state.loop_id != place.loop_id => Ok(Self {
                in_the_way: Some(InTheWay::OfAnother(path, found.state.loop_id)),
                ..Self::default()
            }),
            Ok(Some(found))
                if !Lives::of(place.dir, place.vault)
                    .may_have(&found.state.life, found.state.seq) =>
            {
                Ok(Self {
                    trouble: Some(format!(
                        "snapshot {} is of the loop before it was restored",
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

/// Finds the state from a base on.
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
    let mut tail = Tail::new(
        place.journals,
        place.loop_id,
        base,
        name.clone(),
        place.vault,
    );
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
    let behind = tail.is_behind();
    if let Some(end) = &tail.end
        && compressed::is_compressed(&end.path)
        && !behind
        && stop_at.is_none()
    {
        return Err(segment::unfollowed(&end.path, end.lines + 1));
    }
    let Some(state) = tail.state else {
        return Err(journal::none_in(place.dir));
    };
    let mut troubles = tail.troubles;
    if let Some(trouble) = trouble {
        let whole = match stop_at {
            None => format!("the journal is whole up to record {}, and ", state.seq),
            Some(_) => String::new(),
        };
        let text = format!(
            "falling back to the journal: {trouble}; {whole}what is there is kept in {RALPH_DIR}/quarantine/"
        );
        troubles.insert(0, text);
    }
    if behind {
        let ends = match tail.last {
            Some(last) => format!("the journal ends at record {last}"),
            None => "there is no record left in the journal".to_owned(),
        };
        troubles.push(format!(
            "falling back to {name}: {ends}, and {name} stands at record {}; what came behind that, if anything did, is lost",
            state.seq
        ));
    }
    Ok(Recovered {
        vault: place.vault.clone(),
        state,
        source,
        records: tail.records,
        troubles,
        older,
        in_the_way,
        cut,
        end: tail.end,
        behind,
        tolerated: tail.tolerated,
    })
}

/// Returns the place of the segment at which to begin, and the snapshot if it is of use there. Each segment begins with the
/// full state: the last one that says it suffices, and a snapshot from before it does not matter.
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
            let first = journal::first_record(place.journals, path, place.vault)?;
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
