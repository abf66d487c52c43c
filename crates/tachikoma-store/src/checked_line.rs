//! A line of JSON that ends with a checksum: the form of each record of a journal.

use std::io::Write as _;

/// Between the record and its checksum.
pub const CRC_MARK: &str = ",\"crc\":\"";

/// Writes a record, or another object, as a line that ends with its checksum.
pub fn encode(record: &impl serde::Serialize, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    serde_json::to_writer(&mut *buffer, record).expect("records are plain data with string keys");
    // The closing brace moves behind the checksum.
    buffer.pop();
    let crc = crc32c::crc32c(&buffer[start..]);
    let _ = writeln!(buffer, "{CRC_MARK}{crc:08x}\"}}");
}

/// Returns whether a line has the checksum that it states.
pub fn is_whole(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(|line| check_sum(line).is_ok())
}

/// Checks that a line has the checksum that it states.
pub fn check_sum(line: &str) -> Result<(), String> {
    let (body, tail) = line.rsplit_once(CRC_MARK).ok_or("it has no checksum")?;
    // As text: a number could be written in other ways, and one flipped bit makes a capital of a letter.
    let expected = format!("{:08x}\"}}", crc32c::crc32c(body.as_bytes()));
    if tail != expected {
        return Err("its checksum does not match".to_owned());
    }
    Ok(())
}

/// What stands behind the last line end of a segment that is not closed.
pub enum Remainder {
    /// A whole record: only its line end is missing.
    Record,
    /// A whole record, and behind it something that we never write there.
    Spoilt,
    /// Part of a line: its writer died, and it was never acknowledged.
    Torn,
}

/// What is wrong with a line that is [`Remainder::Spoilt`].
pub const SPOILT: &str = "something stands behind its record";

/// Tells what the last bytes of a segment are. A changed line end must not make a torn line of a record.
pub fn remainder(text: &[u8]) -> Remainder {
    let mark = CRC_MARK.as_bytes();
    // Only text is a record.
    let text_len = match std::str::from_utf8(text) {
        Ok(_) => text.len(),
        Err(error) => error.valid_up_to(),
    };
    // Values of the user's may look like a checksum: only the record's own matches. Each byte is added up once.
    let (mut crc, mut added) = (0, 0);
    let marks = (0..text_len).filter(|at| text[*at..].starts_with(mark));
    for at in marks {
        crc = crc32c::crc32c_append(crc, &text[added..at]);
        added = at;
        let stated = format!("{crc:08x}\"}}");
        let behind = &text[at + mark.len()..text_len];
        if behind.starts_with(stated.as_bytes()) {
            return if behind.len() == stated.len() && text_len == text.len() {
                Remainder::Record
            } else {
                Remainder::Spoilt
            };
        }
    }
    Remainder::Torn
}
