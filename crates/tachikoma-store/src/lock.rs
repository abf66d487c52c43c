//! The lock of a working directory: one runner at a time, told by the lock itself and never by a pid.

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

/// A new run waits this long: the guard of a runner that was just killed holds the lock until it has cleaned up.
const WAIT: Duration = Duration::from_secs(5);

/// How often a lock that is held is tried again: there is no call that waits with a bound.
const RETRY: Duration = Duration::from_millis(20);

/// How often a lock file that someone put in the place of ours is tried: whoever only asks holds it for a moment, another
/// runner keeps it.
const RETAKE_TRIES: u32 = 25;

/// A signature is a few hundred bytes, most of them a path; what someone else put there must not take all memory.
const BYTES_MAX: u64 = 64 << 10;

/// Who holds the lock, as its file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The runner's process.
    pub pid: u32,
    /// Since when.
    pub since: Timestamp,
    /// The loop it runs.
    pub loop_id: LoopId,
    /// Where it listens.
    pub socket: PathBuf,
}

/// Why the lock was not to be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another runner has it.
    #[error("another runner works in {}{}", working_dir.display(), holder_text(holder.as_ref()))]
    Held {
        /// The working directory.
        working_dir: PathBuf,
        /// Who, if its file could be read.
        holder: Option<Holder>,
    },
    /// Its file could not be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn holder_text(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| {
        format!(": pid {}, since {}", holder.pid, holder.since)
    })
}

/// The lock, held until it is dropped. The file is close-on-exec: no agent inherits it.
#[derive(Debug)]
pub struct WorkLock {
    file: File,
    crashed: Option<Holder>,
    died: Option<SystemTime>,
    was_alive: Option<SystemTime>,
    /// What was written into it.
    signature: Vec<u8>,
}

impl WorkLock {
    /// Takes the lock of a working directory, waiting a little for an earlier runner to let go.
    ///
    /// # Errors
    /// Another runner has it, or its file cannot be used.
    pub async fn acquire(working_dir: &Path) -> Result<Self, LockError> {
        let dir = working_dir.join(RALPH_DIR);
        make_dir(&dir).map_err(StoreError::from)?;
        ignore(&dir);
        let held = Self::acquire_in(&dir).await;
        held.map_err(|error| match error {
            LockError::Held { holder, .. } => LockError::Held {
                working_dir: working_dir.to_owned(),
                holder,
            },
            LockError::Store(error) => LockError::Store(error),
        })
    }

    /// Takes the lock that lies in `dir` itself, waiting as [`WorkLock::acquire`] does.
    pub async fn acquire_in(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join("lock");
        let tries = WAIT.as_millis() / RETRY.as_millis();
        for _ in 0..tries {
            if let Some(lock) = Self::try_acquire(&path)? {
                return Ok(lock);
            }
            tokio::time::sleep(RETRY).await;
        }
        Err(LockError::Held {
            working_dir: dir.to_owned(),
            holder: holder_in(dir),
        })
    }

    /// Takes the lock if no process holds it.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn try_acquire(path: &Path) -> Result<Option<Self>, StoreError> {
        if std::fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
            // It could not be locked for others to see, and reading it might never end.
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
        // Whoever deleted the file between our open and our lock has left us the lock of nothing.
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

    /// Returns the runner that held the lock before and did not give it back: it crashed.
    #[must_use]
    pub fn crashed(&self) -> Option<&Holder> {
        self.crashed.as_ref()
    }

    /// Returns when the runner that crashed was dead with all that it had started, if its guard has seen to that.
    #[must_use]
    pub fn died(&self) -> Option<SystemTime> {
        self.died
    }

    /// Returns when the runner that crashed last said that it is alive, or its guard that it is not.
    #[must_use]
    pub fn was_alive(&self) -> Option<SystemTime> {
        self.was_alive
    }

    /// Says that the holder is alive, in the time of the file.
    pub fn touch(&self) {
        // A runner that cannot say so is counted up to its last record.
        let now = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let times = Timestamps {
            last_access: now(rustix::fs::UTIME_OMIT),
            last_modification: now(rustix::fs::UTIME_NOW),
        };
        let _ = rustix::fs::futimens(&self.file, &times);
    }

    /// Writes down who holds the lock.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn sign(&mut self, holder: &Holder) -> std::io::Result<()> {
        self.signature = serde_json::to_vec(holder).expect("a holder is plain data");
        self.write_signature()
    }

    fn write_signature(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&self.signature)
    }

    /// Returns whether the lock is the one that others find. Only looks; what may not be looked at is not known to be lost.
    #[must_use]
    pub fn is_in_place(&self, working_dir: &Path) -> bool {
        self.is_in_place_in(&working_dir.join(RALPH_DIR))
    }

    /// As [`WorkLock::is_in_place`], of a lock that lies in `dir` itself.
    pub fn is_in_place_in(&self, dir: &Path) -> bool {
        let there = std::fs::symlink_metadata(dir.join("lock"));
        match (there, self.file.metadata()) {
            (Ok(there), Ok(ours)) => is_same(&there, &ours),
            (Err(error), _) => !is_missing(&error),
            (Ok(_), Err(_)) => true,
        }
    }

    /// Makes sure that the lock is the one that others find. A file that was deleted, replaced or emptied is made anew,
    /// locked and signed. Returns what was wrong and what was done, if something was.
    ///
    /// # Errors
    /// Another runner holds the file that was put in its place, or it cannot be made.
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
                return Ok(Some("its file was changed; it was signed again".to_owned()));
            }
            Ok(_) => "another file was in its place",
            Err(error) if is_missing(&error) => "its file was gone",
            // What may not be looked at is not known to be lost.
            Err(_) => return Ok(None),
        };
        self.retake(working_dir, &path).await?;
        // Whoever cleaned up before commits everything next.
        ignore(&working_dir.join(RALPH_DIR));
        Ok(Some(format!("{wrong}; a new one was made and locked")))
    }

    async fn retake(&mut self, working_dir: &Path, path: &Path) -> Result<(), LockError> {
        remake_dirs(working_dir, &working_dir.join(RALPH_DIR)).map_err(StoreError::from)?;
        for _ in 0..RETAKE_TRIES {
            // What is no file is no lock, and opening it could block.
            let is_file = std::fs::symlink_metadata(path).is_ok_and(|there| there.is_file());
            if !is_file || !is_held(working_dir) {
                quarantine(working_dir, path).map_err(StoreError::from)?;
                if let Some(lock) = Self::try_acquire(path)? {
                    self.file = lock.file;
                    // It holds without being signed; the next look at it finds that it is not.
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

    /// Takes the lock that lies in `dir` itself once more, where its file is gone.
    pub async fn retake_in(&mut self, dir: &Path) -> Result<(), LockError> {
        let taken = Self::acquire_in(dir).await?;
        self.file = taken.file;
        self.write_signature()
            .map_err(StoreError::io("sign", &dir.join("lock")))?;
        Ok(())
    }

    /// Returns a second handle on the same lock, which is free only when both are gone.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn share(&self) -> std::io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Wipes the holder's name, so that the lock is given back in good order when it is dropped. Dropping it without
    /// this looks like a crash to the next runner.
    pub fn release(&self) {
        // If the name cannot be wiped, the next runner looks for leftovers and finds none.
        let _ = self.file.set_len(0);
    }
}

/// What is kept in `.ralph` is not for the repository of the work: an agent that commits everything, or cleans what
/// git does not know, must not reach it by that. Only our own names are listed: other tools decide about theirs.
const IGNORED: &str = "\
# Written by tachikoma for what it keeps here.
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

/// Returns whether a file or directory of that name in a `.ralph` is ours. The ignore file is not meant: others write one too.
pub fn is_our_name(name: &str) -> bool {
    let known = IGNORED.lines().filter_map(|line| line.strip_prefix('/'));
    let mut known = known.map(|line| line.trim_end_matches('/'));
    name.starts_with("state.json")
        || name == "opencode"
        || known.any(|known| known == name && name != ".gitignore")
}

/// How lines began that earlier versions wrote.
const IGNORED_BEFORE: &str = "/state.json";

/// More than it takes to list our names.
const IGNORE_BYTES_MAX: u64 = 4 << 10;

/// Returns whether the ignore file of a `.ralph` has nothing in it but what we wrote.
pub fn is_our_ignore(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let ours =
        |line: &str| line.starts_with(IGNORED_BEFORE) || IGNORED.lines().any(|known| known == line);
    !text.is_empty() && text.lines().all(ours)
}

fn ignore(dir: &Path) {
    let path = dir.join(".gitignore");
    // Without it git shows files that it need not; that keeps nobody from working.
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

/// Reads who holds, or last held, the lock of a working directory.
#[must_use]
pub fn holder(working_dir: &Path) -> Option<Holder> {
    holder_in(&working_dir.join(RALPH_DIR))
}

/// Reads who holds, or last held, the lock that lies in `dir` itself.
#[must_use]
pub fn holder_in(dir: &Path) -> Option<Holder> {
    let file = safe_read::open_own(&dir.join("lock")).ok()?;
    let bytes = safe_read::read_all(file, BYTES_MAX).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Returns whether somebody holds the lock of a working directory. Only looks.
#[must_use]
pub fn is_held(working_dir: &Path) -> bool {
    is_held_in(&working_dir.join(RALPH_DIR))
}

/// Returns whether somebody holds the lock that lies in `dir` itself. Only looks.
#[must_use]
pub fn is_held_in(dir: &Path) -> bool {
    let path = dir.join("lock");
    safe_read::open_own(&path).is_ok_and(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
            == Err(rustix::io::Errno::WOULDBLOCK)
    })
}
