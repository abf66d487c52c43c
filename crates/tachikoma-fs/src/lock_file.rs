//! A mark at the end of a lock file says that the holder of the lock has died. The guard writes it, and the next holder reads it.

use std::os::fd::AsFd;

/// Mark after the content of the lock file. If it exists, the modification time of the file is the time of death.
const DEATH_MARK: &[u8] = b"\n";

/// Marks the holder of an open lock file as dead. Does nothing if the file is empty, because then the holder has released the
/// lock. Errors are ignored, because the journal has the time of the last record.
pub fn mark_holder_dead(lock: impl AsFd) {
    let signed = rustix::fs::fstat(&lock).map_or(0, |stat| stat.st_size);
    if let Some(end) = u64::try_from(signed).ok().filter(|end| *end > 0) {
        let _ = rustix::io::pwrite(&lock, DEATH_MARK, end);
    }
}

/// Returns whether the content of a lock file ends with the death mark.
#[must_use]
pub fn is_holder_dead(text: &str) -> bool {
    text.as_bytes().ends_with(DEATH_MARK)
}
