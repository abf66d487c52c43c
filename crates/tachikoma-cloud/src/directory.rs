//! A file put into a directory: for its owner alone, which the library cannot do, whole, synced, and never over another.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::CloudError;
use crate::digest::{Digest, Sum};
use crate::store::{Put, part, same};

/// A copy has what a backup has, and is as private.
const MODE: u32 = 0o600;

/// Puts a file into a directory. Blocks.
///
/// # Errors
/// It cannot be read or written, or is not what `digest` says: then nothing is left of it.
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
    let staged = staged(&path);
    let put = write(&staged, file, from, digest, name)
        .and_then(|()| place(&staged, &path).map_err(CloudError::io("create", &path)));
    // It has another name by now, or is of no use.
    let _ = std::fs::remove_file(&staged);
    let put = put?;
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(CloudError::io("sync", dir))?;
    Ok(put)
}

/// Returns a name that nobody else has. The library does not list what ends with `#` and digits.
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
    same(sum.finish(), digest, name)?;
    file.sync_all().map_err(CloudError::io("sync", path))
}

/// Gives a file its name, unless somebody has it.
fn place(staged: &Path, path: &Path) -> io::Result<Put> {
    match std::fs::hard_link(staged, path) {
        Ok(()) => Ok(Put::Created),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Put::WasThere),
        // A file system without links. The name has the digest of the file in it: whoever else has it, has the same.
        Err(_) if std::fs::symlink_metadata(path).is_err() => {
            std::fs::rename(staged, path).map(|()| Put::Created)
        }
        Err(error) => Err(error),
    }
}
