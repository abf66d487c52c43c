//! Conversations that continue after their process has ended.

use serde_json::Value;
use tachikoma_testkit::{Kind, Scenario, ScriptedModel, Turn};

use super::ground::{Ground, expect_readings, only_result};

fn session_of(lines: &[Value]) -> String {
    let init = lines.first().expect("there is a first line");
    init["session_id"]
        .as_str()
        .expect("with a session")
        .to_owned()
}

/// A second process resumes the conversation, with the same id and its cost.
pub fn resume(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([Turn::text("one"), Turn::text("two")]));
    let first = ground.one_prompt(&model, &[], "first words");
    let session = session_of(&first.lines);
    let second = ground.one_prompt(&model, &["--resume", &session], "second words");
    assert_eq!(second.code, Some(0), "{}", second.errors);
    assert_eq!(session_of(&second.lines), session);
    let asked = model.asked_for(Kind::Main);
    assert_eq!((asked[0].prompts, asked[1].prompts), (1, 2));
    assert_eq!(asked[0].session, asked[1].session);
    let cost = |line: &Value| line["total_cost_usd"].as_f64().unwrap_or_default();
    let (before, after) = (cost(only_result(&first)), cost(only_result(&second)));
    assert!(
        after > before,
        "{after} after {before}: the cost is the session's"
    );
    "same session, cost goes on".into()
}

/// A conversation continues after its process was killed during a tool.
pub fn resume_after_kill(ground: &Ground) -> String {
    // The tool survives the agent and ends by itself later.
    let tool = Turn::bash("echo x > started; until [ -e gone ]; do sleep 0.1; done");
    let model = ScriptedModel::start(Scenario::of([tool, Turn::text("on we go")]));
    let mut talk = ground.talk(&model, &[]);
    talk.prompt("work");
    ground.await_file("started");
    ground.await_kept_call();
    talk.signal(rustix::process::Signal::KILL);
    let killed = talk.end(ground.patience);
    assert_eq!((killed.code, killed.results().len()), (None, 0));
    ground.scratch.write("gone", "");
    let session = session_of(&killed.lines);
    let resumed = ground.one_prompt(&model, &["--resume", &session], "go on");
    assert_eq!(only_result(&resumed)["result"], "on we go");
    assert_eq!(session_of(&resumed.lines), session);
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!(
        last.tool_results, 1,
        "the cut tool has a result made up for it"
    );
    "same session".into()
}

/// An unknown conversation is an error at once, without a request.
pub fn unknown_session(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::default());
    let unknown = "cb1e6c09-49ab-4344-b63b-be70de58ae87";
    let ended = ground.one_prompt(&model, &["--resume", unknown], "go on");
    assert_eq!(ended.code, Some(1));
    let result = only_result(&ended);
    assert_eq!(result["subtype"], "error_during_execution");
    assert!(
        result["errors"]
            .to_string()
            .contains("No conversation found"),
        "{result}"
    );
    assert_eq!(expect_readings(&ended, &model), 0);
    "exit 1, no request".into()
}
