//! How full a context may become: where it is too full to go on well, and where nothing more goes in.

use super::Policy;
use crate::context::Context;

/// Room that is left for one short prompt below the agent's own refusal.
const RESERVE_TOKENS: u64 = 3_000;

/// What a reading says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// There is room.
    Fine,
    /// The agent should come to an end.
    Warning,
    /// The session is to be replaced.
    Redline,
    /// Nothing may be prompted any more.
    Hard,
}

/// Returns from which fill nothing is prompted, in percent of the window: the smaller of the configured limit and of
/// what the agent itself refuses.
#[must_use]
pub fn hard_limit_percent(policy: &Policy, window: u64) -> f64 {
    let configured = policy.reboot.hard_limit_percent;
    let Some(refuses_before) = policy.agent.refuses_before else {
        return configured;
    };
    let tokens = window.saturating_sub(refuses_before.saturating_add(RESERVE_TOKENS));
    let refusal = Context {
        tokens,
        window,
        estimated: false,
    };
    configured.min(refusal.percent())
}

/// Returns from which fill a session is replaced, in percent of the window. Never above the hard limit: there the agent
/// would refuse before it is reached.
#[must_use]
pub fn redline_percent(policy: &Policy, window: u64) -> f64 {
    policy
        .reboot
        .redline_percent
        .min(hard_limit_percent(policy, window))
}

/// Judges a reading.
#[must_use]
pub fn level(policy: &Policy, context: &Context) -> Level {
    let percent = context.percent();
    let window = context.window;
    // From the top: a redline below the warning is a redline all the same.
    if !policy.reboot.manages_context() {
        Level::Fine
    } else if percent >= hard_limit_percent(policy, window) {
        Level::Hard
    } else if percent >= redline_percent(policy, window) {
        Level::Redline
    } else if percent >= policy.reboot.warning_percent {
        Level::Warning
    } else {
        Level::Fine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{AgentTraits, RebootRules};

    fn policy(redline: f64) -> Policy {
        Policy {
            agent: AgentTraits {
                refuses_before: Some(23_000),
                ..AgentTraits::default()
            },
            reboot: RebootRules {
                redline_percent: redline,
                ..RebootRules::default()
            },
            ..Policy::default()
        }
    }

    fn at(tokens: u64) -> Context {
        Context {
            tokens,
            window: 200_000,
            estimated: false,
        }
    }

    #[test]
    fn levels_follow_each_other_and_the_agents_refusal_caps_them() {
        let usual = policy(85.0);
        for (tokens, expected) in [
            (0, Level::Fine),
            (139_999, Level::Fine),
            (140_000, Level::Warning),
            (169_999, Level::Warning),
            (170_000, Level::Redline),
            (173_999, Level::Redline),
            (174_000, Level::Hard),
            (300_000, Level::Hard),
        ] {
            assert_eq!(level(&usual, &at(tokens)), expected, "{tokens}");
        }
        let below_warning = policy(40.5);
        assert_eq!(level(&below_warning, &at(80_999)), Level::Fine);
        assert_eq!(level(&below_warning, &at(81_000)), Level::Redline);
        let above_refusal = policy(92.0);
        assert_eq!(level(&above_refusal, &at(173_999)), Level::Warning);
        assert_eq!(
            level(&above_refusal, &at(174_000)),
            Level::Hard,
            "a redline above the refusal would never be reached"
        );
        let roomy = Context {
            window: 1_000_000,
            ..at(940_000)
        };
        assert_eq!(level(&usual, &roomy), Level::Redline);
        assert_eq!(
            level(&policy(100.0), &at(199_000)),
            Level::Fine,
            "100 = off"
        );
    }
}
