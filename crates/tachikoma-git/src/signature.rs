//! By what a file is known again without being read: a number made of its stamps.

use std::path::Path;

use rustix::fs::Stat;

/// An odd number without a pattern; multiplying by it spreads each bit upwards.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes numbers into one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Digest(u64);

impl Digest {
    pub fn add(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(SPREAD);
        self.0 = mixed ^ (mixed >> 29);
    }

    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    /// Never zero, which stands for "not looked at yet".
    pub fn finish(self) -> u64 {
        self.0.max(1)
    }
}

/// Makes the number of a file's stamps: times of its content and of its inode, size, inode and mode.
#[expect(
    clippy::cast_sign_loss,
    clippy::unnecessary_cast,
    reason = "bits are mixed, and the types differ between systems"
)]
pub fn of(stat: &Stat) -> u64 {
    let mut digest = Digest::default();
    digest.add(stat.st_mtime as u64);
    digest.add(stat.st_ctime as u64);
    digest.add(((stat.st_mtime_nsec as u64) << 32) | stat.st_ctime_nsec as u64);
    digest.add(stat.st_size as u64);
    digest.add(stat.st_ino as u64);
    digest.add(stat.st_mode as u64);
    digest.finish()
}

/// The number of a file that may not be there.
pub fn of_file(path: &Path) -> u64 {
    rustix::fs::stat(path).map_or(1, |stat| of(&stat))
}

/// When a file's inode last changed, in nanoseconds, and whether the file system knows parts of a second.
#[expect(clippy::unnecessary_cast, reason = "the types differ between systems")]
pub fn changed_at(stat: &Stat) -> (i64, bool) {
    let nanos = stat.st_ctime_nsec as i64;
    let at = (stat.st_ctime as i64)
        .saturating_mul(1_000_000_000)
        .saturating_add(nanos);
    (at, nanos != 0 || stat.st_mtime_nsec as i64 != 0)
}
