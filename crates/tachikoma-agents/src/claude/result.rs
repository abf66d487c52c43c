//! The end of a turn: how it ended, why it failed, what it cost, and what a failure means for the loop: wait, start a new session, or
//! ask a person.

use tachikoma_core::{Problem, Timestamp};

use super::conversation::{Conversation, Turn, Usage};
use super::limit;
use super::scan::{Raw, Scan, Walk};
use crate::agent_event::rounded;
use crate::tested_version::CLAUDE;
use crate::{AgentEvent, FailureClass, TurnOutcome, TurnResult, ZoneOffset};

/// Maximum size in bytes of a name or word in a result.
const WORD_BYTES_MAX: usize = 256;

/// Maximum size in bytes of the errors of a turn that failed without a text.
const ERRORS_BYTES_MAX: usize = 4096;

/// Part of the agent's error message for a conversation that another process uses.
const CONVERSATION_IN_USE: &str = "already in use";

#[derive(Default)]
struct Fields<'a> {
    kind: Raw<'a>,
    subtype: Raw<'a>,
    is_error: Raw<'a>,
    text: Raw<'a>,
    errors: Raw<'a>,
    terminal_reason: Raw<'a>,
    stop_reason: Raw<'a>,
    api_error: Raw<'a>,
    api_error_status: Raw<'a>,
    num_turns: Raw<'a>,
    total_cost: Raw<'a>,
    models: Raw<'a>,
    models_since: Raw<'a>,
    usage: Raw<'a>,
    denials: Raw<'a>,
    queued: Raw<'a>,
}

impl<'a> Fields<'a> {
    fn read(line: &'a [u8]) -> Option<Self> {
        let mut fields = Self::default();
        Scan::new(line).object(|key, scan| {
            let field = match key {
                b"type" => &mut fields.kind,
                b"subtype" => &mut fields.subtype,
                b"is_error" => &mut fields.is_error,
                b"result" => &mut fields.text,
                b"errors" => &mut fields.errors,
                b"terminal_reason" => &mut fields.terminal_reason,
                b"stop_reason" => &mut fields.stop_reason,
                b"api_error" => &mut fields.api_error,
                b"api_error_status" => &mut fields.api_error_status,
                b"num_turns" => &mut fields.num_turns,
                b"total_cost_usd" => &mut fields.total_cost,
                b"modelUsage" => &mut fields.models,
                b"model_usage_since_last_result" => &mut fields.models_since,
                b"usage" => &mut fields.usage,
                b"permission_denials" => &mut fields.denials,
                b"queued_turn_count" => &mut fields.queued,
                _ => return scan.skip(),
            };
            *field = scan.value()?;
            Some(Walk::On)
        })?;
        Some(fields)
    }

    /// Returns the final text; a failed turn may have errors instead.
    fn text(&self) -> String {
        if let Some(text) = self.text.string() {
            return text;
        }
        let mut text = String::new();
        // A value that is not a list has no errors.
        let _ = self.errors.scan().array(|scan| {
            if let Some(error) = scan.value()?.line(ERRORS_BYTES_MAX)
                && text.len() + error.len() <= ERRORS_BYTES_MAX
            {
                text.push_str(if text.is_empty() { "" } else { "; " });
                text.push_str(&error);
            }
            Some(())
        });
        text
    }

    /// Decides the outcome of the turn. In some versions the limit of turns is not an error. Failed requests have the subtype
    /// `success` with `is_error`.
    fn outcome(&self, text: &str, turn: &Turn) -> TurnOutcome {
        let failed = self.is_error.is_true();
        match (self.subtype.bare(), self.terminal_reason.bare()) {
            (Some(b"error_max_turns"), _) | (_, Some(b"max_turns")) => TurnOutcome::MaxTurns,
            (Some(b"error_max_budget_usd"), _) | (_, Some(b"budget_exhausted")) => {
                TurnOutcome::MaxBudget
            }
            (Some(subtype), _) if subtype.starts_with(b"error_") => TurnOutcome::DuringExecution,
            (_, Some(b"aborted_tools" | b"aborted_streaming")) if failed => {
                TurnOutcome::DuringExecution
            }
            _ if !failed => TurnOutcome::Ok,
            _ if self.hit_limit(text, turn) => TurnOutcome::UsageLimit,
            _ => TurnOutcome::ApiError,
        }
    }

    fn hit_limit(&self, text: &str, turn: &Turn) -> bool {
        let rejected = turn.rejected.is_some();
        self.api_error.bare() == Some(b"usage_limit_reached")
            || limit::is_limit(text)
            || (rejected
                && (turn.error == "rate_limit" || self.api_error_status.count() == Some(429)))
    }

    fn failure(&self, outcome: TurnOutcome, text: &str, error: &str) -> Option<FailureClass> {
        match outcome {
            TurnOutcome::Ok => return None,
            TurnOutcome::UsageLimit => return Some(FailureClass::UsageLimit),
            TurnOutcome::MaxTurns | TurnOutcome::MaxBudget => return Some(FailureClass::OwnLimit),
            TurnOutcome::NoRequest => return Some(FailureClass::Other),
            TurnOutcome::ApiError | TurnOutcome::DuringExecution => {}
        }
        let by_reason = match self.terminal_reason.bare() {
            Some(b"blocking_limit" | b"prompt_too_long" | b"rapid_refill_breaker") => {
                Some(FailureClass::PromptTooLong)
            }
            Some(b"aborted_tools" | b"aborted_streaming") => Some(FailureClass::Interrupted),
            _ => None,
        };
        let by_words = || match error {
            _ if text.starts_with("Prompt is too long") => Some(FailureClass::PromptTooLong),
            _ if text.starts_with("No conversation found with session ID") => {
                Some(FailureClass::Lost)
            }
            _ if self.stop_reason.bare() == Some(b"refusal") => Some(FailureClass::Refused),
            "authentication_failed" => Some(FailureClass::Authentication),
            "billing_error" => Some(FailureClass::Billing),
            "model_not_found" => Some(FailureClass::Model),
            "rate_limit" | "overloaded" => Some(FailureClass::Overloaded),
            _ => None,
        };
        let by_status = || match self.api_error_status.count()? {
            401 | 403 => Some(FailureClass::Authentication),
            402 => Some(FailureClass::Billing),
            404 => Some(FailureClass::Model),
            413 => Some(FailureClass::PromptTooLong),
            429 | 529 => Some(FailureClass::Overloaded),
            500..=599 => Some(FailureClass::Unreachable),
            _ => None,
        };
        let unreachable =
            self.api_error.bare() == Some(b"connection_failed") || error == "server_error";
        by_reason
            .or_else(by_words)
            .or_else(by_status)
            .or_else(|| unreachable.then_some(FailureClass::Unreachable))
            .or(Some(FailureClass::Other))
    }
}

/// Reads the end of a turn. Returns false if the line is something else.
pub(super) fn result(
    conversation: &mut Conversation,
    line: &[u8],
    seen: &mut Vec<AgentEvent>,
) -> Option<bool> {
    let fields = Fields::read(line)?;
    if fields.kind.bare() != Some(b"result") {
        return Some(false);
    }
    // Without an own request, only a result contains the context windows of the models.
    each_model(fields.models, |model, usage| {
        let window = usage.window.count();
        conversation.learn_window(&String::from_utf8_lossy(model), window, seen);
    });
    let (mut cost_since, mut tokens) = (0.0, 0_u64);
    each_model(fields.models_since, |_, usage| {
        cost_since += usage.cost.number().unwrap_or_default().max(0.0);
        tokens = tokens.saturating_add(usage.tokens);
    });
    // An empty list means that there was no cost.
    let reports_cost = fields.models_since.is_some() && f64::is_finite(cost_since);
    if tokens == 0 {
        // Older versions report only the tokens of the main conversation.
        let mut usage = Usage::default();
        usage.update(fields.usage);
        tokens = usage.tokens();
    }
    let mut text = fields.text();
    let mut outcome = fields.outcome(&text, &conversation.turn);
    // If a hook rejects the prompt, the agent reports success although no request was sent.
    if outcome == TurnOutcome::Ok && !conversation.turn.requested && tokens == 0 {
        outcome = TurnOutcome::NoRequest;
        text = no_request(&text);
    }
    let rejected = conversation.turn.rejected.flatten();
    let limit_resets_at = (outcome == TurnOutcome::UsageLimit)
        .then(|| rejected.or_else(|| limit::epoch(&text)))
        .flatten();
    let total = fields.total_cost.number().filter(|total| *total >= 0.0);
    let cost_since = reports_cost.then_some(cost_since);
    let cost = conversation.costs.add(total, cost_since);
    let result = TurnResult {
        success: outcome == TurnOutcome::Ok,
        failure: fields.failure(outcome, &text, &conversation.turn.error),
        text,
        outcome,
        limit_resets_at,
        terminal_reason: fields.terminal_reason.line(WORD_BYTES_MAX),
        api_error: fields.api_error.line(WORD_BYTES_MAX),
        api_error_status: fields.api_error_status.count(),
        num_turns: fields.num_turns.count(),
        cost_usd: rounded(cost),
        session_cost_usd: rounded(total.unwrap_or_default()),
        tokens,
        permission_denials: elements(fields.denials),
        queued: fields.queued.count().unwrap_or_default(),
    };
    conversation.turn = Turn::default();
    seen.push(AgentEvent::Resulted(Box::new(result)));
    Some(true)
}

#[derive(Default)]
struct ModelUsage<'a> {
    window: Raw<'a>,
    cost: Raw<'a>,
    tokens: u64,
}

fn each_model<'a>(models: Raw<'a>, mut each: impl FnMut(&'a [u8], &ModelUsage<'a>)) {
    // A value that is not an object names no model.
    let _ = models.scan().object(|model, scan| {
        let mut usage = ModelUsage::default();
        scan.object(|key, scan| {
            let field = match key {
                b"contextWindow" => &mut usage.window,
                b"costUSD" => &mut usage.cost,
                b"inputTokens"
                | b"outputTokens"
                | b"cacheReadInputTokens"
                | b"cacheCreationInputTokens" => {
                    let count = scan.value()?.count().unwrap_or_default();
                    usage.tokens = usage.tokens.saturating_add(count);
                    return Some(Walk::On);
                }
                _ => return scan.skip(),
            };
            *field = scan.value()?;
            Some(Walk::On)
        })?;
        each(model, &usage);
        Some(Walk::On)
    });
}

/// Explains a turn that ended without a request to the model. `said` is the agent's final text.
fn no_request(said: &str) -> String {
    let mut text = "Claude Code sent no request to the model: a `UserPromptSubmit` hook probably refused the prompt; \
                    check the hooks in `.claude/settings.json` and `~/.claude/settings.json`"
        .to_owned();
    if !said.trim().is_empty() {
        text.push_str(". It said: ");
        text.push_str(said.trim());
    }
    text
}

fn elements(list: Raw<'_>) -> usize {
    let mut count = 0;
    // A value that is not a list has no elements.
    let _ = list.scan().array(|scan| {
        count += 1;
        scan.value().map(|_| ())
    });
    count
}

/// Returns what a result means for the loop, unless a retry is enough.
pub(crate) fn of_result(
    result: &TurnResult,
    now: Timestamp,
    seconds_east: ZoneOffset,
) -> Option<Problem> {
    let failure = result.failure?;
    match failure {
        FailureClass::UsageLimit => Some(Problem::Limited {
            until: result
                .limit_resets_at
                .or_else(|| limit::resets_at(&result.text, now, seconds_east)),
        }),
        FailureClass::Overloaded => Some(Problem::Limited { until: None }),
        FailureClass::Unreachable => Some(Problem::Unreachable),
        FailureClass::Authentication | FailureClass::Billing | FailureClass::Model => {
            let advice = CLAUDE.hint(failure).unwrap_or_default().to_owned();
            Some(Problem::Permanent { advice })
        }
        FailureClass::Other => of_output(&result.text),
        // The agent says "Start a new session to continue": the rejected content stays in the conversation.
        FailureClass::Refused => Some(Problem::Poisoned),
        // A conversation that is full or lost is recognized elsewhere.
        FailureClass::PromptTooLong
        | FailureClass::Lost
        | FailureClass::Interrupted
        | FailureClass::OwnLimit => None,
    }
}

/// Returns what the last output of a process that ended without a result means for the loop.
pub(crate) fn of_output(words: &str) -> Option<Problem> {
    words
        .contains(CONVERSATION_IN_USE)
        .then_some(Problem::Poisoned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(failure: FailureClass, text: &str) -> TurnResult {
        TurnResult {
            failure: Some(failure),
            ..TurnResult::plain(false, text.to_owned())
        }
    }

    #[test]
    fn each_failure_class_maps_to_the_expected_problem() {
        let now = Timestamp::from_millis(1_794_700_000_000);
        let of = |failure, text| of_result(&result(failure, text), now, |_| Some(3600));
        let east =
            |hours: i64| now.as_millis() / 86_400_000 * 86_400_000 + (24 + hours) * 3_600_000;
        assert_eq!(
            of(FailureClass::UsageLimit, "Spending cap reached resets 2am"),
            Some(Problem::Limited {
                until: Some(Timestamp::from_millis(east(1)))
            }),
            "a time without a zone is local time"
        );
        for (failure, text, expected) in [
            (
                FailureClass::UsageLimit,
                "You've hit your limit",
                Some(Problem::Limited { until: None }),
            ),
            (
                FailureClass::Overloaded,
                "API Error: 529 · resets 4am",
                Some(Problem::Limited { until: None }),
            ),
            (FailureClass::PromptTooLong, "Prompt is too long", None),
            (FailureClass::Lost, "No conversation found", None),
            (FailureClass::Other, "hm", None),
            (
                FailureClass::Unreachable,
                "Connection refused",
                Some(Problem::Unreachable),
            ),
            (FailureClass::Refused, "flagged", Some(Problem::Poisoned)),
        ] {
            assert_eq!(of(failure, text), expected, "{failure:?} {text}");
        }
        for failure in [
            FailureClass::Authentication,
            FailureClass::Billing,
            FailureClass::Model,
        ] {
            assert!(matches!(of(failure, ""), Some(Problem::Permanent { .. })));
        }
        assert_eq!(
            of_output("Error: Session ID x is already in use."),
            Some(Problem::Poisoned)
        );
        assert_eq!(of_output("error: unknown option '--frobnicate'"), None);
    }
}
