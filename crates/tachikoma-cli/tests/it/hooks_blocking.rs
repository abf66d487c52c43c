//! Blocking hooks at events of loops, sessions and iterations, and background hooks.

use rustix::process::Signal;
use serde_json::json;
use tachikoma_testkit::{Scratch, await_until};

use crate::hooks::{hook, results};
use crate::live_support::{await_nobody, seconds};
use crate::support::{
    CLAIMS, SOON, as_configured, await_events, events, kill, run, status, tachikoma,
};

const SAYS: &str =
    "echo $TACHIKOMA_HOOK $TACHIKOMA_ITERATION $TACHIKOMA_SESSION $TACHIKOMA_OUTCOME >> said";

const FRAMES: [&str; 6] = [
    "loop_start",
    "session_start",
    "iteration_start",
    "iteration_end",
    "session_end",
    "loop_end",
];

fn configure(scratch: &Scratch, hooks: &[String]) {
    scratch.write("tachikoma.toml", hooks.concat());
}

#[test]
fn the_loop_waits_for_blocking_hooks_in_order() {
    let scratch = Scratch::new();
    // If the loop did not wait for this slow hook, the hook would finish after the agent.
    let slow = format!("sleep 0.05; {SAYS}");
    let hooks = FRAMES.map(|on| hook(on, &slow, ""));
    configure(&scratch, &hooks);
    let script = format!(
        "echo agent $TACHIKOMA_ITERATION >> said; [ $TACHIKOMA_ITERATION = 2 ] && {CLAIMS}; true"
    );
    let ran = as_configured(&scratch).run(run(&["--fresh-session"], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    insta::assert_snapshot!(scratch.read("said"), @"
    loop_start 0 0
    session_start 0 1
    iteration_start 1 1
    agent 1
    iteration_end 1 1 succeeded
    session_end 1 1
    session_start 1 2
    iteration_start 2 2
    agent 2
    iteration_end 2 2 succeeded
    loop_end 2 2 done
    ");
}

#[test]
fn variables_of_a_hook_do_not_override_settings() {
    let scratch = Scratch::new();
    let program = env!("CARGO_BIN_EXE_tachikoma");
    let asks = format!("{program} config show >> said 2>&1 || touch refused");
    configure(&scratch, &FRAMES.map(|on| hook(on, &asks, "")));
    let ran = as_configured(&scratch).run(run(&[], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let said = scratch.read("said");
    assert!(said.contains("max_iterations"), "{said}");
    assert!(!scratch.path().join("refused").exists(), "{said}");
}

#[test]
fn a_hook_gets_its_event_as_json() {
    let scratch = Scratch::new();
    let told = "cat > told.$TACHIKOMA_HOOK";
    configure(
        &scratch,
        &[
            hook("iteration_end", told, ""),
            hook("loop_end", told, ""),
            hook("error", told, ""),
        ],
    );
    let script = format!("[ $TACHIKOMA_ITERATION = 1 ] && exit 3; {CLAIMS}");
    let ran = as_configured(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let told = |point: &str| -> serde_json::Value {
        serde_json::from_str(&scratch.read(format!("told.{point}"))).expect("an object")
    };
    let end = told("iteration_end");
    assert_eq!(end["outcome"], "succeeded");
    assert_eq!(end["iteration"], 2);
    let error = told("error");
    assert_eq!(
        error["reason_text"],
        "iteration 1 failed: the agent ended with exit 3"
    );
    let end = told("loop_end");
    assert_eq!(end["outcome"], "done");
    assert_eq!(end["reason_text"], "the loop ends: the work is complete");
}

#[test]
fn custom_values_of_a_hook_are_kept() {
    let scratch = Scratch::new();
    let says = r#"echo talk; echo '{"custom": {"ticket": 7, "gone": null}}'; echo more"#;
    configure(&scratch, &[hook("loop_start", says, "")]);
    let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let set = events(&scratch, "custom_set");
    assert_eq!(
        set,
        [json!({"type": "custom_set", "key": "ticket", "value": 7})]
    );
}

#[test]
fn exit_125_of_any_blocking_hook_stops_the_loop() {
    for on in [
        "loop_start",
        "session_start",
        "iteration_start",
        "iteration_end",
    ] {
        let scratch = Scratch::new();
        configure(
            &scratch,
            &[
                hook(on, "echo enough; exit 125", ""),
                hook("loop_end", "touch ended", ""),
            ],
        );
        let ran = tachikoma(&scratch).run(run(&[], "echo busy >> work"));
        assert_eq!(ran.code(), Some(4), "{on}: {}", ran.snapshot());
        let outcome = &status(&scratch)["outcome"];
        assert_eq!(
            outcome["reason"],
            "the hook `echo enough; exit 125` stopped the loop: exit 125: enough"
        );
        assert!(scratch.path().join("ended").exists(), "{on}");
        let begun = events(&scratch, "iteration_started").len();
        assert_eq!(begun, usize::from(on == "iteration_end"), "{on}");
    }
}

#[test]
fn other_failures_are_warnings_and_the_other_hooks_run() {
    let scratch = Scratch::new();
    let long = seconds();
    let sleeps = format!("sleep {long}");
    configure(
        &scratch,
        &[
            hook("iteration_start", "echo no room >&2; exit 3", ""),
            hook("iteration_start", &sleeps, "timeout = '100ms'"),
            hook("iteration_start", "touch third", ""),
        ],
    );
    let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let warned: Vec<_> = events(&scratch, "warned")
        .iter()
        .map(|it| it["warning"].clone())
        .collect();
    assert_eq!(
        warned,
        [
            "the hook `echo no room >&2; exit 3` (iteration_start) failed: exit 3: no room",
            &format!("the hook `{sleeps}` (iteration_start) failed: it did not end within 100ms"),
        ]
    );
    assert!(scratch.path().join("third").exists());
    await_nobody(&long);
}

#[test]
fn a_stop_acts_at_once_while_a_hook_runs_and_status_names_the_hook() {
    let scratch = Scratch::new();
    let long = seconds();
    let sleeps = format!("sleep {long}");
    configure(
        &scratch,
        &[
            hook("iteration_start", &sleeps, "timeout = '0s'"),
            hook("loop_end", SAYS, ""),
        ],
    );
    let live = tachikoma(&scratch).spawn(run(&[], CLAIMS));
    await_events(&scratch, "hooks_started", 1);
    let now = status(&scratch);
    assert_eq!(now["waiting"]["reason"], "hooks:iteration_start");
    assert_eq!(now["state"], "running");
    let stopped = tachikoma(&scratch).run(["stop"]);
    assert_eq!(stopped.code(), Some(0), "{}", stopped.snapshot());
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    assert_eq!(scratch.read("said"), "loop_end 0 1 operator\n");
    let given_up = events(&scratch, "hooks_ran");
    assert_eq!(given_up[0]["given_up"], "the loop is stopping");
    await_nobody(&long);
}

#[test]
fn skip_abandons_a_hook_and_pause_waits_for_it() {
    let scratch = Scratch::new();
    let long = seconds();
    let sleeps = format!("sleep {long}");
    let holds = "[ -e free ] || { touch held; while [ ! -e free ]; do sleep 0.01; done; }";
    configure(
        &scratch,
        &[
            hook("loop_start", &sleeps, "timeout = '0s'"),
            hook("iteration_start", holds, ""),
        ],
    );
    let live = tachikoma(&scratch).spawn(run(&[], CLAIMS));
    await_events(&scratch, "hooks_started", 1);
    assert_eq!(tachikoma(&scratch).run(["skip"]).code(), Some(0));
    await_events(&scratch, "hooks_started", 2);
    assert_eq!(tachikoma(&scratch).run(["pause"]).code(), Some(0));
    scratch.write("free", "");
    await_events(&scratch, "paused", 1);
    assert_eq!(events(&scratch, "iteration_started").len(), 0);
    assert_eq!(tachikoma(&scratch).run(["resume"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(0));
    // Hooks that ran before the pause do not run again after it.
    assert_eq!(events(&scratch, "hooks_started").len(), 2);
    await_nobody(&long);
}

/// Waits until the hooks have written exactly this text.
fn await_said(scratch: &Scratch, words: &str) {
    let said = scratch.path().join("said");
    await_until("the hook to run", SOON, || {
        std::fs::read_to_string(&said).is_ok_and(|said| said == words)
    });
}

#[test]
fn blocking_hooks_interrupted_by_kill_9_run_again() {
    let scratch = Scratch::new();
    let once = "echo $TACHIKOMA_HOOK >> said; [ -e free ] || sleep 600";
    configure(
        &scratch,
        &[
            hook("iteration_end", once, "timeout = '0s'"),
            hook("loop_end", SAYS, ""),
        ],
    );
    let live = tachikoma(&scratch).spawn(run(&[], CLAIMS));
    await_said(&scratch, "iteration_end\n");
    kill(&scratch, live);
    scratch.write("free", "");
    let ran = tachikoma(&scratch).run(["run"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(
        scratch.read("said"),
        "iteration_end\niteration_end\nloop_end 1 1 done\n"
    );
    assert_eq!(events(&scratch, "iteration_started").len(), 1);
}

#[test]
fn hooks_at_the_end_interrupted_by_kill_9_run_again() {
    let scratch = Scratch::new();
    let once = "echo $TACHIKOMA_HOOK >> said; [ -e free ] || sleep 600";
    configure(&scratch, &[hook("loop_end", once, "timeout = '0s'")]);
    let live = tachikoma(&scratch).spawn(run(&[], CLAIMS));
    await_said(&scratch, "loop_end\n");
    kill(&scratch, live);
    scratch.write("free", "");
    let ran = tachikoma(&scratch).run(["run"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(scratch.read("said"), "loop_end\nloop_end\n");
    assert_eq!(events(&scratch, "iteration_started").len(), 1);
}

#[test]
fn sigterm_gives_hooks_at_the_end_a_little_time() {
    let scratch = Scratch::new();
    configure(&scratch, &[hook("loop_end", SAYS, "")]);
    let mut live = tachikoma(&scratch).spawn(run(&[], "exec sleep 600"));
    await_events(&scratch, "agent_launched", 1);
    live.signal(Signal::TERM);
    assert_eq!(live.wait(SOON).code(), Some(143));
    assert_eq!(scratch.read("said"), "loop_end 1 1 signal\n");
}

#[test]
fn background_hooks_do_not_delay_the_loop() {
    let scratch = Scratch::new();
    let holds = "while [ ! -e claimed ]; do sleep 0.01; done; echo $TACHIKOMA_REASON >> said";
    configure(&scratch, &[hook("error", holds, "")]);
    // The search includes the quotes, because the journal also contains the script.
    let script = format!(
        "[ $TACHIKOMA_ITERATION = 1 ] && exit 3; touch claimed; until grep -q '\"type\":\"hooks_ran\"' .ralph/loops/*/journal-0001.jsonl; do sleep 0.01; done; {CLAIMS}"
    );
    let ran = as_configured(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(
        scratch.read("said"),
        "iteration 1 failed: the agent ended with exit 3\n"
    );
    assert_eq!(results(&scratch).len(), 1);
}

#[test]
fn a_background_hook_may_stop_the_loop() {
    let scratch = Scratch::new();
    configure(
        &scratch,
        &[hook(
            "error",
            "echo $TACHIKOMA_ITERATION >> said; [ $TACHIKOMA_ITERATION = 2 ] && exit 125; true",
            "",
        )],
    );
    let ran = tachikoma(&scratch).run(run(
        &[],
        "[ $TACHIKOMA_ITERATION -lt 3 ] && exit 3; exec sleep 600",
    ));
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    let scratch = Scratch::new();
    let last = "sleep 0.1; echo $TACHIKOMA_ITERATION >> said";
    configure(
        &scratch,
        &[
            hook("error", last, ""),
            "[stop_conditions]\nmax_consecutive_failures = 1\n".to_owned(),
        ],
    );
    let ran = tachikoma(&scratch).run(run(&[], "exit 3"));
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert_eq!(
        scratch.read("said"),
        "1\n",
        "a background hook at the end of the loop is completed"
    );
}

#[test]
fn no_progress_and_changed_tests_run_hooks() {
    let scratch = Scratch::with_git();
    scratch.write(
        "tachikoma.toml",
        [
            hook("no_progress", &SAYS.replace("said", ".git/said"), ""),
            hook("tests_changed", "cat >> .git/told", ""),
            "[[gate]]\nname = 'tests'\ncommand = 'cat .git/results'\nwhen = 'iteration'\n"
                .to_owned(),
        ]
        .concat(),
    );
    scratch.write(".git/results", "ok 1 - a\nok 2 - b\n1..2\n");
    let breaks_a_test = "printf 'ok 1 - a\\nnot ok 2 - b\\n1..2\\n' > .git/results";
    let words = run(&["--max-iterations", "2", "--allow-dirty"], breaks_a_test);
    let ran = as_configured(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        scratch.read(".git/said"),
        "no_progress 1 1\nno_progress 2 1\n"
    );
    let told: serde_json::Value =
        serde_json::from_str(&scratch.read(".git/told")).expect("an object");
    assert_eq!(told["tests"]["passed"], 1);
    assert_eq!(told["tests"]["failed"], 1);
    // The file has one object: the second run changed a test result, and the third one changed none.
}

#[test]
fn exit_125_of_a_hook_does_not_skip_the_other_hooks_of_its_event() {
    let scratch = Scratch::new();
    configure(
        &scratch,
        &[
            hook("iteration_end", "echo enough; exit 125", ""),
            hook("iteration_end", "touch saved", ""),
        ],
    );
    let ran = tachikoma(&scratch).run(run(&[], "true"));
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert!(scratch.path().join("saved").exists());
    assert_eq!(results(&scratch).len(), 2);
    let reason = status(&scratch)["outcome"]["reason"].to_string();
    assert!(
        reason.contains("the hook `echo enough; exit 125` stopped the loop: "),
        "{reason}"
    );
}
