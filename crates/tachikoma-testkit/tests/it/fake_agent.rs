//! The fake agent without misbehavior, used like `claude -p` with JSON lines as input and output.

use serde_json::{Value, json};
use tachikoma_testkit::{Scenario, ToolCall, Turn, Usage};

use crate::support::{FORM_C, SOON, Stage};

/// Returns the context as a reader of the output computes it: the tokens of the last message of the model only.
fn context(lines: &[Value]) -> u64 {
    let last = lines.iter().rfind(|line| line["type"] == "assistant");
    let last = last.expect("there is a message");
    let usage = last["message"]["usage"].as_object().expect("it has tokens");
    usage.values().filter_map(Value::as_u64).sum()
}

fn long_tool() -> Turn {
    Turn::bash("echo started > started; while [ -e started ]; do sleep 1; done").saying("working")
}

#[test]
fn one_prompt_gets_one_result() {
    let stage = Stage::new(&Scenario::of([Turn::text("hello")]));
    let ended = stage.run_once("hi");
    assert_eq!(ended.kinds(), "system/init assistant result/success");
    assert_eq!(ended.code, Some(0));
    let result = ended.results()[0];
    assert_eq!(result["result"], "hello");
    assert_eq!(
        result["modelUsage"]["claude-sonnet-4-5"]["contextWindow"],
        200_000
    );
    assert_eq!(context(&ended.lines), 9_004);
}

#[test]
fn tool_calls_change_the_work_tree_and_increase_the_context_usage() {
    let usage = Usage::cached(20_000).growing_by(1_000);
    let scenario = Scenario::of([
        Turn::bash("echo one > one.txt; echo seen").using(usage),
        Turn::tool("Write", json!({"file_path": "two.txt", "content": "two"})).using(usage),
        Turn::bash("exit 3").using(usage),
        Turn::text("done").using(usage),
    ]);
    let stage = Stage::new(&scenario);
    let ended = stage.run_once("go");
    assert_eq!(stage.scratch.read("one.txt"), "one\n");
    assert_eq!(stage.scratch.read("two.txt"), "two");
    let results: Vec<&Value> = ended
        .lines
        .iter()
        .filter(|line| line["type"] == "user")
        .map(|line| &line["message"]["content"][0])
        .collect();
    assert_eq!(results[0]["content"], "seen");
    assert_eq!(results[2]["content"], "Exit code 3\n");
    assert_eq!(results[2]["is_error"], true);
    assert_eq!(context(&ended.lines), 20_000 + 3 * 1_000 + 3 + 1);
    assert_eq!(ended.results()[0]["num_turns"], 4);
}

#[test]
fn prompts_follow_each_other_in_one_process() {
    let stage = Stage::new(&Scenario::of([Turn::text("one"), Turn::text("two")]));
    let mut talk = stage.start(&[]);
    talk.prompt("first");
    talk.await_lines("result", 1, SOON);
    talk.prompt("second");
    let ended = talk.end(SOON);
    let said: Vec<&Value> = ended.results().iter().map(|line| &line["result"]).collect();
    assert_eq!(said, ["one", "two"]);
    let cost = |index: usize| ended.results()[index]["total_cost_usd"].as_f64();
    assert!(cost(1) > cost(0), "the cost is that of the whole session");
    assert_eq!(ended.code, Some(0));
}

#[test]
fn partial_messages_are_printed_as_stream_events_of_the_api() {
    let turn = Turn::text("hello there").in_pieces(6, 0);
    let stage = Stage::new(&Scenario::of([turn]));
    let mut talk = stage.start(&["--include-partial-messages"]);
    talk.prompt("go");
    let expected = "system/init message_start content_block_start content_block_delta \
                    content_block_delta assistant content_block_stop message_delta message_stop \
                    result/success";
    let kinds = talk.end(SOON).kinds();
    // The real agent prints the `assistant` line just before or after `content_block_stop`, so the order is normalized.
    let kinds = kinds.replace(
        "content_block_stop assistant",
        "assistant content_block_stop",
    );
    assert_eq!(kinds, expected);
}

#[test]
fn an_interrupt_ends_the_turn_but_not_the_process() {
    let stage = Stage::new(&Scenario::of([long_tool(), Turn::text("after")]));
    let mut talk = stage.start(&[]);
    talk.prompt("go");
    crate::support::await_file(&stage, "started");
    talk.control("interrupt");
    talk.await_lines("result", 1, SOON);
    talk.prompt("again");
    let ended = talk.end(SOON);
    let expected = "system/init assistant assistant control_response user user \
                    result/error_during_execution system/init assistant result/success";
    assert_eq!(ended.kinds(), expected);
    assert_eq!(ended.results()[0]["terminal_reason"], "aborted_tools");
    assert_eq!(ended.code, Some(0));
}

#[test]
fn an_idle_agent_only_acknowledges_an_interrupt() {
    let stage = Stage::new(&Scenario::of([Turn::text("one")]));
    let mut talk = stage.start(&[]);
    talk.control("interrupt");
    talk.prompt("go");
    let kinds = talk.end(SOON).kinds();
    assert_eq!(
        kinds,
        "control_response system/init assistant result/success"
    );
}

#[test]
fn message_that_arrives_during_a_tool_call_joins_the_turn() {
    let waiting = Turn::bash("echo x > started; until [ -e go ]; do sleep 0.05; done");
    let scenario =
        Scenario::of([waiting, Turn::text("not this")]).when("wrap up", Turn::text("wrapped up"));
    let stage = Stage::new(&scenario);
    let mut talk = stage.start(&[]);
    talk.prompt("go");
    crate::support::await_file(&stage, "started");
    talk.prompt("please wrap up");
    // Requests are answered in order, so after this answer the prompt was read.
    talk.control("get_context_usage");
    talk.await_lines("control_response", 1, SOON);
    stage.scratch.write("go", "");
    let ended = talk.end(SOON);
    assert_eq!(ended.results().len(), 1, "{}", ended.kinds());
    assert_eq!(ended.results()[0]["result"], "wrapped up");
}

#[test]
fn message_that_arrives_during_a_text_starts_a_new_turn() {
    let slow = Turn::text("slowly, slowly, slowly").in_pieces(1, 20);
    let stage = Stage::new(&Scenario::of([slow, Turn::text("two")]));
    let mut talk = stage.start(&["--include-partial-messages"]);
    talk.prompt("one");
    talk.await_lines("stream_event", 3, SOON);
    talk.prompt("two");
    let ended = talk.end(SOON);
    let said: Vec<&Value> = ended.results().iter().map(|line| &line["result"]).collect();
    assert_eq!(said, ["slowly, slowly, slowly", "two"]);
}

#[test]
fn a_session_continues_in_another_process() {
    let usage = Usage::cached(20_000).growing_by(1_000);
    let call = ToolCall {
        name: "Read".into(),
        result: Some("text".into()),
        ..ToolCall::default()
    };
    let read = Turn {
        tools: vec![call],
        usage,
        ..Turn::default()
    };
    let end = Turn::text("one").using(usage);
    let stage = Stage::new(&Scenario::of([read, end.clone(), end.clone(), end]));
    let id = "0b5e0bd2-6b7f-4d0e-9a52-1a2b3c4d5e6f";

    let mut talk = stage.start(&["--session-id", id]);
    talk.prompt("one");
    let first = talk.end(SOON);
    assert_eq!(first.results()[0]["session_id"], id);

    let mut talk = stage.start(&["--resume", id]);
    talk.control("get_context_usage");
    talk.await_lines("control_response", 1, SOON);
    talk.prompt("two");
    let second = talk.end(SOON);
    assert_eq!(second.results()[0]["session_id"], id);
    let known = &second.lines[0]["response"]["response"]["totalTokens"];
    assert_eq!(known, 21_003, "the file that the first process wrote");
    assert_eq!(
        context(&second.lines),
        21_004,
        "the tool's result is still there"
    );
    let cost = |line: &Value| line["total_cost_usd"].as_f64();
    assert!(cost(second.results()[0]) > cost(first.results()[0]));

    let mut talk = stage.start(&[]);
    talk.prompt("three");
    let fresh = talk.end(SOON);
    assert_ne!(fresh.results()[0]["session_id"], id);
    assert_eq!(context(&fresh.lines), 20_004, "a fresh session starts low");
}

#[test]
fn invalid_sessions_are_rejected() {
    let stage = Stage::new(&Scenario::default());
    let talk = stage.start(&["--resume", "nobody"]);
    let ended = talk.end(SOON);
    assert_eq!(
        (ended.kinds().as_str(), ended.code),
        ("result/error_during_execution", Some(1))
    );

    let mut talk = stage.start(&["--session-id", "taken"]);
    talk.prompt("go");
    assert_eq!(talk.end(SOON).code, Some(0));
    let ended = stage.start(&["--session-id", "taken"]).end(SOON);
    assert_eq!((ended.kinds().as_str(), ended.code), ("", Some(1)));
    assert!(ended.errors.contains("already in use"), "{}", ended.errors);
}

#[test]
fn api_error_is_reported_as_success_with_an_error_flag() {
    let overloaded = Turn::status(529, "overloaded_error", "Overloaded");
    let limit = Turn::status(429, "rate_limit_error", "no more")
        .header("anthropic-ratelimit-unified-status", "rejected")
        .header("anthropic-ratelimit-unified-reset", "1794715833")
        .header(
            "anthropic-ratelimit-unified-representative-claim",
            "five_hour",
        );
    let stage = Stage::new(&Scenario::of([overloaded, Turn::text("at last"), limit]));
    let mut talk = stage.start(&[]);
    talk.prompt("one");
    talk.await_lines("result", 1, SOON);
    talk.prompt("two");
    let ended = talk.end(SOON);
    let expected = "system/init system/api_retry assistant result/success \
                    system/init rate_limit_event assistant result/success";
    assert_eq!(ended.kinds(), expected);
    let result = ended.results()[1];
    assert_eq!(
        (&result["is_error"], &result["api_error"]),
        (&json!(true), &json!("usage_limit_reached"))
    );
    assert_eq!(ended.lines[5]["rate_limit_info"]["resetsAt"], 1_794_715_833);
    assert_eq!(ended.code, Some(1), "the last result was an error");
}

#[test]
fn a_transcript_is_replayed_prompt_by_prompt() {
    let stage = Stage::new(&Scenario::default());
    let transcript = "{\"type\":\"system\",\"subtype\":\"init\"}\n{\"type\":\"result\",\"n\":1}\n\
                      {\"type\":\"control_response\"}\nnot JSON\n{\"type\":\"result\",\"is_error\":true}\n";
    let file = stage.scratch.write("transcript.jsonl", transcript);
    let mut talk = stage.replaying(file.clone(), &FORM_C);
    talk.prompt("one");
    talk.await_lines("result", 1, SOON);
    assert_eq!(talk.lines().len(), 2, "the rest waits for the next prompt");
    talk.prompt("two");
    let ended = talk.end(SOON);
    let expected = transcript.replace("{\"type\":\"control_response\"}\n", "");
    assert_eq!(String::from_utf8_lossy(&ended.raw), expected);
    assert_eq!(ended.code, Some(1));

    let words = ["-p", "--output-format", "stream-json", "--verbose"];
    let mut talk = stage.replaying(file, &words);
    talk.send_raw("all of it");
    assert_eq!(String::from_utf8_lossy(&talk.end(SOON).raw), expected);
}
