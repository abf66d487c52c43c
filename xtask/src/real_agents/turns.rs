//! `tachikoma run --agent claude`: turns, conversations and permissions.

use serde_json::json;
use tachikoma_testkit::{Kind, Scenario, ScriptedModel, Turn, Usage};

use super::ground::{Ground, WINDOW};
use super::looping::{LIMIT_REACHED, Looping, PROMPT, names, of_type, only, outcomes, pids, told};

/// Three iterations: one process, one conversation, three prompts.
pub fn one_conversation(ground: &Ground) -> String {
    let usage = |tokens| Usage::cached(tokens);
    let file = ground.scratch.path().join("made.txt");
    let write = json!({"file_path": file, "content": "made\n"});
    let scenario = Scenario::of([
        Turn::tool("Write", write).using(usage(9_000)),
        Turn::bash("cat made.txt; exit 3").using(usage(9_400)),
        Turn::text("one").using(usage(9_900)),
        Turn::text("two").using(usage(10_300)),
        Turn::text("three").using(usage(10_800)),
    ]);
    let model = ScriptedModel::start(scenario);
    let events = Looping::start(ground, &model, &[], 3).end(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"; 3], "{}", told(&events));
    assert_eq!(pids(&events).len(), 1, "one process");
    assert_eq!(names(&events).len(), 1, "one conversation");
    let asked = model.asked_for(Kind::Main);
    let words: Vec<&str> = asked.iter().map(|asked| asked.last_user.as_str()).collect();
    assert_eq!(words, [PROMPT, "", "", PROMPT, PROMPT]);
    assert_eq!(asked.iter().map(|asked| asked.prompts).max(), Some(3));
    let named = Some(names(&events)[0]);
    assert!(asked.iter().all(|asked| asked.session.as_deref() == named));
    assert_eq!(of_type(&events, "tool_started").len(), 2);
    let ended = of_type(&events, "tool_ended");
    let error = ended[1]["error"].as_str().unwrap_or_default();
    assert!(error.contains("Exit code 3"), "{error}");
    let path = &only(&events, "file_touched")["path"];
    assert_eq!(path.as_str(), file.to_str());
    let first = of_type(&events, "context_measured")[0];
    assert_eq!(first["context"]["window"], WINDOW);
    assert_eq!(first["redline_tokens"], WINDOW * 85 / 100);
    let others = model.asked().iter().filter(|asked| asked.kind != Kind::Main).count();
    assert_eq!(others, 0, "the model is asked for nothing else");
    "3 prompts, 1 process".into()
}
