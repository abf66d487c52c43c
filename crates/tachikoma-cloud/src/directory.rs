//! A directory as a store. Files are complete, synced, never overwritten, and private to their owner, which the `object_store` library cannot do.
//! A listing does not include subdirectories, which may be unreadable.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::CloudError;
use crate::digest::{Digest, Sum};
use crate::object::{LISTED_MAX, Object, Put, check_digest, part, too_many};

/// Mode of stored files: only the owner can read them. They have the content of local backups, which are private too.
const MODE: u32 = 0o600;

/// Age after which a temporary file is a leftover of a killed writer. A running writer writes more often.
const STALE: Duration = Duration::from_hours(1);

/// Copies a file into the directory of a store, without overwriting. Blocks the thread.
///
/// # Errors
/// A file cannot be read or written, or its content does not match `digest`. The temporary file is deleted.
pub(crate) fn put(
    dir: &Path,
    name: &str,
    file: &mut File,
    from: &Path,
    digest: &Digest,
) -> Result<Put, CloudError> {
    let path = dir.join(name);
    if std::fs::symlink_metadata(&path).is_ok() {
        return Ok(Put::WasThere);
    }
    remove_stale(dir);
    let staged = staged(&path);
    let put = write(&staged, file, from, digest, name)
        .and_then(|()| place(&staged, &path).map_err(CloudError::io("create", &path)));
    // After a link the temporary file is no longer needed, and after an error it is useless.
    let _ = std::fs::remove_file(&staged);
    let put = put?;
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(CloudError::io("sync", dir))?;
    Ok(put)
}

/// Lists the files in the directory of a store, without temporary files. Blocks the thread.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn list(dir: &Path, shown: &str) -> Result<Vec<Object>, CloudError> {
    let mut listed = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(CloudError::io("list", dir))? {
        let entry = entry.map_err(CloudError::io("list", dir))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        // Another process may have removed the file in the meantime.
        let Some(there) = entry.metadata().ok().filter(std::fs::Metadata::is_file) else {
            continue;
        };
        if is_staged(&name) {
            continue;
        }
        if listed.len() >= LISTED_MAX {
            return Err(too_many(shown));
        }
        listed.push(Object {
            name,
            bytes: there.len(),
        });
    }
    Ok(listed)
}

/// Returns whether a file name was made by [`staged`].
fn is_staged(name: &str) -> bool {
    let parts = name.rsplit_once('#');
    parts.is_some_and(|(of, rest)| {
        of.contains(".sha256-")
            && !rest.is_empty()
            && rest.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Removes temporary files of killed writers.
fn remove_stale(dir: &Path) {
    let now = SystemTime::now();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_old = || {
            let written = entry.metadata().and_then(|there| there.modified());
            written.is_ok_and(|written| now.duration_since(written).is_ok_and(|age| age > STALE))
        };
        if entry.file_name().to_str().is_some_and(is_staged) && is_old() {
            // If the file cannot be deleted, the next upload tries again.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns a unique temporary path for `path`.
fn staged(path: &Path) -> PathBuf {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = time.unwrap_or_default().as_nanos();
    let mut staged = path.as_os_str().to_owned();
    staged.push(format!("#{}{nanos}", std::process::id()));
    staged.into()
}

fn write(
    path: &Path,
    from_file: &mut File,
    from: &Path,
    digest: &Digest,
    name: &str,
) -> Result<(), CloudError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(MODE);
    let mut file = options.open(path).map_err(CloudError::io("create", path))?;
    let mut sum = Sum::default();
    loop {
        let bytes = part(from_file, &mut sum).map_err(CloudError::io("read", from))?;
        if bytes.is_empty() {
            break;
        }
        file.write_all(&bytes)
            .map_err(CloudError::io("write", path))?;
    }
    check_digest(sum.finish(), digest, name)?;
    file.sync_all().map_err(CloudError::io("sync", path))
}

/// Gives a temporary file its final name, unless the name is taken.
fn place(staged: &Path, path: &Path) -> io::Result<Put> {
    match std::fs::hard_link(staged, path) {
        Ok(()) => Ok(Put::Created),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Put::WasThere),
        // Hard links may not be supported. A file that the rename replaces has the same digest in its name, so the same content.
        Err(_) if std::fs::symlink_metadata(path).is_err() => {
            std::fs::rename(staged, path).map(|()| Put::Created)
        }
        Err(error) => Err(error),
    }
}
