//! The end of a turn: how it ended, why it failed, what it cost.

use super::conversation::{Conversation, Turn};
use super::limit;
use super::scan::{Raw, Scan, Walk};
use super::usage::Usage;
use crate::agent_event::rounded;
use crate::{AgentEvent, FailureClass, TurnOutcome, TurnResult};

/// Maximum size in bytes of a name or word in a result.
const WORD_BYTES_MAX: usize = 256;

/// Maximum size in bytes of the errors of a turn that failed without a text.
const ERRORS_BYTES_MAX: usize = 4096;

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
            || (rejected && (turn.error == "rate_limit" || self.status() == Some(429)))
    }

    fn status(&self) -> Option<u64> {
        self.api_error_status.count()
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
        let by_status = || match self.status()? {
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
    models(conversation, fields.models, seen);
    let mut text = fields.text();
    let tokens = tokens(fields.models_since, fields.usage);
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
    let cost = conversation.costs.add(total, spent(fields.models_since));
    let result = TurnResult {
        success: outcome == TurnOutcome::Ok,
        failure: fields.failure(outcome, &text, &conversation.turn.error),
        text,
        outcome,
        limit_resets_at,
        terminal_reason: fields.terminal_reason.line(WORD_BYTES_MAX),
        api_error: fields.api_error.line(WORD_BYTES_MAX),
        api_error_status: fields.status(),
        num_turns: fields.num_turns.count(),
        cost_usd: rounded(cost),
        session_cost_usd: rounded(total.unwrap_or_default()),
        tokens,
        permission_denials: elements(fields.denials),
        queued: fields.queued.count().unwrap_or_default(),
    };
    conversation.ended(result, seen);
    Some(true)
}

/// Reads the context windows of the models. Without an own request, only a result contains them.
fn models(conversation: &mut Conversation, models: Raw<'_>, seen: &mut Vec<AgentEvent>) {
    each_model(models, |model, usage| {
        let window = usage.window.count();
        conversation.learn_window(&String::from_utf8_lossy(model), window, seen);
    });
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

/// Returns the cost of all models together; `None` if it is not reported.
fn spent(models: Raw<'_>) -> Option<f64> {
    let mut sum = 0.0;
    each_model(models, |_, usage| {
        sum += usage.cost.number().unwrap_or_default().max(0.0);
    });
    // An empty list means that there was no cost.
    Some(sum).filter(|sum: &f64| models.is_some() && sum.is_finite())
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

/// Returns the tokens of all models together. Versions that do not report them report those of the main conversation.
fn tokens(models: Raw<'_>, main: Raw<'_>) -> u64 {
    let mut sum: u64 = 0;
    each_model(models, |_, usage| sum = sum.saturating_add(usage.tokens));
    if sum > 0 {
        return sum;
    }
    let mut usage = Usage::default();
    usage.update(main);
    usage.tokens()
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
