//! Reproducible random numbers (`SplitMix64`).

pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number that is at least 0 and less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// Draws a number between `low` and `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        let span = u64::try_from(high - low).expect("low is at most high") + 1;
        low + i64::try_from(self.below(span)).expect("the offset fits into an i64")
    }

    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let index = self.below(choices.len() as u64);
        choices[usize::try_from(index).expect("the index fits into a usize")]
    }
}
