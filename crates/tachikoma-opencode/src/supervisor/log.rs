//! What a server writes, as files: raw bytes in the order of arrival, in a file that is put aside when it is full.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tachikoma_fs::{make_dir, private};

/// What the newest is called; older ones have a number behind it.
pub const NAME: &str = "server.log";

/// Days of a quiet server, and enough of a loud one to see what went wrong.
const BYTES_MAX: u64 = 4 << 20;

/// How many older files are kept.
const OLDER_MAX: u32 = 3;

/// Returns whether a file of this name is one of the log's.
pub(super) fn is_ours(name: &str) -> bool {
    let rest = name.strip_prefix(NAME);
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(is_number))
}

fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}

/// A log that is being written. What cannot be written is lost, and nobody waits for it.
#[derive(Debug)]
pub(super) struct ServerLog {
    path: PathBuf,
    /// Whether anything is written at all.
    is_kept: bool,
    open: Option<(File, u64)>,
}

impl ServerLog {
    pub fn new(dir: &Path, is_kept: bool) -> Self {
        Self {
            path: dir.join(NAME),
            is_kept,
            open: None,
        }
    }

    /// Adds what the server wrote.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_kept {
            return Ok(());
        }
        if self.open.as_ref().is_some_and(|(_, len)| *len >= BYTES_MAX) {
            self.open = None;
            turn(&self.path)?;
        }
        if let Some((file, _)) = &self.open
            && !is_at(file, &self.path)
        {
            // Someone deleted it; what comes is worth keeping.
            self.open = None;
            self.path
                .parent()
                .map_or(Ok(()), make_dir)
                .map_err(io::Error::other)?;
        }
        let (file, len) = match &mut self.open {
            Some(open) => open,
            None => {
                let file = private().create(true).append(true).open(&self.path)?;
                let len = file.metadata()?.len();
                self.open.insert((file, len))
            }
        };
        *len += bytes.len() as u64;
        file.write_all(bytes)
    }
}

/// Returns whether a file is still the one that lies there.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// Numbers the files up by one; the oldest goes.
fn turn(path: &Path) -> io::Result<()> {
    for number in (1..OLDER_MAX).rev() {
        let (from, to) = (older(path, number), older(path, number + 1));
        match std::fs::rename(from, to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    std::fs::rename(path, older(path, 1))
}

fn older(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Returns the log files in `dir`, oldest first.
#[must_use]
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let path = dir.join(NAME);
    let all = (1..=OLDER_MAX).rev().map(|number| older(&path, number));
    all.chain([path.clone()])
        .filter(|path| path.is_file())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_was_deleted_goes_on_in_a_new_one() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("dir");
        std::fs::create_dir(&dir).unwrap();
        let mut log = ServerLog::new(&dir, true);
        log.write(b"before\n").unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        log.write(b"behind\n").unwrap();
        assert_eq!(std::fs::read(dir.join(NAME)).unwrap(), b"behind\n");
    }

    #[test]
    fn a_log_that_is_not_kept_is_not_even_made() {
        let dir = tempfile::tempdir().unwrap();
        ServerLog::new(dir.path(), false).write(b"words\n").unwrap();
        assert_eq!(files(dir.path()), [] as [PathBuf; 0]);
    }

    #[test]
    fn the_latest_is_kept_and_the_whole_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = ServerLog::new(dir.path(), true);
        let chunk = vec![b'x'; 1 << 20];
        for number in 0..40 {
            log.write(format!("{number}\n").as_bytes()).unwrap();
            log.write(&chunk).unwrap();
        }
        let files = files(dir.path());
        assert_eq!(files.len(), 4);
        let size: u64 = files.iter().map(|f| f.metadata().unwrap().len()).sum();
        assert!(size < 5 * BYTES_MAX, "{size}");
        let newest = std::fs::read(dir.path().join(NAME)).unwrap();
        assert!(newest.windows(3).any(|three| three == b"39\n"));
    }
}
