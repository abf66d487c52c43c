//! Opens files that the user names. Symbolic links are followed, and only regular files are accepted.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Reads up to one byte more than `bytes_max` from a file, so that the caller can detect that it is too large.
pub fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_head(open_file(path)?, bytes_max)
}

/// Opens a regular file for reading. Does not block on a named pipe.
pub fn open_file(path: &Path) -> io::Result<File> {
    let no_wait = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options()
        .read(true)
        .custom_flags(no_wait)
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(rustix::io::Errno::ISDIR.into());
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Reads up to one byte more than `bytes_max` from an open file, so that the caller can detect that it is too large.
pub fn read_head(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}
