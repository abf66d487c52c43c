//! A failing model: what the agent prints, and how it ends.

use serde_json::json;
use tachikoma_testkit::{Fault, Scenario, ScriptedModel, Turn, Usage};

use super::ground::{Ground, expect_readings, only_result};

/// Reset time in seconds since 1970, far in the future.
const RESET: u64 = 4_000_000_000;

/// The usage limit of a subscription is reported with its reset time as a number.
pub fn usage_limit(ground: &Ground) -> String {
    let unified = |turn: Turn, name: &str, value: &str| {
        turn.header(&format!("anthropic-ratelimit-unified-{name}"), value)
    };
    let turn = Turn::status(
        429,
        "rate_limit_error",
        "This request would exceed your limit",
    );
    let turn = unified(turn, "status", "rejected");
    let turn = unified(turn, "reset", &RESET.to_string());
    let turn = unified(turn, "representative-claim", "five_hour");
    let scenario = Scenario::of([Turn::bash("true"), turn]).for_ever();
    let model = ScriptedModel::start(scenario);
    let mut command = ground.one_prompt_command(&model);
    // A subscription token replaces the key. It is a dummy, too.
    command
        .env_remove("ANTHROPIC_API_KEY")
        .env("CLAUDE_CODE_OAUTH_TOKEN", "dummy");
    let ended = ground.finish(&mut command, "work");
    assert_eq!(ended.code, Some(1));
    let events = ended.of_type("rate_limit_event");
    let last = events.last().expect("a rate_limit_event");
    assert_eq!(last["rate_limit_info"]["status"], "rejected");
    assert_eq!(last["rate_limit_info"]["resetsAt"], RESET);
    let result = only_result(&ended);
    assert_eq!(
        (&result["is_error"], &result["subtype"]),
        (&json!(true), &json!("success"))
    );
    assert_eq!(result["api_error"], "usage_limit_reached");
    assert_eq!(model.asked().len(), 2, "the agent does not retry");
    format!("resets at {RESET}")
}

/// An invalid key is reported.
pub fn not_authorised(ground: &Ground) -> String {
    let turn = Turn::status(401, "authentication_error", "invalid x-api-key");
    let model = ScriptedModel::start(Scenario::of([turn]).for_ever());
    let mut command = ground.one_prompt_command(&model);
    command.env("CLAUDE_CODE_MAX_RETRIES", "1");
    let ended = ground.finish(&mut command, "work");
    assert_eq!(ended.code, Some(1));
    let result = only_result(&ended);
    assert_eq!(result["is_error"], true);
    assert_eq!(result["api_error_status"], 401);
    assert!(
        ended.kinds().contains("system/api_retry"),
        "{}",
        ended.kinds()
    );
    format!("after {} requests", model.asked().len())
}

/// After one overload error the agent retries once and succeeds.
pub fn overloaded_once(ground: &Ground) -> String {
    let overloaded = Turn::status(529, "overloaded_error", "Overloaded");
    let model = ScriptedModel::start(Scenario::of([overloaded, Turn::text("well")]));
    let ended = ground.one_prompt(&model, &[], "work");
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    assert_eq!(only_result(&ended)["result"], "well");
    assert!(
        ended.kinds().contains("system/api_retry"),
        "{}",
        ended.kinds()
    );
    expect_readings(&ended, &model);
    "one retry".into()
}

/// After a stream ends early, the agent sends the request again.
pub fn cut_stream(ground: &Ground) -> String {
    let cut = Turn::fault(Fault::Cut { after: 4 }).using(Usage::cached(50_000));
    let model = ScriptedModel::start(Scenario::of([cut, Turn::text("whole")]));
    let ended = ground.one_prompt(&model, &[], "work");
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    assert_eq!(only_result(&ended)["result"], "whole");
    assert_eq!(model.asked().len(), 2);
    "asked again".into()
}

/// If the model is silent, the agent is silent, too, until it is killed.
pub fn silent_model(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([Turn::fault(Fault::NoAnswer)]));
    let mut talk = ground.talk(&model, &[]);
    talk.prompt("work");
    ground.await_lines(&talk, "system", 1);
    tachikoma_testkit::await_until("the request", ground.patience, || !model.asked().is_empty());
    talk.signal(rustix::process::Signal::TERM);
    let ended = ground.end(talk);
    assert_eq!((ended.code, ended.results().len()), (Some(143), 0));
    "exit 143".into()
}
