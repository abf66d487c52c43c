//! A line of JSON that ends with a checksum. Each record of a journal has this form.

use std::io::Write as _;

/// Separates the record from its checksum.
pub const CRC_MARK: &str = ",\"crc\":\"";

/// Writes an object as a line that ends with its checksum.
pub fn encode(record: &impl serde::Serialize, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    serde_json::to_writer(&mut *buffer, record).expect("records are plain data with string keys");
    // The closing brace follows the checksum.
    buffer.pop();
    let crc = crc32c::crc32c(&buffer[start..]);
    let _ = writeln!(buffer, "{CRC_MARK}{crc:08x}\"}}");
}

/// Returns whether the checksum of a line is right.
pub fn is_whole(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(|line| check_sum(line).is_ok())
}

/// Checks the checksum of a line.
pub fn check_sum(line: &str) -> Result<(), String> {
    let (body, tail) = line.rsplit_once(CRC_MARK).ok_or("it has no checksum")?;
    // Compared as text, because a number can be written in several ways, and one flipped bit changes the case of a letter.
    let expected = format!("{:08x}\"}}", crc32c::crc32c(body.as_bytes()));
    if tail != expected {
        return Err("its checksum does not match".to_owned());
    }
    Ok(())
}

/// The bytes after the last line end of an open segment.
pub enum Remainder {
    /// A complete record without its line end.
    Record,
    /// A complete record, followed by bytes that are never written there.
    Spoilt,
    /// Part of a line. The writer died, and the record was never acknowledged.
    Torn,
}

/// Description of a line that is [`Remainder::Spoilt`].
pub const SPOILT: &str = "there is data after its record";

/// Classifies the last bytes of a segment. A damaged line end must not turn a record into a torn line.
pub fn remainder(text: &[u8]) -> Remainder {
    let mark = CRC_MARK.as_bytes();
    // A record is UTF-8.
    let text_len = match std::str::from_utf8(text) {
        Ok(_) => text.len(),
        Err(error) => error.valid_up_to(),
    };
    // Values in the record may look like a checksum, so only a match counts. Each byte is summed once.
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
