//! Recovers the state from a backup if the journal is damaged after the snapshot. The backup must contain the damaged records, and
//! later records must be valid.

use super::{Base, Loss, Place, Recovered, find_from};
use crate::backup;
use crate::epochs::Epochs;

/// Recovers the state from the newest backup that contains the damaged records of the journal.
///
/// If the journal ends before the backup, the backup is used only with [`Loss::Accept`], because records after the backup are lost.
pub fn find(place: &Place<'_>, loss: Loss) -> Option<Recovered> {
    let mut listed = backup::list(&place.copies.backups, Some(place.loop_id)).ok()?;
    // The backup with the highest record number is the newest, because the clock may have been changed.
    listed.sort_by_key(|listed| std::cmp::Reverse(listed.seq));
    let epochs = Epochs::of(place.dir, &place.copies.encryption);
    for listed in listed {
        let Ok(manifest) = backup::manifest_of(&listed.path, &place.copies.encryption) else {
            continue;
        };
        if !epochs.has(&manifest.epoch, manifest.seq, manifest.segment) {
            continue;
        }
        let Ok(content) = backup::read_through(&listed.path, &place.copies.encryption) else {
            continue;
        };
        let base = Base {
            state: Some(content.state),
            backup: Some(listed.path),
            // A foreign file at the path of the snapshot has to be moved, too.
            ..Base::read(place).ok()?
        };
        let Ok(found) = find_from(place, base, None) else {
            continue;
        };
        // An older backup would lose records that this one contains.
        return (!found.newer_than_journal || loss == Loss::Accept).then_some(found);
    }
    None
}
