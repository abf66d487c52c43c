//! Bounded reads of Tachikoma's files in directories that others can write to. Links are not followed, and a named pipe does not block.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a regular file for reading.
///
/// # Errors
/// The file cannot be opened. [`ErrorKind::InvalidData`] if it is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening a device can have an effect, or fail with a useless error, so the file type is checked first.
    check(&std::fs::symlink_metadata(path)?)?;
    // NONBLOCK is set, because a named pipe may have replaced the file after the check, and opening it would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: File = rustix::fs::open(path, flags, Mode::empty())?.into();
    check(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file of this user or of root.
///
/// # Errors
/// The same errors as [`open`]. A file of another user is [`ErrorKind::PermissionDenied`].
pub fn open_own(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    crate::owner::check(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
/// The file cannot be read. [`ErrorKind::InvalidData`] if it is not a regular file, or is larger.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    read_all(open(path)?, max)
}

/// Reads a secret of at most `max` bytes from a regular file that only its owner can access. Symbolic links are followed, because
/// the user configured the path.
///
/// # Errors
/// The file cannot be read. A file of another type, size or mode is [`ErrorKind::InvalidData`].
pub fn read_secret(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    // Without NONBLOCK, opening a named pipe would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: File = rustix::fs::open(path, flags, Mode::empty())?.into();
    let found = file.metadata()?;
    check(&found)?;
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(rejected(&format!(
            "other users may access it (mode {mode:03o}); run `chmod 600 {}`",
            path.display()
        )));
    }
    read_all(file, max)
}

/// Reads at most `max` bytes. More bytes are an error.
///
/// # Errors
/// The source cannot be read. [`ErrorKind::InvalidData`] if it has more than `max` bytes.
pub fn read_all(source: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = source.take(max + 1).read_to_end(&mut bytes)?;
    if read as u64 > max {
        return Err(rejected(&format!("it has more than {max} bytes")));
    }
    Ok(bytes)
}

fn check(there: &std::fs::Metadata) -> io::Result<()> {
    if there.is_symlink() {
        return Err(rejected(
            "it is a symbolic link, and those are not followed",
        ));
    }
    if !there.is_file() {
        return Err(rejected("it is not a regular file"));
    }
    Ok(())
}

fn rejected(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_of_bounded_size_are_read_and_a_pipe_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "1234").unwrap();
        assert_eq!(read(&at("file"), 4).unwrap(), b"1234");
        let kind = |name: &str, max| read(&at(name), max).unwrap_err().kind();
        assert_eq!(kind("file", 3), ErrorKind::InvalidData);
        assert_eq!(kind("none", 4), ErrorKind::NotFound);
        symlink(at("file"), at("link")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(at("pipe"))
            .status();
        assert!(made.unwrap().success());
        let _listener = UnixListener::bind(at("socket")).unwrap();
        for name in ["link", "dangling", "directory", "pipe", "socket"] {
            assert_eq!(kind(name, 4), ErrorKind::InvalidData, "{name}");
        }
    }
}
