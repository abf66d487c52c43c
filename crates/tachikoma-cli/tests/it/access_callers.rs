//! Who may answer and command: agents, notification commands, and hooks of the operator.

use std::fs;

use serde_json::{Value, json};
use tachikoma_testkit::{Scratch, await_until};

use crate::access::refused;
use crate::attended_support::await_question;
use crate::claude_support::{bash, claude, says, scenario, stage};
use crate::hooks::{hook, results};
use crate::live_support::{BIN, SOON, obey};
use crate::support::{CLAIMS, events, run, status, tachikoma};

#[test]
fn the_agent_cannot_answer_an_open_question() {
    let waits =
        format!("while ! {BIN} status --json | grep -q '\"after_iteration\"'; do sleep 0.02; done");
    let answers = format!("{BIN} answer continue > said 2>&1; echo $? > answered");
    let daemon = format!(
        "(setsid sh -c '{}; {answers}' >/dev/null 2>&1 </dev/null &)",
        waits.replace('\'', "'\\''")
    );
    let scratch = stage(
        &scenario([bash(&daemon, 1_000), says("done for now", 1_000)]),
        "",
    );
    let tool = claude(&scratch);
    let live = tool.spawn(["run", "--attended"]);
    await_question(&tool, 1);
    obey(&tool, &["answer", "continue"]);
    let answered = scratch.path().join("answered");
    await_until("the agent has answered", SOON, || {
        fs::read_to_string(&answered).is_ok_and(|code| code.ends_with('\n'))
    });
    assert_eq!(scratch.read("answered"), "1\n");
    assert!(
        scratch
            .read("said")
            .contains("only the operator may ask this")
    );
    let open = status(&scratch)["question"].clone();
    assert_eq!(
        (&open["id"], &open["kind"]),
        (&json!(2), &json!("after_iteration"))
    );
    assert_eq!(refused(&scratch), ["answer"]);
    obey(&tool, &["answer", "2", "stop"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
    let answers = events(&scratch, "operator");
    let answers = answers.iter().filter(|it| it["what"] == "answered");
    let answers: Vec<&Value> = answers.map(|it| &it["choice"]).collect();
    assert_eq!(answers, ["continue", "stop"]);
}

#[test]
fn a_notification_command_cannot_command_the_loop() {
    let scratch = Scratch::new();
    let said = scratch.home().join("said");
    let asks = format!("{BIN} stop; echo $? >> {}", said.display());
    scratch.write(
        "tachikoma.toml",
        format!("[[notify]]\nto = 'command'\non = ['iteration_start']\ncommand = '{asks}'\n"),
    );
    let waits = format!(
        "while [ ! -s {} ]; do sleep 0.01; done; {CLAIMS}",
        said.display()
    );
    let ran = tachikoma(&scratch).run(run(&[], &waits));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(fs::read_to_string(&said).unwrap(), "1\n");
    assert_eq!(refused(&scratch), ["stop"]);
}

#[test]
fn a_hook_that_stops_the_loop_runs_to_its_end() {
    for (on, iterations) in [
        ("loop_start", 0),
        ("session_start", 0),
        ("iteration_start", 0),
        ("iteration_end", 1),
    ] {
        let scratch = Scratch::new();
        let hooks = [
            hook(on, "sh stops.sh", ""),
            hook("loop_end", "echo the end", ""),
        ];
        // The command is in a file, because a hook is named after its shortened command, and the path of the binary may be long.
        scratch.write(
            "stops.sh",
            format!("{BIN} stop > said; sleep 0.3; echo all of it"),
        );
        scratch.write("tachikoma.toml", hooks.concat());
        let ran = tachikoma(&scratch).run(run(&[], "echo busy >> work"));
        assert_eq!(ran.code(), Some(5), "{on}: {}", ran.snapshot());
        assert_eq!(scratch.read("said"), "stops after the hooks\n", "{on}");
        assert_eq!(
            events(&scratch, "iteration_started").len(),
            iterations,
            "{on}"
        );
        let results = results(&scratch);
        assert_eq!(
            results,
            [
                json!([on, {"name": "sh stops.sh", "output": "all of it"}]),
                json!(["loop_end", {"name": "echo the end", "output": "the end"}]),
            ],
            "{on}"
        );
        assert_eq!(
            refused(&scratch),
            [""; 0],
            "a hook runs with the rights of the operator"
        );
    }
}

#[test]
fn a_background_hook_stops_the_loop_at_once_and_runs_to_its_end() {
    for words in ["stop", "stop --now"] {
        let scratch = Scratch::new();
        // The hook continues only after its request is in the journal.
        let stops = format!(
            "{BIN} {words} > said; until grep -q '\"type\":\"stop' .ralph/loops/*/journal-0001.jsonl; do sleep 0.01; done; sleep 0.3; echo all of it > heard"
        );
        scratch.write("tachikoma.toml", hook("error", &stops, ""));
        let script = "[ $TACHIKOMA_ITERATION = 1 ] && exit 3; exec sleep 600";
        let ran = tachikoma(&scratch).run(run(&[], script));
        assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
        assert_eq!(scratch.read("heard"), "all of it\n", "{words}");
    }
}

#[test]
fn a_blocking_hook_can_stop_the_loop_at_once() {
    let scratch = Scratch::new();
    let stops = format!("{BIN} stop --now; sleep 600");
    scratch.write(
        "tachikoma.toml",
        hook("iteration_start", &stops, "timeout = '0s'"),
    );
    let ran = tachikoma(&scratch).run(run(&[], "echo busy >> work"));
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    assert_eq!(events(&scratch, "iteration_started").len(), 0);
}

#[test]
fn a_hook_that_stops_the_loop_cancels_the_reboot() {
    let scratch = Scratch::new();
    let stops = format!("{BIN} stop > said");
    scratch.write(
        "tachikoma.toml",
        [
            hook("before_reboot", &stops, ""),
            "[reboot.triggers]\nafter_iterations = 1\n".to_owned(),
        ]
        .concat(),
    );
    let ran = tachikoma(&scratch).run(run(&[], "echo busy >> work"));
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    assert_eq!(scratch.read("said"), "stops after the hooks\n");
    assert_eq!(events(&scratch, "reboot_started").len(), 1);
    assert_eq!(events(&scratch, "reboot_completed").len(), 0);
    let failed = events(&scratch, "reboot_failed");
    assert_eq!(failed.len(), 1);
    assert_eq!(status(&scratch)["session"]["number"], 1);
}
