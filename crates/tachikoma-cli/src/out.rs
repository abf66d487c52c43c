//! Standard output of commands that print and end.

use std::io::{ErrorKind, Write as _};

/// Prints a line. A reader that has gone (`| head`) has what it wanted: the program ends well.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}") {
        std::process::exit(i32::from(error.kind() != ErrorKind::BrokenPipe));
    }
}
