//! What this program hands to itself when it becomes its program anew.

use std::fs::File;
use std::io::{self, Read as _};

/// Returns what an inherited descriptor has to read, at most `max` bytes of it, and closes it: nobody else inherits it.
///
/// # Errors
/// There is no such descriptor, or it cannot be read.
pub fn handed(descriptor: i32, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(format!("/dev/fd/{descriptor}"))
        .and_then(|file| file.take(max as u64).read_to_end(&mut bytes));
    // The standard streams are everybody's.
    if descriptor > 2 {
        nix::unistd::close(descriptor)?;
    }
    read.map(|_| bytes)
}
