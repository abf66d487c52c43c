//! Formats file names for messages.

use std::borrow::Cow;
use std::path::Path;

/// Returns the path of a file relative to a directory, on one line. A file outside of the directory keeps its whole path.
#[must_use]
pub fn relative_to(dir: &Path, file: &Path) -> String {
    let file = file.strip_prefix(dir).unwrap_or(file);
    printable(&file.to_string_lossy()).into_owned()
}

/// Returns a text with its control characters escaped.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    Cow::Owned(line)
}
