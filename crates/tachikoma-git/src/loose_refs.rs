//! References written without a process, as git writes them: a file each, made beside its place and moved into it.
//!
//! Whether the repository keeps references so is not read from its settings. Git makes the first one itself, and where its
//! file is then found the next ones go. A repository that is packed or changed to tables loses the directory, and git is
//! asked again.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tachikoma_fs::safe_read;

use super::repository::with_suffix;

/// A reference is one name of an object and a line end.
const FILE_BYTES_MAX: u64 = 128;

/// Of whom git writes for more than one user; it knows which rights that takes.
const GROUP_WRITES: u32 = 0o020;

/// Returns whether git keeps a reference as a file of its own.
pub fn is_loose(common_dir: &Path, name: &str, commit: &str) -> bool {
    let place = common_dir.join(name);
    let shared = place.parent().map_or(Ok(true), is_shared);
    let read = safe_read::read(&place, FILE_BYTES_MAX);
    !shared.unwrap_or(true) && read.is_ok_and(|bytes| bytes.trim_ascii_end() == commit.as_bytes())
}

/// Writes a reference. Its directory must be there.
///
/// # Errors
/// Another git has it locked, or it cannot be written; then it is what it was.
pub fn write(common_dir: &Path, name: &str, commit: &str) -> io::Result<()> {
    let place = common_dir.join(name);
    let lock = with_suffix(&place, ".lock");
    let file = File::options().write(true).create_new(true).open(&lock)?;
    let written = fill(file, commit).and_then(|()| fs::rename(&lock, &place));
    if written.is_err() {
        // Nobody else has made it; a lock that stays keeps git from this one reference.
        let _ = fs::remove_file(&lock);
    }
    written
}

fn fill(mut file: File, commit: &str) -> io::Result<()> {
    file.write_all(format!("{commit}\n").as_bytes())?;
    // One that is empty after a power cut would be a broken reference, of which every git complains.
    file.sync_data()
}

fn is_shared(dir: &Path) -> io::Result<bool> {
    let rights = fs::symlink_metadata(dir)?.permissions();
    Ok(rights.mode() & GROUP_WRITES != 0)
}
