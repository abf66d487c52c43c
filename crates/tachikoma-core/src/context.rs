//! A measured (or, marked as such, estimated) fill of an agent's context window.

use serde::{Deserialize, Serialize};

/// How full the context of the session is, by the agent's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// Tokens in the context at the latest reading.
    pub tokens: u64,
    /// Tokens that fit into the context window.
    pub window: u64,
    /// Whether this is an estimate, because the agent reported nothing.
    pub estimated: bool,
}

impl Context {
    /// Returns the fill in percent; always finite, 100 for an empty window.
    #[must_use]
    pub fn percent(&self) -> f64 {
        if self.window == 0 {
            return 100.0;
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "token counts are far below 2^52"
        )]
        let percent = self.tokens as f64 * 100.0 / self.window as f64;
        percent
    }

    /// Returns the fill in whole percent, rounded down.
    #[must_use]
    pub fn percent_rounded_down(&self) -> u8 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the value is clamped to the range of the type"
        )]
        let percent = self.percent().clamp(0.0, 255.0) as u8;
        percent
    }

    /// Returns the number of tokens at a fill of `percent`.
    #[must_use]
    pub fn tokens_at(&self, percent: f64) -> u64 {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "token counts are far below 2^52, and the share is clamped"
        )]
        let tokens = (self.window as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil() as u64;
        tokens
    }
}
