//! `tachikoma run --agent claude` with a wrong setup of Claude Code: the user sees the agent's own message.

use tachikoma_testkit::{Scenario, ScriptedModel, Turn};

use super::ground::Ground;
use super::looping::{Looping, Settings, event_names, only};

/// Setting that ends the loop at the first failure.
const ONCE: (&str, &str) = ("STOP_CONDITIONS__MAX_CONSECUTIVE_FAILURES", "1");

/// Runs a loop that fails at once, and returns the reason.
fn why(ground: &Ground, model: &ScriptedModel, settings: Settings<'_>) -> String {
    let settings = [&[ONCE][..], settings].concat();
    let events = Looping::start(ground, model, &settings, 1).ended(1);
    let error = only(&events, "error");
    let reason = error["outcome"]["reason"].as_str().map(str::to_owned);
    reason.unwrap_or_else(|| panic!("{}", event_names(&events)))
}

#[track_caller]
fn expect(reason: &str, words: &[&str]) {
    for word in words {
        assert!(reason.contains(word), "no {word:?} in: {reason}");
    }
}

/// Without a key or login, the loop reports that the agent is not logged in.
pub fn not_logged_in(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::default());
    let settings = [("AGENTS__CLAUDE__ENV__ANTHROPIC_API_KEY", "")];
    let reason = why(ground, &model, &settings);
    expect(&reason, &["Not logged in", "set ANTHROPIC_API_KEY"]);
    assert_eq!(model.asked().len(), 0);
    "its sentence and a hint".into()
}

/// An unknown model of the service is reported.
pub fn wrong_model(ground: &Ground) -> String {
    let turn = Turn::status(404, "not_found_error", "model: claude-nonesuch");
    let model = ScriptedModel::start(Scenario::of([turn]).for_ever());
    let settings = [("AGENTS__CLAUDE__MODEL", "claude-nonesuch")];
    let reason = why(ground, &model, &settings);
    expect(&reason, &["claude-nonesuch", "`[agents.claude]`"]);
    "its sentence and a hint".into()
}

/// An unknown argument of the agent is reported.
pub fn unknown_flag(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::default());
    let settings = [("AGENTS__CLAUDE__ARGS", "[\"--flag-of-the-future\"]")];
    let reason = why(ground, &model, &settings);
    expect(
        &reason,
        &["exit 1", "unknown option '--flag-of-the-future'"],
    );
    "its last words".into()
}

/// An invalid settings file of the agent is reported.
pub fn broken_settings(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::default());
    let own = ground.scratch.home().join("claude");
    std::fs::create_dir_all(&own).expect("the home is ours");
    std::fs::write(own.join(".claude.json"), "{ this is not JSON").expect("the home is ours");
    let reason = why(ground, &model, &[]);
    expect(&reason, &[".claude.json"]);
    "its sentence".into()
}

/// A missing settings file is reported.
pub fn no_settings(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::default());
    let settings = [("AGENTS__CLAUDE__ARGS", "[\"--settings\", \"nowhere.json\"]")];
    let reason = why(ground, &model, &settings);
    expect(&reason, &["exit 1", "nowhere.json"]);
    "its last words".into()
}
