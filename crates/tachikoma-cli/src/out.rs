//! Standard output and error, for readers that may have gone.

use std::io::{ErrorKind, Write as _};

/// Prints a line. A reader that has gone (`| head`) has what it wanted: the program ends well.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}") {
        std::process::exit(i32::from(error.kind() != ErrorKind::BrokenPipe));
    }
}

/// Prints a line about a running loop. Whoever reads may have gone; the loop goes on without an audience.
pub fn tell(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Says something on standard error. Where nobody listens, nothing is lost.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
