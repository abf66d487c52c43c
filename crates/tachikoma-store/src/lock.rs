//! The lock of a working directory, which allows one runner at a time. It is a file lock, so no process ids are compared.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, Timespec, Timestamps};
use serde::{Deserialize, Serialize};
use tachikoma_core::{LoopId, Timestamp};
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::quarantine::{quarantine, remake_dirs};
use tachikoma_fs::{RALPH_DIR, is_missing, lock_file, make_dir, owner, private, safe_read};

use super::StoreError;

/// How long a new run waits for the lock. The guard of a killed runner holds the lock until it has ended all processes.
const WAIT: Duration = Duration::from_secs(5);

/// Interval between attempts to take the lock, because no system call waits for a lock with a timeout.
const RETRY: Duration = Duration::from_millis(20);

/// Number of attempts to lock a file that replaced the lock file. A process that only checks the lock releases it at once. Another
/// runner does not.
const RETAKE_TRIES: u32 = 25;

/// Maximum size of the lock file in bytes. Its content has a few hundred bytes.
const BYTES_MAX: u64 = 64 << 10;

/// The runner that holds the lock, as written in the lock file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id of the runner.
    pub pid: u32,
    /// When the runner took the lock.
    pub since: Timestamp,
    /// Id of the loop that the runner executes.
    pub loop_id: LoopId,
    /// Path of the control socket of the runner.
    pub socket: PathBuf,
}

/// Why the lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another runner holds the lock.
    #[error("another runner works in {}{}", working_dir.display(), holder_text(holder.as_ref()))]
    Held {
        /// The working directory that is locked.
        working_dir: PathBuf,
        /// The other runner; `None` if the lock file cannot be read.
        holder: Option<Holder>,
    },
    /// The lock file cannot be opened, read or locked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn holder_text(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| {
        format!(": pid {}, since {}", holder.pid, holder.since)
    })
}

/// The lock, held until it is dropped. The file is close-on-exec, so that no agent inherits it.
#[derive(Debug)]
pub struct WorkLock {
    file: File,
    /// The runner that held the lock before and crashed; `None` if the last runner released it.
    pub crashed: Option<Holder>,
    /// When the crashed runner and all its processes had ended; `None` if its guard did not record that.
    pub died: Option<SystemTime>,
    /// When the crashed runner, or its guard, last updated the lock file; `None` if the last runner released the lock.
    pub was_alive: Option<SystemTime>,
    /// The content that this process wrote into the lock file.
    signature: Vec<u8>,
}

impl WorkLock {
    /// Takes the lock of a working directory. Waits up to five seconds for another runner.
    ///
    /// # Errors
    /// Another runner holds the lock, or the lock file cannot be used.
    pub async fn acquire(working_dir: &Path) -> Result<Self, LockError> {
        let dir = working_dir.join(RALPH_DIR);
        make_dir(&dir).map_err(StoreError::from)?;
        ignore(&dir);
        Self::wait_for(&dir, working_dir).await
    }

    /// Takes the lock file `dir/lock`. Waits like [`WorkLock::acquire`].
    pub async fn acquire_in(dir: &Path) -> Result<Self, LockError> {
        Self::wait_for(dir, dir).await
    }

    async fn wait_for(dir: &Path, working_dir: &Path) -> Result<Self, LockError> {
        let path = dir.join("lock");
        let tries = WAIT.as_millis() / RETRY.as_millis();
        for _ in 0..tries {
            if let Some(lock) = Self::try_acquire(&path)? {
                return Ok(lock);
            }
            tokio::time::sleep(RETRY).await;
        }
        Err(LockError::Held {
            working_dir: working_dir.to_owned(),
            holder: holder_in(dir),
        })
    }

    /// Takes the lock without waiting. `None` if another process holds it.
    ///
    /// # Errors
    /// The lock file cannot be opened, read or locked.
    pub fn try_acquire(path: &Path) -> Result<Option<Self>, StoreError> {
        if std::fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
            // Other kinds of files cannot be locked, and opening or reading them may block.
            let source = std::io::Error::other("it is not a regular file");
            return Err(StoreError::io("lock", path)(source));
        }
        let file = private()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(StoreError::io("open", path))?;
        let ours = file.metadata().map_err(StoreError::io("stat", path))?;
        owner::check(&ours).map_err(StoreError::io("lock", path))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(StoreError::io("lock", path)(errno.into())),
        }
        // If the file was deleted between open and lock, the lock protects nothing.
        if !std::fs::metadata(path).is_ok_and(|there| is_same(&there, &ours)) {
            return Ok(None);
        }
        let mut text = String::new();
        let _ = (&file).take(BYTES_MAX).read_to_string(&mut text);
        let crashed = serde_json::from_str(&text).ok();
        let marked = crashed.is_some() && lock_file::is_holder_dead(&text);
        let changed = ours.modified().ok();
        let died = changed.filter(|_| marked);
        let was_alive = changed.filter(|_| crashed.is_some());
        Ok(Some(Self {
            file,
            crashed,
            died,
            was_alive,
            signature: Vec::new(),
        }))
    }

    /// Updates the modification time of the lock file, which shows that the holder is alive.
    pub fn touch(&self) {
        // If the update fails and the runner crashes, its running time is counted only up to its last record.
        let now = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let times = Timestamps {
            last_access: now(rustix::fs::UTIME_OMIT),
            last_modification: now(rustix::fs::UTIME_NOW),
        };
        let _ = rustix::fs::futimens(&self.file, &times);
    }

    /// Writes the holder into the lock file.
    ///
    /// # Errors
    /// The lock file cannot be written.
    pub fn sign(&mut self, holder: &Holder) -> std::io::Result<()> {
        self.signature = serde_json::to_vec(holder).expect("a holder is plain data");
        self.write_signature()
    }

    fn write_signature(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&self.signature)
    }

    /// Returns whether the lock file is still at its path. True if that cannot be determined.
    #[must_use]
    pub fn is_in_place(&self, working_dir: &Path) -> bool {
        self.is_in_place_in(&working_dir.join(RALPH_DIR))
    }

    /// Returns whether the lock file `dir/lock` is still at its path. True if that cannot be determined.
    pub fn is_in_place_in(&self, dir: &Path) -> bool {
        let there = std::fs::symlink_metadata(dir.join("lock"));
        match (there, self.file.metadata()) {
            (Ok(there), Ok(ours)) => is_same(&there, &ours),
            (Err(error), _) => !is_missing(&error),
            (Ok(_), Err(_)) => true,
        }
    }

    /// Makes sure that the lock file is at its path. If it was deleted, replaced or emptied, it is created, locked and written
    /// again. Returns a description; `None` if nothing was wrong.
    ///
    /// # Errors
    /// Another runner holds the new lock file, or the file cannot be created.
    pub async fn keep(&mut self, working_dir: &Path) -> Result<Option<String>, LockError> {
        let path = working_dir.join(RALPH_DIR).join("lock");
        let ours = self
            .file
            .metadata()
            .map_err(StoreError::io("stat", &path))?;
        let wrong = match std::fs::symlink_metadata(&path) {
            Ok(there) if is_same(&there, &ours) => {
                if there.len() == self.signature.len() as u64 {
                    return Ok(None);
                }
                self.write_signature()
                    .map_err(StoreError::io("write", &path))?;
                return Ok(Some(
                    "the file did not have the signature of the runner; it was written again"
                        .to_owned(),
                ));
            }
            Ok(_) => "another file was at its path",
            Err(error) if is_missing(&error) => "the file was missing",
            // If the lock file cannot be examined, it counts as unchanged.
            Err(_) => return Ok(None),
        };
        self.retake(working_dir, &path).await?;
        // The command that deleted the lock file may have deleted the `.gitignore` file, too.
        ignore(&working_dir.join(RALPH_DIR));
        Ok(Some(format!(
            "{wrong}; the runner created and locked a new one"
        )))
    }

    async fn retake(&mut self, working_dir: &Path, path: &Path) -> Result<(), LockError> {
        remake_dirs(working_dir, &working_dir.join(RALPH_DIR)).map_err(StoreError::from)?;
        for _ in 0..RETAKE_TRIES {
            // Only a regular file can be locked. Opening another kind of file may block.
            let is_file = std::fs::symlink_metadata(path).is_ok_and(|there| there.is_file());
            if !is_file || !is_held(working_dir) {
                quarantine(working_dir, path).map_err(StoreError::from)?;
                if let Some(lock) = Self::try_acquire(path)? {
                    self.file = lock.file;
                    // If the write fails, the file is locked without a holder, and the next check repeats the write.
                    let _ = self.write_signature();
                    return Ok(());
                }
            }
            tokio::time::sleep(RETRY).await;
        }
        Err(LockError::Held {
            working_dir: working_dir.to_owned(),
            holder: holder(working_dir),
        })
    }

    /// Takes the lock `dir/lock` with a new file and writes the holder into it. Called after the lock file was deleted or replaced.
    pub async fn retake_in(&mut self, dir: &Path) -> Result<(), LockError> {
        let taken = Self::acquire_in(dir).await?;
        self.file = taken.file;
        self.write_signature()
            .map_err(StoreError::io("sign", &dir.join("lock")))?;
        Ok(())
    }

    /// Returns a second handle of the lock. The lock is released when both are dropped.
    ///
    /// # Errors
    /// No file descriptor is available.
    pub fn share(&self) -> std::io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Removes the holder from the lock file, so that the next runner does not assume a crash.
    pub fn release(&self) {
        // If this fails, the next runner assumes a crash, looks for processes of this runner, and finds none.
        let _ = self.file.set_len(0);
    }
}

/// Content of `.ralph/.gitignore`, so that an agent that commits everything or runs `git clean` does not touch the state. It lists
/// only names of this program, because other tools use the directory, too.
const IGNORED: &str = "\
# Written by tachikoma: names of its own files in this directory.
/.gitignore
/.state-*.tmp
/backups/
/lock
/identity.age
/log/
/loops/
/quarantine/
/sessions/
/state.json*
";

/// Returns whether a name in `.ralph` belongs to this program. `.gitignore` does not, because other tools write one, too.
pub fn is_our_name(name: &str) -> bool {
    let known = IGNORED.lines().filter_map(|line| line.strip_prefix('/'));
    let mut known = known.map(|line| line.trim_end_matches('/'));
    name.starts_with("state.json")
        || name == "opencode"
        || known.any(|known| known == name && name != ".gitignore")
}

/// Prefix of the lines that earlier versions wrote into `.gitignore`.
const IGNORED_BEFORE: &str = "/state.json";

/// Maximum size of the `.gitignore` file in bytes.
const IGNORE_BYTES_MAX: u64 = 4 << 10;

/// Returns whether the `.gitignore` file contains only lines of this program.
pub fn is_our_ignore(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let ours =
        |line: &str| line.starts_with(IGNORED_BEFORE) || IGNORED.lines().any(|known| known == line);
    !text.is_empty() && text.lines().all(ours)
}

fn ignore(dir: &Path) {
    let path = dir.join(".gitignore");
    // Without the `.gitignore` file, git shows untracked files, which is harmless.
    if let Ok(mut file) = private().write(true).create_new(true).open(&path) {
        let _ = file.write_all(IGNORED.as_bytes());
        return;
    }
    let is_older = |text: Vec<u8>| is_our_ignore(&text) && text != IGNORED.as_bytes();
    if safe_read::read(&path, IGNORE_BYTES_MAX).is_ok_and(is_older) {
        let _ = write_whole(&path, IGNORED.as_bytes(), Durability::Lazy);
    }
}

fn is_same(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Reads the current or last holder of the lock of a working directory.
#[must_use]
pub fn holder(working_dir: &Path) -> Option<Holder> {
    holder_in(&working_dir.join(RALPH_DIR))
}

/// Reads the current or last holder of the lock file `dir/lock`.
#[must_use]
pub fn holder_in(dir: &Path) -> Option<Holder> {
    let file = safe_read::open_own(&dir.join("lock")).ok()?;
    let bytes = safe_read::read_all(file, BYTES_MAX).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Returns whether the lock of a working directory is held.
#[must_use]
pub fn is_held(working_dir: &Path) -> bool {
    is_held_in(&working_dir.join(RALPH_DIR))
}

/// Returns whether the lock file `dir/lock` is held.
#[must_use]
pub fn is_held_in(dir: &Path) -> bool {
    let path = dir.join("lock");
    safe_read::open_own(&path).is_ok_and(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
            == Err(rustix::io::Errno::WOULDBLOCK)
    })
}
