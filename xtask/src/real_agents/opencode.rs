//! `tachikoma run --agent opencode` with the real server: conversation, permissions, a full context, limits, and kills.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tachikoma_testkit::{Fault, Kind, Request, Scenario, ScriptedModel, Turn, Usage, await_until};

use super::ground::Ground;
use super::looping::{
    LIMIT_REACHED, Looping, PROMPT, Settings, all_events, attempts, event_names, names, of_type,
    only, outcomes,
};
use super::opencode_environment::WINDOW;
use super::{Row, USUAL};

pub const CHECKS: &[Row] = &[
    Row("opencode-conversation", conversation, USUAL),
    Row("opencode-safe", safe, USUAL),
    Row("opencode-advice", advice, USUAL),
    Row("opencode-redline", redline, USUAL),
    Row("opencode-too-long", too_long, USUAL),
    Row("opencode-limit", limit, USUAL),
    Row("opencode-no-key", no_key, USUAL),
    Row("opencode-no-model", no_model, USUAL),
    Row("opencode-stall", stall, USUAL),
    Row("opencode-skip", skip, USUAL),
    Row("opencode-server-dies", server_dies, USUAL),
    Row("opencode-forgotten", forgotten, USUAL),
    Row("opencode-runner-dies", runner_dies, USUAL),
    Row("opencode-once", once, USUAL),
];

/// A shell command that creates `started` and then waits until the test creates `go`.
const HELD: &str = "echo x > started; until [ -e go ]; do sleep 0.1; done; echo whole";

pub(super) fn start<'a>(
    ground: &'a Ground,
    model: &'a ScriptedModel,
    settings: Settings<'a>,
    iterations: u32,
) -> Looping<'a> {
    Looping::with("opencode", ground, model, settings, iterations)
}

fn write(path: &str) -> Turn {
    Turn::tool("write", json!({"filePath": path, "content": "beans\n"}))
}

/// All iterations share one conversation, and the recorded context usage equals the model's token counts.
fn conversation(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([
        Turn::bash("echo one > one").using(Usage::cached(9_000)),
        Turn::text("one").using(Usage::cached(9_100)),
        Turn::text("two").using(Usage::cached(9_200)),
    ]));
    let events = start(ground, &model, &[], 2).end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["succeeded"; 2],
        "{}",
        event_names(&events)
    );
    assert_eq!(names(&events).len(), 1);
    let reading = of_type(&events, "context_measured")[0];
    assert_eq!(reading["context"]["window"], WINDOW);
    assert_eq!(ground.scratch.read("one"), "one\n");
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!((last.prompts, last.last_user.as_str()), (2, PROMPT));
    assert!(
        of_type(&events, "warned").is_empty(),
        "its version is tried: {}",
        event_names(&events)
    );
    "2 iterations in 1 conversation, context window reported".into()
}

/// In safe mode, files of the work tree can be changed, everything else is denied, and the turn continues.
fn safe(ground: &Ground) -> String {
    let inside = ground.scratch.path().join("inside.txt");
    let outside = ground.scratch.home().join("outside.txt");
    let hook = ground.scratch.path().join(".git/hooks/pre-commit");
    let model = ScriptedModel::start(Scenario::of([
        write(&inside.to_string_lossy()),
        Turn::bash("echo no > shell"),
        write(&outside.to_string_lossy()),
        write(&hook.to_string_lossy()),
        Turn::bash("tachikoma note mind the beans"),
        Turn::bash("touch allowed 2>&1"),
        Turn::text("Some of it."),
    ]));
    let settings = [
        ("AGENTS__OPENCODE__PERMISSION", "safe"),
        ("AGENTS__OPENCODE__ALLOW", r#"["touch"]"#),
    ];
    let events = start(ground, &model, &settings, 1).ended(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    let denied: Vec<_> = of_type(&events, "tool_denied")
        .iter()
        .map(|event| event["name"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(
        denied,
        ["bash", "external_directory", "edit"],
        "{}",
        event_names(&events)
    );
    assert!(inside.exists() && !outside.exists() && !hook.exists());
    assert!(!ground.scratch.path().join("shell").exists());
    assert!(ground.scratch.path().join("allowed").exists());
    let ended = of_type(&events, "tool_ended");
    assert_eq!(of_type(&events, "noted").len(), 1, "{:?}", ended.last());
    "a file, a note, an allowed command, and three denials".into()
}

/// The agent gets the advice at the warning threshold during the same turn.
fn advice(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([
        Turn::bash("echo warm").using(Usage::cached(72_000)),
        Turn::bash(HELD).using(Usage::cached(73_000)),
        Turn::text("Coming to an end.").using(Usage::cached(74_000)),
    ]));
    let looping = start(ground, &model, &[], 1);
    looping.await_events("wrap_up_advised", 1);
    ground.await_file("started");
    ground.scratch.write("go", "");
    let events = looping.end(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    let asked = model.asked_for(Kind::Main);
    assert_eq!(asked.len(), 3, "one turn");
    assert!(
        asked[2].last_user.contains("Your context is 72 % full"),
        "{:?}",
        asked[2]
    );
    "between two requests of one turn".into()
}

/// At the redline, the turn is interrupted after the tool call, the hand-off is written, and a new session has it in its prompt.
fn redline(ground: &Ground) -> String {
    let model = ScriptedModel::reacting(Scenario::default(), |request: &Request| {
        let fresh = request
            .first_user
            .contains("Hand-off from the previous session");
        Some(if fresh {
            Turn::text("On we go.").using(Usage::cached(11_000))
        } else if request.last_user.contains("Write its hand-off") {
            Turn::text("Mind the beans.").using(Usage::cached(87_500))
        } else {
            Turn::bash("echo x >> steps").using(Usage::cached(87_000))
        })
    });
    let events = start(ground, &model, &[], 2).end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["handed_over", "succeeded"],
        "{}",
        event_names(&events)
    );
    only(&events, "reboot_completed");
    assert_eq!(of_type(&events, "session_started").len(), 2);
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert!(last.last_user.contains("Mind the beans."), "{last:?}");
    "handed over to a fresh session".into()
}

/// If the context is too full for the model service, a new session starts instead of an endless compaction.
fn too_long(ground: &Ground) -> String {
    let model = ScriptedModel::reacting(Scenario::default(), |request: &Request| {
        let fresh = request
            .first_user
            .contains("Hand-off from the previous session");
        Some(if fresh {
            Turn::text("On we go.")
        } else {
            let full = "This model's maximum context length is 100000 tokens. However, your messages resulted in 130000 tokens.";
            Turn::status(400, "context_length_exceeded", full)
        })
    });
    let events = start(ground, &model, &[], 2).ended(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["handed_over", "succeeded"],
        "{}",
        event_names(&events)
    );
    let asked = model.asked().len();
    assert!(asked < 10, "{asked} requests");
    format!("{asked} requests")
}

/// If the service reports when its limit resets, the loop waits until then, and the iteration does not count as failed.
fn limit(ground: &Ground) -> String {
    let mut refused = false;
    let model = ScriptedModel::reacting(Scenario::default(), move |request: &Request| {
        if request.kind != Kind::Main || refused {
            return None;
        }
        refused = true;
        let turn = Turn::status(429, "rate_limit_error", "Rate limit reached for fake-1");
        Some(turn.header("retry-after", "3600"))
    });
    let looping = start(ground, &model, &[], 1);
    looping.await_events("iteration_limited", 1);
    looping.await_events("wait_started", 1);
    looping.tell(&["skip"]);
    let events = looping.ended(LIMIT_REACHED);
    let limited = only(&events, "iteration_limited");
    assert!(limited["until"].is_string(), "{limited}");
    assert_eq!(limited["reason"], "Rate limit reached for fake-1");
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    assert_eq!(attempts(&events), [(1, 1), (1, 2)]);
    "waited for, and repeated".into()
}

fn why(ground: &Ground, model: &ScriptedModel, settings: Settings<'_>) -> String {
    let events = start(ground, model, settings, 1).ended(1);
    let error = only(&events, "error");
    let reason = error["outcome"]["reason"].as_str();
    reason
        .unwrap_or_else(|| panic!("{}", event_names(&events)))
        .to_owned()
}

/// An invalid key ends the loop with advice.
fn no_key(ground: &Ground) -> String {
    let turn = Turn::status(401, "invalid_api_key", "Incorrect API key provided: dummy.");
    let model = ScriptedModel::start(Scenario::of([turn]).for_ever());
    let reason = why(ground, &model, &[]);
    assert!(
        reason.contains("Incorrect API key") && reason.contains("`opencode auth login`"),
        "{reason}"
    );
    "its sentence and a hint".into()
}

/// An unknown model ends the loop with advice.
fn no_model(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::default());
    let settings = [("AGENTS__OPENCODE__MODEL", "fake/none")];
    let reason = why(ground, &model, &settings);
    assert!(
        reason.contains("Model not found") && reason.contains("`[agents.opencode]`"),
        "{reason}"
    );
    "its sentence and a hint".into()
}

/// A turn with a silent model times out and is aborted in the server.
fn stall(ground: &Ground) -> String {
    let mut silent = false;
    let model = ScriptedModel::reacting(Scenario::default(), move |request: &Request| {
        (request.kind == Kind::Main && !std::mem::replace(&mut silent, true))
            .then(|| Turn::fault(Fault::NoAnswer))
    });
    let settings = [("SESSION__SILENCE_TIMEOUT", "2s")];
    let events = start(ground, &model, &settings, 2).ended(LIMIT_REACHED);
    let failed = only(&events, "iteration_failed");
    assert_eq!(failed["failure"]["kind"], "timed_out", "{failed}");
    assert_eq!(
        outcomes(&events),
        ["failed", "succeeded"],
        "{}",
        event_names(&events)
    );
    assert_eq!(names(&events).len(), 1, "the same conversation");
    "given up, and gone on in the same conversation".into()
}

/// Skipping an iteration ends its tool call, and the conversation continues.
fn skip(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([
        Turn::bash(HELD).using(Usage::cached(9_000)),
        Turn::text("two").using(Usage::cached(9_100)),
    ]));
    let looping = start(ground, &model, &[], 2);
    ground.await_file("started");
    looping.tell(&["skip"]);
    let events = looping.end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["skipped", "succeeded"],
        "{}",
        event_names(&events)
    );
    assert_eq!(
        (
            names(&events).len(),
            of_type(&events, "agent_launched").len()
        ),
        (1, 1)
    );
    "its tool ended, same conversation".into()
}

/// Returns the process id of the server, from the server file.
fn server(ground: &Ground) -> Option<Pid> {
    let path = ground
        .scratch
        .path()
        .join(".ralph/opencode-agent/server.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    Pid::from_raw(i32::try_from(file["pid"].as_i64()?).ok()?)
}

pub(super) fn kill_server(ground: &Ground) {
    let server = server(ground).expect("a server");
    kill_process(server, Signal::KILL).expect("the test started this process");
}

/// After the server is killed, the turn continues in the same conversation, with its prompt once.
fn server_dies(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([
        Turn::bash(HELD).using(Usage::cached(9_000)),
        Turn::text("on we go").using(Usage::cached(9_100)),
    ]));
    let looping = start(ground, &model, &[], 1);
    ground.await_file("started");
    kill_server(ground);
    let events = looping.end(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    let cut = only(&events, "attempt_cut");
    assert!(
        cut["reason"].to_string().contains("server was lost"),
        "{cut}"
    );
    assert_eq!(names(&events).len(), 1);
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!((last.prompts, last.tool_results), (1, 1), "{last:?}");
    "same conversation, one prompt".into()
}

/// A server that lost its data gets a new conversation with the hand-off.
fn forgotten(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([Turn::text("one"), Turn::text("two")]));
    let looping = start(ground, &model, &[], 1);
    looping.await_events("iteration_completed", 1);
    let mut looping = looping;
    await_until("the end of the run", ground.patience, || {
        !looping.talk().is_running()
    });
    let data = ground.scratch.home().join(".local/share/opencode");
    std::fs::remove_dir_all(&data).expect("its data");
    let events = looping
        .go_on(&["--max-iterations", "2"])
        .ended(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    assert_eq!(
        of_type(&events, "session_started").len(),
        1,
        "{}",
        event_names(&events)
    );
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert!(
        last.last_user
            .contains("Hand-off from the previous session"),
        "{last:?}"
    );
    "a fresh one with the checkpoint".into()
}

/// After the runner and its server are killed, the conversation continues.
fn runner_dies(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([
        Turn::text("one").using(Usage::cached(9_000)),
        Turn::bash(HELD).using(Usage::cached(9_100)),
        Turn::text("on we go").using(Usage::cached(9_200)),
    ]));
    let mut looping = start(ground, &model, &[], 2);
    ground.await_file("started");
    let server = server(ground).expect("a server").as_raw_nonzero();
    looping.talk().signal(Signal::KILL);
    await_until("the runner's end", ground.patience, || {
        !looping.talk().is_running()
    });
    let gone = || !std::path::Path::new(&format!("/proc/{server}")).exists();
    await_until("the server's end", ground.patience, gone);
    let events = looping.take_up().end(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    let all = all_events(ground, &model);
    assert_eq!(names(&all).len(), 1, "{}", event_names(&all));
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!((last.prompts, last.tool_results), (2, 1), "{last:?}");
    "same conversation, no prompt twice".into()
}

/// Without a server, every iteration has its own process, and all share one conversation.
fn once(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([
        Turn::bash("echo one > one").using(Usage::cached(9_000)),
        Turn::text("one").using(Usage::cached(9_100)),
        Turn::text("two").using(Usage::cached(9_200)),
    ]));
    let settings = [("SESSION__PROCESS_EACH_ITERATION", "true")];
    let events = start(ground, &model, &settings, 2).end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["succeeded"; 2],
        "{}",
        event_names(&events)
    );
    assert_eq!(of_type(&events, "agent_launched").len(), 2);
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!(
        (last.prompts, last.last_user.as_str()),
        (2, PROMPT),
        "{last:?}"
    );
    "1 conversation, 2 processes".into()
}
