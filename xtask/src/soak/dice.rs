//! Random times and positions.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Pseudorandom numbers (`SplitMix64`), from a seed.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub const fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a generator with a random seed.
    pub fn shaken() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self::from_seed(now.map_or(1, |since| {
            u64::from(since.subsec_nanos()) ^ since.as_secs() << 30
        }))
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX);
        usize::try_from(self.next() % bound).unwrap_or_default()
    }

    /// Returns a time before `end`.
    pub fn moment(&mut self, end: Duration) -> Duration {
        let micros = usize::try_from(end.as_micros()).unwrap_or(usize::MAX);
        Duration::from_micros(self.below(micros.max(1)) as u64)
    }

    /// Returns a random byte.
    pub fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_reach_all_values_below_their_bound() {
        let mut dice = Dice::from_seed(1);
        let mut seen = [false; 6];
        for _ in 0..200 {
            seen[dice.below(6)] = true;
        }
        assert_eq!(seen, [true; 6]);
        assert!(dice.moment(Duration::from_millis(1)) < Duration::from_millis(1));
    }
}
