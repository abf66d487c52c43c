//! A model service that answers with an error: how the error is classified, how long the loop waits, and how many requests are sent.
//! Each row of the table in `docs/agents/claude-code.md` is one check.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tachikoma_testkit::{Fault, Kind, Scenario, ScriptedModel, Turn};

use super::ground::Ground;
use super::looping::{
    LIMIT_REACHED, Looping, Settings, attempts, event_names, names, of_type, only, outcomes, pids,
};
use super::{Row, USUAL};

pub const CHECKS: &[Row] = &[
    Row("429-always", too_many, USUAL),
    Row("529-always", overloaded, USUAL),
    Row("529-fallback", another_model, USUAL),
    Row("retry-after-2", retry_after, USUAL),
    Row("retry-after-3600", retry_after_long, USUAL),
    Row("500-always", broken, USUAL),
    Row("network-away", network_away, USUAL),
    Row("reset", reset, USUAL),
    Row("closed", closed, USUAL),
    Row("cut-always", cut, USUAL),
    Row("empty-stream", empty, USUAL),
    Row("html", page, USUAL),
    Row("error-event", error_event, USUAL),
    Row("error-event-always", error_events, USUAL),
    Row("400", bad_request, USUAL),
    Row("max-tokens", max_tokens, USUAL),
    Row("401", unauthorised, USUAL),
    Row("403", forbidden, USUAL),
    Row("billing", no_credit, USUAL),
    Row("413", too_large, USUAL),
    Row("refusal", refusal, USUAL),
];

/// Setting that makes the agent send two requests instead of eleven, which would take three minutes.
const ONE_RETRY: (&str, &str) = ("AGENTS__CLAUDE__ENV__CLAUDE_CODE_MAX_RETRIES", "1");

/// Returns a model that answers the first `times` requests with this turn and all others successfully.
fn wrong(turn: &Turn, times: usize) -> ScriptedModel {
    let turns = std::iter::repeat_n(turn.clone(), times);
    ScriptedModel::start(Scenario::of(turns.chain([Turn::text("well")])))
}

/// Returns the number of requests to the model.
fn calls(model: &ScriptedModel) -> usize {
    model.asked_for(Kind::Main).len()
}

/// Checks the reason of the only wait of a loop.
#[track_caller]
fn expect_wait(events: &[Value], reason: &str) {
    let wait = only(events, "wait_started");
    assert_eq!(wait["wait"]["reason"], reason, "{}", event_names(events));
}

/// Checks class and text of the only failure. The class is absent, `poisoned` or `permanent`.
#[track_caller]
fn expect_failure(events: &[Value], class: Option<&str>, words: &str) {
    let failure = &only(events, "iteration_failed")["failure"];
    assert_eq!(failure["kind"], "reported", "{failure}");
    assert_eq!(failure["problem"]["kind"].as_str(), class, "{failure}");
    let reason = failure["reason"].as_str().unwrap_or_default();
    assert!(reason.contains(words), "{words:?} in {reason:?}");
}

/// Checks an error for which a retry can help: one failed iteration, a backoff, and the next one in the same conversation and process.
fn transient(ground: &Ground, turn: &Turn, times: usize, words: &str) -> String {
    let model = wrong(turn, times);
    let events = Looping::start(ground, &model, &[ONE_RETRY], 2).ended(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["failed", "succeeded"],
        "{}",
        event_names(&events)
    );
    expect_failure(&events, None, words);
    expect_wait(&events, "backoff");
    assert_eq!(attempts(&events), [(1, 1), (2, 1)]);
    assert_eq!((names(&events).len(), pids(&events).len()), (1, 1));
    assert_eq!(calls(&model), times + 1);
    format!("{times} calls, backoff, same conversation")
}

/// Checks an overloaded service: the loop waits, nothing fails, and the same iteration is repeated.
fn limited(ground: &Ground, turn: &Turn, times: usize) -> String {
    waits(ground, turn, times, "usage_limit")
}

/// Checks an unreachable service: the loop waits, nothing fails, and the same iteration is repeated.
fn outage(ground: &Ground, turn: &Turn, times: usize) -> String {
    waits(ground, turn, times, "outage")
}

fn waits(ground: &Ground, turn: &Turn, times: usize, reason: &str) -> String {
    let model = wrong(turn, times);
    let looping = Looping::start(ground, &model, &[ONE_RETRY], 1);
    looping.await_events("wait_started", 1);
    assert_eq!(calls(&model), times, "no request during the wait");
    looping.tell(&["skip"]);
    let events = looping.ended(LIMIT_REACHED);
    let limit = only(&events, "iteration_limited");
    assert_eq!(
        (&limit["until"], &limit["attempt"]),
        (&Value::Null, &1.into())
    );
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    expect_wait(&events, reason);
    assert_eq!(attempts(&events), [(1, 1), (1, 2)]);
    assert_eq!((names(&events).len(), pids(&events).len()), (1, 1));
    assert_eq!(calls(&model), times + 1);
    format!("{times} calls, waited for, the same iteration again")
}

/// Checks a permanent error: the loop ends with the message and advice.
fn permanent(ground: &Ground, turn: &Turn, times: usize, words: &str, advice: &str) -> String {
    let model = wrong(turn, times);
    let events = Looping::start(ground, &model, &[ONE_RETRY], 2).ended(1);
    expect_failure(&events, Some("permanent"), words);
    let reason = only(&events, "error")["outcome"]["reason"].to_string();
    assert!(
        reason.contains(words) && reason.contains(advice),
        "{reason}"
    );
    assert_eq!(of_type(&events, "wait_started").len(), 0);
    assert_eq!((attempts(&events), calls(&model)), (vec![(1, 1)], times));
    format!("{times} calls, the end: {advice}")
}

/// Checks an error from which the agent recovers itself. Only the number of requests shows it.
fn unnoticed(ground: &Ground, turn: &Turn, times: usize, settings: Settings<'_>) -> String {
    let model = wrong(turn, times);
    let events = Looping::start(ground, &model, settings, 1).ended(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    assert_eq!(of_type(&events, "wait_started").len(), 0);
    assert_eq!(attempts(&events), [(1, 1)]);
    assert_eq!(calls(&model), times + 1);
    format!("{} calls, no failure", times + 1)
}

fn busy() -> Turn {
    Turn::status(429, "rate_limit_error", "slow down")
}

fn overload() -> Turn {
    Turn::status(529, "overloaded_error", "Overloaded")
}

fn ending_with(reason: &str) -> Turn {
    Turn {
        stop_reason: Some(reason.to_owned()),
        ..Turn::text("and so on")
    }
}

/// Status 429 without a reset time. Known fault of other loops: the loop sent requests during a usage limit.
fn too_many(ground: &Ground) -> String {
    limited(ground, &busy(), 2)
}

fn overloaded(ground: &Ground) -> String {
    limited(ground, &overload(), 2)
}

/// The agent switches to another model itself, and the loop does not interfere.
fn another_model(ground: &Ground) -> String {
    let fallback = "[\"--fallback-model\", \"claude-haiku-4-5\"]";
    let settings = [("AGENTS__CLAUDE__ARGS", fallback)];
    let model = ScriptedModel::reacting(Scenario::default(), |request| {
        let first = request.model.starts_with("claude-sonnet");
        (request.kind == Kind::Main && first).then(overload)
    });
    let events = Looping::start(ground, &model, &settings, 1).ended(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    assert_eq!(of_type(&events, "wait_started").len(), 0);
    format!("{} calls, answered by the other", calls(&model))
}

/// The agent itself waits as the service requests. The loop does not wait.
fn retry_after(ground: &Ground) -> String {
    unnoticed(ground, &busy().header("retry-after", "2"), 2, &[])
}

/// The agent does not wait that long and does not report the time, so the loop waits without a reset time.
fn retry_after_long(ground: &Ground) -> String {
    limited(ground, &busy().header("retry-after", "3600"), 1)
}

fn broken(ground: &Ground) -> String {
    let turn = Turn::status(500, "api_error", "Internal");
    outage(ground, &turn, 2)
}

/// The network is down for more than an hour of waits, each of which is skipped. No work is lost.
fn network_away(ground: &Ground) -> String {
    // The waits take 5, 10, 20, 40, 80, 160 and twelve times 300 seconds.
    const WAITS: usize = 18;
    let away = Arc::new(AtomicBool::new(false));
    let is_away = Arc::clone(&away);
    let model = ScriptedModel::reacting(Scenario::default(), move |request| {
        let main = request.kind == Kind::Main;
        (main && is_away.swap(true, Ordering::Relaxed)).then(|| Turn::fault(Fault::Reset))
    });
    let no_retry = ("AGENTS__CLAUDE__ENV__CLAUDE_CODE_MAX_RETRIES", "0");
    let settings = [no_retry];
    let looping = Looping::start(ground, &model, &settings, 2);
    for waited in 1..=WAITS {
        looping.await_events("wait_started", waited);
        if waited == WAITS {
            away.store(false, Ordering::Relaxed);
        }
        looping.tell(&["skip"]);
    }
    let events = looping.ended(LIMIT_REACHED);
    let seen = event_names(&events);
    assert_eq!(outcomes(&events), ["succeeded", "succeeded"], "{seen}");
    for wait in of_type(&events, "wait_started") {
        assert_eq!(wait["wait"]["reason"], "outage", "{seen}");
    }
    assert_eq!(attempts(&events).last(), Some(&(2, WAITS as u64 + 1)));
    assert_eq!(of_type(&events, "reboot_started").len(), 0, "{seen}");
    assert_eq!((names(&events).len(), pids(&events).len()), (1, 1));
    "65 minutes of waits, same conversation".into()
}

fn reset(ground: &Ground) -> String {
    outage(ground, &Turn::fault(Fault::Reset), 2)
}

fn closed(ground: &Ground) -> String {
    outage(ground, &Turn::fault(Fault::Closed), 2)
}

/// The connection is closed twice during a stream and once during a plain answer.
fn cut(ground: &Ground) -> String {
    let turn = Turn::fault(Fault::Cut { after: 4 });
    outage(ground, &turn, 3)
}

/// The answer is empty, once as a stream and once as a plain answer.
fn empty(ground: &Ground) -> String {
    let turn = Turn::fault(Fault::EmptyStream);
    transient(ground, &turn, 2, "empty or malformed response")
}

/// The answer is a web page, as in a network with a login page.
fn page(ground: &Ground) -> String {
    transient(ground, &Turn::fault(Fault::Html), 2, "HTML page")
}

fn in_the_stream() -> Turn {
    let error = "overloaded_error".to_owned();
    Turn::fault(Fault::ErrorEvent { after: 3, error })
}

fn error_event(ground: &Ground) -> String {
    unnoticed(ground, &in_the_stream(), 1, &[])
}

fn error_events(ground: &Ground) -> String {
    transient(ground, &in_the_stream(), 2, "malformed response")
}

/// After a rejected request, Claude Code sends variations of the request at once, without a delay.
fn bad_request(ground: &Ground) -> String {
    let turn = Turn::status(400, "invalid_request_error", "messages: no");
    transient(ground, &turn, 6, "API Error: 400")
}

/// The agent continues an answer three times, then reaches its own limit.
fn max_tokens(ground: &Ground) -> String {
    transient(
        ground,
        &ending_with("max_tokens"),
        4,
        "output token maximum",
    )
}

fn unauthorised(ground: &Ground) -> String {
    let turn = Turn::status(401, "authentication_error", "invalid x-api-key");
    permanent(ground, &turn, 2, "Invalid API key", "ANTHROPIC_API_KEY")
}

fn forbidden(ground: &Ground) -> String {
    let turn = Turn::status(403, "permission_error", "not for you");
    permanent(ground, &turn, 1, "403", "ANTHROPIC_API_KEY")
}

fn no_credit(ground: &Ground) -> String {
    let words = "Your credit balance is too low to access the Anthropic API.";
    let turn = Turn::status(400, "invalid_request_error", words);
    permanent(ground, &turn, 1, "Credit balance is too low", "account")
}

/// The conversation is too large for a request, so a new one continues the work.
fn too_large(ground: &Ground) -> String {
    let model = wrong(&Turn::status(413, "request_too_large", "too much"), 1);
    let events = Looping::start(ground, &model, &[ONE_RETRY], 2).ended(LIMIT_REACHED);
    let seen = event_names(&events);
    assert_eq!(outcomes(&events), ["handed_over", "succeeded"], "{seen}");
    assert_eq!(
        only(&events, "reboot_completed")["reason"]["kind"],
        "refused"
    );
    assert_eq!((names(&events).len(), calls(&model)), (2, 2));
    "a fresh session".into()
}

/// The service rejects the conversation, so a new one continues the work.
fn refusal(ground: &Ground) -> String {
    let model = wrong(&ending_with("refusal"), 2);
    let events = Looping::start(ground, &model, &[ONE_RETRY], 2).ended(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["failed", "succeeded"],
        "{}",
        event_names(&events)
    );
    expect_failure(&events, Some("poisoned"), "Start a new session");
    expect_wait(&events, "backoff");
    assert_eq!(
        only(&events, "reboot_completed")["reason"]["kind"],
        "error_recovery"
    );
    assert_eq!((names(&events).len(), calls(&model)), (2, 3));
    "a fresh session".into()
}
