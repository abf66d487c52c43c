//! Data that this program passes to itself when it executes its program again.

use std::fs::File;
use std::io::{self, Read as _};

/// Reads at most `max` bytes from an inherited descriptor, and closes it, so that no child inherits it.
///
/// # Errors
/// There is no such descriptor, or it cannot be read.
pub fn handed(descriptor: i32, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(format!("/dev/fd/{descriptor}"))
        .and_then(|file| file.take(max as u64).read_to_end(&mut bytes));
    // The standard streams stay open.
    if descriptor > 2 {
        nix::unistd::close(descriptor)?;
    }
    read.map(|_| bytes)
}
