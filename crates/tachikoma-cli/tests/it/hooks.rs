//! Hooks before and after a reboot: their input, the meaning of their exit code, and that they leave no process running.

use std::path::PathBuf;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};
use tachikoma_testkit::{Live, Scenario, Scratch, Turn, Usage, await_until, mask, processes_with};

use crate::live_support::{await_nobody, children, seconds};
use crate::support::{
    BUSY, CLAIMS, SOON, as_configured, await_events, events, run, status, tachikoma,
};

/// Returns a `[[hook]]` table of the configuration.
pub fn hook(on: &str, command: &str, rest: &str) -> String {
    format!("[[hook]]\non = '{on}'\ncommand = '''{command}'''\n{rest}\n")
}

/// Starts a loop with an agent that works until a reboot is requested, and later claims completion.
#[track_caller]
fn rebooting(scratch: &Scratch) -> Live {
    let script = format!("[ $TACHIKOMA_ITERATION = 1 ] && {BUSY}; {CLAIMS}");
    let live = as_configured(scratch).spawn(run(&[], &script));
    await_events(scratch, "agent_launched", 1);
    assert_eq!(as_configured(scratch).run(["reboot"]).code(), Some(0));
    live
}

/// Returns the results of all hooks, without durations.
pub fn results(scratch: &Scratch) -> Vec<Value> {
    let mut found = Vec::new();
    for mut ran in events(scratch, "hooks_ran") {
        let point = ran["point"].take();
        for result in ran["results"].as_array_mut().expect("a list") {
            let times = result.as_object_mut().expect("an object");
            assert!(
                times
                    .remove("duration_ms")
                    .is_some_and(|time| time.is_u64())
            );
            found.push(json!([point, result.take()]));
        }
    }
    found
}

#[test]
fn hooks_run_before_and_after_a_reboot_and_get_its_data() {
    let scratch = Scratch::new();
    let told = "cat > told.$TACHIKOMA_HOOK; env | grep ^TACHIKOMA_ | sort > env.$TACHIKOMA_HOOK; pwd -P > where; echo noted";
    let config = [
        hook("before_reboot", told, ""),
        hook("before_reboot", "echo second; echo to stderr >&2", ""),
        hook("after_reboot", told, ""),
    ];
    scratch.write("tachikoma.toml", config.concat());
    let ran = rebooting(&scratch).wait(SOON);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let name =
        "cat > told.$TACHIKOMA_HOOK; env | grep ^TACHIKOMA_ | sort > env.$TACHIKOMA_HOOK;...";
    assert_eq!(
        results(&scratch),
        [
            json!(["before_reboot", {"name": name, "output": "noted"}]),
            json!(["before_reboot", {"name": "echo second; echo to stderr >&2", "output": "second\nto stderr"}]),
            json!(["after_reboot", {"name": name, "output": "noted"}]),
        ]
    );
    assert!(
        ran.stdout.contains("hooks before_reboot: 2 ran\n"),
        "{}",
        ran.snapshot()
    );
    let here = scratch.path().display().to_string();
    assert_eq!(scratch.read("where"), format!("{here}\n"));
    let shown = |name: &str| mask(&scratch.read(name).replace(&here, "[SCRATCH]"));
    assert_snapshot!(shown("told.before_reboot"), @r#"{"point":"before_reboot","reason":{"kind":"manual"},"reason_text":"asked for by the operator","loop_id":"[LOOP]","iteration":1,"session":{"number":1,"agent_id":null},"context":null,"working_dir":"[SCRATCH]"}"#);
    assert_snapshot!(shown("told.after_reboot"), @r#"{"point":"after_reboot","reason":{"kind":"manual"},"reason_text":"asked for by the operator","loop_id":"[LOOP]","iteration":1,"session":{"number":2,"agent_id":null},"context":null,"working_dir":"[SCRATCH]"}"#);
    assert_snapshot!(shown("env.before_reboot"), @"
    TACHIKOMA_DIR=[SCRATCH]
    TACHIKOMA_HOOK=before_reboot
    TACHIKOMA_ITERATION=1
    TACHIKOMA_LOOP_ID=[LOOP]
    TACHIKOMA_REASON=asked for by the operator
    TACHIKOMA_SESSION=1
    ");
    assert_snapshot!(shown("env.after_reboot"), @"
    TACHIKOMA_DIR=[SCRATCH]
    TACHIKOMA_HOOK=after_reboot
    TACHIKOMA_ITERATION=1
    TACHIKOMA_LOOP_ID=[LOOP]
    TACHIKOMA_REASON=asked for by the operator
    TACHIKOMA_SESSION=2
    ");
}

#[test]
fn a_failing_hook_before_a_reboot_cancels_it() {
    let scratch = Scratch::new();
    let config = [
        hook(
            "before_reboot",
            "echo looking; echo no room >&2; exit 3",
            "",
        ),
        hook("before_reboot", "touch second", ""),
        hook("after_reboot", "touch after", ""),
    ];
    scratch.write("tachikoma.toml", config.concat());
    let ran = rebooting(&scratch).wait(SOON);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let name = "echo looking; echo no room >&2; exit 3";
    assert_eq!(
        results(&scratch),
        [
            json!(["before_reboot", {"name": name, "output": "looking\nno room", "error": "exit 3: no room"}])
        ]
    );
    let failed = &events(&scratch, "reboot_failed")[0];
    assert_eq!(failed["aborted"], true);
    assert_eq!(
        failed["error"],
        format!("the hook `{name}` failed: exit 3: no room")
    );
    assert!(
        !scratch.path().join("second").exists(),
        "later hooks of this event do not run"
    );
    assert!(
        !scratch.path().join("after").exists(),
        "hooks after the reboot do not run"
    );
    let status = status(&scratch);
    assert_eq!(status["session"]["number"], 1);
    assert_eq!(status["stats"]["reboots"], 0);
    assert!(
        events(&scratch, "session_ended").is_empty(),
        "the session is still the same"
    );
    let line = "the reboot was aborted, the old session continues: the hook `echo looking; echo no room >&2; exit 3` failed: exit 3: no room\n";
    assert!(ran.stdout.contains(line), "{}", ran.snapshot());
}

#[test]
fn a_hook_that_fails_after_a_reboot_is_a_warning() {
    let scratch = Scratch::new();
    let config = [
        hook("after_reboot", "kill -9 $$", ""),
        hook("after_reboot", "touch second", ""),
    ];
    scratch.write("tachikoma.toml", config.concat());
    let ran = rebooting(&scratch).wait(SOON);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let warning = "the hook `kill -9 $$` failed: signal 9; the reboot is not undone";
    assert_eq!(events(&scratch, "warned")[0]["warning"], warning);
    assert!(
        scratch.path().join("second").exists(),
        "each has its own work"
    );
    assert_eq!(status(&scratch)["session"]["number"], 2);
    assert_eq!(events(&scratch, "reboot_completed").len(), 1);
}

#[test]
fn exit_125_of_a_reboot_hook_stops_the_loop() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        hook("before_reboot", "echo enough; exit 125", ""),
    );
    let ran = rebooting(&scratch).wait(SOON);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    let reason = &status(&scratch)["outcome"]["reason"];
    assert_eq!(
        *reason,
        "the hook `echo enough; exit 125` stopped the loop: exit 125: enough"
    );
}

#[test]
fn a_hook_that_times_out_is_killed_with_its_children() {
    let scratch = Scratch::new();
    let seconds = seconds();
    // The hook ignores SIGTERM and has a child in another session with an empty environment.
    let command = format!(
        "trap '' TERM; setsid env -i sleep {seconds} & echo begun; while :; do sleep 0.01; done"
    );
    scratch.write(
        "tachikoma.toml",
        hook("before_reboot", &command, "timeout = '2s'"),
    );
    let ran = rebooting(&scratch).wait(SOON);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(processes_with(&seconds).len(), 0);
    let result = &results(&scratch)[0][1];
    assert_eq!(result["error"], "it did not end within 2s");
    assert_eq!(result["output"], "begun");
    assert_eq!(events(&scratch, "reboot_failed")[0]["aborted"], true);
}

#[test]
fn processes_that_a_hook_leaves_are_ended_and_named() {
    let scratch = Scratch::new();
    let seconds = seconds();
    let command = format!("setsid sleep {seconds} </dev/null >/dev/null 2>&1 & echo left");
    scratch.write("tachikoma.toml", hook("before_reboot", &command, ""));
    let ran = rebooting(&scratch).wait(SOON);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let output = results(&scratch)[0][1]["output"].to_string();
    assert!(
        output.contains("[what it left running was ended: s"),
        "{output}"
    );
    assert_eq!(processes_with(&seconds).len(), 0);
    assert_eq!(events(&scratch, "reboot_completed").len(), 1);
}

#[test]
fn commands_work_during_a_hook_and_a_stop_terminates_it() {
    let scratch = Scratch::new();
    let command = "trap \": > asked; exit 0\" TERM; touch begun; while :; do sleep 0.01; done";
    scratch.write(
        "tachikoma.toml",
        hook("before_reboot", command, "timeout = '0s'"),
    );
    let live = rebooting(&scratch);
    await_until("the hook runs", SOON, || {
        scratch.path().join("begun").exists()
    });
    assert_eq!(status(&scratch)["state"], "rebooting");
    let pause = tachikoma(&scratch).run(["pause"]);
    assert_eq!(
        pause.stdout,
        "pauses after the reboot\n",
        "{}",
        pause.snapshot()
    );
    let skip = tachikoma(&scratch).run(["skip"]);
    assert_eq!(skip.code(), Some(1), "{}", skip.snapshot());
    let stop = tachikoma(&scratch).run(["stop"]);
    assert_eq!(stop.stdout, "stopped\n", "{}", stop.snapshot());
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    assert!(scratch.path().join("asked").exists(), "SIGTERM came first");
}

#[test]
fn a_killed_runner_leaves_no_hook_process_and_the_next_runner_repeats_the_reboot() {
    let scratch = Scratch::new();
    let seconds = seconds();
    let quiet = "</dev/null >/dev/null 2>&1 &";
    let command = format!(
        "test -e again && exit; touch again; setsid env -i sleep {seconds} {quiet} ( (setsid sleep {seconds} {quiet}) & ); exec sleep {seconds}"
    );
    let config = hook("before_reboot", &command, "timeout = '0s'");
    scratch.write("tachikoma.toml", config);
    let mut live = rebooting(&scratch);
    await_until("the hook and its children", SOON, || {
        processes_with(&seconds).len() == 3
    });
    assert_eq!(
        children(live.pid()).len(),
        2,
        "every runner has its own guard"
    );
    live.signal(Signal::KILL);
    await_nobody(&seconds);
    drop(live);
    let ran = tachikoma(&scratch).run(["run"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(
        events(&scratch, "hooks_started").len(),
        2,
        "the hook ran again"
    );
    assert_eq!(events(&scratch, "reboot_completed").len(), 1);
}

#[test]
fn a_killed_guard_of_hooks_fails_the_hook_and_leaves_nothing_of_it() {
    let scratch = Scratch::new();
    let seconds = seconds();
    let command = format!(
        "touch begun; setsid env -i sleep {seconds} </dev/null >/dev/null 2>&1 & exec sleep {seconds}"
    );
    scratch.write("tachikoma.toml", hook("before_reboot", &command, ""));
    let script = format!("[ $TACHIKOMA_ITERATION = 1 ] && {BUSY}; {CLAIMS}");
    let live = tachikoma(&scratch).spawn(run(&[], &script));
    await_events(&scratch, "agent_launched", 1);
    let first = children(live.pid());
    assert_eq!(tachikoma(&scratch).run(["reboot"]).code(), Some(0));
    await_until("the hook and its child", SOON, || {
        processes_with(&seconds).len() == 2
    });
    let mut guards = children(live.pid());
    guards.retain(|guard| !first.contains(guard));
    assert_eq!(guards.len(), 1, "hooks have a guard of their own");
    let guard = i32::try_from(guards[0]).expect("a process id");
    let guard = rustix::process::Pid::from_raw(guard).expect("a process id");
    rustix::process::kill_process(guard, Signal::KILL).expect("the guard exists");
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(processes_with(&seconds).len(), 0);
    let error = &results(&scratch)[0][1]["error"];
    assert_eq!(*error, "its guard was killed, and it with the guard");
}

#[test]
fn a_hook_may_command_the_loop() {
    let scratch = Scratch::new();
    let binary = env!("CARGO_BIN_EXE_tachikoma");
    let command = format!("{binary} config check && {binary} pause");
    scratch.write("tachikoma.toml", hook("before_reboot", &command, ""));
    let live = rebooting(&scratch);
    await_events(&scratch, "paused", 1);
    assert_eq!(status(&scratch)["state"], "paused");
    let output = results(&scratch)[0][1]["output"].clone();
    assert!(
        output
            .as_str()
            .is_some_and(|text| text.ends_with("pauses after the reboot")),
        "{output}"
    );
    assert_eq!(tachikoma(&scratch).run(["resume"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(0));
}

/// Returns the path of the fake agent, which `cargo test` builds beside the tests.
fn fake_agent() -> PathBuf {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_tachikoma"));
    let path = binary.with_file_name("examples").join("fake-agent");
    assert!(path.exists(), "{} is built by `cargo test`", path.display());
    path
}

/// Runs the fake agent as `claude`: it crosses the redline in its first turn and later claims completion.
fn over_the_redline(scratch: &Scratch, config: &[String]) {
    let scenario = Scenario::of([
        Turn::bash("echo one > one").using(Usage::cached(171_000)),
        Turn::text("what is left: two").using(Usage::cached(171_000)),
        Turn::text("<promise>COMPLETE</promise>").using(Usage::cached(1_000)),
    ])
    .for_ever();
    let words = serde_json::to_string(&scenario).expect("plain data");
    let at = scratch.write("scenario.json", words);
    let state = scratch.home().join("fake-agent");
    let claude = format!(
        "session.claude_command = '{}'\nagents.claude.env.FAKE_AGENT_SCENARIO = '{}'\nagents.claude.env.FAKE_AGENT_STATE = '{}'\n",
        fake_agent().display(),
        at.display(),
        state.display(),
    );
    scratch.write("tachikoma.toml", claude + &config.concat());
    let words = [
        "run",
        "--agent",
        "claude",
        "--prompt-text",
        "go",
        "--delay",
        "0s",
    ];
    let ran = tachikoma(scratch).run(words);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
}

#[test]
fn a_hook_that_rejects_a_reboot_keeps_the_session_for_a_while() {
    let scratch = Scratch::new();
    // A hand-off would add another context reading.
    let config = [
        "reboot.preserve_summary = false\n".to_owned(),
        hook("before_reboot", "exit 1", ""),
    ];
    over_the_redline(&scratch, &config);
    let failed = &events(&scratch, "reboot_failed")[0];
    assert_eq!(failed["aborted"], true);
    assert_eq!(failed["reason"]["kind"], "redline");
    assert_eq!(failed["error"], "the hook `exit 1` failed: exit 1");
    let requested = events(&scratch, "reboot_requested");
    let later = requested
        .iter()
        .filter(|wanted| wanted["not_before"].is_string());
    assert_eq!(
        later.count(),
        1,
        "the next reboot attempt has to wait: {requested:?}"
    );
    assert_eq!(
        events(&scratch, "agent_launched").len(),
        1,
        "one process for all iterations"
    );
    assert_eq!(
        events(&scratch, "session_started").len(),
        1,
        "one conversation for all iterations"
    );
    assert_eq!(status(&scratch)["session"]["number"], 1);
}

#[test]
fn a_redline_runs_the_hooks_between_two_conversations() {
    let scratch = Scratch::new();
    let seconds = seconds();
    let leaving = format!("cat > before.json; setsid sleep {seconds} >/dev/null 2>&1 &");
    over_the_redline(
        &scratch,
        &[
            hook("before_reboot", &leaving, ""),
            hook("after_reboot", "cat > after.json", ""),
        ],
    );
    let told =
        |name: &str| -> Value { serde_json::from_str(&scratch.read(name)).expect("an object") };
    let (before, after) = (told("before.json"), told("after.json"));
    assert_eq!(before["reason"]["kind"], "redline");
    let percent = before["reason"]["percent"].as_u64().expect("a figure");
    assert!((85..=100).contains(&percent), "{before}");
    assert_eq!(before["reason_text"], format!("context at {percent}%"));
    assert_eq!(before["session"]["number"], 1);
    assert!(before["session"]["agent_id"].is_string(), "{before}");
    assert!(before["context"]["tokens"].is_u64(), "{before}");
    assert_eq!(after["session"]["number"], 2);
    assert_eq!(after["reason"], before["reason"]);
    assert!(
        after["context"].is_null(),
        "the context usage is unknown until the first reading"
    );
    let kinds: Vec<String> = events_of(&scratch);
    let order = [
        "hooks_started",
        "hooks_ran",
        "closing_started",
        "agent_exited",
        "session_started",
        "hooks_started",
        "hooks_ran",
        "reboot_completed",
    ];
    let wanted = |kind: &&String| order.contains(&kind.as_str());
    let begun = kinds
        .iter()
        .position(|kind| kind == "reboot_started")
        .expect("a reboot");
    let seen: Vec<_> = kinds[begun..]
        .iter()
        .filter(wanted)
        .take(order.len())
        .collect();
    assert_eq!(seen, order, "the hook's child is ended, the agent is not");
    assert_eq!(processes_with(&seconds).len(), 0);
}

/// Returns the types of all events in order.
fn events_of(scratch: &Scratch) -> Vec<String> {
    let ran = tachikoma(scratch).run(["events", "--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    crate::live_support::kinds(&crate::live_support::records(&ran.stdout))
}
