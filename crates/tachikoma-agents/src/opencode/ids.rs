//! The server's ids, which sort by time: a prefix, 48 bits of time and count as hexadecimal digits, and 14
//! random characters. An id that we give to a message must sort as if the server had made it: for the server, a
//! message after the last answer is not answered yet.

/// Number of hexadecimal digits for time and count.
const DIGITS: usize = 12;

/// The count within one millisecond has 12 bits; the lowest 36 bits of the time are kept, which wrap after two years.
const COUNT_BITS: u32 = 12;
const TIME_BITS: u32 = 36;

/// Returns the time of an id in milliseconds, modulo 2^36.
#[must_use]
pub fn millis_of(id: &str) -> Option<u64> {
    let (_, rest) = id.split_once('_')?;
    let digits = rest.get(..DIGITS)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    Some(number >> COUNT_BITS)
}

/// Returns the milliseconds from the time of an id to `moment`; 0 if `moment` is earlier.
#[must_use]
pub fn millis_until(id: &str, moment: u64) -> Option<u64> {
    let wrap = 1_u64 << TIME_BITS;
    let ahead = (moment % wrap).wrapping_sub(millis_of(id)?) % wrap;
    // A difference of more than half the range means that `moment` is earlier.
    Some(if ahead > wrap / 2 { 0 } else { ahead })
}

/// Returns an id for a time in milliseconds. `chance` makes it unique within its millisecond.
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
    fn ids_are_read_and_made_as_by_the_server() {
        // The id is from a recording. The message was created at 1794709761630.
        let recorded = "msg_1dd09ae5d001K32BwsgffeWY0t";
        let wrap = 1_u64 << TIME_BITS;
        assert_eq!(millis_of(recorded), Some(1_794_709_761_629 % wrap));
        let made = at("msg", 1_794_709_761_629, u128::MAX);
        assert_eq!(made.len(), recorded.len());
        assert!(
            made.as_str() < recorded,
            "{made}: our count begins at 0, so our id sorts first"
        );
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
