//! Which backup a restoration takes if nobody names one.

use std::cmp::Reverse;
use std::path::Path;

use tachikoma_core::LoopId;

use super::{Listed, container, list};
use crate::store::StoreError;
use crate::store::lives::Lives;
use crate::store::vault::Vault;

/// Lists the backups of the loop in `loop_dir`, or all where there is none, the best first: of the life that it leads, then of those
/// before it, by the number of their record, and then all others by their time. Backups that restorations have kept come
/// separately: whoever restores twice does not want to undo the first.
///
/// # Errors
/// The directory cannot be read.
pub fn best_first(
    dir: &Path,
    current: Option<(LoopId, &Path)>,
    vault: &Vault,
) -> Result<(Vec<Listed>, Vec<Listed>), StoreError> {
    let listed = list(dir, current.map(|(loop_id, _)| loop_id))?;
    let lives = current.map(|(_, dir)| Lives::of(dir, vault));
    let told = listed.into_iter().map(|listed| {
        let manifest = container::manifest_of(&listed.path, vault).ok();
        let rank = match (&manifest, &lives) {
            (Some(manifest), Some(lives)) => lives.rank(&manifest.life),
            // Whoever comes to it says what is wrong with it.
            (None, Some(_)) => Some(usize::MAX),
            (_, None) => None,
        };
        // Within a life, clocks do not matter.
        let place = rank.map(|rank| (rank, listed.seq));
        let kept = manifest.is_some_and(|manifest| manifest.before_restore);
        (kept, place, listed)
    });
    let mut told: Vec<_> = told.collect();
    told.sort_by_key(|(_, place, listed)| Reverse((*place, listed.clone())));
    let (kept, others): (Vec<_>, Vec<_>) = told.into_iter().partition(|(kept, ..)| *kept);
    let listed =
        |told: Vec<(bool, _, Listed)>| told.into_iter().map(|(.., listed)| listed).collect();
    Ok((listed(others), listed(kept)))
}
