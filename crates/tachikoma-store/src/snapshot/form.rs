//! Forms of a snapshot file: `state.json`, with `.zst` if it is compressed and `.age` if it is encrypted. While one form replaces
//! another, both files exist, and the newer one is used.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::{is_ours, migrate, read_at};
use crate::encryption::{self, Encryption};
use crate::layout::with_suffix;
use crate::{StoreError, compressed};

/// Compression of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Indented JSON.
    #[default]
    Plain,
    /// Indented JSON in one zstd frame.
    Compressed,
}

impl Packing {
    /// Returns the compression for the setting `state.compress`.
    #[must_use]
    pub fn of(compress: bool) -> Self {
        if compress {
            Self::Compressed
        } else {
            Self::Plain
        }
    }

    /// Returns the path of the snapshot file with this compression.
    #[must_use]
    pub fn path(self, path: &Path, encryption: &Encryption) -> PathBuf {
        encryption.named(self.packed(path))
    }

    fn packed(self, path: &Path) -> PathBuf {
        match self {
            Self::Plain => path.to_owned(),
            Self::Compressed => with_suffix(path, compressed::SUFFIX),
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

/// Returns all possible paths of a snapshot. If two have the same record number, the first one is used.
pub fn all_places(path: &Path) -> Vec<PathBuf> {
    let packed = [Packing::Plain, Packing::Compressed].map(|packing| packing.packed(path));
    let encrypted = packed
        .clone()
        .map(|path| with_suffix(&path, encryption::SUFFIX));
    packed.into_iter().chain(encrypted).collect()
}

/// Returns the path of the snapshot file that is used; `path` itself if there is no file.
#[must_use]
pub fn place(path: &Path, encryption: &Encryption) -> PathBuf {
    let is_there = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok();
    let mut there: Vec<PathBuf> = all_places(path).into_iter().filter(is_there).collect();
    match there.len() {
        0 => path.to_owned(),
        1 => there.remove(0),
        // `max_by_key` returns the last maximum, but the first one is wanted, so the order is reversed.
        _ => there
            .into_iter()
            .rev()
            .max_by_key(|path| rank(path, encryption))
            .unwrap_or_else(|| path.to_owned()),
    }
}

/// Returns the record number of a snapshot file. An unreadable file is older than any other. A file of a newer version is the
/// newest, because it must not be ignored.
fn rank(path: &Path, encryption: &Encryption) -> Option<u64> {
    match read_at(migrate::SNAPSHOT, path, encryption) {
        Ok(found) => found.map(|found| found.seq.0),
        Err(StoreError::NewerSnapshot { .. } | StoreError::Locked { .. }) => Some(u64::MAX),
        Err(_) => None,
    }
}

/// Removes files of the snapshot in other forms, if they belong to this program.
pub fn remove_other(
    path: &Path,
    packing: Packing,
    encryption: &Encryption,
) -> Result<(), StoreError> {
    let ours = packing.path(path, encryption);
    for other in all_places(path).into_iter().filter(|other| *other != ours) {
        if std::fs::symlink_metadata(&other).is_ok() && is_ours(&other, encryption) {
            std::fs::remove_file(&other).map_err(StoreError::io("remove", &other))?;
        }
    }
    Ok(())
}

/// Lists snapshots of earlier format versions, stored beside the current one: `state.json.v1`, `state.json.v1.1`.
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

/// Lists the snapshots of earlier format versions in all forms.
pub fn older_versions(path: &Path) -> Vec<PathBuf> {
    let all = all_places(path);
    all.iter()
        .flat_map(|path| older_versions_of(path))
        .collect()
}
