//! Asks the user for confirmation before an action that cannot easily be undone.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::failure::Failure;
use crate::sanitize::harmless;

/// Returns whether the user can be asked: stdin and stderr are a terminal.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks a yes-or-no question. Any answer except yes is a failure.
pub fn agree(question: &str) -> Result<(), Failure> {
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "{} [y/N] ", harmless(question)).and_then(|()| stderr.flush());
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new("nothing was changed")),
    }
}

/// Returns the failure for a question that cannot be asked.
pub fn no_terminal(what: &str) -> Failure {
    Failure::usage(what).hint("nothing was changed; use `--yes`")
}
