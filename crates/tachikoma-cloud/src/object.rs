//! Objects of a store, the parts in which they are read, and checks that all stores share.

use std::fs::File;
use std::io::{self, Read as _};

use crate::CloudError;
use crate::digest::{Digest, Sum};

/// Size of a part of an upload in bytes. One part is held in memory. A store requires at least 5 MiB for each part except the last.
pub const PART_BYTES: usize = 5 << 20;

/// Maximum number of objects in a listing. A store with more objects is also used by other programs.
pub(crate) const LISTED_MAX: usize = 100_000;

/// An object in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Name of the object, without the prefix of the store.
    pub name: String,
    /// Size of the object in bytes.
    pub bytes: u64,
}

/// The result of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The object was created.
    Created,
    /// An object with this name existed already.
    WasThere,
}

/// Returns the error for a store with too many objects.
pub(crate) fn too_many(shown: &str) -> CloudError {
    CloudError::Refused {
        store: shown.to_owned(),
        words: format!(
            "more than {LISTED_MAX} objects are there; use a separate prefix or directory for backups"
        ),
    }
}

pub(crate) fn check_digest(found: Digest, wanted: &Digest, name: &str) -> Result<(), CloudError> {
    if found == *wanted {
        return Ok(());
    }
    Err(CloudError::Changed {
        name: name.to_owned(),
        found: found.hex,
    })
}

/// Reads the next part of a file. A short part is the last one, and an empty part means the end.
pub(crate) fn part(file: &mut File, sum: &mut Sum) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(PART_BYTES);
    file.take(PART_BYTES as u64).read_to_end(&mut bytes)?;
    sum.add(&bytes);
    Ok(bytes)
}
