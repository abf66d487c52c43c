//! A silent model: the iteration times out, the message names the last activity, and the next iteration continues in the same conversation.

use serde_json::Value;
use tachikoma_testkit::{Fault, Kind, Scenario, ScriptedModel, Turn};

use super::ground::Ground;
use super::looping::{
    LIMIT_REACHED, Looping, Settings, attempts, event_names, names, of_type, only, outcomes,
};
use super::{Row, USUAL};

pub const CHECKS: &[Row] = &[
    Row("never-answers", never_answers, USUAL),
    Row("own-timeout", own_timeout, USUAL),
    Row("goes-silent", goes_silent, USUAL),
    Row("pings-only", pings_only, USUAL),
    Row("slow-answer", slow_answer, USUAL),
    Row("busy-tool", busy_tool, USUAL),
    Row("stuck-tool", stuck_tool, USUAL),
];

const SILENCE: (&str, &str) = ("SESSION__SILENCE_TIMEOUT", "1s");

fn run(ground: &Ground, turn: Turn, settings: Settings<'_>) -> (Vec<Value>, usize) {
    let model = ScriptedModel::start(Scenario::of([turn, Turn::text("well")]));
    let events = Looping::start(ground, &model, settings, 2).ended(LIMIT_REACHED);
    (events, model.asked_for(Kind::Main).len())
}

/// Checks that the first iteration ends with this timeout and the next one succeeds.
fn stalled(ground: &Ground, turn: Turn, timeout: &str, seen: &str) -> String {
    let settings = [SILENCE, ("SESSION__TOOL_TIMEOUT", "3s")];
    let (events, calls) = run(ground, turn, &settings);
    assert_eq!(
        outcomes(&events),
        ["failed", "succeeded"],
        "{}",
        event_names(&events)
    );
    let failure = &only(&events, "iteration_failed")["failure"];
    assert_eq!(
        (&failure["kind"], &failure["timeout"]),
        (&"timed_out".into(), &timeout.into())
    );
    let last = failure["last_seen"].as_str().unwrap_or_default();
    assert!(last.starts_with(seen), "{last}");
    assert_eq!(only(&events, "wait_started")["wait"]["reason"], "backoff");
    assert_eq!(
        of_type(&events, "busy_seen").len(),
        0,
        "{}",
        event_names(&events)
    );
    assert_eq!(attempts(&events), [(1, 1), (2, 1)]);
    assert_eq!(names(&events).len(), 1, "the same conversation");
    assert_eq!(calls, 2);
    format!("{timeout}; last seen: {last}")
}

/// The request is accepted and never answered. The agent would wait for six minutes and retry ten times. Known fault of other loops: the loop hung.
fn never_answers(ground: &Ground) -> String {
    stalled(ground, Turn::fault(Fault::NoAnswer), "silence", "output, ")
}

/// With its own, shortened timeout, the agent reports an outage itself, and the loop waits.
fn own_timeout(ground: &Ground) -> String {
    let settings = [
        ("AGENTS__CLAUDE__ENV__API_TIMEOUT_MS", "1500"),
        ("AGENTS__CLAUDE__ENV__CLAUDE_CODE_MAX_RETRIES", "0"),
    ];
    let (events, calls) = run(ground, Turn::fault(Fault::NoAnswer), &settings);
    assert_eq!(
        outcomes(&events),
        ["succeeded", "succeeded"],
        "{}",
        event_names(&events)
    );
    let limited = only(&events, "iteration_limited");
    assert_eq!(limited["outage"], true, "{limited}");
    assert_eq!((calls, names(&events).len()), (3, 1));
    limited["reason"].to_string()
}

/// An answer starts and stops. The agent would wait for five minutes. Known fault of other loops: the loop hung.
fn goes_silent(ground: &Ground) -> String {
    let turn = Turn::fault(Fault::Silence { after: 4 });
    stalled(ground, turn, "silence", "an answer, ")
}

/// An answer starts, and then only pings follow. The agent would wait forever. Known fault of other loops: the loop hung.
fn pings_only(ground: &Ground) -> String {
    let turn = Turn::fault(Fault::Pings {
        after: 4,
        // The interval is longer than the time in which events are combined, so that each ping is an event, and shorter than the timeout.
        every_ms: 700,
    });
    stalled(ground, turn, "silence", "an answer, ")
}

/// An answer of ten words per second does not cause a silence timeout, even if it takes longer than the timeout.
fn slow_answer(ground: &Ground) -> String {
    let turn = Turn::text("word ".repeat(60)).in_pieces(5, 100);
    let (events, calls) = run(ground, turn, &[SILENCE]);
    assert_eq!(
        outcomes(&events),
        ["succeeded", "succeeded"],
        "{}",
        event_names(&events)
    );
    assert_eq!(
        of_type(&events, "look_requested").len(),
        0,
        "{}",
        event_names(&events)
    );
    assert_eq!(calls, 2);
    "an answer of 6 s, with a silence timeout of 1 s".into()
}

/// A tool call that prints nothing for longer than the timeout has its own timeout. Known fault of other loops: busy agents were killed.
fn busy_tool(ground: &Ground) -> String {
    let turn = Turn::bash("timeout 20 sh -c 'for i in 1 2 3 4 5; do sleep 1; done'");
    let (events, calls) = run(ground, turn, &[SILENCE]);
    assert_eq!(
        outcomes(&events),
        ["succeeded", "succeeded"],
        "{}",
        event_names(&events)
    );
    assert_eq!(
        of_type(&events, "look_requested").len(),
        0,
        "{}",
        event_names(&events)
    );
    assert_eq!(calls, 3);
    "5 s with a timeout of 1 s".into()
}

/// A tool call that never ends causes a timeout. Known fault of other loops: the agent lost its conversation after a timeout.
fn stuck_tool(ground: &Ground) -> String {
    let turn = Turn::bash("for i in $(seq 600); do sleep 1; done");
    stalled(ground, turn, "tool", "tool Bash: ")
}
