//! Finds the end of a long array or object 64 bytes at a time: the positions of quotes and brackets become
//! bits of one number, and arithmetic removes the brackets inside of strings. No branch depends on single bytes, which
//! makes it fast on lists of many short strings.

/// Number of bytes in a block: the number of bits of a `u64`.
pub const BLOCK: usize = 64;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const SEVENS: u64 = 0x7f * LOW_BITS;

/// The state between two blocks.
#[derive(Default)]
struct Between {
    /// All bits are set if a string continues in the next block; otherwise 0.
    in_string: u64,
    /// Whether the next byte is escaped.
    escaped: bool,
}

/// Returns the position after the bracket that closes `depth` open ones; `None` if they stay open. `bytes` begin outside of a string.
pub fn close(bytes: &[u8], mut depth: usize) -> Option<usize> {
    let mut between = Between::default();
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    for (number, block) in blocks.iter().enumerate() {
        if let Some(end) = in_block(block, &mut between, &mut depth) {
            return Some(number * BLOCK + end);
        }
    }
    let end = byte_by_byte(rest, &mut between, &mut depth)?;
    Some(blocks.len() * BLOCK + end)
}

fn in_block(block: &[u8; BLOCK], between: &mut Between, depth: &mut usize) -> Option<usize> {
    let (mut quotes, mut brackets, mut escapes) = (0, 0, 0);
    let (words, _) = block.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        quotes |= bits(zeros(word ^ (LOW_BITS * b'"' as u64))) << (8 * number);
        // All four brackets differ only in these bits. Four letters differ from them in these bits too, but occur in strings only.
        let alike = ((word | (LOW_BITS * 0x20)) ^ (LOW_BITS * b'{' as u64)) & !(LOW_BITS * 0x06);
        brackets |= bits(zeros(alike)) << (8 * number);
        escapes |= zeros(word ^ (LOW_BITS * b'\\' as u64));
    }
    if escapes != 0 || between.escaped {
        return byte_by_byte(block, between, depth);
    }
    let in_string = up_to_each(quotes) ^ between.in_string;
    between.in_string = 0_u64.wrapping_sub(in_string >> 63);
    let mut outside = brackets & !in_string;
    while outside != 0 {
        let at = outside.trailing_zeros() as usize;
        outside &= outside - 1;
        if closes(block[at], depth) {
            return Some(at + 1);
        }
    }
    None
}

/// Searches byte by byte: for blocks with escapes, and for the rest after the last block.
fn byte_by_byte(bytes: &[u8], between: &mut Between, depth: &mut usize) -> Option<usize> {
    for (at, byte) in bytes.iter().enumerate() {
        if between.escaped {
            between.escaped = false;
        } else if *byte == b'"' {
            between.in_string = !between.in_string;
        } else if between.in_string != 0 {
            between.escaped = *byte == b'\\';
        } else if closes(*byte, depth) {
            return Some(at + 1);
        }
    }
    None
}

/// Counts a bracket. Returns whether it closes the outermost one.
fn closes(byte: u8, depth: &mut usize) -> bool {
    match byte {
        b'{' | b'[' => *depth += 1,
        b'}' | b']' => {
            *depth = depth.saturating_sub(1);
            return *depth == 0;
        }
        _ => {}
    }
    false
}

/// Sets the high bit of exactly the bytes that are zero.
const fn zeros(word: u64) -> u64 {
    !(((word & SEVENS) + SEVENS) | word | SEVENS)
}

/// Collects the high bits of the eight bytes.
const fn bits(marks: u64) -> u64 {
    (marks >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// Each bit becomes the sum, without carry, of itself and all bits below: set from each opening quote to before its closing
/// quote.
const fn up_to_each(quotes: u64) -> u64 {
    let mut sums = quotes;
    sums ^= sums << 1;
    sums ^= sums << 2;
    sums ^= sums << 4;
    sums ^= sums << 8;
    sums ^= sums << 16;
    sums ^= sums << 32;
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_single_bytes_give_the_same_end() {
        let inside = r#"{"a":["]","[\"","\\"],"y":[[{}],"ž }"],"long":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{"}"#;
        for times in 0..12 {
            for shift in 0..BLOCK {
                let spaces = " ".repeat(shift);
                let text = format!("{spaces}{}], more", format!("{inside},").repeat(times));
                let end = spaces.len() + times * (inside.len() + 1) + 1;
                let one_by_one = byte_by_byte(text.as_bytes(), &mut Between::default(), &mut 1);
                assert_eq!(one_by_one, Some(end), "{text}");
                assert_eq!(close(text.as_bytes(), 1), Some(end), "{text}");
            }
        }
        assert_eq!(close(b"[[[]]", 1), None, "one bracket stays open");
    }

    #[test]
    fn escape_at_the_end_of_a_block_applies_to_the_next_block() {
        for before in 0..3 * BLOCK {
            let text = format!(
                r#""{}\"{}]",] more"#,
                "x".repeat(before),
                "y".repeat(2 * BLOCK)
            );
            let end = text.len() - " more".len();
            assert_eq!(close(text.as_bytes(), 1), Some(end), "{before}");
        }
    }

    #[test]
    fn only_closing_brackets_of_all_byte_values_close_a_value() {
        for byte in 0..=u8::MAX {
            let text = [&b"x"[..], &[byte], &[b'1'; 80]].concat();
            let expected = match byte {
                b'}' | b']' => Some(2),
                _ => None,
            };
            assert_eq!(close(&text, 1), expected, "{byte}");
        }
    }
}
