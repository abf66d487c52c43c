//! Finds the owner of each change: the loop or others. Changes of others are never committed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tachikoma_core::Timestamp;

use super::differences::{Change, Dirty};
use super::path::{RepoPath, ancestors};
use super::work_record::WorkRecord;
use tachikoma_runtime::clock;

/// Maximum number of remembered contents of files of others. The oldest are dropped.
const ASIDE_MAX: usize = 10_000;

/// The object ids of an empty file in SHA-1 and SHA-256. Empty files are not recognized by their content.
const EMPTY_FILES: [&str; 2] = [
    "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
];

/// The owner of the changes that a survey finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeOwner {
    /// The loop made the changes: its agent or another of its processes ran since the last survey.
    Loop,
    /// The user or another process made the changes.
    Others,
    /// Changes up to this time belong to the loop; its processes had ended then. Later changes belong to others.
    LoopUntil(SystemTime),
    /// Changes before this time belong to others, later ones to the loop.
    LoopSince(SystemTime),
}

/// If the guard recorded no time of death, the processes of a dead runner ended within this time after its last record.
const DEATH_GRACE: Duration = Duration::from_secs(5);

impl ChangeOwner {
    /// Returns the owner of changes since the last survey. `owed`: whether the loop may have made some of them. `died`: when its
    /// runner died, if known. `last`: time of its last record.
    #[must_use]
    pub fn since_last_survey(owed: bool, died: Option<SystemTime>, last: Timestamp) -> Self {
        if !owed {
            return Self::Others;
        }
        let guess = || clock::system_time_of(last.after(DEATH_GRACE));
        Self::LoopUntil(died.unwrap_or_else(guess))
    }

    /// Returns whether the loop made the last change of a file.
    pub(crate) fn is_loop(self, path: &Path) -> bool {
        match self {
            Self::Loop => true,
            Self::Others => false,
            Self::LoopUntil(death) => is_changed_by(path, death),
            Self::LoopSince(start) => !is_changed_by(path, start),
        }
    }
}

/// Knowledge from the last survey that distinguishes new files from files that existed but were ignored.
pub enum Before {
    /// The ignore rules are the same, so every new file was created since the last survey.
    SameRules,
    /// The ignore rules changed. `hidden` are the files and directories that were ignored at the last survey.
    OtherRules {
        hidden: HashSet<RepoPath>,
        since: Option<i64>,
    },
    /// The ignore rules of the last survey are unknown. `since` is when it began, in nanoseconds of the clock for file times.
    Unknown { since: Option<i64> },
}

/// The owner of changes, the knowledge from the last survey, and when this survey began, in nanoseconds of the clock for file times.
pub struct Since {
    pub owner: ChangeOwner,
    pub before: Before,
    pub began: i64,
}

impl Before {
    /// Returns whether a file existed at the last survey and was ignored.
    fn had(&self, path: &RepoPath, top: &Path) -> bool {
        match self {
            Self::SameRules => false,
            Self::OtherRules { hidden, since } => {
                hidden.contains(path)
                    || ancestors(path.bytes()).any(|above| hidden.contains(above))
                        && !is_born_since(&top.join(path.as_path()), *since)
            }
            Self::Unknown { since } => !is_born_since(&top.join(path.as_path()), *since),
        }
    }
}

/// Returns whether a file was created after a survey began. False if that is unknown.
fn is_born_since(path: &Path, since: Option<i64>) -> bool {
    let since = since.and_then(|nanos| u64::try_from(nanos).ok());
    let born = fs::symlink_metadata(path).and_then(|there| there.created());
    match (since, born) {
        // File times are up to ten milliseconds late. No agent starts that quickly after a survey.
        (Some(since), Ok(born)) => born >= UNIX_EPOCH + Duration::from_nanos(since),
        (None, _) | (_, Err(_)) => false,
    }
}

/// Returns whether a file was last changed at or before a time. For a removed file, the time of its directory is used.
fn is_changed_by(path: &Path, moment: SystemTime) -> bool {
    let there = path
        .ancestors()
        .find_map(|path| fs::symlink_metadata(path).ok());
    let changed = there.and_then(|there| {
        let seconds = u64::try_from(there.ctime()).ok()?;
        let nanos = u32::try_from(there.ctime_nsec()).ok()?;
        UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
    });
    changed.is_some_and(|changed| changed <= moment)
}

/// Assigns every uncommitted file to the loop or to others: files that changed, and files that became uncommitted because HEAD
/// moved. Returns the files that the loop changed and that belong to others.
pub fn attribute(
    work: &mut WorkRecord,
    top: &Path,
    changed: &BTreeMap<RepoPath, Change>,
    dirty: &Dirty,
    since: &Since,
) -> Vec<RepoPath> {
    work.mine.retain(|path| dirty.contains_key(path));
    follow_theirs(work, since.owner, changed, dirty);
    let went: BTreeMap<&str, &RepoPath> = changed
        .iter()
        .filter(|(_, change)| change.is_removal())
        .filter_map(|(path, change)| Some((change.before.object()?, path)))
        .collect();
    let surfaced = |path: &RepoPath, change: &Change| {
        let moved = |object: &str| went.contains_key(object);
        change.is_new() && !change.after.object().is_some_and(moved) && since.before.had(path, top)
    };
    let mut not_ours = Vec::new();
    for path in dirty.keys() {
        let known = work.mine.contains(path) || work.theirs.contains(path);
        let change = changed.get(path);
        if known && change.is_none() {
            continue;
        }
        // A file that is uncommitted only because HEAD moved has no usable time.
        let is_loops = since.owner == ChangeOwner::Loop
            || change.is_some() && since.owner.is_loop(&top.join(path.as_path()));
        match is_loops {
            false => {
                work.theirs.insert(path.clone());
            }
            true => {
                let theirs =
                    |change: &Change| surfaced(path, change) || is_back(work, path, change);
                if change.is_some_and(theirs) {
                    work.theirs.insert(path.clone());
                }
                if !work.theirs.contains(path) {
                    work.mine.insert(path.clone());
                } else {
                    not_ours.push(path.clone());
                }
            }
        }
    }
    let WorkRecord {
        withheld, theirs, ..
    } = work;
    withheld.extend(not_ours.iter().cloned());
    withheld.retain(|path| theirs.contains(path) && dirty.contains_key(path));
    not_ours
}

/// Updates the set of files of others. A file stays in it until it is committed or others revert it, even if the loop reverts or
/// moves it and restores it later.
fn follow_theirs(
    work: &mut WorkRecord,
    owner: ChangeOwner,
    changed: &BTreeMap<RepoPath, Change>,
    dirty: &Dirty,
) {
    let WorkRecord {
        theirs,
        resting,
        aside,
        ..
    } = work;
    theirs.retain(|path| {
        let change = changed.get(path);
        let before = change.and_then(|change| change.before.object());
        let after = change.and_then(|change| change.after.object());
        let is_dirty = dirty.contains_key(path);
        let was_resting = resting.contains(path);
        if let Some(before) = before.filter(|_| !(was_resting || is_dirty && after.is_some())) {
            if aside.len() >= ASIDE_MAX {
                aside.pop_first();
            }
            aside.insert((path.clone(), before.to_owned()));
        }
        if is_dirty {
            resting.remove(path);
            return true;
        }
        let stays = if was_resting {
            // The file still belongs to others unless a commit contains the remembered content.
            !after.is_some_and(|after| is_aside(aside, path, after))
        } else {
            // A file without a difference to HEAD that did not change was committed.
            owner != ChangeOwner::Others && change.is_some()
        };
        if stays {
            resting.insert(path.clone());
        } else {
            resting.remove(path);
        }
        stays
    });
}

/// Returns whether a file has a remembered content of others again, at the same path or at a new one.
fn is_back(work: &WorkRecord, path: &RepoPath, change: &Change) -> bool {
    let Some(after) = change.after.object() else {
        return false;
    };
    let moved = || work.aside.iter().any(|(_, object)| object == after);
    is_aside(&work.aside, path, after)
        || change.is_new() && !EMPTY_FILES.contains(&after) && moved()
}

fn is_aside(aside: &BTreeSet<(RepoPath, String)>, path: &RepoPath, object: &str) -> bool {
    aside.contains(&(path.clone(), object.to_owned()))
}
