//! Standard output and error, for readers that may have gone.

use std::io::{ErrorKind, Write as _};

/// Prints a line. A reader that has gone (`| head`) has what it wanted: the program ends well.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}") {
        std::process::exit(i32::from(error.kind() != ErrorKind::BrokenPipe));
    }
}

/// Prints a line of a loop's report. A reader that has gone changes nothing: neither the loop nor its exit code.
pub fn report(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Says something on standard error. Where nobody listens, nothing is lost.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
