//! Changed settings as lines for people.

use tachikoma_core::Change;

use crate::sanitize::sanitize;

/// Maximum number of changed settings that are listed.
const CHANGES_MAX: usize = 8;

/// Maximum number of characters of a value that are shown. A program can have a script as an argument.
const CHANGE_CHARS_MAX: usize = 60;

/// Returns a line for each changed setting, at most [`CHANGES_MAX`].
pub fn change_lines(changes: &[Change]) -> Vec<String> {
    let value = |value: &Option<String>| {
        let text = value.as_deref().map(sanitize);
        let text = text.as_deref().unwrap_or("the default");
        match text.char_indices().nth(CHANGE_CHARS_MAX) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text.to_owned(),
        }
    };
    let line = |change: &Change| {
        let (from, to) = (value(&change.from), value(&change.to));
        format!("`{}` is {to} now; it was {from}", sanitize(&change.key))
    };
    let mut lines: Vec<String> = changes.iter().take(CHANGES_MAX).map(line).collect();
    match changes.len() {
        0 => lines.push(
            "some settings differ from those of the last run, which recorded no values".to_owned(),
        ),
        1..=CHANGES_MAX => {}
        many => lines.push(format!(
            "more settings have changed: {}",
            many - CHANGES_MAX
        )),
    }
    lines
}
