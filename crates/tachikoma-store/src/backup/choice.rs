//! Which backup a restoration takes if nobody names one, and what backups say of a loop that has lost something.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use tachikoma_core::{LoopId, Seq};
use tachikoma_fs::RALPH_DIR;

use super::{Listed, Manifest, container, list};
use crate::lives::Lives;
use crate::vault::Vault;
use crate::{StoreError, layout};

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
            // By its name it may be of today's. Whoever comes to it says what is wrong with it.
            (None, Some(lives)) => lives.current_rank(),
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

/// Finds the good backup of the loop in `loop_dir` that stands furthest behind a record: those up to it were there once. Which of them
/// may be one, their names say.
pub fn ahead_of(
    seq: Seq,
    mut listed: Vec<Listed>,
    loop_dir: &Path,
    vault: &Vault,
) -> Option<Listed> {
    listed.retain(|listed| listed.seq > seq);
    listed.sort_by_key(|listed| Reverse(listed.seq));
    let lives = Lives::of(loop_dir, vault);
    listed.into_iter().find(|listed| {
        // Of one that cannot be opened nobody knows what it is.
        let told = container::manifest_of(&listed.path, vault);
        told.is_ok_and(|told| told.seq > seq && lives.has(&told.life, told.seq, told.segment))
            && container::read_through(&listed.path, vault).is_ok()
    })
}

/// What is said of a journal that ends before a backup does.
pub fn cut_short(ends: Seq, ahead: &Listed) -> String {
    format!(
        "it ends with record {ends}, and backup {} has those up to {}",
        ahead.path.display(),
        ahead.seq
    )
}

/// A good backup of a loop of which nothing else is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfLost {
    /// The file.
    pub path: PathBuf,
    /// What it says of itself.
    pub manifest: Manifest,
}

impl OfLost {
    /// Says what it has, and how it is gone back to.
    #[must_use]
    pub fn words(&self, working_dir: &Path) -> String {
        let Self { path, manifest } = self;
        format!(
            "a backup has {} up to iteration {}: `tachikoma state restore {}` goes back to that",
            manifest.loop_id,
            manifest.iteration,
            path.strip_prefix(working_dir).unwrap_or(path).display()
        )
    }
}

/// Finds the newest good backup of a loop that is not in the working directory any more. A directory of backups outside of `.ralph/` may be shared: there
/// only loops count that worked here.
#[must_use]
pub fn of_lost_loop(dir: &Path, working_dir: &Path, vault: &Vault) -> Option<OfLost> {
    let is_ours = dir.starts_with(working_dir.join(RALPH_DIR));
    let listed = list(dir, None).ok()?.into_iter();
    let mut lost = listed.filter(|listed| {
        std::fs::symlink_metadata(layout::loop_dir(working_dir, listed.loop_id)).is_err()
    });
    lost.find_map(|listed| {
        let content = container::read_through(&listed.path, vault).ok()?;
        (is_ours || content.working_dir == working_dir).then_some(OfLost {
            path: listed.path,
            manifest: content.manifest,
        })
    })
}
