//! Single lines of Claude Code and their events.

use serde_json::Value;
use tachikoma_agents::claude::Decoder;
use tachikoma_agents::report::{Exit, Summing};
use tachikoma_agents::{AgentEvent, FailureClass, TurnOutcome, TurnResult};

use crate::corpus::claude;

/// Returns a line with a message of the main thread.
fn assistant(id: &str, input: u64, output: u64) -> String {
    format!(
        r#"{{"type":"assistant","message":{{"id":"{id}","model":"claude-sonnet-4-5","content":[{{"type":"text","text":"hi"}}],"usage":{{"input_tokens":{input},"output_tokens":{output}}}}},"parent_tool_use_id":null}}"#
    )
}

fn result(more: &str) -> String {
    format!(r#"{{"session_id":"s",{more},"type":"result"}}"#)
}

fn decode(decoder: &mut Decoder, line: &str) -> Vec<AgentEvent> {
    let mut seen = Vec::new();
    decoder.decode(line.as_bytes(), &mut seen);
    seen
}

fn tokens(decoder: &Decoder) -> Option<(u64, bool)> {
    let reading = decoder.standing().reading?;
    Some((reading.tokens, reading.estimated))
}

fn ended(decoder: &mut Decoder, more: &str) -> TurnResult {
    match decode(decoder, &result(more)).pop() {
        Some(AgentEvent::Resulted(result)) => *result,
        other => panic!("no result: {other:?}"),
    }
}

#[test]
fn events_of_selected_recordings_match_the_snapshot() {
    let names = [
        "03-", "06-", "07-", "08-", "10-", "48-", "73b-", "82-", "86-",
    ];
    let mut text = String::new();
    for case in claude() {
        if !names.iter().any(|name| case.name.starts_with(name)) {
            continue;
        }
        text += &format!("{}\n", case.name);
        let mut decoder = Decoder::default();
        for line in case.lines() {
            let mut seen = Vec::new();
            decoder.decode(line, &mut seen);
            for event in seen {
                text += &format!("  {event:?}\n");
            }
        }
    }
    insta::assert_snapshot!("claude_observations", text);
}

#[test]
fn the_order_of_members_and_white_space_do_not_matter() {
    for case in claude() {
        let mut sorted = Summing::of(case.decoder.clone());
        let mut spaced = Summing::of(case.decoder.clone());
        for line in case.lines() {
            let value: Value = serde_json::from_slice(line).expect("JSON");
            sorted.line(value.to_string().as_bytes(), false);
            spaced.line(format!("{value:#}").as_bytes(), false);
        }
        let exit = Some(Exit(case.exit));
        assert_eq!(sorted.report(exit), case.report(), "{}", case.name);
        assert_eq!(spaced.report(exit), case.report(), "{}", case.name);
    }
}

#[test]
fn repeated_events_of_a_message_count_as_one_reading_with_the_last_value() {
    let mut decoder = Decoder::default();
    decode(&mut decoder, &assistant("a", 100, 1));
    decode(&mut decoder, &assistant("a", 100, 1));
    assert_eq!(
        (decoder.standing().readings, tokens(&decoder)),
        (1, Some((101, false)))
    );
    decode(&mut decoder, &assistant("a", 100, 7));
    assert_eq!(
        (decoder.standing().readings, tokens(&decoder)),
        (1, Some((107, false)))
    );
    decode(&mut decoder, &assistant("b", 50, 1));
    assert_eq!(
        (decoder.standing().readings, tokens(&decoder)),
        (2, Some((51, false)))
    );
}

#[test]
fn streamed_usage_overrides_the_usage_of_finished_blocks() {
    let mut decoder = Decoder::default();
    let piece = |event: &str| {
        format!(r#"{{"type":"stream_event","event":{event},"parent_tool_use_id":null}}"#)
    };
    let start = r#"{"type":"message_start","message":{"id":"a","model":"claude-opus-5-5","usage":{"input_tokens":10,"cache_read_input_tokens":1000,"output_tokens":1}}}"#;
    decode(&mut decoder, &piece(start));
    assert_eq!(tokens(&decoder), Some((1011, false)));
    // The end of a message reports only the fields that changed.
    let end = r#"{"type":"message_delta","usage":{"output_tokens":90}}"#;
    decode(&mut decoder, &piece(end));
    assert_eq!(tokens(&decoder), Some((1100, false)));
    let block = decode(&mut decoder, &assistant("a", 1010, 1));
    assert!(matches!(block[..], [AgentEvent::Said(_)]), "{block:?}");
    assert_eq!(
        (decoder.standing().readings, tokens(&decoder)),
        (1, Some((1100, false)))
    );
    // Without streaming, the usage of the message itself is used.
    decode(&mut decoder, &assistant("b", 1200, 1));
    assert_eq!(
        (decoder.standing().readings, tokens(&decoder)),
        (2, Some((1201, false)))
    );
}

#[test]
fn only_the_main_conversation_is_measured() {
    let mut decoder = Decoder::default();
    decode(&mut decoder, &assistant("a", 100, 1));
    for other in [
        assistant("b", 900, 1).replace(
            r#""parent_tool_use_id":null"#,
            r#""parent_tool_use_id":"t""#,
        ),
        assistant("c", 900, 1).replace("claude-sonnet-4-5", "<synthetic>"),
        assistant("d", 900, 1).replace(
            r#""parent_tool_use_id""#,
            r#""error":"unknown","parent_tool_use_id""#,
        ),
        assistant("e", 0, 0),
    ] {
        decode(&mut decoder, &other);
        assert_eq!(
            (decoder.standing().readings, tokens(&decoder)),
            (1, Some((101, false))),
            "{other}"
        );
    }
}

#[test]
fn context_is_estimated_after_a_compaction_and_unknown_after_a_reset() {
    let mut decoder = Decoder::default();
    decode(&mut decoder, &assistant("a", 100_000, 1));
    let compacted = r#"{"type":"system","subtype":"compact_boundary","compact_metadata":{"trigger":"manual","pre_tokens":100001,"post_tokens":3000}}"#;
    let seen = decode(&mut decoder, compacted);
    assert!(matches!(
        seen[0],
        AgentEvent::Compacted {
            automatic: false,
            tokens_before: 100_001
        }
    ));
    assert_eq!(tokens(&decoder), Some((3000, true)));
    // After a compaction, the same message is measured again.
    decode(&mut decoder, &assistant("a", 5000, 1));
    assert_eq!(tokens(&decoder), Some((5001, false)));
    let reset = r#"{"type":"conversation_reset","new_conversation_id":"n","session_id":"n"}"#;
    let seen = decode(&mut decoder, reset);
    assert_eq!(
        seen,
        [AgentEvent::SessionReset {
            session_id: Some("n".into())
        }]
    );
    assert_eq!(tokens(&decoder), None);
    assert_eq!(decoder.standing().session.session_id, "n");
}

#[test]
fn usage_limits_are_distinguished_from_other_failures_in_every_version() {
    let failed = |text: &str| format!(r#""is_error":true,"subtype":"success","result":"{text}""#);
    let mut decoder = Decoder::default();
    let result = ended(
        &mut decoder,
        &failed("Claude AI usage limit reached|1794715906"),
    );
    assert_eq!(result.outcome, TurnOutcome::UsageLimit);
    let moment = result.limit_resets_at.map(|moment| moment.to_string());
    assert_eq!(moment.as_deref(), Some("2026-11-15T04:11:46.000Z"));

    let event = |status: &str| {
        format!(
            r#"{{"type":"rate_limit_event","rate_limit_info":{{"status":"{status}","resetsAt":1794715833}}}}"#
        )
    };
    decode(&mut decoder, &event("rejected"));
    let result = ended(
        &mut decoder,
        &failed("You've hit your weekly limit · resets Nov 20, 4pm (UTC)"),
    );
    let moment = result.limit_resets_at.map(|moment| moment.to_string());
    assert_eq!(
        moment.as_deref(),
        Some("2026-11-15T04:10:33.000Z"),
        "the time in the event overrides the time in the text"
    );

    // Another version of the agent may word the message differently. The event and status 429 still show the limit.
    decode(&mut decoder, &event("rejected"));
    let words = format!(r#"{},"api_error_status":429"#, failed("Come back later"));
    assert_eq!(ended(&mut decoder, &words).outcome, TurnOutcome::UsageLimit);

    // A rejection in an earlier turn and a warning do not count.
    decode(&mut decoder, &event("allowed_warning"));
    let result = ended(
        &mut decoder,
        &format!(r#"{},"api_error_status":429"#, failed("Rate limited")),
    );
    assert_eq!(
        (result.outcome, result.limit_resets_at),
        (TurnOutcome::ApiError, None)
    );
    // Text of the model that looks like a usage limit is not one.
    let fine = r#""is_error":false,"subtype":"success","result":"You've hit your limit · resets 4am","usage":{"output_tokens":9}"#;
    assert_eq!(ended(&mut decoder, fine).outcome, TurnOutcome::Ok);
}

#[test]
fn turn_without_request_to_the_model_is_a_failure() {
    let mut decoder = Decoder::default();
    let refused = r#""subtype":"success","is_error":false,"num_turns":1,"total_cost_usd":0,"usage":{"input_tokens":0,"output_tokens":0},"result":"Blocked by hook: no\n<promise>COMPLETE</promise>""#;
    let result = ended(&mut decoder, refused);
    assert_eq!(
        (result.success, result.outcome, result.failure),
        (false, TurnOutcome::NoRequest, Some(FailureClass::Other))
    );
    assert!(
        result
            .text
            .starts_with("Claude Code sent no request to the model: a `UserPromptSubmit` hook")
            && result.text.contains("It said: Blocked by hook: no"),
        "{}",
        result.text
    );
    // An answer without token counts is an answer. A message that the agent itself created is not.
    for (model, outcome) in [
        ("m", TurnOutcome::Ok),
        ("<synthetic>", TurnOutcome::NoRequest),
    ] {
        let answer = format!(
            r#"{{"type":"assistant","message":{{"id":"x","model":"{model}","content":[]}},"parent_tool_use_id":null}}"#
        );
        decode(&mut decoder, &answer);
        assert_eq!(ended(&mut decoder, refused).outcome, outcome, "{model}");
    }
}

#[test]
fn a_second_rejection_has_its_reset_in_the_error_params() {
    let refused = r#"{"type":"assistant","parent_tool_use_id":null,"error":"rate_limit","message":{"model":"<synthetic>","content":[]},"api_error_params":{"rate_limit_info":{"status":"rejected","resetsAt":1794715833}}}"#;
    let result = r#""is_error":true,"subtype":"success","api_error":"usage_limit_reached","result":"You've hit your 5-hour limit · resets 11:12am (UTC)""#;
    let mut decoder = Decoder::default();
    decode(&mut decoder, refused);
    let reset = ended(&mut decoder, result).limit_resets_at;
    assert_eq!(
        reset.map(|moment| moment.to_string()).as_deref(),
        Some("2026-11-15T04:10:33.000Z")
    );
}

#[test]
fn failed_turns_get_the_failure_class_of_their_error() {
    for (more, class) in [
        (
            r#""terminal_reason":"blocking_limit","result":"Prompt is too long""#,
            FailureClass::PromptTooLong,
        ),
        (
            r#""result":"Prompt is too long · x""#,
            FailureClass::PromptTooLong,
        ),
        (
            r#""api_error_status":401,"result":"x""#,
            FailureClass::Authentication,
        ),
        (
            r#""api_error_status":404,"result":"x""#,
            FailureClass::Model,
        ),
        (
            r#""api_error_status":529,"result":"x""#,
            FailureClass::Overloaded,
        ),
        (
            r#""api_error_status":503,"result":"x""#,
            FailureClass::Unreachable,
        ),
        (
            r#""api_error":"connection_failed","result":"x""#,
            FailureClass::Unreachable,
        ),
        (
            r#""stop_reason":"refusal","result":"x""#,
            FailureClass::Refused,
        ),
        (
            r#""terminal_reason":"aborted_tools","errors":["x"]"#,
            FailureClass::Interrupted,
        ),
        (r#""result":"x""#, FailureClass::Other),
    ] {
        let result = ended(
            &mut Decoder::default(),
            &format!(r#""is_error":true,{more}"#),
        );
        assert_eq!(result.failure, Some(class), "{more}");
        assert!(!result.success);
    }
    let mut decoder = Decoder::default();
    let billing = assistant("a", 0, 0).replace(
        r#""parent_tool_use_id""#,
        r#""error":"billing_error","parent_tool_use_id""#,
    );
    let seen = decode(&mut decoder, &billing);
    assert!(
        matches!(&seen[..], [AgentEvent::RequestFailed { error, text }] if error == "billing_error" && text == "hi")
    );
    let result = ended(&mut decoder, r#""is_error":true,"result":"x""#);
    assert_eq!(result.failure, Some(FailureClass::Billing));
    assert_eq!(
        ended(&mut decoder, r#""is_error":true,"result":"x""#).failure,
        Some(FailureClass::Other),
        "an error of an earlier turn does not count"
    );
}

#[test]
fn the_limit_of_turns_is_not_a_success_in_any_version() {
    let result = ended(
        &mut Decoder::default(),
        r#""subtype":"error_max_turns","is_error":false"#,
    );
    assert_eq!(
        (result.success, result.outcome),
        (false, TurnOutcome::MaxTurns)
    );
    let result = ended(
        &mut Decoder::default(),
        r#""terminal_reason":"budget_exhausted","is_error":true"#,
    );
    assert_eq!(result.outcome, TurnOutcome::MaxBudget);
}

#[test]
fn costs_are_those_of_the_turn_not_of_the_conversation() {
    let cost = |decoder: &mut Decoder, total: f64, since: Option<f64>| {
        let since = since.map_or(String::new(), |cost| {
            format!(r#","model_usage_since_last_result":{{"m":{{"costUSD":{cost}}}}}"#)
        });
        let result = ended(
            decoder,
            &format!(r#""is_error":false,"total_cost_usd":{total}{since}"#),
        );
        (
            result.cost_usd,
            result.session_cost_usd,
            decoder.standing().cost_usd,
        )
    };
    let mut told = Decoder::default();
    assert_eq!(
        cost(&mut told, 0.0475, Some(0.0023)),
        (0.0023, 0.0475, 0.0023)
    );
    // A resumed process failed before its first request, so that no model and no cost are reported.
    let nothing = r#""is_error":true,"total_cost_usd":2.5,"model_usage_since_last_result":{}"#;
    let result = ended(&mut Decoder::default(), nothing);
    assert_eq!((result.cost_usd, result.session_cost_usd), (0.0, 2.5));
    let mut silent = Decoder::default();
    assert_eq!(cost(&mut silent, 0.1, None), (0.1, 0.1, 0.1));
    assert_eq!(cost(&mut silent, 0.3, None), (0.2, 0.3, 0.3));
    assert_eq!(
        cost(&mut silent, 0.05, None),
        (0.05, 0.05, 0.35),
        "a lower total belongs to another conversation"
    );
}

#[test]
fn each_model_has_its_own_context_window() {
    let mut decoder = Decoder::default();
    decode(&mut decoder, &assistant("a", 100, 1));
    assert_eq!(
        decoder.standing().window,
        Some(200_000),
        "window by the model's name"
    );
    let answer = r#"{"type":"control_response","response":{"subtype":"success","request_id":"c","response":{"maxTokens":150000,"rawMaxTokens":180000}}}"#;
    decode(&mut decoder, answer);
    assert_eq!(
        decoder.standing().window,
        Some(180_000),
        "window as reported"
    );
    ended(
        &mut decoder,
        r#""is_error":false,"modelUsage":{"other":{"contextWindow":7},"claude-sonnet-4-5":{"contextWindow":190000}}"#,
    );
    assert_eq!(decoder.standing().window, Some(190_000));
    let unknown = assistant("b", 100, 1).replace("claude-sonnet-4-5", "mystery");
    let seen = decode(&mut decoder, &unknown);
    assert!(
        matches!(&seen[0], AgentEvent::Measured(reading) if reading.window.is_none() && reading.context().window == 200_000)
    );
}

#[test]
fn unknown_lines_are_kept_and_counted() {
    let mut decoder = Decoder::default();
    for line in [
        r#"{"type":"telepathy","x":1}"#,
        r#"{"type":"system","subtype":"telepathy"}"#,
        r#"{"kind":"result"}"#,
        "Error: plain text",
        r#"{"type":"assistant","message":{"cut"#,
        "[]",
        "{}",
    ] {
        let seen = decode(&mut decoder, line);
        assert_eq!(seen, [AgentEvent::NotUnderstood(line.to_owned())]);
    }
    assert_eq!(decoder.standing().unknown_lines, 7);
    assert_eq!(decode(&mut decoder, "  "), []);
    assert_eq!(
        decoder.standing().unknown_lines,
        7,
        "an empty line does not count as unknown"
    );
    let long = format!("{}x", "y".repeat(1 << 20));
    let seen = decode(&mut decoder, &long);
    assert!(matches!(&seen[..], [AgentEvent::NotUnderstood(kept)] if kept.len() == 4096));
}

#[test]
fn denied_tools_model_fallbacks_and_late_windows_are_reported() {
    let mut decoder = Decoder::default();
    let denied =
        r#"{"type":"system","subtype":"permission_denied","tool_name":"Bash","tool_use_id":"t1"}"#;
    let expected = AgentEvent::PermissionDenied {
        tool: "Bash".into(),
        id: "t1".into(),
    };
    assert_eq!(decode(&mut decoder, denied), [expected]);
    let fallback =
        r#"{"type":"system","subtype":"model_fallback","original_model":"a","fallback_model":"b"}"#;
    let expected = AgentEvent::ModelFellBack {
        from: "a".into(),
        to: "b".into(),
    };
    assert_eq!(decode(&mut decoder, fallback), [expected]);
    let context = r#"{"type":"assistant","message":{"id":"x","model":"<synthetic>","content":[]},"context_usage":{"total_tokens":5,"raw_max_tokens":321},"parent_tool_use_id":null}"#;
    assert_eq!(
        decode(&mut decoder, context),
        [],
        "a message without a model reports no window"
    );
    decode(&mut decoder, &assistant("m", 5, 1));
    let expected = AgentEvent::WindowKnown {
        model: "claude-sonnet-4-5".into(),
        window: 321,
    };
    assert_eq!(decode(&mut decoder, context), [expected]);
}

#[test]
fn a_new_session_is_reported_once_and_its_context_is_unknown() {
    let mut decoder = Decoder::default();
    let init = |id: &str| {
        format!(
            r#"{{"type":"system","subtype":"init","session_id":"{id}","model":"claude-opus-5-5"}}"#
        )
    };
    assert!(
        matches!(&decode(&mut decoder, &init("a"))[..], [AgentEvent::SessionKnown(info)] if info.session_id == "a")
    );
    decode(&mut decoder, &assistant("m", 100, 1));
    assert_eq!(
        decode(&mut decoder, &init("a")),
        [],
        "the same session is reported once"
    );
    assert_eq!(tokens(&decoder), Some((101, false)));
    assert!(matches!(
        &decode(&mut decoder, &init("b"))[..],
        [AgentEvent::SessionKnown(_)]
    ));
    assert_eq!(tokens(&decoder), None);
}

#[test]
fn tool_progress_is_ignored() {
    let mut decoder = Decoder::default();
    let line = r#"{"type":"tool_progress","tool_use_id":"toolu_1","tool_name":"Bash","parent_tool_use_id":null,"elapsed_time_seconds":30,"session_id":"s","uuid":"u"}"#;
    assert_eq!(decode(&mut decoder, line), []);
    assert_eq!(decoder.standing().unknown_lines, 0);
}
