//! `tachikoma run --agent claude` with a full context: advice, hand-off, reboot.

use rustix::process::Signal;
use tachikoma_testkit::{Kind, Request, Scenario, ScriptedModel, Turn, Usage, await_until};

use super::ground::Ground;
use super::looping::{
    LIMIT_REACHED, Looping, PROMPT, event_names, names, of_type, only, outcomes, pids,
};

/// A shell command that creates `started` and then waits until the test creates `go`.
pub const HELD: &str = "echo x > started; until [ -e go ]; do sleep 0.1; done; echo whole";

/// The agent gets the advice at the warning threshold during the same turn.
pub fn advice(ground: &Ground) -> String {
    let warned = Usage::cached(145_000);
    let scenario = Scenario::of([
        Turn::bash(HELD).using(warned),
        Turn::text("Coming to an end.").using(Usage::cached(146_000)),
    ]);
    let model = ScriptedModel::start(scenario);
    let looping = Looping::start(ground, &model, &[], 1);
    looping.await_events("wrap_up_advised", 1);
    ground.await_file("started");
    ground.scratch.write("go", "");
    let events = looping.end(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    assert_eq!(only(&events, "wrap_up_advised")["percent"], 72);
    let asked = model.asked_for(Kind::Main);
    assert_eq!(asked.len(), 2, "one turn");
    let (words, results) = (&asked[1].last_user, asked[1].tool_results);
    assert!(words.contains("Your context is 72 % full"), "{words}");
    assert_eq!(results, 1, "the message came with the tool result");
    assert_eq!(of_type(&events, "reboot_requested").len(), 0);
    "in the result of the tool".into()
}

/// A message of the operator reaches the agent during the same turn, once.
pub fn told_words(ground: &Ground) -> String {
    let scenario = Scenario::of([
        Turn::bash(HELD).using(Usage::cached(10_000)),
        Turn::text("I will.").using(Usage::cached(11_000)),
        Turn::text("I did.").using(Usage::cached(12_000)),
    ]);
    let model = ScriptedModel::start(scenario);
    let looping = Looping::start(ground, &model, &[], 2);
    ground.await_file("started");
    looping.tell(&["tell", "mind the beans"]);
    looping.await_events("operator", 2);
    ground.scratch.write("go", "");
    let events = looping.end(LIMIT_REACHED);
    let asked = model.asked_for(Kind::Main);
    assert_eq!(asked.len(), 3, "{}", event_names(&events));
    let (words, results) = (&asked[1].last_user, asked[1].tool_results);
    assert!(
        words.contains("The operator says:\n\nmind the beans"),
        "{words}"
    );
    assert_eq!(results, 1, "the message came with the tool result");
    assert!(
        !asked[2].last_user.contains("beans"),
        "{}",
        asked[2].last_user
    );
    "in the result of the tool, once".into()
}

/// At the redline, the tool call finishes, the turn is interrupted, the hand-off is written, and a new session has it in its prompt.
pub fn redline(ground: &Ground) -> String {
    let model = ScriptedModel::reacting(Scenario::default(), |request: &Request| {
        let fresh = request
            .first_user
            .contains("Hand-off from the previous session");
        Some(if fresh {
            Turn::text("On we go.").using(Usage::cached(21_000))
        } else if request.last_user.contains("Write its hand-off") {
            Turn::text("Mind the beans.").using(Usage::cached(171_500))
        } else if request.tool_results == 0 {
            Turn::bash(HELD).using(Usage::cached(171_000))
        } else {
            // The model requests this tool call before the interrupt arrives.
            Turn::bash("echo too late > late").using(Usage::cached(172_000))
        })
    });
    let looping = Looping::start(ground, &model, &[], 2);
    looping.await_events("ending_requested", 1);
    ground.await_file("started");
    ground.scratch.write("go", "");
    let events = looping.end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["handed_over", "succeeded"],
        "{}",
        event_names(&events)
    );
    let tool = of_type(&events, "tool_ended")[0];
    assert!(
        tool["error"].is_null(),
        "the tool call should have finished: {tool}"
    );
    let written = of_type(&events, "hand_off_written");
    let last = written.last().expect("a hand-off");
    assert_eq!(last["text"], "Mind the beans.");
    let rungs = of_type(&events, "rung_climbed");
    assert_eq!(
        rungs.len(),
        1,
        "a word was enough: {}",
        event_names(&events)
    );
    let (names, pids) = (names(&events), pids(&events));
    assert_eq!((names.len(), pids.len()), (2, 2));
    let verified = only(&events, "reboot_verified");
    assert_eq!(verified["percent"], 10);
    assert!(verified["futile"].is_null(), "{verified}");
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!(last.session.as_deref(), Some(names[1]));
    assert_eq!(last.messages, 1, "a conversation that begins");
    for words in ["Mind the beans.", "context at 85%", PROMPT] {
        assert!(
            last.last_user.contains(words),
            "{words}: {}",
            last.last_user
        );
    }
    let order = [
        "tool_ended",
        "rung_climbed",
        "hand_off_written",
        "agent_exited",
    ];
    let place = |kind: &str| events.iter().position(|event| event["type"] == kind);
    assert!(
        order.is_sorted_by_key(|kind| place(kind)),
        "{}",
        event_names(&events)
    );
    "85% -> 10%, hand-off in the prompt".into()
}

/// The context crosses the hard limit during a tool call, and again during the hand-off. The hand-off is used.
pub fn hard_limit_mid_tool(ground: &Ground) -> String {
    let model = ScriptedModel::reacting(Scenario::default(), |request: &Request| {
        let fresh = request
            .first_user
            .contains("Hand-off from the previous session");
        Some(if fresh {
            Turn::text("On we go.").using(Usage::cached(21_000))
        } else if request.last_user.contains("Write its hand-off") {
            Turn::text("Mind the beans.").using(Usage::cached(176_000))
        } else {
            Turn::bash(HELD).using(Usage::cached(174_500))
        })
    });
    let looping = Looping::start(ground, &model, &[], 2);
    looping.await_events("ending_requested", 1);
    ground.await_file("started");
    ground.scratch.write("go", "");
    let events = looping.end(LIMIT_REACHED);
    let seen = event_names(&events);
    assert_eq!(outcomes(&events), ["handed_over", "succeeded"], "{seen}");
    let written = of_type(&events, "hand_off_written");
    let last = written.last().expect("a hand-off");
    assert_eq!(last["text"], "Mind the beans.", "{seen}");
    assert!(!seen.contains("wrote no hand-off"), "{seen}");
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert!(last.last_user.contains("Mind the beans."), "{seen}");
    "hand-off written at 176000 tokens".into()
}

/// The runner is killed during the hand-off. The next runner asks again in the same conversation.
pub fn runner_dies(ground: &Ground) -> String {
    let mut asked_before = false;
    let model = ScriptedModel::reacting(Scenario::default(), move |request: &Request| {
        let fresh = request
            .first_user
            .contains("Hand-off from the previous session");
        Some(if fresh {
            Turn::text("On we go.").using(Usage::cached(21_000))
        } else if request.last_user.contains("Write its hand-off") {
            let turn = Turn::text("Mind the beans.").using(Usage::cached(171_500));
            let delay_ms = match std::mem::replace(&mut asked_before, true) {
                false => 60_000,
                true => 0,
            };
            Turn { delay_ms, ..turn }
        } else {
            Turn::text("One.").using(Usage::cached(171_000))
        })
    });
    let mut looping = Looping::start(ground, &model, &[], 2);
    looping.await_events("hand_off_requested", 1);
    await_until("the request", ground.patience, || {
        model.asked_for(Kind::Main).len() >= 2
    });
    looping.talk().signal(Signal::KILL);
    await_until("the runner's end", ground.patience, || {
        !looping.talk().is_running()
    });
    let events = looping.take_up().ended(LIMIT_REACHED);
    let seen = event_names(&events);
    let written = of_type(&events, "hand_off_written");
    let last = written.last().expect("a hand-off");
    assert_eq!(last["text"], "Mind the beans.", "{seen}");
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert!(last.last_user.contains("Mind the beans."), "{seen}");
    "asked again".into()
}

/// With an immediate reboot, the tool call is interrupted, and no hand-off is requested.
pub fn immediate(ground: &Ground) -> String {
    let scenario = Scenario::of([
        Turn::bash(HELD).using(Usage::cached(171_000)),
        Turn::text("On we go.").using(Usage::cached(21_000)),
    ]);
    let model = ScriptedModel::start(scenario);
    let settings = [("REBOOT__MODE", "immediate")];
    let events = Looping::start(ground, &model, &settings, 2).end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["handed_over", "succeeded"],
        "{}",
        event_names(&events)
    );
    assert_eq!(of_type(&events, "hand_off_requested").len(), 0);
    assert_eq!(only(&events, "reboot_verified")["percent"], 10);
    assert_eq!(model.asked_for(Kind::Main).len(), 2);
    "the tool was cut".into()
}

/// The service rejects a conversation that is too long, and a new session takes over. Known fault of other loops: the loop could not continue.
pub fn too_long(ground: &Ground) -> String {
    let refused = "prompt is too long: 210000 tokens > 200000 maximum";
    let scenario = Scenario::of([
        Turn::bash("true").using(Usage::cached(100_000)),
        Turn::status(400, "invalid_request_error", refused),
        Turn::text("On we go.").using(Usage::cached(21_000)),
    ]);
    let model = ScriptedModel::start(scenario);
    let events = Looping::start(ground, &model, &[], 2).end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["handed_over", "succeeded"],
        "{}",
        event_names(&events)
    );
    assert_eq!(names(&events).len(), 2);
    assert_eq!(of_type(&events, "hand_off_requested").len(), 0);
    "a fresh session".into()
}

/// The operator requests a reboot during a turn.
pub fn by_hand(ground: &Ground) -> String {
    let scenario = Scenario::of([
        Turn::bash(HELD).using(Usage::cached(9_000)),
        // The delay lets the interrupt arrive before the answer.
        Turn {
            delay_ms: 5_000,
            ..Turn::bash("echo too late > late").using(Usage::cached(9_100))
        },
    ])
    .when(
        "Write its hand-off",
        Turn::text("Half done.").using(Usage::cached(9_200)),
    )
    .when(
        "Half done.",
        Turn::text("On we go.").using(Usage::cached(9_300)),
    );
    let model = ScriptedModel::start(scenario);
    let looping = Looping::start(ground, &model, &[], 2);
    ground.await_file("started");
    looping.tell(&["reboot"]);
    looping.await_events("ending_requested", 1);
    ground.scratch.write("go", "");
    let events = looping.end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["handed_over", "succeeded"],
        "{}",
        event_names(&events)
    );
    assert_eq!(names(&events).len(), 2);
    assert_eq!(
        of_type(&events, "tool_ended")[0]["error"],
        serde_json::Value::Null
    );
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert!(last.last_user.contains("Half done."), "{}", last.last_user);
    // Loop and agent have ended, so the file cannot be created later.
    assert!(
        !ground.scratch.path().join("late").exists(),
        "a tool ran after the interrupt"
    );
    "with its hand-off".into()
}
