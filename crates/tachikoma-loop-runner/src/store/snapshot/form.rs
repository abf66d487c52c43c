//! The form of a snapshot's file: `state.json`, or `state.json.zst` where it is compressed. At every moment one of them is
//! there, or both while one takes the place of the other: then the newer one counts.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::{is_ours, migrate, read_at};
use crate::store::vault::Vault;
use crate::store::{StoreError, compressed};

/// How a snapshot is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// As indented JSON.
    #[default]
    Plain,
    /// As that, in one zstd frame.
    Compressed,
}

impl Packing {
    /// Returns the packing that `compress` asks for.
    #[must_use]
    pub fn of(compress: bool) -> Self {
        if compress {
            Self::Compressed
        } else {
            Self::Plain
        }
    }

    /// Returns the file of a snapshot that is packed so.
    #[must_use]
    pub fn path(self, path: &Path) -> PathBuf {
        match self {
            Self::Plain => path.to_owned(),
            Self::Compressed => compressed::compressed_path(path),
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Plain => Self::Compressed,
            Self::Compressed => Self::Plain,
        }
    }

    pub(super) fn pack(self, bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Plain => bytes,
            Self::Compressed => {
                let mut packed = Vec::new();
                compressed::pack(&mut bytes.as_slice(), &mut packed, &AtomicBool::new(false))
                    .expect("memory can be read and written");
                packed
            }
        }
    }
}

/// Returns the file of a snapshot that counts, whatever is in it; `path` itself where there is none.
#[must_use]
pub fn place(path: &Path, vault: &Vault) -> PathBuf {
    let packed = Packing::Compressed.path(path);
    let is_there = |path: &Path| std::fs::symlink_metadata(path).is_ok();
    if !is_there(&packed) {
        return path.to_owned();
    }
    if !is_there(path) || rank(&packed, vault) > rank(path, vault) {
        return packed;
    }
    path.to_owned()
}

/// The record that a file stands at. One that cannot be read counts less than any, and one of a newer version more: nobody may
/// go on beside it.
fn rank(path: &Path, vault: &Vault) -> Option<u64> {
    match read_at(migrate::SNAPSHOT, path, vault) {
        Ok(found) => found.map(|found| found.seq.0),
        Err(StoreError::NewerSnapshot { .. }) => Some(u64::MAX),
        Err(_) => None,
    }
}

/// Removes the snapshot of the other form, if there is one and it is ours.
pub(super) fn remove_other(path: &Path, packing: Packing, vault: &Vault) -> Result<(), StoreError> {
    let other = packing.other().path(path);
    if std::fs::symlink_metadata(&other).is_ok() && is_ours(&other, vault) {
        std::fs::remove_file(&other).map_err(StoreError::io("remove", &other))?;
    }
    Ok(())
}
