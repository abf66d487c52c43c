//! The record that a runner leaves for the next one: the owners of uncommitted files, and the tree of the last survey.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::safe_read;

use super::path::RepoPath;
use super::program::GitError;

/// Format version of the record. Files of other versions are rejected.
const VERSION: u32 = 1;

/// Maximum size of the record in bytes, enough for a million paths. A larger file is foreign.
const BYTES_MAX: u64 = 256 << 20;

/// The owners of uncommitted files, and the last survey and snapshot of a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkRecord {
    /// Id of the git tree of the last survey.
    pub tree: String,
    /// When that survey began, in nanoseconds since 1970; `None` if unknown. Surveys without changes are not recorded.
    #[serde(default)]
    pub surveyed: Option<i64>,
    /// Files that the loop changed and has not committed.
    pub mine: BTreeSet<RepoPath>,
    /// Uncommitted files that others changed.
    pub theirs: BTreeSet<RepoPath>,
    /// Files of `theirs` that the loop changed, too. They are not committed.
    #[serde(default)]
    pub withheld: BTreeSet<RepoPath>,
    /// Files of `theirs` without a difference to HEAD, because the loop reverted or moved them. They still belong to others.
    #[serde(default)]
    pub resting: BTreeSet<RepoPath>,
    /// Contents (object ids) of files of others before the loop reverted or moved them. They identify the files if they appear again.
    #[serde(default)]
    pub aside: BTreeSet<(RepoPath, String)>,
    /// The last snapshot of the work tree; `None` before the first one.
    #[serde(default)]
    pub snapshot: Option<LastSnapshot>,
    /// Files that `git add --intent-to-add` added to the user's index for a commit that has not ended.
    #[serde(default)]
    pub intended: BTreeSet<RepoPath>,
    /// Entries of the user's index that the files in `intended` replaced.
    #[serde(default)]
    pub displaced: Vec<Displaced>,
}

/// An entry of the user's index that was replaced because a file took the place of a directory, or a directory that of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Displaced {
    pub mode: String,
    pub object: String,
    pub path: RepoPath,
}

/// The last snapshot of the work tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSnapshot {
    pub tree: String,
    pub commit: String,
}

/// The first line of the record, with the checksum of the rest.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    crc32c: u32,
}

impl WorkRecord {
    /// Reads the record; `None` if there is none, because the loop is new.
    ///
    /// # Errors
    /// The record cannot be used, for the returned reason.
    pub fn read(path: &Path) -> Result<Option<Self>, String> {
        match safe_read::read(path, BYTES_MAX) {
            Ok(bytes) => parse(&bytes).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    pub fn write(&self, path: &Path) -> Result<(), GitError> {
        let failed = |error: serde_json::Error| GitError::io("write", path)(error.into());
        let body = serde_json::to_vec(self).map_err(failed)?;
        let header = Header {
            version: VERSION,
            crc32c: crc32c::crc32c(&body),
        };
        let mut bytes = serde_json::to_vec(&header).map_err(failed)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(&body);
        bytes.push(b'\n');
        // The record is not synced. If it is lost in a power failure, some changes of the loop are not committed, but no data is lost.
        write_whole(path, &bytes, Durability::Lazy)?;
        Ok(())
    }
}

fn parse(bytes: &[u8]) -> Result<WorkRecord, String> {
    let line_end = bytes.iter().position(|byte| *byte == b'\n');
    let (header, body) = bytes.split_at(line_end.ok_or("its header line is incomplete")?);
    let header: Header = serde_json::from_slice(header).map_err(|error| error.to_string())?;
    if header.version != VERSION {
        return Err(format!(
            "its version is {}, and this program reads only version {VERSION}",
            header.version
        ));
    }
    let body = body.strip_prefix(b"\n").unwrap_or(body);
    let body = body.strip_suffix(b"\n").unwrap_or(body);
    if crc32c::crc32c(body) != header.crc32c {
        return Err("its checksum does not match".to_owned());
    }
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_record_round_trips_and_each_changed_byte_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("git-work.json");
        assert_eq!(WorkRecord::read(&path), Ok(None));
        let work = WorkRecord {
            tree: "0".repeat(40),
            mine: [RepoPath::new(b"not-\xff-text")].into(),
            theirs: [RepoPath::new(b"a b")].into(),
            ..WorkRecord::default()
        };
        work.write(&path).unwrap();
        assert_eq!(WorkRecord::read(&path), Ok(Some(work)));
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() - 1 {
            let mut hurt = good.clone();
            hurt[at] ^= 1;
            std::fs::write(&path, &hurt).unwrap();
            assert!(WorkRecord::read(&path).is_err(), "byte {at}");
        }
        std::fs::write(&path, &good[..good.len() / 2]).unwrap();
        assert!(WorkRecord::read(&path).is_err());
    }
}
