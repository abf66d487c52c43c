//! What a backup is good for when the journal is damaged behind all that the snapshot has: it stands where the damage is, and
//! the records behind it are whole.

use super::{Base, Loss, Place, Recovered, find_from};
use crate::backup;
use crate::lives::Lives;

/// Finds the state with the newest backup that makes up for damage in the journal.
///
/// One that is ahead of the journal is of use only if a loss is accepted: what came behind it is lost.
pub fn find(place: &Place<'_>, loss: Loss) -> Option<Recovered> {
    let mut listed = backup::list(place.backups?, Some(place.loop_id)).ok()?;
    // Of those that are part of the loop, the number of the record says which is the newest.
    listed.sort_by_key(|listed| std::cmp::Reverse(listed.seq));
    let lives = Lives::of(place.dir, place.vault);
    for listed in listed {
        let Ok(told) = backup::manifest_of(&listed.path, place.vault) else {
            continue;
        };
        if !lives.has(&told.life, told.seq, told.segment) {
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
        // With an older one, records would be lost that this one has.
        return (!found.behind || loss == Loss::Accept).then_some(found);
    }
    None
}
