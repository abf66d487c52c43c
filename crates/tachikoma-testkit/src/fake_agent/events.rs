//! The lines that the real agent prints, with the fields that a reader may use.

use serde_json::{Value, json};

use super::sessions::{Session, cost as cost_of, new_uuid};
use super::tools::Outcome;
use crate::model::message::usage as tokens;
use crate::scenario::{Turn, Usage};

/// Version of Claude Code that the fake agent imitates.
pub(super) const VERSION: &str = "2.1.325";

/// Adds the fields that every line has.
pub(super) fn signed(mut line: Value, session: &str) -> Value {
    line["session_id"] = session.into();
    line["uuid"] = new_uuid().into();
    line
}

pub(super) fn init(model: &str, cwd: &str, version: &str) -> Value {
    json!({
        "type": "system", "subtype": "init", "cwd": cwd, "model": model,
        "tools": ["Task", "Bash", "Edit", "Read", "Write"], "mcp_servers": [],
        "permissionMode": "bypassPermissions", "slash_commands": ["clear", "compact", "context"],
        "apiKeySource": "ANTHROPIC_API_KEY", "claude_code_version": version,
        "output_style": "default", "agents": ["general-purpose"], "skills": [], "plugins": [],
        "capabilities": ["interrupt_receipt_v1"],
    })
}

/// Returns the line for a complete block. Its token counts are those of the start of the message, as in the real agent.
pub(super) fn assistant(block: &Value, message_id: &str, model: &str, usage: &Usage) -> Value {
    json!({
        "type": "assistant", "parent_tool_use_id": null, "timestamp": now(),
        "message": {
            "id": message_id, "type": "message", "role": "assistant", "model": model,
            "content": [block], "stop_reason": null, "stop_sequence": null,
            "usage": tokens(usage, usage.output.min(1)), "context_management": null,
        },
    })
}

pub(super) fn stream_event(event: &Value, message_id: &str) -> Value {
    json!({
        "type": "stream_event", "event": event, "parent_tool_use_id": null,
        "api_message_id": message_id,
    })
}

pub(super) fn tool_result(tool_use_id: &str, outcome: &Outcome) -> Value {
    let (text, is_error) = (&outcome.text, outcome.is_error);
    json!({
        "type": "user", "parent_tool_use_id": null, "timestamp": now(),
        "message": {"role": "user", "content": [{
            "tool_use_id": tool_use_id, "type": "tool_result", "content": text, "is_error": is_error,
        }]},
        "tool_use_result": {"stdout": text, "stderr": "", "interrupted": false, "isImage": false},
    })
}

/// Returns the line for a tool call that the permission rules deny.
pub(super) fn denied(tool_use_id: &str, name: &str) -> Value {
    json!({
        "type": "system", "subtype": "permission_denied", "tool_name": name, "tool_use_id": tool_use_id,
    })
}

/// Returns the result line of an interrupted tool call.
pub(super) fn tool_rejected(tool_use_id: &str) -> Value {
    let text = "The user doesn't want to proceed with this tool use. The tool use was rejected.";
    let outcome = Outcome {
        text: text.into(),
        is_error: true,
    };
    let mut line = tool_result(tool_use_id, &outcome);
    line["tool_use_result"] = "User rejected tool use".into();
    line
}

pub(super) fn interrupted(in_tool: bool) -> Value {
    let text = match in_tool {
        true => "[Request interrupted by user for tool use]",
        false => "[Request interrupted by user]",
    };
    json!({
        "type": "user", "parent_tool_use_id": null, "timestamp": now(),
        "message": {"role": "user", "content": [{"type": "text", "text": text}]},
    })
}

pub(super) fn api_retry(attempt: u64, most: u64, delay_ms: u64, status: Option<u16>) -> Value {
    json!({
        "type": "system", "subtype": "api_retry", "attempt": attempt, "max_retries": most,
        "retry_delay_ms": delay_ms, "error_status": status, "error": error_word(status),
    })
}

/// Returns the name that the agent gives to an HTTP status; `None` means that the connection failed.
pub(super) const fn error_word(status: Option<u16>) -> &'static str {
    match status {
        Some(401 | 403) => "authentication_failed",
        Some(429) => "rate_limit",
        Some(529) => "overloaded",
        Some(500..=599) => "server_error",
        Some(404) => "model_not_found",
        Some(400 | 413) => "invalid_request",
        Some(_) | None => "unknown",
    }
}

/// Returns the usage limits from the headers of the response; `None` if it has no such headers.
pub(super) fn rate_limit_info(turn: &Turn) -> Option<Value> {
    let header = |name: &str| {
        turn.headers
            .get(&format!("anthropic-ratelimit-unified-{name}"))
    };
    let status = header("status")?;
    let resets: u64 = header("reset").and_then(|at| at.parse().ok()).unwrap_or(0);
    let claim = header("representative-claim").map_or("five_hour", String::as_str);
    let mut info = json!({
        "status": status, "resetsAt": resets, "rateLimitType": claim, "isUsingOverage": false,
    });
    for (short, name) in [("5h", "five_hour"), ("7d", "seven_day")] {
        let used = header(&format!("{short}-utilization")).and_then(|used| used.parse().ok());
        if let Some::<f64>(used) = used {
            let window = json!({"utilization": used, "resetsAt": resets, "status": status});
            info["unifiedWindows"][name] = window;
        }
    }
    Some(info)
}

/// A permanent failure of the API.
#[derive(Debug)]
pub(super) struct ApiFailure {
    pub status: Option<u16>,
    /// Name that the API gives to the error.
    pub error: String,
    pub message: String,
    /// The usage limit of the subscription that caused the failure; `None` for other causes.
    pub limit: Option<Value>,
}

impl ApiFailure {
    pub(super) fn text(&self) -> String {
        match (self.status, &self.limit) {
            (_, Some(_)) => "You've hit your 5-hour limit".into(),
            (Some(401), None) => "Invalid API key · Fix external API key".into(),
            (Some(status), None) => format!("API Error: {status} {}", self.message),
            (None, None) => "API Error: Connection error.".into(),
        }
    }

    fn word(&self) -> Option<&'static str> {
        match (self.status, &self.limit) {
            (_, Some(_)) => Some("usage_limit_reached"),
            (None, None) => Some("connection_failed"),
            (Some(_), None) => None,
        }
    }

    /// Returns a message that the agent itself creates. It has no tokens.
    pub(super) fn assistant(&self) -> Value {
        let block = json!({"type": "text", "text": self.text()});
        let mut line = assistant(&block, &new_uuid(), "<synthetic>", &Usage::default());
        line["error"] = error_word(self.status).into();
        line["is_api_error_message"] = true.into();
        self.mark(&mut line);
        line
    }

    pub(super) fn mark(&self, line: &mut Value) {
        line["api_error_status"] = json!(self.status);
        line["api_error_type"] = self.error.as_str().into();
        if let Some(word) = self.word() {
            line["api_error"] = word.into();
        }
        if let Some(limit) = &self.limit {
            line["api_error_params"] = json!({"rate_limit_info": limit});
        }
    }
}

/// The totals in a result line.
pub(super) struct Sums<'a> {
    pub session: &'a Session,
    pub model: &'a str,
    pub window: u64,
    /// Tokens of this prompt alone.
    pub usage: &'a Usage,
    pub num_turns: u64,
    pub result_index: u64,
}

impl Sums<'_> {
    /// Returns a result line. The caller adds fields for how the turn ended.
    pub(super) fn result(&self, subtype: &str, is_error: bool, reason: &str) -> Value {
        let cost = self.session.cost_usd;
        json!({
            "duration_api_ms": 1, "total_cost_usd": cost,
            "usage": tokens(self.usage, self.usage.output),
            "modelUsage": {self.model: self.model_usage(&self.session.total, cost)},
            "model_usage_since_last_result": {self.model: self.model_usage(self.usage, cost_of(*self.usage))},
            "permission_denials": [], "terminal_reason": reason, "is_error": is_error,
            "num_turns": self.num_turns, "subtype": subtype, "api_error_status": null,
            "type": "result", "duration_ms": 1, "queued_turn_count": 0,
            "result_index": self.result_index,
        })
    }

    fn model_usage(&self, usage: &Usage, cost: f64) -> Value {
        json!({
            "inputTokens": usage.input, "outputTokens": usage.output,
            "cacheReadInputTokens": usage.cache_read,
            "cacheCreationInputTokens": usage.cache_creation,
            "costUSD": cost, "contextWindow": self.window, "maxOutputTokens": 32_000,
        })
    }
}

/// Returns the result line for a conversation that does not exist.
pub(super) fn unknown_session(id: &str) -> Value {
    json!({
        "type": "result", "subtype": "error_during_execution", "duration_ms": 0,
        "duration_api_ms": 0, "is_error": true, "num_turns": 0, "stop_reason": null,
        "total_cost_usd": 0, "usage": tokens(&Usage::default(), 0), "modelUsage": {},
        "permission_denials": [], "result_index": 0,
        "errors": [format!("No conversation found with session ID: {id}")],
    })
}

/// Returns the answer to `get_context_usage`: the input tokens of the last message.
pub(super) fn context_usage(usage: &Usage, window: u64) -> Value {
    let total = usage.context() - usage.output;
    json!({
        "totalTokens": total, "maxTokens": window, "rawMaxTokens": window,
        "percentage": (total * 100 + window / 2) / window.max(1),
        "autoCompactThreshold": window.saturating_sub(33_000), "isAutoCompactEnabled": true,
        "apiUsage": tokens(usage, usage.output),
    })
}

/// Returns the answer to `get_session_cost`: text, with four decimals up to half a dollar and two above it, as in the real agent.
pub(super) fn session_cost(usd: f64) -> Value {
    let amount = if usd > 0.5 {
        format!("{usd:.2}")
    } else {
        format!("{usd:.4}")
    };
    let text = format!(
        "Total cost:            ${amount}\nTotal duration (API):  0s\nTotal duration (wall): 1s"
    );
    json!({ "text": text })
}

fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}
