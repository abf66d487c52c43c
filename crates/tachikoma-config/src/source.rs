//! Parses TOML text into values with their line numbers.

use std::collections::BTreeMap;

use toml::Table;
use toml::de::{DeTable, DeValue};

use super::keys::Key;

/// Line numbers of all values in a TOML text.
#[derive(Debug)]
pub(super) struct Lines(BTreeMap<String, usize>);

/// A syntax error in TOML text.
#[derive(Debug)]
pub(super) struct NotToml {
    pub(super) line: Option<usize>,
    pub(super) what: String,
}

/// Parses `text`. Returns one error for each invalid line.
pub(super) fn parse(text: &str) -> Result<(Table, Lines), Vec<NotToml>> {
    let (spanned, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let mut syntax_errors: Vec<_> = errors
            .iter()
            .map(|error| syntax_error(error, text))
            .collect();
        syntax_errors.sort_by_key(|syntax_error| syntax_error.line);
        syntax_errors.dedup_by_key(|syntax_error| syntax_error.line);
        return Err(syntax_errors);
    }
    let table = text
        .parse()
        .map_err(|error| vec![number_error(&error, text)])?;
    let mut lines = BTreeMap::new();
    note_lines("", spanned.get_ref(), text, &mut lines);
    Ok((table, Lines(lines)))
}

impl Lines {
    /// Returns the line of a place such as `gate[1].timeout`, or of the table that contains it.
    pub(super) fn of(&self, place: &str) -> Option<usize> {
        let mut place = place;
        // This loop ends, because the place gets shorter in each round.
        loop {
            if let Some(line) = self.0.get(place) {
                return Some(*line);
            }
            place = &place[..place.rfind(['.', '['])?];
        }
    }
}

fn syntax_error(error: &toml::de::Error, text: &str) -> NotToml {
    let message = error.message().replace('\n', ", ");
    let named = error.span().and_then(|span| text.get(span));
    NotToml {
        line: error.span().map(|span| line_at(text, span.start)),
        what: match named {
            Some(key) if message == "duplicate key" => format!("duplicate key `{key}`"),
            Some(_) | None => message,
        },
    }
}

/// Returns the error for a number that is out of range. Well-formed TOML fails only for this reason.
fn number_error(error: &toml::de::Error, text: &str) -> NotToml {
    let number = error.span().and_then(|span| text.get(span));
    NotToml {
        what: format!("number `{}` is out of range", number.unwrap_or_default()),
        ..syntax_error(error, text)
    }
}

/// Returns the number of the line, counted from 1, that contains the byte at `offset`.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

fn note_lines(
    table: &str,
    children: &DeTable<'_>,
    text: &str,
    lines: &mut BTreeMap<String, usize>,
) {
    for (name, value) in children {
        let name_text = Key(vec![name.get_ref().to_string()]).to_string();
        let place = if table.is_empty() {
            name_text
        } else {
            format!("{table}.{name_text}")
        };
        lines.insert(place.clone(), line_at(text, name.span().start));
        note_lines_below(&place, value.get_ref(), text, lines);
    }
}

fn note_lines_below(
    place: &str,
    value: &DeValue<'_>,
    text: &str,
    lines: &mut BTreeMap<String, usize>,
) {
    if let Some(table) = value.as_table() {
        note_lines(place, table, text, lines);
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        let place = format!("{place}[{index}]");
        lines.insert(place.clone(), line_at(text, item.span().start));
        note_lines_below(&place, item.get_ref(), text, lines);
    }
}
