//! The server's log: its output as raw bytes in the order of arrival. A full file is rotated.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tachikoma_core::Timestamp;
use tachikoma_fs::{make_dir, private};
use tachikoma_runtime::clock;
use tachikoma_runtime::task::Task;
use tachikoma_store::layout::with_suffix;
use tokio::sync::mpsc;

/// Name of the newest file. Older files have a number after it.
const NAME: &str = "server.log";

/// Size in bytes at which the log is rotated. A file of this size holds the output of days, or the last minutes of a verbose server.
const BYTES_MAX: u64 = 4 << 20;

/// Number of older files to keep.
const OLDER_MAX: u32 = 3;

/// Maximum number of chunks that wait to be written. When the queue is full, the server is blocked.
const QUEUE_MAX: usize = 64;

/// Returns whether a file name belongs to the log.
pub(super) fn is_ours(name: &str) -> bool {
    let rest = name.strip_prefix(NAME);
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(is_number))
}

fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}

/// Writes the log in a background task.
#[derive(Debug)]
pub(super) struct LogWriter {
    sender: LogSender,
    task: Task,
}

/// Adds output to the log.
#[derive(Clone, Debug)]
pub(super) struct LogSender(mpsc::Sender<Vec<u8>>);

impl LogSender {
    /// Adds bytes, and waits while the queue is full.
    pub async fn write(&self, bytes: Vec<u8>) {
        // Sending fails only if the writer has panicked, which is reported elsewhere.
        let _ = self.0.send(bytes).await;
    }
}

impl LogWriter {
    /// Starts the writer of the log in `dir`. If `is_kept` is false, nothing is written.
    pub fn start(dir: &Path, is_kept: bool) -> Self {
        let (sender, mut chunks) = mpsc::channel::<Vec<u8>>(QUEUE_MAX);
        let mut log = ServerLog::new(dir, is_kept);
        let task = Task::spawn("writer of the server log", async move {
            while let Some(chunk) = chunks.recv().await {
                // A full disk must not stop the server, so the chunk is dropped.
                let _ = log.write(&chunk);
            }
        });
        Self {
            sender: LogSender(sender),
            task,
        }
    }

    pub fn sender(&self) -> LogSender {
        self.sender.clone()
    }

    /// Adds a line of the supervisor to the log. It is dropped if the queue is full.
    pub fn note(&self, text: &str) {
        let time = Timestamp::from_millis(clock::file_time() / 1_000_000);
        let line = format!("{time} [tachikoma] {text}\n");
        let _ = self.sender.0.try_send(line.into_bytes());
    }

    /// Waits until the writer panics, and returns the message of the panic. Cancel-safe.
    pub async fn broken(&mut self) -> String {
        self.task.broken().await
    }

    /// Writes the remaining output. All senders must have been dropped.
    pub async fn finish(mut self) {
        drop(self.sender);
        let _ = self.task.ended().await;
    }
}

/// The files of the log.
#[derive(Debug)]
struct ServerLog {
    path: PathBuf,
    /// Whether output is written at all.
    is_kept: bool,
    open: Option<(File, u64)>,
}

impl ServerLog {
    fn new(dir: &Path, is_kept: bool) -> Self {
        Self {
            path: dir.join(NAME),
            is_kept,
            open: None,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_kept {
            return Ok(());
        }
        if self.open.as_ref().is_some_and(|(_, len)| *len >= BYTES_MAX) {
            self.open = None;
            rotate(&self.path)?;
        }
        if let Some((file, _)) = &self.open
            && !is_at(file, &self.path)
        {
            // Another process deleted the file, so a new one is opened.
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

/// Returns whether an open file is still at the path.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// Renames each log file to the next number. The oldest file is overwritten.
fn rotate(path: &Path) -> io::Result<()> {
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
    with_suffix(path, &format!(".{number}"))
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
    fn deleted_log_continues_in_a_new_file() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("dir");
        std::fs::create_dir(&dir).unwrap();
        let mut log = ServerLog::new(&dir, true);
        log.write(b"before\n").unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        log.write(b"after\n").unwrap();
        assert_eq!(std::fs::read(dir.join(NAME)).unwrap(), b"after\n");
    }

    #[test]
    fn disabled_log_creates_no_file() {
        let dir = tempfile::tempdir().unwrap();
        ServerLog::new(dir.path(), false)
            .write(b"output\n")
            .unwrap();
        assert_eq!(files(dir.path()), [] as [PathBuf; 0]);
    }

    #[test]
    fn log_keeps_the_latest_output_and_is_bounded() {
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
