//! Objects of a store, the parts in which they are read, and checks that all stores share.

use std::fs::File;
use std::io::{self, Read as _};

use crate::CloudError;
use crate::digest::{Digest, Sum};

/// What is sent at a time, and held in memory for it. A store wants at least 5 MiB of each part but the last.
pub const PART_BYTES: usize = 5 << 20;

/// What a listing may have. A store that has more is not ours alone.
pub(crate) const LISTED_MAX: usize = 100_000;

/// What is in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its name, without the place.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// What came of putting something into a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is there now.
    Created,
    /// It was there.
    WasThere,
}

/// What is said where others have their things, too.
pub(crate) fn too_many(shown: &str) -> CloudError {
    CloudError::Refused {
        store: shown.to_owned(),
        words: format!(
            "more than {LISTED_MAX} objects lie there; give backups a place of their own"
        ),
    }
}

pub(crate) fn same(found: Digest, wanted: &Digest, name: &str) -> Result<(), CloudError> {
    if found == *wanted {
        return Ok(());
    }
    Err(CloudError::Changed {
        name: name.to_owned(),
        found: found.hex,
    })
}

/// Reads the next part; a short one is the last, and nothing is the end.
pub(crate) fn part(file: &mut File, sum: &mut Sum) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(PART_BYTES);
    file.take(PART_BYTES as u64).read_to_end(&mut bytes)?;
    sum.add(&bytes);
    Ok(bytes)
}
