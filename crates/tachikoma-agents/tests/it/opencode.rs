//! Every recording of OpenCode is read correctly: `opencode run --format json`, and the server's event stream.

use std::fmt::Write as _;

use tachikoma_agents::opencode::{Decoder, Own};
use tachikoma_agents::{AgentEvent, FailureClass};

use crate::corpus::{Case, opencode};

#[test]
fn every_recording_has_the_expected_outcome_and_context() {
    let mut wrong = String::new();
    for case in opencode() {
        let report = case.report();
        let read = (report.outcome, report.context_tokens, report.unknown_lines);
        let real = (case.outcome.as_str(), case.context, 0);
        if read != real || report.detail != case.detail {
            let read = (read, report.detail);
            let _ = writeln!(
                wrong,
                "{}: read {read:?}, was {real:?} {:?}",
                case.name, case.detail
            );
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn reports_of_all_recordings_match_the_snapshot() {
    let mut text = String::new();
    for case in opencode() {
        let report = serde_json::to_string(&case.report()).expect("a report is JSON");
        let _ = writeln!(text, "{}\n  {report}", case.name);
    }
    insta::assert_snapshot!("opencode_reports", text);
}

fn decode(decoder: &mut Decoder, line: &str) -> Vec<AgentEvent> {
    let mut seen = Vec::new();
    decoder.decode(line.as_bytes(), &mut seen);
    seen
}

fn say(decoder: &mut Decoder, own: &Own) -> Vec<AgentEvent> {
    decode(decoder, &serde_json::to_string(own).expect("a line"))
}

fn event(kind: &str, properties: &str) -> String {
    format!(
        r#"{{"id":"evt_1dd09ae5d001K32BwsgffeWY0t","type":"{kind}","properties":{properties}}}"#
    )
}

fn opened() -> Decoder {
    let mut decoder = Decoder::default();
    let session = Own::Session {
        id: "ses_1".to_owned(),
        version: Some("1.18.33".to_owned()),
        model: None,
        permission: "safe".to_owned(),
    };
    assert_eq!(say(&mut decoder, &session).len(), 1);
    let window = Own::Window {
        model: "fake/fake-1".to_owned(),
        window: 100_000,
    };
    say(&mut decoder, &window);
    decoder
}

#[test]
fn a_reading_has_the_window_of_the_bridge_and_marks_the_last_step() {
    let mut decoder = opened();
    let step = |reason: &str, total: u64| {
        event(
            "message.part.updated",
            &format!(
                r#"{{"sessionID":"ses_1","part":{{"type":"step-finish","messageID":"m","reason":"{reason}","tokens":{{"total":{total}}},"cost":0.25}}}}"#
            ),
        )
    };
    let measured = |seen: Vec<AgentEvent>| match &seen[..] {
        [AgentEvent::CallEnded(_), AgentEvent::Measured(reading)] => {
            (reading.tokens, reading.window, reading.answering)
        }
        other => panic!("{other:?}"),
    };
    let calling = decode(&mut decoder, &step("tool-calls", 50_000));
    assert_eq!(measured(calling), (50_000, Some(100_000), false));
    let last = decode(&mut decoder, &step("stop", 60_000));
    assert_eq!(measured(last), (60_000, Some(100_000), true));
    let other = step("stop", 9).replace("ses_1", "ses_2");
    assert_eq!(
        decode(&mut decoder, &other),
        [],
        "a sub-agent's context is not ours"
    );
    let idle = decode(
        &mut decoder,
        &event("session.idle", r#"{"sessionID":"ses_1"}"#),
    );
    let [AgentEvent::Resulted(result)] = &idle[..] else {
        panic!("{idle:?}")
    };
    assert!(result.success);
    assert!((result.cost_usd - 0.5).abs() < 1e-9);
}

#[test]
fn result_of_a_turn_ended_by_a_usage_limit_has_the_reset_time() {
    let mut decoder = opened();
    let limited = Own::Limited {
        message: "Rate limit reached".to_owned(),
        until: 1_794_715_906_000,
    };
    say(&mut decoder, &limited);
    let aborted = r#"{"sessionID":"ses_1","error":{"name":"MessageAbortedError","data":{"message":"Aborted"}}}"#;
    decode(&mut decoder, &event("session.error", aborted));
    let seen = decode(
        &mut decoder,
        &event("session.idle", r#"{"sessionID":"ses_1"}"#),
    );
    let [AgentEvent::Resulted(result)] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(result.failure, Some(FailureClass::UsageLimit));
    assert_eq!(
        result
            .limit_resets_at
            .map(tachikoma_core::Timestamp::as_millis),
        Some(1_794_715_906_000)
    );
    assert_eq!(result.text, "Rate limit reached");
}

#[test]
fn a_turn_that_ends_after_a_tool_call_was_interrupted() {
    let mut decoder = opened();
    let step = r#"{"sessionID":"ses_1","part":{"type":"step-finish","messageID":"m","reason":"tool-calls","tokens":{"total":9}}}"#;
    decode(&mut decoder, &event("message.part.updated", step));
    let seen = decode(
        &mut decoder,
        &event("session.idle", r#"{"sessionID":"ses_1"}"#),
    );
    let [AgentEvent::Resulted(result)] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(result.failure, Some(FailureClass::Interrupted));
    assert!(!result.success);
}

#[test]
fn turn_that_failed_before_it_was_interrupted_counts_as_failed() {
    let mut decoder = opened();
    let error = |name: &str| {
        event(
            "session.error",
            &format!(
                r#"{{"sessionID":"ses_1","error":{{"name":"{name}","data":{{"message":"m"}}}}}}"#
            ),
        )
    };
    decode(&mut decoder, &error("ContextOverflowError"));
    decode(&mut decoder, &error("MessageAbortedError"));
    let seen = decode(
        &mut decoder,
        &event("session.idle", r#"{"sessionID":"ses_1"}"#),
    );
    let [AgentEvent::Resulted(result)] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(result.failure, Some(FailureClass::PromptTooLong));
}

#[test]
fn retry_event_has_the_delay_until_the_next_attempt() {
    let mut decoder = opened();
    // The time in the id of the event is 1794709761629.
    let status = r#"{"sessionID":"ses_1","status":{"type":"retry","attempt":2,"message":"busy","next":1794709765629}}"#;
    let seen = decode(&mut decoder, &event("session.status", status));
    let [AgentEvent::Retrying(retry)] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!((retry.attempt, retry.delay_ms), (2, 4000));
}

#[test]
fn a_denied_call_is_reported_once() {
    let mut decoder = opened();
    let asked = r#"{"id":"per_1","sessionID":"ses_1","permission":"bash","patterns":["ls"],"metadata":{},"always":[]}"#;
    assert_eq!(decode(&mut decoder, &event("permission.asked", asked)), []);
    let replied = r#"{"sessionID":"ses_1","requestID":"per_1","reply":"reject"}"#;
    let seen = decode(&mut decoder, &event("permission.replied", replied));
    let [AgentEvent::PermissionDenied { tool, .. }] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(tool, "bash");
}

#[test]
fn line_truncated_at_any_byte_is_accepted_and_is_not_a_result() {
    let lines = opencode();
    let lines = lines.iter().flat_map(Case::lines);
    for line in lines.filter(|line| line.len() < 1000).step_by(17) {
        for end in 0..line.len() {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            decoder.decode(&line[..end], &mut seen);
            let ended = seen
                .iter()
                .any(|seen| matches!(seen, AgentEvent::Resulted(_)));
            assert!(
                !ended,
                "a part of a line is not a result: {:?}",
                String::from_utf8_lossy(&line[..end])
            );
        }
    }
}
