//! How full a context would be that was emptied at other moments than the recorded one.

use crate::context::Context;

/// Readings of the recorded sessions, and what they would be.
#[derive(Clone, Debug, Default)]
pub(super) struct Readings {
    /// What is added to the recorded tokens.
    shift: i64,
    /// The latest, as recorded and as it would be.
    latest: Option<(u64, u64)>,
    /// The first of the recorded session: what a fresh one begins with.
    first: Option<u64>,
    /// Whether the recorded session is a new one since.
    recorded_anew: bool,
    /// Whether the other one is.
    replayed_anew: bool,
}

impl Readings {
    pub fn recorded_anew(&mut self) {
        self.recorded_anew = true;
    }

    pub fn replayed_anew(&mut self) {
        self.replayed_anew = true;
    }

    /// Returns whether the sessions are not the same any more.
    pub fn apart(&self) -> bool {
        self.shift != 0 || self.recorded_anew != self.replayed_anew
    }

    /// Returns by how many tokens the context is fuller than the recorded one.
    pub fn more(&self) -> i64 {
        let difference = |(recorded, would): (u64, u64)| signed(would) - signed(recorded);
        self.latest.map_or(0, difference)
    }

    /// Returns whether there is more room than in the recorded context.
    pub fn is_emptier(&self) -> bool {
        self.shift < 0 || (self.replayed_anew && !self.recorded_anew)
    }

    /// Takes a reading in that the other loop would not have heard.
    pub fn unheard(&mut self, context: Context) {
        let tokens = self.would_be(context.tokens);
        // It stays where it was.
        let before = self.latest.map_or(tokens, |(_, would)| would);
        self.latest = Some((context.tokens, before));
    }

    /// Takes a reading in, and returns what it would be.
    pub fn heard(&mut self, context: Context) -> Context {
        // More than fits into it is never in it.
        let most = context.window.max(context.tokens);
        let tokens = self.would_be(context.tokens).min(most);
        self.latest = Some((context.tokens, tokens));
        Context {
            tokens,
            estimated: context.estimated || tokens != context.tokens,
            ..context
        }
    }

    fn would_be(&mut self, tokens: u64) -> u64 {
        let anew = (self.recorded_anew, self.replayed_anew);
        (self.recorded_anew, self.replayed_anew) = (false, false);
        if anew.0 || self.first.is_none() {
            self.first = Some(tokens);
        }
        let difference = |would: u64| signed(would).saturating_sub(signed(tokens));
        match (anew, self.latest) {
            ((true, true), _) => self.shift = 0,
            // A fresh one, and what came in since.
            ((false, true), latest) => {
                let came = latest.map_or(0, |(recorded, _)| tokens.saturating_sub(recorded));
                let fresh = self.first.unwrap_or_default();
                self.shift = difference(fresh.saturating_add(came)).min(0);
            }
            // The old one; how much the first answer brought is not known.
            ((true, false), Some((_, would))) => self.shift = difference(would).max(0),
            ((true, false), None) | ((false, false), _) => {}
        }
        tokens.saturating_add_signed(self.shift)
    }
}

fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(readings: &mut Readings, tokens: u64) -> (u64, bool) {
        let context = Context {
            tokens,
            window: 200_000,
            estimated: false,
        };
        let heard = readings.heard(context);
        (heard.tokens, heard.estimated)
    }

    #[test]
    fn a_session_that_was_emptied_earlier_is_emptier_by_as_much_until_both_are_fresh() {
        let mut readings = Readings::default();
        assert_eq!(hear(&mut readings, 20_000), (20_000, false));
        assert_eq!(hear(&mut readings, 120_000), (120_000, false));
        readings.replayed_anew();
        assert_eq!(hear(&mut readings, 130_000), (30_000, true));
        assert_eq!(hear(&mut readings, 150_000), (50_000, true));
        readings.recorded_anew();
        readings.replayed_anew();
        assert_eq!(hear(&mut readings, 21_000), (21_000, false));
    }

    #[test]
    fn a_session_that_was_not_emptied_goes_on_from_where_it_was() {
        let mut readings = Readings::default();
        hear(&mut readings, 20_000);
        hear(&mut readings, 170_000);
        readings.recorded_anew();
        assert_eq!(hear(&mut readings, 25_000), (170_000, true));
        assert_eq!(hear(&mut readings, 30_000), (175_000, true));
    }
}
