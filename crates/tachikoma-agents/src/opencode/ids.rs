//! The server's ids, which sort by the time of its clock: a prefix, 48 bits of time and count as hexadecimal digits, and 14
//! characters of chance. A message that is given an id by us has to sort as if the server had made it: the server takes a
//! message behind the last answer for one that is not answered yet.

/// Hexadecimal digits of time and count.
const DIGITS: usize = 12;

/// The count within one millisecond has 12 bits; of the time the lowest 36 are kept, which last for two years.
const COUNT_BITS: u32 = 12;
const TIME_BITS: u32 = 36;

/// Returns the time of an id, in milliseconds, as far as it has it: modulo 2^36.
#[must_use]
pub fn millis_of(id: &str) -> Option<u64> {
    let (_, rest) = id.split_once('_')?;
    let digits = rest.get(..DIGITS)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    Some(number >> COUNT_BITS)
}

/// Returns how long after the time of an id a moment is, in milliseconds; 0 where it is before.
#[must_use]
pub fn millis_until(id: &str, moment: u64) -> Option<u64> {
    let wrap = 1_u64 << TIME_BITS;
    let ahead = (moment % wrap).wrapping_sub(millis_of(id)?) % wrap;
    // More than a year ahead is behind.
    Some(if ahead > wrap / 2 { 0 } else { ahead })
}

/// Returns an id of a time, in milliseconds. `chance` makes it the only one of its millisecond.
#[must_use]
pub fn at(prefix: &str, millis: u64, chance: u128) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let time = (millis % (1 << TIME_BITS)) << COUNT_BITS;
    let mut id = format!("{prefix}_{time:012x}");
    let mut rest = chance;
    for _ in 0..14 {
        let letter = usize::try_from(rest % 62).unwrap_or_default();
        id.push(LETTERS.get(letter).copied().unwrap_or(b'0').into());
        rest /= 62;
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_and_made_as_the_server_does() {
        // Of a recording: the message was created at 1794709761630.
        let recorded = "msg_1dd09ae5d001K32BwsgffeWY0t";
        let wrap = 1_u64 << TIME_BITS;
        assert_eq!(millis_of(recorded), Some(1_794_709_761_629 % wrap));
        let made = at("msg", 1_794_709_761_629, u128::MAX);
        assert_eq!(made.len(), recorded.len());
        assert!(made.as_str() < recorded, "{made}: the count begins at 0");
        assert!(at("msg", 1_794_709_761_630, 0).as_str() > recorded);
        assert_eq!(millis_until(recorded, 1_794_709_762_629), Some(1000));
        assert_eq!(millis_until(recorded, 1_794_709_761_000), Some(0));
        for odd in [
            "",
            "msg",
            "msg_12",
            "msg_xyzxyzxyzxyz00",
            "msg_\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}",
        ] {
            assert_eq!(millis_of(odd), None, "{odd}");
        }
    }
}
