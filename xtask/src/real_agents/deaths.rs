//! `tachikoma run --agent claude` with a runner or agent that is killed during a turn.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tachikoma_testkit::{Kind, Scenario, ScriptedModel, Turn, Usage, await_until};

use super::ground::Ground;
use super::looping::{
    LIMIT_REACHED, Looping, Settings, all_events, event_names, names, of_type, outcomes, pids,
};

/// Shell command that waits first. The agent saves its conversation with a delay, and a kill before that loses its end.
const HELD: &str = "sleep 1; echo x > started; until [ -e go ]; do sleep 0.1; done";

fn model() -> ScriptedModel {
    ScriptedModel::start(Scenario::of([
        Turn::text("one").using(Usage::cached(9_000)),
        Turn::bash(HELD).using(Usage::cached(9_100)),
        Turn::text("on we go").using(Usage::cached(9_200)),
    ]))
}

/// Kills the runner during the second iteration, and resumes the loop.
fn kill_runner(ground: &Ground, model: &ScriptedModel, settings: Settings<'_>) -> Vec<Value> {
    let mut looping = Looping::start(ground, model, settings, 2);
    ground.await_file("started");
    let agent = *pids(&looping.events()).last().expect("an agent");
    looping.talk().signal(Signal::KILL);
    await_until("the runner's end", ground.patience, || {
        !looping.talk().is_running()
    });
    await_until("the agent's end", ground.patience, || is_gone(agent));
    let events = looping.take_up().end(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    assert_eq!(
        of_type(&events, "attempt_cut").len(),
        1,
        "{}",
        event_names(&events)
    );
    all_events(ground, model)
}

fn is_gone(pid: u64) -> bool {
    !std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// After the runner is killed, the conversation continues where it was.
pub fn runner(ground: &Ground) -> String {
    let model = model();
    let events = kill_runner(ground, &model, &[]);
    assert_eq!((names(&events).len(), pids(&events).len()), (1, 2));
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!(last.session.as_deref(), Some(names(&events)[0]));
    assert_eq!((last.prompts, last.tool_results), (3, 1), "{last:?}");
    assert_eq!(of_type(&events, "reboot_completed").len(), 0);
    "same conversation".into()
}

/// With a fresh session for each iteration, the new session has the hand-off in its prompt.
pub fn runner_unkept(ground: &Ground) -> String {
    let model = model();
    let settings = [("SESSION__PERSIST_SESSIONS", "false")];
    let events = kill_runner(ground, &model, &settings);
    assert_eq!((names(&events).len(), pids(&events).len()), (2, 2));
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!(
        (last.messages, last.session.as_deref()),
        (1, Some(names(&events)[1]))
    );
    let words = &last.last_user;
    assert!(
        words.contains("Hand-off from the previous session"),
        "{words}"
    );
    "a fresh one with the checkpoint".into()
}

/// A killed agent is a failed iteration. After a backoff, the same conversation continues.
pub fn agent(ground: &Ground) -> String {
    let model = model();
    let looping = Looping::start(ground, &model, &[], 3);
    ground.await_file("started");
    let agent = *pids(&looping.events()).last().expect("an agent");
    let pid = i32::try_from(agent).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), Signal::KILL).expect("the test started this process");
    let events = looping.end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["succeeded", "failed", "succeeded"],
        "{}",
        event_names(&events)
    );
    let failure = &of_type(&events, "iteration_failed")[0]["failure"];
    assert_eq!(failure["kind"], "no_result", "{failure}");
    assert_eq!((names(&events).len(), pids(&events).len()), (1, 2));
    let wait = of_type(&events, "wait_started")[0];
    assert_eq!(wait["wait"]["reason"], "backoff", "{wait}");
    assert!(
        !of_type(&events, "leftovers_ended").is_empty(),
        "its tool was ended"
    );
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!((last.prompts, last.tool_results), (3, 1), "{last:?}");
    "failed, waited, same conversation".into()
}
