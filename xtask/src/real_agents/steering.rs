//! Messages to a running agent: prompts as JSON lines, requests, interrupts, signals.

use serde_json::json;
use tachikoma_testkit::{Kind, Scenario, ScriptedModel, Turn, Usage};

use super::ground::{Ground, WINDOW, expect_readings};

/// Returns a long tool call. It counts, because the agent refuses to run `sleep`.
fn long_tool() -> Turn {
    Turn::bash("echo x > started; for i in $(seq 600); do sleep 1; done")
}

/// Two prompts use one process and one conversation.
pub fn two_prompts(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([Turn::text("one"), Turn::text("two")]));
    let mut talk = ground.talk(&model, &[]);
    talk.prompt("first");
    ground.await_lines(&talk, "result", 1);
    talk.prompt("second");
    let ended = ground.end(talk);
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    let said: Vec<_> = ended.results().iter().map(|line| &line["result"]).collect();
    assert_eq!(said, ["one", "two"]);
    let asked = model.asked_for(Kind::Main);
    let words: Vec<&str> = asked.iter().map(|asked| asked.last_user.as_str()).collect();
    assert_eq!(words, ["first", "second"]);
    assert!(
        asked[1].messages > asked[0].messages,
        "the conversation goes on"
    );
    expect_readings(&ended, &model);
    "in one conversation".into()
}

/// The agent reports its context on request, without a request to the model.
pub fn context_question(ground: &Ground) -> String {
    let turn = Turn::text("one").using(Usage::cached(140_000));
    let model = ScriptedModel::start(Scenario::of([turn]));
    let mut talk = ground.talk(&model, &[]);
    talk.prompt("first");
    ground.await_lines(&talk, "result", 1);
    let request = json!({"subtype": "get_context_usage", "detail": "summary"});
    talk.send(&json!({"type": "control_request", "request_id": "c", "request": request}));
    ground.await_lines(&talk, "control_response", 1);
    let ended = ground.end(talk);
    let answer = &ended.of_type("control_response")[0]["response"]["response"];
    assert_eq!(answer["totalTokens"], 140_003);
    assert_eq!(answer["maxTokens"], WINDOW);
    assert_eq!(model.asked().len(), 1);
    "140003 of 200000".into()
}

/// An interrupt ends the tool call and the turn, and the process continues.
pub fn interrupt_mid_tool(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([long_tool(), Turn::text("after")]));
    let mut talk = ground.talk(&model, &[]);
    talk.prompt("work");
    ground.await_file("started");
    talk.control("interrupt");
    ground.await_lines(&talk, "control_response", 1);
    ground.await_lines(&talk, "result", 1);
    talk.prompt("go on");
    let ended = ground.end(talk);
    let results = ended.results();
    assert_eq!(results[0]["subtype"], "error_during_execution");
    assert_eq!(results[0]["terminal_reason"], "aborted_tools");
    assert_eq!(
        (&results[1]["result"], ended.code),
        (&json!("after"), Some(0))
    );
    expect_readings(&ended, &model);
    "and then the next prompt".into()
}

/// A message that is sent during a tool call belongs to the same turn.
pub fn message_mid_tool(ground: &Ground) -> String {
    let waiting = "echo x > started; until [ -e go ]; do sleep 0.1; done";
    let scenario = Scenario::of([Turn::bash(waiting), Turn::text("not this")])
        .when("wrap up", Turn::text("Wrapped up."));
    let model = ScriptedModel::start(scenario);
    let mut talk = ground.talk(&model, &[]);
    talk.prompt("work");
    ground.await_file("started");
    let message = json!({"role": "user", "content": "please wrap up"});
    // If the message has an id, the agent reports its state.
    let line = json!({
        "type": "user", "uuid": "35167799-3918-4a8d-aa6b-a5d079728122", "message": message,
    });
    talk.send(&line);
    ground.await_lines(&talk, "command_lifecycle", 1);
    ground.scratch.write("go", "");
    let ended = ground.end(talk);
    let results = ended.results();
    assert_eq!(results.len(), 1, "one turn: {}", ended.kinds());
    assert_eq!(results[0]["result"], "Wrapped up.");
    let last = model.asked_for(Kind::Main).pop().expect("two requests");
    assert_eq!(last.last_user, "please wrap up");
    "folded into the turn".into()
}

/// SIGTERM ends the agent with its tool, and without a result.
pub fn sigterm_mid_tool(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([long_tool()]));
    let mut talk = ground.talk(&model, &[]);
    talk.prompt("work");
    ground.await_file("started");
    talk.signal(rustix::process::Signal::TERM);
    let ended = ground.end(talk);
    assert_eq!((ended.code, ended.results().len()), (Some(143), 0));
    "exit 143, no result".into()
}

/// Compaction is a separate request, and the conversation is shorter afterwards.
pub fn compaction(ground: &Ground) -> String {
    let scenario = Scenario::of([Turn::bash("true"), Turn::text("one"), Turn::text("two")]);
    let model = ScriptedModel::start(scenario);
    let mut talk = ground.talk(&model, &[]);
    talk.prompt("first");
    ground.await_lines(&talk, "result", 1);
    talk.prompt("/compact");
    ground.await_lines(&talk, "result", 2);
    talk.prompt("second");
    let ended = ground.end(talk);
    assert!(
        ended.kinds().contains("system/compact_boundary"),
        "{}",
        ended.kinds()
    );
    assert_eq!(ended.results()[2]["result"], "two");
    assert_eq!(model.asked_for(Kind::Compaction).len(), 1);
    let main = model.asked_for(Kind::Main);
    let results: Vec<u64> = main.iter().map(|asked| asked.tool_results).collect();
    assert_eq!(results, [0, 1, 0], "the tool's result is gone");
    "one summary".into()
}
