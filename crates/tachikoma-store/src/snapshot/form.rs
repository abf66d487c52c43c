//! The form of a snapshot's file: `state.json`, with `.zst` behind it where it is compressed, and `.age` where it is sealed. At
//! every moment one of them is there, or two while one takes the place of the other: then the newer one counts.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::{is_ours, migrate, read_at};
use crate::vault::{self, Vault};
use crate::{StoreError, compressed};

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
    pub fn path(self, path: &Path, vault: &Vault) -> PathBuf {
        vault.named(self.packed(path))
    }

    fn packed(self, path: &Path) -> PathBuf {
        match self {
            Self::Plain => path.to_owned(),
            Self::Compressed => compressed::compressed_path(path),
        }
    }

    /// Compresses a snapshot if that is configured.
    pub fn pack(self, bytes: Vec<u8>) -> Vec<u8> {
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

/// Returns all files that a snapshot may have; of two that stand at the same record the first counts.
pub fn all_places(path: &Path) -> Vec<PathBuf> {
    let packed = [Packing::Plain, Packing::Compressed].map(|packing| packing.packed(path));
    let sealed = packed.clone().map(|path| {
        let mut name = path.into_os_string();
        name.push(vault::SUFFIX);
        PathBuf::from(name)
    });
    packed.into_iter().chain(sealed).collect()
}

/// Returns the file of a snapshot that counts, whatever is in it; `path` itself where there is none.
#[must_use]
pub fn place(path: &Path, vault: &Vault) -> PathBuf {
    let is_there = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok();
    let mut there: Vec<PathBuf> = all_places(path).into_iter().filter(is_there).collect();
    match there.len() {
        0 => path.to_owned(),
        1 => there.remove(0),
        // The last of those that are greatest is taken, and the first is to count.
        _ => there
            .into_iter()
            .rev()
            .max_by_key(|path| rank(path, vault))
            .unwrap_or_else(|| path.to_owned()),
    }
}

/// The record that a file stands at. One that cannot be read counts less than any, and one of a newer version more: nobody may
/// go on beside it.
fn rank(path: &Path, vault: &Vault) -> Option<u64> {
    match read_at(migrate::SNAPSHOT, path, vault) {
        Ok(found) => found.map(|found| found.seq.0),
        Err(StoreError::NewerSnapshot { .. } | StoreError::Locked { .. }) => Some(u64::MAX),
        Err(_) => None,
    }
}

/// Removes snapshots of other forms, if there are any and they are ours.
pub fn remove_other(path: &Path, packing: Packing, vault: &Vault) -> Result<(), StoreError> {
    let ours = packing.path(path, vault);
    for other in all_places(path).into_iter().filter(|other| *other != ours) {
        if std::fs::symlink_metadata(&other).is_ok() && is_ours(&other, vault) {
            std::fs::remove_file(&other).map_err(StoreError::io("remove", &other))?;
        }
    }
    Ok(())
}

/// Snapshots of earlier versions, kept beside today's: `state.json.v1`, `state.json.v1.1`.
pub fn older_versions_of(snapshot: &Path) -> Vec<PathBuf> {
    let (Some(dir), Some(name)) = (snapshot.parent(), snapshot.file_name()) else {
        return Vec::new();
    };
    let prefix = format!("{}.v", name.to_string_lossy());
    let is_older = |name: &str| {
        name.strip_prefix(&prefix)
            .is_some_and(|rest| rest.split('.').all(|number| number.parse::<u32>().is_ok()))
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_older))
        .map(|entry| entry.path())
        .collect()
}

/// Returns those of all forms.
pub fn older_versions(path: &Path) -> Vec<PathBuf> {
    let all = all_places(path);
    all.iter()
        .flat_map(|path| older_versions_of(path))
        .collect()
}
