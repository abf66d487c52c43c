//! Paths in a repository: bytes without a NUL, relative to its top, not necessarily UTF-8.

use std::borrow::Borrow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tachikoma_fs::RALPH_DIR;

/// Maximum number of files that a warning names.
const NAMED_MAX: usize = 5;

/// The path of a file, relative to the top of its repository.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct RepoPath(Box<[u8]>);

impl RepoPath {
    /// Creates a path from bytes in the format of git.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Returns the path as bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path, relative to the top of the repository.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl Borrow<[u8]> for RepoPath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Formats the path as one line without control characters.
impl fmt::Display for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&tachikoma_fs::printable(&String::from_utf8_lossy(&self.0)))
    }
}

impl fmt::Debug for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Returns whether a path is below a `.ralph` directory, anywhere in the repository.
pub fn is_ours(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/')
        .any(|part| part == RALPH_DIR.as_bytes())
}

/// Format of a path in JSON: a string if the path is UTF-8, otherwise a list of bytes.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes { bytes: Vec<u8> },
}

impl From<RepoPath> for Written {
    fn from(path: RepoPath) -> Self {
        match String::from_utf8(path.0.into_vec()) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Bytes {
                bytes: error.into_bytes(),
            },
        }
    }
}

impl From<Written> for RepoPath {
    fn from(written: Written) -> Self {
        match written {
            Written::Text(text) => Self::new(text.as_bytes()),
            Written::Bytes { bytes } => Self::new(&bytes),
        }
    }
}

/// Splits output of git at each NUL.
pub fn split_nul(output: &[u8]) -> impl Iterator<Item = &[u8]> {
    output
        .split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
}

/// Returns whether a path exists and none of its directories is a symbolic link.
pub fn is_there(top: &Path, path: &[u8]) -> bool {
    let is_dir = |above: &[u8]| {
        let there = std::fs::symlink_metadata(at(top, above));
        there.is_ok_and(|there| there.is_dir())
    };
    ancestors(path).all(is_dir) && std::fs::symlink_metadata(at(top, path)).is_ok()
}

/// Returns the parent directories of a path, from the top.
pub fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| &path[..at])
}

pub fn at(top: &Path, path: &[u8]) -> PathBuf {
    top.join(OsStr::from_bytes(path))
}

/// Returns whether a path names a `.gitignore` file.
pub fn is_ignore_file(path: &[u8]) -> bool {
    path == b".gitignore" || path.ends_with(b"/.gitignore")
}

/// Joins paths with NUL, for the input of a git command that takes `-z`.
pub fn join_nul<'a>(paths: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for path in paths {
        bytes.extend_from_slice(path);
        bytes.push(0);
    }
    bytes
}

/// Returns the first paths as text, and the number of the others.
pub fn list(paths: &[&RepoPath]) -> String {
    list_first(NAMED_MAX, paths)
}

/// Returns the first `max` names as text, and the number of the others.
pub fn list_first(max: usize, names: &[impl ToString]) -> String {
    let first: Vec<String> = names.iter().take(max).map(ToString::to_string).collect();
    match names.len().saturating_sub(max) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_prints_as_one_line_and_round_trips_through_json() {
        for (bytes, line) in [
            (&b"src/a.rs"[..], "src/a.rs"),
            (b"two\nlines \"quoted\"", "two\\nlines \"quoted\""),
            (b"not-\xff-text", "not-\u{fffd}-text"),
        ] {
            let path = RepoPath::new(bytes);
            assert_eq!(path.to_string(), line);
            let json = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<RepoPath>(&json).unwrap(), path);
        }
    }

    #[test]
    fn files_below_any_ralph_directory_belong_to_the_loop() {
        assert!(is_ours(b".ralph/state.json"));
        assert!(is_ours(b"a/.ralph/lock"));
        assert!(is_ours(b".ralph"));
        assert!(!is_ours(b"a/.ralphs/lock"));
    }
}
