//! `tachikoma run --agent claude`: turns, conversations and permissions.

use std::path::Path;

use serde_json::{Value, json};
use tachikoma_testkit::{Kind, Scenario, ScriptedModel, Turn, Usage};

use super::ground::{Ground, WINDOW};
use super::looping::{
    LIMIT_REACHED, Looping, PROMPT, event_names, names, of_type, only, outcomes, pids,
};

/// Three iterations use one process and one conversation with three prompts.
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
    assert_eq!(
        outcomes(&events),
        ["succeeded"; 3],
        "{}",
        event_names(&events)
    );
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
    let others = model
        .asked()
        .iter()
        .filter(|asked| asked.kind != Kind::Main)
        .count();
    assert_eq!(others, 0, "the model is asked for nothing else");
    "3 prompts, 1 process".into()
}

/// With a fresh session for each iteration, every iteration has its own conversation and process.
pub fn fresh_each_iteration(ground: &Ground) -> String {
    let scenario = Scenario::of([
        Turn::text("one").using(Usage::cached(9_100)),
        Turn::text("two").using(Usage::cached(9_200)),
        Turn::text("three").using(Usage::cached(9_300)),
    ]);
    let model = ScriptedModel::start(scenario);
    let settings = [("SESSION__FRESH_EACH_ITERATION", "true")];
    let events = Looping::start(ground, &model, &settings, 3).end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["succeeded"; 3],
        "{}",
        event_names(&events)
    );
    let mut names = names(&events);
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), pids(&events).len()), (3, 3));
    for asked in model.asked_for(Kind::Main) {
        assert_eq!((asked.prompts, asked.last_user.as_str()), (1, PROMPT));
    }
    assert_eq!(of_type(&events, "reboot_completed").len(), 0);
    "3 conversations, no reboot".into()
}

/// With a process for each iteration, all processes share one conversation.
pub fn process_each_iteration(ground: &Ground) -> String {
    let scenario = Scenario::of([
        Turn::text("one").using(Usage::cached(9_100)),
        Turn::text("two").using(Usage::cached(9_200)),
        Turn::text("three").using(Usage::cached(9_300)),
    ]);
    let model = ScriptedModel::start(scenario);
    let settings = [("SESSION__PROCESS_EACH_ITERATION", "true")];
    let events = Looping::start(ground, &model, &settings, 3).end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["succeeded"; 3],
        "{}",
        event_names(&events)
    );
    let mut names = names(&events);
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), pids(&events).len()), (1, 3));
    let asked = model.asked_for(Kind::Main);
    let prompts: Vec<_> = asked.iter().map(|asked| asked.prompts).collect();
    assert_eq!(prompts, [1, 2, 3], "each knows those before it");
    "1 conversation, 3 processes".into()
}

/// The work and the result of a sub-agent are complete when the turn ends. Known fault of other loops: the agent worked on in the background.
pub fn nothing_in_the_background(ground: &Ground) -> String {
    let task = json!({
        "description": "count", "prompt": "count all the beans", "subagent_type": "general-purpose",
        "run_in_background": true,
    });
    let scenario = Scenario::of([Turn::tool("Agent", task), Turn::text("Seven.")]).with_subagent([
        Turn::bash("sleep 2; echo 7 > beans"),
        Turn::text("Seven beans."),
    ]);
    let model = ScriptedModel::start(scenario);
    let looping = Looping::start(ground, &model, &[], 1);
    looping.await_events("iteration_completed", 1);
    assert_eq!(ground.scratch.read("beans"), "7\n", "before the turn ended");
    let events = looping.ended(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    let asked = model.asked_for(Kind::Main);
    let results: Vec<_> = asked.iter().map(|asked| asked.tool_results).collect();
    assert_eq!(results, [0, 1], "the conversation got what it said");
    "its file and its words are there".into()
}

/// Without permission, nothing is written outside of the work tree. Known fault of other loops: the agent changed other directories.
pub fn outside_is_denied(ground: &Ground) -> String {
    let other = ground.scratch.home().join("elsewhere.txt");
    let write = json!({"file_path": other, "content": "not mine\n"});
    let scenario = Scenario::of([Turn::tool("Write", write), Turn::text("Not permitted.")]);
    let model = ScriptedModel::start(scenario);
    let settings = [("AGENTS__CLAUDE__PERMISSION", "safe")];
    let events = Looping::start(ground, &model, &settings, 1).ended(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    assert_eq!(only(&events, "tool_denied")["name"], "Write");
    assert!(!other.exists(), "{}", other.display());
    "denied".into()
}

/// Without permission, files of the work tree can be changed, commands are denied, and the loop shows it.
pub fn safe_permission(ground: &Ground) -> String {
    let file = ground.scratch.path().join("made.txt");
    let hook = ground.scratch.path().join(".git/hooks/pre-commit");
    let write = |path: &Path| Turn::tool("Write", json!({"file_path": path, "content": "made\n"}));
    let scenario = Scenario::of([
        write(&file).using(Usage::cached(9_100)),
        write(&hook).using(Usage::cached(9_100)),
        Turn::bash("curl http://127.0.0.1:1/ -o fetched").using(Usage::cached(9_200)),
        Turn::text("Not permitted, I see.").using(Usage::cached(9_300)),
    ]);
    let model = ScriptedModel::start(scenario);
    let settings = [("AGENTS__CLAUDE__PERMISSION", "safe")];
    let events = Looping::start(ground, &model, &settings, 1).end(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    assert_eq!(ground.scratch.read("made.txt"), "made\n");
    let denied = of_type(&events, "tool_denied");
    let names: Vec<&Value> = denied.iter().map(|event| &event["name"]).collect();
    assert_eq!(names, ["Write", "Bash"], "{denied:?}");
    assert_eq!(denied[1]["remedy"], r#"agents.claude.allow = ["curl"]"#);
    assert!(!hook.exists());
    assert!(!ground.scratch.path().join("fetched").exists());
    "a file is written, a hook of git and a command are denied".into()
}
