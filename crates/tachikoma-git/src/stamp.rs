//! A stamp is a number made of a file's metadata. While the stamp is the same, the file is assumed to be unchanged.

use std::hash::{DefaultHasher, Hasher as _};
use std::path::Path;

use rustix::fs::Stat;

/// Combines modification times, size, inode and mode of a file.
#[expect(clippy::unnecessary_cast, reason = "the types differ between systems")]
pub fn stamp(stat: &Stat) -> u64 {
    let mut hasher = DefaultHasher::new();
    for time in [stat.st_mtime as i64, stat.st_ctime as i64] {
        hasher.write_i64(time);
    }
    hasher.write_i64(stat.st_mtime_nsec as i64);
    hasher.write_i64(stat.st_ctime_nsec as i64);
    hasher.write_i64(stat.st_size);
    hasher.write_u64(stat.st_ino);
    hasher.write_u32(stat.st_mode as u32);
    hasher.finish()
}

/// Returns the stamp of a file; 0 if there is no such file. Follows symbolic links.
pub fn stamp_of(path: &Path) -> u64 {
    rustix::fs::stat(path).map_or(0, |stat| stamp(&stat))
}

/// Returns when a file's inode last changed, in nanoseconds since 1970, and whether the file system stores fractions of a
/// second.
#[expect(clippy::unnecessary_cast, reason = "the types differ between systems")]
pub fn changed_at(stat: &Stat) -> (i64, bool) {
    let nanos = stat.st_ctime_nsec as i64;
    let at = (stat.st_ctime as i64)
        .saturating_mul(1_000_000_000)
        .saturating_add(nanos);
    (at, nanos != 0 || stat.st_mtime_nsec as i64 != 0)
}
