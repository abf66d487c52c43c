//! The real agent, run as a plain command.

use rustix::process::Signal;
use tachikoma_testkit::{Kind, Scenario, ScriptedModel, Talk, Turn};

use super::ground::Ground;
use super::looping::LIMIT_REACHED;

fn run(ground: &Ground, model: &ScriptedModel, limit: &str) -> Talk {
    ground.scratch.write("prompt.md", "do the next thing\n");
    let words = [
        "run",
        "prompt.md",
        "--json",
        "--delay",
        "0s",
        "--max-iterations",
        limit,
        "--",
    ];
    Talk::start(&mut ground.tachikoma_around(model, &words), &ground.scratch)
}

/// As a plain command, the agent gets one prompt in each iteration, each in its own conversation.
pub fn as_command(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([Turn::text("one"), Turn::text("two")]));
    let ended = run(ground, &model, "2").end(ground.patience);
    assert_eq!(ended.code, Some(LIMIT_REACHED), "{}", ended.errors);
    let asked = model.asked_for(Kind::Main);
    assert_eq!(asked.len(), 2, "one request for each iteration");
    for asked in &asked {
        assert_eq!(
            (asked.last_user.as_str(), asked.prompts),
            ("do the next thing", 1)
        );
    }
    assert_ne!(asked[0].session, asked[1].session);
    "two iterations, two prompts".into()
}

/// A killed runner leaves neither the agent nor its tool, which has its own session.
pub fn killed_mid_tool(ground: &Ground) -> String {
    let tool = Turn::bash("echo x > started; for i in $(seq 600); do sleep 1; done");
    let model = ScriptedModel::start(Scenario::of([tool]));
    let mut talk = run(ground, &model, "1");
    ground.await_file("started");
    talk.signal(Signal::KILL);
    let ended = talk.end(ground.patience);
    assert_eq!(ended.code, None);
    "no process left".into()
}
