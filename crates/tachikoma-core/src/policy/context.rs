//! Limits of the context: warning, redline and hard limit.

use super::Policy;
use crate::{Context, Session};

/// Tokens reserved for one short prompt below the agent's own refusal.
const RESERVE_TOKENS: u64 = 3_000;

/// Level of the context's fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The context has room.
    Fine,
    /// The agent should finish soon.
    Warning,
    /// The session has to be replaced.
    Redline,
    /// The context has no room for another prompt.
    Hard,
}

/// Returns the fill from which no prompt is sent, in percent of the window: the configured limit, or the fill at which
/// the agent refuses prompts if that is lower.
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

/// Returns the fill from which a session is replaced, in percent of the window: the lower of the redlines in percent and in
/// tokens. It is never above the hard limit, because the agent would refuse prompts before the redline.
#[must_use]
pub fn redline_percent(policy: &Policy, session: &Session, window: u64) -> f64 {
    let by_percent = policy
        .reboot
        .redline_percent
        .min(hard_limit_percent(policy, window));
    match token_redline_percent(policy, session, window) {
        Some(by_tokens) => by_percent.min(by_tokens),
        None => by_percent,
    }
}

/// Returns whether the context has reached the redline in tokens and not the one in percent.
#[must_use]
pub fn is_token_redline(policy: &Policy, session: &Session, context: &Context) -> bool {
    let window = context.window;
    let by_percent = policy
        .reboot
        .redline_percent
        .min(hard_limit_percent(policy, window));
    let by_tokens = token_redline_percent(policy, session, window);
    context.percent() < by_percent && by_tokens.is_some_and(|at| context.percent() >= at)
}

/// Returns whether a session began near the redline in tokens. A new session would begin there too, so that this redline does
/// not apply to it.
#[must_use]
pub fn begins_near_token_redline(policy: &Policy, session: &Session) -> bool {
    let tokens = policy.reboot.redline_tokens;
    let near = tokens / 4 * 3;
    tokens > 0 && session.first_tokens.is_some_and(|first| first >= near)
}

fn token_redline_percent(policy: &Policy, session: &Session, window: u64) -> Option<f64> {
    let tokens = policy.reboot.redline_tokens;
    let applies = tokens > 0 && !begins_near_token_redline(policy, session);
    applies.then(|| {
        let at = Context {
            tokens,
            window,
            estimated: false,
        };
        at.percent()
    })
}

/// Returns the fill at which the agent is asked to finish, in percent of the window. A redline in tokens moves this
/// fill by the same ratio.
fn warning_percent(policy: &Policy, session: &Session, window: u64) -> f64 {
    let rules = &policy.reboot;
    match token_redline_percent(policy, session, window) {
        Some(redline) if redline < rules.redline_percent && rules.warning_percent < 100.0 => {
            let share = (rules.warning_percent / rules.redline_percent).min(1.0);
            rules.warning_percent.min(redline * share)
        }
        Some(_) | None => rules.warning_percent,
    }
}

/// Judges a reading of a session.
#[must_use]
pub fn level(policy: &Policy, session: &Session, context: &Context) -> Level {
    let percent = context.percent();
    let window = context.window;
    // Checked from the highest level down, because a redline may be configured below the warning.
    if !policy.reboot.manages_context() {
        Level::Fine
    } else if percent >= hard_limit_percent(policy, window) {
        Level::Hard
    } else if percent >= redline_percent(policy, session, window) {
        Level::Redline
    } else if percent >= warning_percent(policy, session, window) {
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

    fn fresh() -> Session {
        Session::default()
    }

    fn at(tokens: u64) -> Context {
        Context {
            tokens,
            window: 200_000,
            estimated: false,
        }
    }

    #[test]
    fn context_levels_are_capped_by_the_agents_refusal() {
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
            assert_eq!(level(&usual, &fresh(), &at(tokens)), expected, "{tokens}");
        }
        let below_warning = policy(40.5);
        assert_eq!(level(&below_warning, &fresh(), &at(80_999)), Level::Fine);
        assert_eq!(level(&below_warning, &fresh(), &at(81_000)), Level::Redline);
        let above_refusal = policy(92.0);
        assert_eq!(
            level(&above_refusal, &fresh(), &at(173_999)),
            Level::Warning
        );
        assert_eq!(
            level(&above_refusal, &fresh(), &at(174_000)),
            Level::Hard,
            "a redline above the refusal would never be reached"
        );
        let roomy = Context {
            window: 1_000_000,
            ..at(940_000)
        };
        assert_eq!(level(&usual, &fresh(), &roomy), Level::Redline);
        assert_eq!(
            level(&policy(100.0), &fresh(), &at(199_000)),
            Level::Fine,
            "a redline of 100 percent turns the levels off"
        );
    }

    #[test]
    fn lower_of_the_two_redlines_applies() {
        let in_a_million = |tokens| Context {
            window: 1_000_000,
            ..at(tokens)
        };
        let usual = policy(85.0);
        for (tokens, expected) in [
            (164_000, Level::Fine),
            (165_000, Level::Warning),
            (199_999, Level::Warning),
            (200_000, Level::Redline),
            (949_999, Level::Redline),
            (950_000, Level::Hard),
        ] {
            let context = in_a_million(tokens);
            assert_eq!(level(&usual, &fresh(), &context), expected, "{tokens}");
            let by_tokens = expected == Level::Redline && tokens < 850_000;
            assert_eq!(is_token_redline(&usual, &fresh(), &context), by_tokens);
        }
        // In a window of 200 000 tokens, the redline of 85 % comes first.
        assert_eq!(level(&usual, &fresh(), &at(170_000)), Level::Redline);
        assert!(!is_token_redline(&usual, &fresh(), &at(170_000)));
        let off = Policy {
            reboot: RebootRules {
                redline_tokens: 0,
                ..RebootRules::default()
            },
            ..policy(85.0)
        };
        assert_eq!(level(&off, &fresh(), &in_a_million(699_999)), Level::Fine);
        let never = policy(100.0);
        assert_eq!(level(&never, &fresh(), &in_a_million(999_999)), Level::Fine);
    }

    #[test]
    fn session_that_begins_near_the_token_redline_uses_the_percent_redline() {
        let usual = policy(85.0);
        let context = Context {
            window: 1_000_000,
            ..at(250_000)
        };
        for (first, expected) in [
            (149_999, Level::Redline),
            (150_000, Level::Fine),
            (300_000, Level::Fine),
        ] {
            let session = Session {
                first_tokens: Some(first),
                ..fresh()
            };
            assert_eq!(level(&usual, &session, &context), expected, "{first}");
        }
    }
}
