//! The books of a loop's tests: one file in its directory. They are a convenience: lost, they begin anew.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tachikoma_core::TestsSeen;
use tachikoma_fs::atomic_file::{Durability, write_whole};

use super::StoreError;
use super::vault::Vault;

/// What the file is called.
pub const NAME: &str = "tests.json";

/// The format of the file.
const VERSION: u32 = 1;

/// Twenty thousand tests make 0.7 MB; a file beyond this was not written by us.
pub const BYTES_MAX: u64 = 16 << 20;

/// The file as it is.
#[derive(Serialize, Deserialize)]
struct Book {
    version: u32,
    tests: TestsSeen,
}

/// Returns whether a file of that name in the directory of a loop has its books.
pub fn is_ours(name: &str) -> bool {
    name == NAME
}

/// Returns the file with the loop's test results.
pub fn path_of(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// Reads the books of the loop in `dir`; with why they begin anew, if they do. None where there are none.
pub fn read(dir: &Path, vault: &Vault) -> Result<Option<TestsSeen>, String> {
    let path = path_of(dir);
    let failed = |what: String| format!("{}: {what}", path.display());
    let bytes = match vault.read(&path, BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    let book: Book = serde_json::from_slice(&bytes)
        .map_err(|error| failed(format!("it is damaged: {error}")))?;
    if book.version > VERSION {
        let version = book.version;
        return Err(failed(format!("version {version} is newer than {VERSION}")));
    }
    Ok(Some(book.tests))
}

/// Writes the books of the loop in `dir`.
///
/// # Errors
/// They cannot be written; those that were there stay.
pub fn write(dir: &Path, tests: TestsSeen, vault: &Vault) -> Result<(), StoreError> {
    let version = VERSION;
    let bytes = serde_json::to_vec(&Book { version, tests }).expect("books are plain data");
    let path = path_of(dir);
    let bytes = vault.seal(&bytes).map_err(StoreError::io("seal", &path))?;
    write_whole(&path, &bytes, Durability::Lazy)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tachikoma_core::Verdict;

    #[test]
    fn what_is_written_is_read_and_what_is_damaged_or_newer_is_said() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        assert_eq!(read(dir, &Vault::plain()), Ok(None));
        let mut tests = TestsSeen::default();
        let run = tests.compare(true, [("a", Verdict::Failed), ("b", Verdict::Passed)]);
        tests.apply(&run);
        write(dir, tests.clone(), &Vault::plain()).unwrap();
        assert_eq!(read(dir, &Vault::plain()), Ok(Some(tests)));
        let text = std::fs::read_to_string(path_of(dir)).unwrap();
        std::fs::write(path_of(dir), text.replace("\"version\":1", "\"version\":9")).unwrap();
        assert!(
            read(dir, &Vault::plain())
                .unwrap_err()
                .contains("version 9 is newer")
        );
        for damaged in ["", "{", "[1]", &text[..text.len() / 2]] {
            std::fs::write(path_of(dir), damaged).unwrap();
            assert!(
                read(dir, &Vault::plain())
                    .unwrap_err()
                    .contains("it is damaged"),
                "{damaged}"
            );
        }
        std::fs::remove_file(path_of(dir)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path_of(dir)).unwrap();
        assert!(
            read(dir, &Vault::plain())
                .unwrap_err()
                .contains("symbolic link")
        );
    }
}
