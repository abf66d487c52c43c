//! The mark in a lock file that says that its holder has died. The guard writes it, and the next holder of the lock reads it.

use std::os::fd::AsFd;

/// Follows the holder's signature. The file's modification time is then the time of death.
const DEATH_MARK: &[u8] = b"\n";

/// Marks the holder of an open lock file as dead. Does nothing if the file is empty, because then the holder has released the lock.
/// Errors are ignored: the journal has the time of the last record.
pub fn mark_holder_dead(lock: impl AsFd) {
    let signed = rustix::fs::fstat(&lock).map_or(0, |stat| stat.st_size);
    if let Some(end) = u64::try_from(signed).ok().filter(|end| *end > 0) {
        let _ = rustix::io::pwrite(&lock, DEATH_MARK, end);
    }
}

/// Returns whether the text of a lock file ends with the mark.
#[must_use]
pub fn is_holder_dead(text: &str) -> bool {
    text.as_bytes().ends_with(DEATH_MARK)
}
