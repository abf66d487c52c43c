//! The owner of a change: the loop, or another process. Changes of other processes are never committed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tachikoma_core::Timestamp;

use super::differences::{Change, Dirty};
use super::fingerprint::{Dir, What};
use super::path::RepoPath;
use super::work_record::WorkRecord;
use tachikoma_runtime::clock;

/// More files than anybody changes by hand; what was put away before is then not known again.
const ASIDE_MAX: usize = 10_000;

/// The object of a file without content, in both kinds of repository: it says nothing about where a file came from.
const EMPTY_FILES: [&str; 2] = [
    "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
];

/// The owner of the changes that a survey finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeOwner {
    /// The loop's: an iteration or something else of it ran since the last survey.
    Loop,
    /// The user or another process made them.
    Others,
    /// The loop made those up to a time, when its runner and all its processes were dead. The user made the later ones.
    LoopUntil(SystemTime),
    /// Changes before this time belong to others, later ones to the loop.
    LoopSince(SystemTime),
}

/// Within that time of its last record a runner is dead with all that it had started, where its guard could not note when.
const DEATH_GRACE: Duration = Duration::from_secs(5);

impl ChangeOwner {
    /// Returns whose the changes are that nobody has looked at: `owed` is whether the loop may have made some of them, `died`
    /// when its runner was dead, where that is known, and `last` the time of its last record.
    #[must_use]
    pub fn since_last_survey(owed: bool, died: Option<SystemTime>, last: Timestamp) -> Self {
        if !owed {
            return Self::Others;
        }
        let guess = || clock::system_time_of(last.after(DEATH_GRACE));
        Self::LoopUntil(died.unwrap_or_else(guess))
    }
}

/// What the survey before knew, which tells what came since from what was there and left out.
pub enum Before {
    /// All that is watched; what is new came since.
    Watched,
    /// All that was there, before everything became known anew.
    Known { root: Dir, since: Option<i64> },
    /// Nothing but when it was.
    Unknown { since: Option<i64> },
}

/// What happened since the survey before, and when this one began, by the clock that stamps files.
pub struct Since {
    pub owner: ChangeOwner,
    pub before: Before,
    pub began: i64,
}

impl Before {
    /// Whether a file that came into the tree was in the work tree all along, and left out.
    fn had(&self, path: &RepoPath, top: &Path) -> bool {
        match self {
            Self::Watched => false,
            Self::Known { root, since } => match root.outermost(path.bytes()) {
                // What was ignored under its own name was there.
                Some((What::Ignored(_) | What::Protected(_) | What::Left, true)) => true,
                Some((
                    What::Ignored(_) | What::Protected(_) | What::Left | What::Nested,
                    false,
                )) => !is_born_since(&top.join(path.as_path()), *since),
                Some((
                    What::File(_) | What::Dir(_) | What::Submodule(_) | What::Nested | What::Odd(_),
                    _,
                ))
                | None => false,
            },
            Self::Unknown { since } => !is_born_since(&top.join(path.as_path()), *since),
        }
    }
}

/// Whether a file was made since a survey began. If that is unknown, it was not, and the file is left alone.
fn is_born_since(path: &Path, since: Option<i64>) -> bool {
    let since = since.and_then(|nanos| u64::try_from(nanos).ok());
    let born = fs::symlink_metadata(path).and_then(|there| there.created());
    match (since, born) {
        // Stamps are up to a tick behind, and no agent begins that soon.
        (Some(since), Ok(born)) => born >= UNIX_EPOCH + Duration::from_nanos(since),
        (None, _) | (_, Err(_)) => false,
    }
}

/// Whether a file was last changed, or removed, by a moment. Of one that is gone the directory tells.
pub fn is_changed_by(path: &Path, moment: SystemTime) -> bool {
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

/// Every uncommitted file is the loop's or somebody else's: those that changed, and those that became uncommitted because
/// the work tree stands on another commit.
/// Returns those that the loop changed and that are not its own.
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
        .filter(|(_, change)| change.after.is_nothing())
        .filter_map(|(path, change)| Some((change.before.object()?, path)))
        .collect();
    let surfaced = |path: &RepoPath, change: &Change| {
        let moved = |object: &str| went.contains_key(object);
        change.came() && !change.after.object().is_some_and(moved) && since.before.had(path, top)
    };
    let mut not_ours = Vec::new();
    for path in dirty.keys() {
        let known = work.mine.contains(path) || work.theirs.contains(path);
        let change = changed.get(path);
        if known && change.is_none() {
            continue;
        }
        let is_loops = match since.owner {
            ChangeOwner::Loop => true,
            ChangeOwner::Others => false,
            // What another commit uncovers has no stamp.
            ChangeOwner::LoopUntil(death) => {
                change.is_some() && is_changed_by(&top.join(path.as_path()), death)
            }
            ChangeOwner::LoopSince(start) => {
                change.is_some() && !is_changed_by(&top.join(path.as_path()), start)
            }
        };
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

/// Somebody else's files stay so until a commit has them, or until somebody else puts them back. The loop may put them
/// away, and bring them back later.
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
            // Unless a commit has now what was put away.
            !after.is_some_and(|after| is_aside(aside, path, after))
        } else {
            // What is clean without having changed is in a commit.
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

/// Whether a file is again what it was in somebody else's hands, under its name or a new one.
fn is_back(work: &WorkRecord, path: &RepoPath, change: &Change) -> bool {
    let Some(after) = change.after.object() else {
        return false;
    };
    let moved = || work.aside.iter().any(|(_, object)| object == after);
    is_aside(&work.aside, path, after) || change.came() && !EMPTY_FILES.contains(&after) && moved()
}

fn is_aside(aside: &BTreeSet<(RepoPath, String)>, path: &RepoPath, object: &str) -> bool {
    aside.contains(&(path.clone(), object.to_owned()))
}
