//! Usage limits of Claude Code: the loop waits for the reset, also after a kill, and counts no failure.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;
use tachikoma_testkit::fake_agent::REPLAY_VAR;
use tachikoma_testkit::{Scenario, Scratch, Turn, await_until};

use crate::claude_fault_support::{claude, run, with_scenario};
use crate::support::{SOON, await_events, events, status};

/// Reset time in the recorded output, in seconds since 1970.
const RECORDED: &str = "1794715833";

fn now_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_secs()
}

/// Recorded output of a usage limit with a reset in the given number of seconds, then of a successful turn.
fn limited(seconds: u64) -> (Scratch, PathBuf, u64) {
    let scratch = with_scenario(&Scenario::of([Turn::text("one")]));
    let corpus =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tachikoma-agents/tests/corpus/claude");
    let read = |name: &str| fs::read_to_string(corpus.join(name)).expect("it is recorded");
    let lifted = now_seconds() + seconds;
    let limit = read("82-usage-limit-rejected.jsonl").replace(RECORDED, &lifted.to_string());
    let replay = scratch.path().join("../replay.jsonl");
    fs::write(&replay, limit + &read("01-simple-text.jsonl")).expect("it can be written");
    (scratch, replay, lifted)
}

fn millis(time: &Value) -> u64 {
    let time: jiff::Timestamp = time.as_str().expect("a time").parse().expect("RFC 3339");
    u64::try_from(time.as_millisecond()).expect("after 1970")
}

/// Known fault of other loops: the loop sent requests during a usage limit. Only one is sent before the reset, and one after it.
#[test]
fn a_usage_limit_causes_one_request_before_and_one_after_the_reset() {
    let (scratch, replay, lifted) = limited(6);
    let ran = claude(&scratch).env(REPLAY_VAR, &replay).run(run("1"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let printed = claude(&scratch).run(["events", "--json"]).stdout;
    let begun: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).expect("a record"))
        .filter(|record: &Value| record["event"]["type"] == "iteration_started")
        .collect();
    let attempts: Vec<_> = begun
        .iter()
        .map(|r| r["event"]["attempt"].clone())
        .collect();
    assert_eq!(attempts, [1, 2], "{}", ran.snapshot());
    let waits = events(&scratch, "wait_started");
    let late = millis(&waits[0]["wait"]["until"]) - lifted * 1000;
    assert_eq!(late, 5000, "the wait includes a margin after the reset");
    let asked = millis(&begun[1]["time"]) - lifted * 1000;
    assert!((late..20_000).contains(&asked), "{asked} ms after it");
    assert_eq!(waits[0]["wait"]["reason"], "usage_limit");
    assert_eq!(events(&scratch, "iteration_failed"), Vec::<Value>::new());
    assert_eq!(events(&scratch, "iteration_limited").len(), 1);
    assert_eq!(status(&scratch)["stats"]["iterations"], 1);
}

// Known fault of other loops: after a restart, the loop no longer waited for the reset.
#[test]
fn the_wait_for_a_reset_survives_a_kill_and_can_be_skipped() {
    let (scratch, replay, _) = limited(3600);
    let mut live = claude(&scratch).env(REPLAY_VAR, &replay).spawn(run("1"));
    await_events(&scratch, "wait_started", 1);
    let waiting = status(&scratch)["waiting"].clone();
    assert_eq!(waiting["reason"], "usage_limit");
    live.signal(Signal::KILL);
    live.wait(SOON);
    let again = claude(&scratch).spawn(run("1"));
    await_until("the wait to go on", SOON, || {
        status(&scratch)["waiting"] == waiting
    });
    let text = claude(&scratch).run(["status"]).snapshot();
    assert!(text.contains(" here)"), "local time: {text}");
    let skipped = claude(&scratch).run(["skip"]);
    assert!(
        skipped.stdout.contains("skips the wait"),
        "{}",
        skipped.snapshot()
    );
    assert_eq!(again.wait(Duration::from_secs(60)).code(), Some(3));
    assert_eq!(events(&scratch, "iteration_limited").len(), 1);
}
