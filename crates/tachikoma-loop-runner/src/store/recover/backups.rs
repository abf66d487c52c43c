//! What a backup is good for when the journal is damaged behind all that the snapshot has: it stands where the damage is, and
//! the records behind it are whole.

use std::path::PathBuf;

use tachikoma_core::Seq;

use super::{Base, Loss, Place, Recovered, find_from};
use crate::store::journal;
use crate::store::vault::Vault;
use crate::store::{backup, migrate};

/// Finds the state with the newest backup that makes up for damage in the journal.
///
/// One that is ahead of the journal is of use only if a loss is accepted: what came behind it is lost.
pub(super) fn find(place: &Place<'_>, loss: Loss) -> Option<Recovered> {
    let listed = backup::list(place.backups?, Some(place.loop_id)).ok()?;
    let segments = journal::segments(place.dir).ok()?;
    for listed in listed {
        if !belongs(&segments, place.vault, listed.seq, || {
            backup::segment_of(&listed.path, place.vault)
        }) {
            continue;
        }
        let Ok(content) = backup::read_through(&listed.path, place.vault) else {
            continue;
        };
        let base = Base {
            state: Some(content.state),
            backup: Some(listed.path),
            // What lies in the place of the snapshot is in the way all the same.
            ..Base::read(place).ok()?
        };
        let Ok(found) = find_from(place, base, None) else {
            continue;
        };
        if found.behind && loss == Loss::Refuse {
            continue;
        }
        return Some(found);
    }
    None
}

/// Returns whether a backup that stands at a record is of the life that the journal tells of. A loop that was restored has records
/// of the same numbers in backups from before, and in other segments: nothing is ever added to a segment that a restoration
/// has found.
fn belongs(
    segments: &[(u32, PathBuf)],
    vault: &Vault,
    seq: Seq,
    segment: impl FnOnce() -> Option<u32>,
) -> bool {
    let Some(number) = segment() else {
        return false;
    };
    let Some(at) = segments.iter().position(|(there, _)| *there == number) else {
        return false;
    };
    let Some((_, next)) = segments.get(at + 1) else {
        return true;
    };
    let first = journal::first_record(migrate::JOURNAL, next, vault);
    first.is_some_and(|first| first.seq > seq)
}
