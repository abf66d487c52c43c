//! A loop that fills its context window repeatedly. The model does one long task, knows only its conversation, and reads the files
//! first in a new session. Lost or repeated work is visible in the files.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tachikoma_testkit::{Asked, Kind, Request, Scenario, ScriptedModel, Turn, Usage};

use super::ground::{Ground, Programs, WINDOW};
use super::looping::{Looping, Settings, event_names, names, of_type, only, outcomes};

/// Context usage in tokens from which the loop sends no prompt: 3,000 tokens before the agent's own limit.
const HARD_LIMIT: u64 = WINDOW - 23_000 - 3_000;
const REDLINE: u64 = WINDOW * 85 / 100;

/// Shell command that prints the progress of the work.
const LOOK: &str = "touch work; wc -l < work";

/// Shell command of one step, which depends on all previous steps.
const STEP: &str = "sha256sum < work >> work; wc -l < work";

/// Number of steps of a session, after it has read the progress, before it is full.
const STEPS_PER_SESSION: u64 = 10;

/// Settings with a window that this work never fills.
const ENDLESS: Settings<'_> = &[
    ("AGENTS__CLAUDE__MODEL", "claude-sonnet-4-5[1m]"),
    ("CONTEXT_REDLINE_PERCENT", "100"),
];

/// Text in the request for a hand-off.
const HAND_OFF_ASKED: &str = "Write its hand-off";

/// How sessions fill: to just above the redline, or in one step from below it to beyond the hard limit.
const KINDS: [Usage; 2] = [
    Usage::cached(20_000).growing_by(15_000),
    Usage::cached(18_000).growing_by(16_500),
];

/// Returns a scripted model that lets the agent run this many steps and then claims completion.
fn worker(steps: u64, kinds: [Usage; 2]) -> ScriptedModel {
    let mut sessions: Vec<Option<String>> = Vec::new();
    ScriptedModel::reacting(Scenario::default(), move |request| {
        if request.kind != Kind::Main {
            return None;
        }
        if !sessions.contains(&request.session) {
            sessions.push(request.session.clone());
        }
        let number = sessions.iter().position(|known| *known == request.session);
        let usage = kinds[number.unwrap_or_default() % kinds.len()];
        let turn = if request.last_user.contains(HAND_OFF_ASKED) {
            Turn::text("All steps so far are in the file `work`.")
        } else {
            match last_output(request) {
                Some(done) if done >= steps => Turn::text("<promise>COMPLETE</promise>"),
                Some(_) => Turn::bash(STEP),
                None => Turn::bash(LOOK),
            }
        };
        Some(turn.using(usage))
    })
}

/// Returns the number in the output of the last tool call since the last prompt; `None` if there was none.
fn last_output(request: &Request) -> Option<u64> {
    let message = request.body["messages"].as_array()?.last()?;
    let blocks = message["content"].as_array()?;
    let result = blocks.iter().find(|block| block["type"] == "tool_result")?;
    let text = match &result["content"] {
        Value::String(text) => text.clone(),
        blocks => blocks[0]["text"].as_str()?.to_owned(),
    };
    text.lines().next()?.trim().parse().ok()
}

/// A short check: a few sessions fill their context window.
pub fn again_and_again(ground: &Ground) -> String {
    fill(ground, 5)
}

/// Runs the same with more reboots, for the soak.
pub fn soak(programs: &Programs, reboots: u32) -> String {
    fill(
        &Ground::new(programs, Duration::from_secs(60 + 10 * u64::from(reboots))),
        reboots,
    )
}

fn fill(ground: &Ground, reboots: u32) -> String {
    let steps = u64::from(reboots) * STEPS_PER_SESSION + 3;
    let model = worker(steps, KINDS);
    let events = Looping::start(ground, &model, &[], 0).end(0);
    assert_eq!(
        ground.scratch.read("work"),
        unlimited(ground, steps),
        "the work"
    );
    let seen = outcomes(&events);
    let failed = seen.iter().any(|outcome| outcome == "failed");
    assert!(!failed, "{}", event_names(&events));
    let completed = of_type(&events, "reboot_completed").len();
    assert!(
        completed >= reboots as usize,
        "{completed} reboots: {}",
        event_names(&events)
    );
    assert_eq!(names(&events).len(), completed + 1, "a conversation each");
    for verified in of_type(&events, "reboot_verified") {
        assert!(verified["futile"].is_null(), "{verified}");
        assert!(verified["percent"].as_u64() < Some(85), "{verified}");
    }
    assert_eq!(of_type(&events, "reboot_verified").len(), completed);
    assert_eq!(only(&events, "completed")["outcome"]["kind"], "done");
    let asked = model.asked_for(Kind::Main);
    expect_no_prompt_beyond(&events);
    expect_full(&asked);
    let skipped = completed - of_type(&events, "hand_off_requested").len();
    assert!(
        0 < skipped && skipped < completed,
        "some sessions are asked for a hand-off and some are too full: {}",
        event_names(&events)
    );
    let fresh: Vec<&Asked> = asked.iter().filter(|asked| asked.messages == 1).collect();
    assert_eq!(fresh.len(), completed + 1, "fresh sessions");
    format!("{completed} reboots, {skipped} of them beyond the hard limit, {steps} steps")
}

/// Checks that no prompt, for an iteration or a hand-off, is sent in a session with a last reading at the hard limit. The agent
/// would refuse it before the model gets it.
#[track_caller]
fn expect_no_prompt_beyond(events: &[Value]) {
    let mut last = 0;
    for event in events {
        match event["type"].as_str().unwrap_or_default() {
            "session_started" => last = 0,
            "context_measured" => last = event["context"]["tokens"].as_u64().unwrap_or_default(),
            kind @ ("iteration_started" | "hand_off_requested") => {
                assert!(last < HARD_LIMIT, "{kind} at {last} tokens");
            }
            _ => {}
        }
    }
}

/// Checks that every session but the last was replaced because it was full.
#[track_caller]
fn expect_full(asked: &[Asked]) {
    let mut fullest: BTreeMap<&Option<String>, u64> = BTreeMap::new();
    for asked in asked {
        let tokens = asked.usage.map_or(0, |usage| usage.context());
        let most = fullest.entry(&asked.session).or_default();
        *most = tokens.max(*most);
    }
    let full = fullest
        .values()
        .filter(|tokens| **tokens >= REDLINE)
        .count();
    assert_eq!(full + 1, fullest.len(), "all but the last were full");
}

/// Does the same work in one session without a limit, and returns the result.
fn unlimited(ground: &Ground, steps: u64) -> String {
    let other = ground.another();
    let low = Usage::cached(20_000).growing_by(10);
    let model = worker(steps, [low, low]);
    let events = Looping::start(&other, &model, ENDLESS, 0).end(0);
    assert_eq!(
        names(&events).len(),
        1,
        "one session: {}",
        event_names(&events)
    );
    other.scratch.read("work")
}
