//! `tachikoma run --agent claude` with commands: stop, pause and skip during a turn.

use serde_json::Value;
use tachikoma_testkit::{Kind, Scenario, ScriptedModel, Turn, Usage};

use super::full::HELD;
use super::ground::Ground;
use super::looping::{LIMIT_REACHED, Looping, event_names, names, of_type, only, outcomes, pids};

/// The exit code of a loop that its operator stopped.
const STOPPED: i32 = 5;

/// A scripted model that calls the tool [`HELD`], and then sends texts.
fn model() -> ScriptedModel {
    ScriptedModel::start(Scenario::of([
        Turn::bash(HELD).using(Usage::cached(9_000)),
        Turn::text("after").using(Usage::cached(9_100)),
        Turn::text("and after").using(Usage::cached(9_200)),
    ]))
}

/// Checks that the agent was interrupted only by messages, never by signals, and that its process did not change.
#[track_caller]
fn expect_words_only(events: &[Value]) {
    for rung in of_type(events, "rung_climbed") {
        assert_eq!(rung["rung"], "interrupt", "{}", event_names(events));
    }
    assert_eq!(
        pids(events).len(),
        1,
        "one process: {}",
        event_names(events)
    );
    assert_eq!(names(events).len(), 1, "one conversation");
}

/// A stop waits for the end of the tool call and then ends the agent.
pub fn stop(ground: &Ground) -> String {
    let model = model();
    let looping = Looping::start(ground, &model, &[], 0);
    ground.await_file("started");
    looping.tell(&["stop"]);
    looping.await_events("ending_requested", 1);
    ground.scratch.write("go", "");
    let events = looping.end(STOPPED);
    assert_eq!(
        outcomes(&events),
        ["interrupted"],
        "{}",
        event_names(&events)
    );
    let tool = only(&events, "tool_ended");
    assert!(
        tool["error"].is_null(),
        "the tool call should have finished: {tool}"
    );
    expect_words_only(&events);
    "after the tool".into()
}

/// An immediate stop interrupts the tool call.
pub fn stop_now(ground: &Ground) -> String {
    let model = model();
    let looping = Looping::start(ground, &model, &[], 0);
    ground.await_file("started");
    looping.tell(&["stop", "--now"]);
    let events = looping.end(STOPPED);
    assert_eq!(
        outcomes(&events),
        ["interrupted"],
        "{}",
        event_names(&events)
    );
    expect_words_only(&events);
    assert_eq!(model.asked_for(Kind::Main).len(), 1);
    "by a word".into()
}

/// An immediate pause interrupts the turn. The process keeps running, and the conversation continues.
pub fn pause_now(ground: &Ground) -> String {
    let model = model();
    let looping = Looping::start(ground, &model, &[], 2);
    ground.await_file("started");
    looping.tell(&["pause", "--now"]);
    looping.await_events("paused", 1);
    looping.tell(&["resume"]);
    let events = looping.end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["interrupted", "succeeded"],
        "{}",
        event_names(&events)
    );
    expect_words_only(&events);
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!(
        last.messages, 3,
        "the conversation should have continued: {last:?}"
    );
    "same process, same conversation".into()
}

/// A pause starts after the turn and does not interrupt its tool call.
pub fn pause(ground: &Ground) -> String {
    let model = model();
    let looping = Looping::start(ground, &model, &[], 2);
    ground.await_file("started");
    looping.tell(&["pause"]);
    ground.scratch.write("go", "");
    looping.await_events("paused", 1);
    looping.tell(&["resume"]);
    let events = looping.end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["succeeded"; 2],
        "{}",
        event_names(&events)
    );
    expect_words_only(&events);
    "after the turn".into()
}

/// A skip interrupts the turn, and the same process gets the next prompt.
pub fn skip(ground: &Ground) -> String {
    let model = model();
    let looping = Looping::start(ground, &model, &[], 2);
    ground.await_file("started");
    looping.tell(&["skip"]);
    let events = looping.end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["skipped", "succeeded"],
        "{}",
        event_names(&events)
    );
    expect_words_only(&events);
    "same process".into()
}
