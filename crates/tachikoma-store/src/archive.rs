//! Setting a loop aside. Its journal and its transcripts stay where they are; its snapshot moves into its directory, and
//! by that it is archived: it is not the current loop any more, and the next run begins another one.

use std::path::Path;

use tachikoma_core::LoopId;
use tachikoma_fs::make_dir;
use tachikoma_fs::quarantine::quarantine;

use super::recover::{self, Copies, Loss};
use super::snapshot::{self, Snapshot};
use super::vault::Vault;
use super::{StoreError, layout, loops};

pub use super::archived_snapshot::{move_away, remove, set_aside, write_archived, write_unknown};

/// Archives a loop. The lock of the working directory must be held.
///
/// # Errors
/// Its snapshot cannot be moved; the loop is then as it was.
pub fn archive(
    working_dir: &Path,
    loop_id: LoopId,
    snapshot: &Path,
    vault: &Vault,
) -> Result<(), StoreError> {
    let dir = layout::loop_dir(working_dir, loop_id);
    let bytes = match snapshot::read(snapshot, vault) {
        Ok(Some(found)) if found.loop_id == loop_id => snapshot::bytes(snapshot, vault)?,
        Ok(None) => of_journal(working_dir, &dir, snapshot, loop_id, vault),
        Ok(Some(other)) => {
            set_aside(working_dir, snapshot, other.loop_id, vault)?;
            of_journal(working_dir, &dir, snapshot, loop_id, vault)
        }
        // For the version that wrote it, as it is.
        Err(StoreError::NewerSnapshot { .. }) => snapshot::bytes(snapshot, vault)?,
        Err(error) => {
            put_away(working_dir, snapshot, error, vault)?;
            of_journal(working_dir, &dir, snapshot, loop_id, vault)
        }
    };
    // The one step that archives it.
    make_dir(&dir)?;
    write_archived(&dir, &bytes, vault)?;
    remove(snapshot, vault)
}

/// Archives every loop but `current`: a runner may have died between beginning that one and archiving the one before it,
/// which would come back one day.
///
/// # Errors
/// The loops cannot be listed, or one cannot be archived.
pub fn archive_others(
    working_dir: &Path,
    current: LoopId,
    snapshot: &Path,
    vault: &Vault,
) -> Result<(), StoreError> {
    for (_, loop_id) in loops::unarchived(working_dir, vault)? {
        if loop_id != current {
            let dir = layout::loop_dir(working_dir, loop_id);
            let bytes = of_journal(working_dir, &dir, snapshot, loop_id, vault);
            write_archived(&dir, &bytes, vault)?;
        }
    }
    Ok(())
}

/// Makes room for the snapshot of a new loop: the loop before it is archived, and what nobody can read is kept.
///
/// # Errors
/// Something cannot be moved.
pub fn make_way(
    working_dir: &Path,
    before: Option<LoopId>,
    snapshot: &Path,
    vault: &Vault,
) -> Result<(), StoreError> {
    if let Some(loop_id) = before {
        return archive(working_dir, loop_id, snapshot, vault);
    }
    match snapshot::read(snapshot, vault) {
        Err(error) => put_away(working_dir, snapshot, error, vault),
        Ok(Some(found)) => set_aside(working_dir, snapshot, found.loop_id, vault),
        Ok(None) => Ok(()),
    }
}

/// What is no snapshot that we can read is kept as it is, whatever it is.
fn put_away(
    working_dir: &Path,
    snapshot: &Path,
    error: StoreError,
    vault: &Vault,
) -> Result<(), StoreError> {
    let is_none = match &error {
        StoreError::DamagedSnapshot { .. } | StoreError::NewerSnapshot { .. } => true,
        _ => snapshot::place(snapshot, vault).is_dir(),
    };
    if !is_none {
        return Err(error);
    }
    quarantine(working_dir, &snapshot::place(snapshot, vault))?;
    Ok(())
}

/// What the snapshot of a loop would be; nothing if its journal does not tell any more.
fn of_journal(
    working_dir: &Path,
    dir: &Path,
    snapshot: &Path,
    loop_id: LoopId,
    vault: &Vault,
) -> Vec<u8> {
    recover::read(dir, &Copies::only(snapshot, vault), loop_id, Loss::Accept)
        .map(|found| {
            Snapshot::of(&found.state, working_dir, found.state.time)
                .encode()
                .into_bytes()
        })
        .unwrap_or_default()
}
