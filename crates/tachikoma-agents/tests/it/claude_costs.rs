//! Tokens and cost during a turn, and usage limits of a subscription.

use std::fs;
use std::path::Path;

use tachikoma_agents::claude::Decoder;
use tachikoma_agents::{AgentEvent, Window};

fn decode(lines: &str) -> Vec<AgentEvent> {
    let mut decoder = Decoder::default();
    let mut seen = Vec::new();
    for line in lines.lines() {
        decoder.decode(line.as_bytes(), &mut seen);
    }
    seen
}

fn recorded(name: &str) -> String {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/claude");
    fs::read_to_string(corpus.join(name)).expect("the recording exists")
}

fn costs(lines: &str) -> Vec<Option<f64>> {
    let cost = |seen| match seen {
        AgentEvent::Cost(cost) => Some(cost),
        _ => None,
    };
    decode(lines).into_iter().filter_map(cost).collect()
}

/// The test replaces the request id in the recording with the id that Tachikoma uses.
#[test]
fn cost_is_read_from_the_text_of_the_control_response() {
    let answer = recorded("76-control-requests.jsonl").replace("\"c5\"", "\"what-cost\"");
    assert_eq!(costs(&answer), [Some(0.357)]);
    let told = |text: &str| {
        format!(
            r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"what-cost","response":{{"text":"{text}"}}}}}}"#
        )
    };
    for (text, cost) in [
        (
            "Total cost:            $0.0457\\nTotal duration (API):  0s",
            Some(0.0457),
        ),
        ("Total cost:            $12.50", Some(12.5)),
        (
            "Total cost:            $1,234.50 (costs may be inaccurate)",
            Some(1234.5),
        ),
        ("Total cost:            $", None),
        ("You are on a subscription", None),
        ("", None),
    ] {
        assert_eq!(costs(&told(text)), [cost], "{text}");
    }
    let unknown = r#"{"type":"control_response","response":{"subtype":"error","request_id":"what-cost","error":"Unsupported control request subtype: get_session_cost"}}"#;
    assert_eq!(costs(unknown), [None]);
    let other = told("Total cost: $5").replace("what-cost", "another");
    assert_eq!(costs(&other), [], "an answer to another request is ignored");
}

fn calls(seen: &[AgentEvent]) -> Vec<u64> {
    let calls = seen.iter().filter_map(|seen| match seen {
        AgentEvent::CallEnded(tokens) => Some(*tokens),
        _ => None,
    });
    calls.collect()
}

/// With streaming the calls add up to the result, sub-agents included.
#[test]
fn tokens_of_the_calls_of_a_turn_add_up_to_its_result() {
    for name in ["08-partial-messages.jsonl", "v2.0.37-08-growth.jsonl"] {
        let seen = decode(&recorded(name));
        let results: Vec<u64> = seen
            .iter()
            .filter_map(|seen| match seen {
                AgentEvent::Resulted(result) => Some(result.tokens),
                _ => None,
            })
            .collect();
        let calls: u64 = calls(&seen).iter().sum();
        assert_eq!(results.len(), 1, "{name}");
        // Without streaming, the output tokens of an answer are unknown until the result.
        let short = results[0].abs_diff(calls);
        let pieces = name.contains("partial");
        assert!(
            calls > 0 && short < if pieces { 1 } else { 5_000 },
            "{name}: {calls} of {results:?}"
        );
    }
}

#[test]
fn model_call_of_a_sub_agent_counts_once_and_is_not_a_context_reading() {
    let below = |id: &str, tokens: u64| {
        format!(
            r#"{{"type":"assistant","message":{{"id":"{id}","model":"m","content":[],"usage":{{"input_tokens":{tokens}}}}},"parent_tool_use_id":"t1"}}"#
        )
    };
    let lines = [
        below("a", 10),
        below("b", 20),
        below("a", 10),
        below("a", 10),
    ];
    let seen = decode(&lines.join("\n"));
    assert_eq!(calls(&seen), [10, 20]);
    let readings = seen
        .iter()
        .filter(|seen| matches!(seen, AgentEvent::Measured(_)));
    assert_eq!(readings.count(), 0);
}

#[test]
fn every_window_of_a_subscription_is_reported() {
    let line = r#"{"type":"rate_limit_event","rate_limit_info":{"status":"allowed","resetsAt":1794715833,"rateLimitType":"five_hour","unifiedWindows":{"five_hour":{"utilization":0.4256,"resetsAt":1794715833,"status":"allowed"},"seven_day":{"utilization":0.1,"status":"allowed"},"odd":{"status":"allowed"},"none":7}}}"#;
    let [AgentEvent::Allowance(allowance)] = &decode(line)[..] else {
        panic!("the line has one event")
    };
    let moment = allowance.resets_at;
    assert!(moment.is_some());
    let window = |name: &str, percent, resets_at| Window {
        name: name.to_owned(),
        percent,
        resets_at,
    };
    let expected = [
        window("five_hour", 42.6, moment),
        window("seven_day", 10.0, None),
    ];
    assert_eq!(allowance.windows, expected);
    let old = r#"{"type":"rate_limit_event","rate_limit_info":{"status":"allowed_warning","rateLimitType":"seven_day","utilization":0.81}}"#;
    let [AgentEvent::Allowance(allowance)] = &decode(old)[..] else {
        panic!("the line has one event")
    };
    assert_eq!(allowance.windows, [window("seven_day", 81.0, None)]);
}
