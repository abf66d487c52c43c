//! A line of JSON that ends with a checksum. Each record of a journal has this form.

use std::io::Write as _;

/// Separates the record from its checksum.
pub const CRC_MARK: &str = ",\"crc\":\"";

/// Appends an object to `buffer` as a line that ends with its checksum.
pub fn encode(record: &impl serde::Serialize, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    serde_json::to_writer(&mut *buffer, record).expect("records are plain data with string keys");
    // The closing brace is removed here and added again after the checksum.
    buffer.pop();
    let crc = crc32c::crc32c(&buffer[start..]);
    let _ = writeln!(buffer, "{CRC_MARK}{crc:08x}\"}}");
}

/// Returns whether the checksum of a line is correct.
pub fn is_whole(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(|line| check_sum(line).is_ok())
}

/// Checks the checksum of a line.
pub fn check_sum(line: &str) -> Result<(), String> {
    let (body, tail) = line.rsplit_once(CRC_MARK).ok_or("it has no checksum")?;
    // The checksum is compared as text, because the same number can be written in upper or lower case.
    let expected = format!("{:08x}\"}}", crc32c::crc32c(body.as_bytes()));
    if tail != expected {
        return Err("its checksum does not match".to_owned());
    }
    Ok(())
}

/// Kinds of data after the last line end of an open segment.
pub enum Remainder {
    /// A complete record without its line end.
    Record,
    /// A complete record, followed by bytes that this program never writes.
    Spoilt,
    /// Part of a line. The writer died before the record was complete, so the effects of the record were never executed.
    Torn,
}

/// Description of the damage if a line has more data than its record ([`Remainder::Spoilt`]).
pub const SPOILT: &str = "there is data after the record";

/// Classifies the data after the last line end. A record with a damaged line end is not treated as an incomplete line.
pub fn remainder(text: &[u8]) -> Remainder {
    let mark = CRC_MARK.as_bytes();
    // A record is valid UTF-8, so it ends before the first invalid byte.
    let text_len = match std::str::from_utf8(text) {
        Ok(_) => text.len(),
        Err(error) => error.valid_up_to(),
    };
    // Values in the record may look like a checksum, so only one that matches ends the record. The sum is computed incrementally.
    let (mut crc, mut added) = (0, 0);
    let marks = (0..text_len).filter(|at| text[*at..].starts_with(mark));
    for at in marks {
        crc = crc32c::crc32c_append(crc, &text[added..at]);
        added = at;
        let stated = format!("{crc:08x}\"}}");
        let rest = &text[at + mark.len()..text_len];
        if rest.starts_with(stated.as_bytes()) {
            return if rest.len() == stated.len() && text_len == text.len() {
                Remainder::Record
            } else {
                Remainder::Spoilt
            };
        }
    }
    Remainder::Torn
}
