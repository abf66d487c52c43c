//! Context windows of models, and the fill at which the agent itself stops.

/// The agent compacts its context when fewer than this many tokens are left, unless compaction is switched off.
const COMPACTION_RESERVE_TOKENS: u64 = 33_000;

/// With compaction off, the agent refuses prompts when fewer than this many tokens are left.
pub(super) const REFUSAL_RESERVE_TOKENS: u64 = 23_000;

/// Maximum number of context windows that are remembered, one for each model. A loop uses a handful.
const MODELS_MAX: usize = 32;

/// Suffix of a model's name if the large window was requested.
const LARGE_MARK: &str = "[1m]";

const USUAL_TOKENS: u64 = 200_000;
const LARGE_TOKENS: u64 = 1_000_000;

/// Returns the fill in tokens at which the agent compacts its context, if compaction is on.
#[must_use]
pub fn compaction_point(window: u64) -> u64 {
    window.saturating_sub(COMPACTION_RESERVE_TOKENS)
}

/// Returns the fill in tokens at which the agent refuses prompts, if compaction is off.
#[must_use]
pub fn refusal_point(window: u64) -> u64 {
    window.saturating_sub(REFUSAL_RESERVE_TOKENS)
}

/// Returns the window of a model by its name: models of the third and fourth generations have the usual
/// one, the fifth has the large one.
#[must_use]
pub fn window_of(model: &str) -> Option<u64> {
    if model.ends_with(LARGE_MARK) {
        return Some(LARGE_TOKENS);
    }
    let mut words = model.split('-');
    (words.next() == Some("claude")).then_some(())?;
    match words.find_map(|word| word.parse::<u32>().ok())? {
        3 | 4 => Some(USUAL_TOKENS),
        5 => Some(LARGE_TOKENS),
        _ => None,
    }
}

/// The windows that the agent reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows(Vec<(String, u64)>);

impl Windows {
    /// Keeps a reported window. Returns whether it is new.
    pub fn learn(&mut self, model: &str, window: u64) -> bool {
        if window == 0 || model.is_empty() {
            return false;
        }
        if let Some((_, known)) = self.0.iter_mut().find(|(name, _)| name == model) {
            return std::mem::replace(known, window) != window;
        }
        let room = self.0.len() < MODELS_MAX;
        if room {
            self.0.push((model.to_owned(), window));
        }
        room
    }

    /// Returns the window of the model of a message. `wanted` is the requested model: it may have the suffix of
    /// the large window, which messages leave out.
    ///
    /// A reported window is used first, then the `assumed` one, then the window for the model's name.
    pub fn of(&self, model: &str, wanted: Option<&str>, assumed: Option<u64>) -> Option<u64> {
        let marked = wanted.filter(|wanted| wanted.strip_suffix(LARGE_MARK) == Some(model));
        let told = |name: &str| {
            let mut known = self.0.iter();
            known.find(|(known, _)| known == name).map(|known| known.1)
        };
        marked
            .and_then(told)
            .or_else(|| told(model))
            .or(assumed)
            .or_else(|| window_of(marked.unwrap_or(model)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_of_a_known_model_follows_from_its_name() {
        for (model, window) in [
            ("claude-opus-5-5", Some(LARGE_TOKENS)),
            ("claude-fable-5-2", Some(LARGE_TOKENS)),
            ("claude-haiku-4-5-20251001", Some(USUAL_TOKENS)),
            ("claude-opus-4-6", Some(USUAL_TOKENS)),
            ("claude-3-5-haiku-20241022", Some(USUAL_TOKENS)),
            ("claude-sonnet-4-5[1m]", Some(LARGE_TOKENS)),
            ("claude-opus-9", None),
            ("opus", None),
            ("gpt-5", None),
            ("<synthetic>", None),
        ] {
            assert_eq!(window_of(model), window, "{model}");
        }
    }

    #[test]
    fn reported_window_overrides_the_name_and_the_suffix_selects_the_large_window() {
        let mut windows = Windows::default();
        assert_eq!(
            windows.of("claude-opus-5-5", None, None),
            Some(LARGE_TOKENS)
        );
        assert!(windows.learn("claude-opus-5-5", 300_000));
        assert!(
            !windows.learn("claude-opus-5-5", 300_000),
            "the window is known already"
        );
        assert!(
            !windows.learn("claude-opus-5-5", 0),
            "a window of 0 tokens is ignored"
        );
        assert_eq!(windows.of("claude-opus-5-5", None, None), Some(300_000));

        let (model, wanted) = ("claude-sonnet-4-5", Some("claude-sonnet-4-5[1m]"));
        assert_eq!(windows.of(model, None, None), Some(USUAL_TOKENS));
        assert_eq!(windows.of(model, wanted, None), Some(LARGE_TOKENS));
        assert_eq!(windows.of(model, None, Some(5)), Some(5));
        assert!(windows.learn("claude-sonnet-4-5[1m]", 900_000));
        assert_eq!(windows.of(model, wanted, Some(5)), Some(900_000));
        assert_eq!(windows.of(model, wanted, None), Some(900_000));
    }

    #[test]
    fn number_of_remembered_model_windows_is_limited() {
        let mut windows = Windows::default();
        for number in 0..1000 {
            windows.learn(&format!("m{number}"), 7);
        }
        assert_eq!(windows.0.len(), MODELS_MAX);
    }

    #[test]
    fn compaction_and_refusal_points_are_below_the_window() {
        assert_eq!(
            (compaction_point(200_000), refusal_point(200_000)),
            (167_000, 177_000)
        );
        assert_eq!(
            (compaction_point(1_000_000), refusal_point(1_000_000)),
            (967_000, 977_000)
        );
        assert_eq!((compaction_point(9), refusal_point(9)), (0, 0));
    }
}
