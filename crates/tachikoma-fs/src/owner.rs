//! Checks the owners of files. Other users may be able to write to a parent of the working directory, so a file there is used only
//! if it belongs to this user or to root.

use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::{FsError, RALPH_DIR, make_dir};

/// Files and directories in `.ralph` that commands read to find a loop or a server.
const FOUND_BY: [&str; 4] = ["loops", "lock", "state.json", "opencode"];

/// Returns whether files and processes of a user may be used: those of this user, and those of root, who can do everything anyway.
#[must_use]
pub fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Checks that a file belongs to this user or to root.
///
/// # Errors
/// The file belongs to another user: [`ErrorKind::PermissionDenied`].
pub fn check(there: &Metadata) -> io::Result<()> {
    if is_ours(there.uid()) {
        return Ok(());
    }
    let what = format!("it belongs to user {}, not to you", there.uid());
    Err(io::Error::new(ErrorKind::PermissionDenied, what))
}

/// Mode bits for write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;

/// Sticky bit: in a directory with it, such as `/tmp`, users cannot rename or delete files of other users.
const STICKY: u32 = 0o1000;

/// Creates a directory for sockets or temporary state, unless it exists, and checks that only this user can change its content.
///
/// # Errors
/// The directory belongs to another user, other users can write to it, or they can replace it because they can write to its parent.
pub fn make_private_dir(dir: &Path) -> Result<(), FsError> {
    make_dir(dir)?;
    let look = |path: &Path| std::fs::metadata(path).map_err(FsError::io("use directory", path));
    let refused =
        |path: &Path, cause: String| FsError::io("use directory", path)(io::Error::other(cause));
    let there = look(dir)?;
    if there.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused(dir, "it belongs to another user".to_owned()));
    }
    let parent = dir
        .parent()
        .map(|parent| match parent.as_os_str().is_empty() {
            true => Path::new("."),
            false => parent,
        });
    for (path, forgiven) in [(Some(dir), 0), (parent, STICKY)] {
        let Some(path) = path else { continue };
        let there = look(path)?;
        let mode = there.mode();
        if mode & OTHERS_WRITE != 0 && mode & forgiven == 0 {
            let mode = mode & 0o7777;
            let mut cause = format!("other users can write to it (mode {mode:04o})");
            // The mode of a shared directory of the system, such as `/tmp`, is not changed.
            if there.uid() == rustix::process::geteuid().as_raw() && path != Path::new("/tmp") {
                cause.push_str(&format!("; `chmod go-w {}` closes it", path.display()));
            }
            return Err(refused(path, cause));
        }
    }
    Ok(())
}

/// Checks that `.ralph` and the files by which loops are found belong to this user or to root.
///
/// # Errors
/// A file or directory there belongs to another user.
pub fn check_ralph(working_dir: &Path) -> Result<(), FsError> {
    let ralph = working_dir.join(RALPH_DIR);
    let found = FOUND_BY.iter().map(|name| ralph.join(name));
    for path in std::iter::once(ralph.clone()).chain(found) {
        // An error is ignored here: the code that reads the file reports it.
        if let Ok(there) = std::fs::symlink_metadata(&path) {
            check(&there).map_err(FsError::io("use", &path))?;
        }
    }
    Ok(())
}
