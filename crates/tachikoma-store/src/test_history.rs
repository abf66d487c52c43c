//! The test history of a loop, stored as one file in its directory. If the file is lost, the history starts empty.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tachikoma_core::TestsSeen;
use tachikoma_fs::atomic_file::Durability;

use super::StoreError;
use super::encryption::Encryption;

/// Name of the file with the test history.
pub const NAME: &str = "tests.json";

/// Format version of the test history.
const VERSION: u32 = 1;

/// Maximum size of the test history in bytes. Twenty thousand tests take 0.7 MB, so a larger file is foreign.
pub const BYTES_MAX: u64 = 16 << 20;

/// Content of the file with the test history.
#[derive(Serialize, Deserialize)]
struct Book {
    version: u32,
    tests: TestsSeen,
}

/// Returns whether a file name is that of the test history.
pub fn is_ours(name: &str) -> bool {
    name == NAME
}

/// Returns the file of the test history.
pub fn path_of(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// Reads the test history; `None` if there is no file. The error says why the history cannot be used and starts empty.
pub fn read(dir: &Path, encryption: &Encryption) -> Result<Option<TestsSeen>, String> {
    let path = path_of(dir);
    let failed = |what: String| format!("{}: {what}", path.display());
    let bytes = match encryption.read(&path, BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    let book: Book = serde_json::from_slice(&bytes)
        .map_err(|error| failed(format!("it is damaged: {error}")))?;
    if book.version > VERSION {
        let version = book.version;
        return Err(failed(format!(
            "it has version {version}, and this version reads up to {VERSION}"
        )));
    }
    Ok(Some(book.tests))
}

/// Writes the test history.
///
/// # Errors
/// The test history cannot be written. The existing file is unchanged.
pub fn write(dir: &Path, tests: TestsSeen, encryption: &Encryption) -> Result<(), StoreError> {
    let version = VERSION;
    let bytes = serde_json::to_vec(&Book { version, tests }).expect("books are plain data");
    encryption.write(&path_of(dir), &bytes, Durability::Lazy)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tachikoma_core::Verdict;

    #[test]
    fn test_history_reports_damage_and_newer_versions() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        assert_eq!(read(dir, &Encryption::plain()), Ok(None));
        let mut tests = TestsSeen::default();
        let run = tests.compare(true, [("a", Verdict::Failed), ("b", Verdict::Passed)]);
        tests.apply(&run);
        write(dir, tests.clone(), &Encryption::plain()).unwrap();
        assert_eq!(read(dir, &Encryption::plain()), Ok(Some(tests)));
        let text = std::fs::read_to_string(path_of(dir)).unwrap();
        std::fs::write(path_of(dir), text.replace("\"version\":1", "\"version\":9")).unwrap();
        assert!(
            read(dir, &Encryption::plain())
                .unwrap_err()
                .contains("it has version 9")
        );
        for damaged in ["", "{", "[1]", &text[..text.len() / 2]] {
            std::fs::write(path_of(dir), damaged).unwrap();
            assert!(
                read(dir, &Encryption::plain())
                    .unwrap_err()
                    .contains("it is damaged"),
                "{damaged}"
            );
        }
        std::fs::remove_file(path_of(dir)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path_of(dir)).unwrap();
        assert!(
            read(dir, &Encryption::plain())
                .unwrap_err()
                .contains("symbolic link")
        );
    }
}
