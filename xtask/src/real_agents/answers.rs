//! Prompts with answers: the agent prints the expected lines, with the token counts of the model.

use serde_json::json;
use tachikoma_testkit::{Kind, Scenario, ScriptedModel, Turn, Usage};

use super::ground::{Ground, MODEL, WINDOW, expect_readings, only_result, readings};
use super::install::VERSION;

/// One prompt is answered with one text.
pub fn simple_text(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([Turn::text("Hello.").thinking("hm")]));
    let ended = ground.one_prompt(&model, &[], "say hello");
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    let init = &ended.lines[0];
    assert_eq!(
        (&init["type"], &init["subtype"]),
        (&json!("system"), &json!("init"))
    );
    assert_eq!(init["claude_code_version"], VERSION);
    let result = only_result(&ended);
    assert_eq!(
        (&result["result"], &result["is_error"]),
        (&json!("Hello."), &json!(false))
    );
    assert_eq!(result["modelUsage"][MODEL]["contextWindow"], WINDOW);
    expect_readings(&ended, &model);
    let asked = model.asked();
    assert_eq!(asked.len(), 1, "requests: {asked:?}");
    assert_eq!(asked[0].last_user, "say hello");
    assert_eq!(asked[0].session.as_deref(), init["session_id"].as_str());
    "one request, one result".into()
}

/// Tool calls have their effect, even if they fail.
pub fn tools(ground: &Ground) -> String {
    let file = ground.scratch.path().join("made.txt");
    let write = json!({"file_path": file, "content": "made\n"});
    let usage = Usage::cached(9_000).growing_by(400);
    let scenario = Scenario::of([
        Turn::tool("Write", write).using(usage),
        Turn::bash("cat made.txt; exit 3").using(usage),
        Turn::text("Done.").using(usage),
    ]);
    let model = ScriptedModel::start(scenario);
    let ended = ground.one_prompt(&model, &[], "work");
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    assert_eq!(ground.scratch.read("made.txt"), "made\n");
    let results = ended.of_type("user");
    let failed = &results[1]["message"]["content"][0];
    assert_eq!(failed["is_error"], true, "{failed}");
    let text = failed["content"].as_str().unwrap_or_default();
    assert!(
        text.contains("Exit code 3") && text.contains("made"),
        "{text}"
    );
    assert_eq!(only_result(&ended)["result"], "Done.");
    let messages = expect_readings(&ended, &model);
    format!("{messages} messages")
}

/// With partial messages, the final token counts are printed.
pub fn partial_messages(ground: &Ground) -> String {
    let usage = Usage {
        output: 321,
        ..Usage::cached(9_000)
    };
    let turn = Turn::text("A text in many pieces.")
        .in_pieces(4, 0)
        .using(usage);
    let model = ScriptedModel::start(Scenario::of([turn]));
    let ended = ground.one_prompt(&model, &["--include-partial-messages"], "go");
    let events = ended.of_type("stream_event");
    let last = events
        .iter()
        .rfind(|line| line["event"]["type"] == "message_delta");
    let last = last.expect("a message_delta");
    assert_eq!(last["event"]["usage"]["output_tokens"], 321);
    expect_readings(&ended, &model);
    format!("{} pieces", events.len())
}

/// A window of 200k tokens fills to more than 85 % without compaction, every reading is correct, and a new session starts low.
pub fn context_growth(ground: &Ground) -> String {
    let usage = Usage::cached(20_000).growing_by(15_000);
    let redline = WINDOW * 85 / 100;
    let model = ScriptedModel::reacting(Scenario::default(), move |request| {
        let grown = usage.settled(request.tool_results).context() >= redline;
        (request.kind == Kind::Main).then(|| match grown {
            true => Turn::text("The context is full.").using(usage),
            false => Turn::bash("true").using(usage),
        })
    });
    let run = || {
        let mut command = ground.one_prompt_command(&model);
        command.env("DISABLE_AUTO_COMPACT", "1");
        ground.finish(&mut command, "fill it")
    };
    let first = run();
    let messages = expect_readings(&first, &model);
    let last = readings(&first).pop().unwrap_or_default();
    assert!(last >= redline, "{last} tokens");
    assert_eq!(only_result(&first)["result"], "The context is full.");
    assert_eq!(
        only_result(&first)["modelUsage"][MODEL]["contextWindow"],
        WINDOW
    );
    let second = run();
    assert_eq!(readings(&second).first(), Some(&20_003), "a fresh session");
    assert_ne!(first.lines[0]["session_id"], second.lines[0]["session_id"]);
    let others = model
        .asked()
        .iter()
        .filter(|asked| asked.kind != Kind::Main)
        .count();
    assert_eq!(others, 0, "nothing was compacted");
    format!("{messages} readings up to {last}, then afresh")
}

/// The context of a sub-agent does not count toward the context of the main conversation.
pub fn subagent(ground: &Ground) -> String {
    let task = json!({
        "description": "count", "prompt": "count all the beans", "subagent_type": "general-purpose",
    });
    let scenario = Scenario::of([Turn::tool("Agent", task), Turn::text("Seven.")]).with_subagent([
        Turn::bash("echo beans").using(Usage::cached(150_000)),
        Turn::text("Seven beans.").using(Usage::cached(151_000)),
    ]);
    let model = ScriptedModel::start(scenario);
    let ended = ground.one_prompt(&model, &[], "delegate");
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    assert_eq!(only_result(&ended)["result"], "Seven.");
    expect_readings(&ended, &model);
    let asked = model.asked_for(Kind::Subagent);
    assert_eq!(asked.len(), 2, "{:?}", model.asked());
    let of_agent = |line: &&&serde_json::Value| !line["parent_tool_use_id"].is_null();
    let lines = ended.of_type("assistant");
    let own = lines.iter().filter(of_agent).count();
    assert!(own > 0, "its lines are marked: {}", ended.kinds());
    format!("{} requests of its own", asked.len())
}
