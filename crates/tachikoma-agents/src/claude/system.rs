//! Messages of the agent about itself: sessions, retries, usage limits, background tasks, and answers to our requests.

use super::conversation::Conversation;
use super::limit;
use super::scan::{Raw, Scan, Walk, members, members_of};
use crate::{AgentEvent, Allowance, AllowanceStatus, Retry, WHAT_COST, Window};
use tachikoma_core::Timestamp;

/// Maximum size in bytes of a name or word in a message.
const WORD_BYTES_MAX: usize = 256;

/// Subtypes of messages that are ignored.
const NOTHING_NEEDED: [&[u8]; 12] = [
    b"status",
    b"thinking_tokens",
    b"task_started",
    b"task_progress",
    b"task_updated",
    b"task_notification",
    b"hook_started",
    b"hook_progress",
    b"hook_response",
    b"notification",
    b"informational",
    b"model_refusal_no_fallback",
];

/// The answer to our request.
#[derive(Default)]
struct Answer<'a> {
    subtype: Raw<'a>,
    id: Raw<'a>,
    error: Raw<'a>,
    payload: Raw<'a>,
    raw_max: Raw<'a>,
    max: Raw<'a>,
    model: Raw<'a>,
    text: Raw<'a>,
}

impl<'a> Answer<'a> {
    fn take(&mut self, scan: &mut Scan<'a>) -> Option<Walk> {
        scan.object(|key, scan| {
            let field = match key {
                b"response" => {
                    self.payload = scan.raw_object(|key, scan| {
                        let value = scan.value()?;
                        match key {
                            b"rawMaxTokens" => self.raw_max = value,
                            b"maxTokens" => self.max = value,
                            b"model" => self.model = value,
                            b"text" => self.text = value,
                            _ => {}
                        }
                        Some(())
                    })?;
                    return Some(Walk::On);
                }
                b"subtype" => &mut self.subtype,
                b"request_id" => &mut self.id,
                b"error" => &mut self.error,
                _ => return scan.skip(),
            };
            *field = scan.value()?;
            Some(Walk::On)
        })
    }
}

fn word(raw: Raw<'_>) -> String {
    raw.line(WORD_BYTES_MAX).unwrap_or_default()
}

pub(super) fn system(
    conversation: &mut Conversation,
    subtype: &[u8],
    line: &[u8],
    seen: &mut Vec<AgentEvent>,
) -> Option<()> {
    match subtype {
        b"init" => conversation.init(line, seen),
        b"api_retry" => retry(line, seen),
        b"compact_boundary" => compacted(conversation, line, seen),
        b"background_tasks_changed" => background(line, seen),
        b"permission_denied" => {
            let [tool, id] = members(line, [b"tool_name", b"tool_use_id"])?;
            seen.push(AgentEvent::PermissionDenied {
                tool: word(tool),
                id: word(id),
            });
            Some(())
        }
        b"model_fallback" => {
            let names: [&[u8]; 2] = [b"original_model", b"fallback_model"];
            let [from, to] = members(line, names)?.map(word);
            seen.push(AgentEvent::ModelFellBack { from, to });
            Some(())
        }
        known if NOTHING_NEEDED.contains(&known) => Some(()),
        _ => None,
    }
}

fn compacted(
    conversation: &mut Conversation,
    line: &[u8],
    seen: &mut Vec<AgentEvent>,
) -> Option<()> {
    let [metadata] = members(line, [b"compact_metadata"])?;
    let names: [&[u8]; 3] = [b"trigger", b"pre_tokens", b"post_tokens"];
    let [trigger, before, after] = members_of(metadata, names);
    seen.push(AgentEvent::Compacted {
        automatic: trigger.bare() == Some(b"auto"),
        tokens_before: before.count().unwrap_or_default(),
    });
    // Older versions do not report the tokens after the compaction.
    if let Some(tokens) = after.count() {
        conversation.estimated(tokens, seen);
    }
    Some(())
}

/// Reads the state of the usage limit of a subscription. A warning is not a failure.
pub(super) fn rate_limit(
    conversation: &mut Conversation,
    line: &[u8],
    seen: &mut Vec<AgentEvent>,
) -> Option<()> {
    let [info] = members(line, [b"rate_limit_info"])?;
    let names: [&[u8]; 5] = [
        b"status",
        b"resetsAt",
        b"rateLimitType",
        b"utilization",
        b"unifiedWindows",
    ];
    let [status, resets, kind, utilization, unified] = members_of(info, names);
    let status = match status.bare() {
        Some(b"allowed") => AllowanceStatus::Allowed,
        Some(b"allowed_warning") => AllowanceStatus::Warning,
        Some(b"rejected") => AllowanceStatus::Rejected,
        _ => AllowanceStatus::Unknown,
    };
    let resets_at = resets.count().and_then(limit::moment);
    if status == AllowanceStatus::Rejected {
        conversation.turn.rejected = Some(resets_at);
    }
    let mut windows = windows(unified);
    if let Some(used) = utilization.number().filter(|_| windows.is_empty()) {
        windows.push(window(word(kind), used, resets_at));
    }
    seen.push(AgentEvent::Allowance(Allowance {
        status,
        kind: word(kind),
        resets_at,
        utilization: utilization.number(),
        windows,
    }));
    Some(())
}

/// Reads the agent's answer to a control request. The answer about the context reports the window before any result does.
pub(super) fn control_response(
    conversation: &mut Conversation,
    line: &[u8],
    seen: &mut Vec<AgentEvent>,
) -> Option<()> {
    let mut answer = Answer::default();
    // The answer is read in one pass, because it can be long.
    Scan::new(line).object(|key, scan| match key {
        b"response" => answer.take(scan),
        _ => scan.skip(),
    })?;
    if let Some(window) = answer.raw_max.count().or_else(|| answer.max.count()) {
        let named = answer.model.line(WORD_BYTES_MAX);
        let model = named.unwrap_or_else(|| conversation.answering_model());
        conversation.learn_window(&model, Some(window), seen);
    }
    if answer.id.bare() == Some(WHAT_COST.as_bytes()) {
        let text = answer.text.string().unwrap_or_default();
        seen.push(AgentEvent::Cost(total_cost(&text)));
        return Some(());
    }
    let error = || answer.error.string().unwrap_or_else(|| answer.error.json());
    seen.push(AgentEvent::ControlAnswered {
        request_id: word(answer.id),
        answer: match answer.subtype.bare() {
            Some(b"success") => Ok(answer.payload.json()),
            _ => Err(error()),
        },
    });
    Some(())
}

pub(super) fn control_request(line: &[u8], seen: &mut Vec<AgentEvent>) -> Option<()> {
    let names: [&[u8]; 2] = [b"request_id", b"request"];
    let [id, request] = members(line, names)?;
    let [subtype] = members_of(request, [b"subtype"]);
    seen.push(AgentEvent::ControlAsked {
        request_id: word(id),
        subtype: word(subtype),
        // The request is kept completely, even if it is long, because our answer may have to repeat parts of it.
        request: request.json(),
    });
    Some(())
}

/// Maximum number of windows of a usage limit. There are two or three.
const WINDOWS_MAX: usize = 8;

fn windows(unified: Raw<'_>) -> Vec<Window> {
    let mut windows = Vec::new();
    // A value that is not an object has no windows.
    let _ = unified.scan().object(|name, scan| {
        let names: [&[u8]; 2] = [b"utilization", b"resetsAt"];
        let [used, resets] = members_of(scan.value()?, names);
        if let Some(used) = used.number().filter(|_| windows.len() < WINDOWS_MAX) {
            let name = String::from_utf8_lossy(name).into_owned();
            windows.push(window(name, used, resets.count().and_then(limit::moment)));
        }
        Some(Walk::On)
    });
    windows
}

/// Returns a window with its used part rounded to a tenth of a percent.
fn window(name: String, used: f64, resets_at: Option<Timestamp>) -> Window {
    let percent = (used * 1000.0).round().clamp(0.0, 1e6) / 10.0;
    Window {
        name,
        percent,
        resets_at,
    }
}

/// Reads `Total cost:            $0.0457` in the agent's text about the cost of a conversation.
fn total_cost(text: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Total cost:"))?;
    let amount = line.trim().strip_prefix('$')?;
    let end = amount.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',');
    let digits = amount.get(..end.unwrap_or(amount.len()))?.replace(',', "");
    digits.parse().ok().filter(|cost: &f64| cost.is_finite())
}

fn retry(line: &[u8], seen: &mut Vec<AgentEvent>) -> Option<()> {
    let names: [&[u8]; 5] = [
        b"attempt",
        b"max_retries",
        b"retry_delay_ms",
        b"error_status",
        b"error",
    ];
    let [attempt, max, delay, status, error] = members(line, names)?;
    // Delays with jitter can have decimals.
    let delay_ms = delay.number().unwrap_or_default().clamp(0.0, 1e12);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is clamped to the range of the type"
    )]
    let delay_ms = delay_ms as u64;
    seen.push(AgentEvent::Retrying(Retry {
        attempt: attempt.count().unwrap_or_default(),
        attempts_max: max.count().unwrap_or_default(),
        delay_ms,
        status: status.count(),
        error: word(error),
    }));
    Some(())
}

fn background(line: &[u8], seen: &mut Vec<AgentEvent>) -> Option<()> {
    let [tasks] = members(line, [b"tasks"])?;
    let mut count = 0;
    tasks.scan().array(|scan| {
        count += 1;
        scan.value().map(|_| ())
    })?;
    seen.push(AgentEvent::BackgroundTasks(count));
    Some(())
}
