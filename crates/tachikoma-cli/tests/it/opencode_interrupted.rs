//! Interrupted turns with OpenCode, and secrets in messages.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tachikoma_testkit::await_until;

use crate::live_support::SOON;
use crate::opencode::Bed;
use crate::opencode_agent::{Books as _, HELD, LOOP, RUN, expect, outcomes};

#[test]
fn a_turn_interrupted_after_a_compaction_continues_with_one_prompt() {
    let command = "echo x >> started; [ $(wc -l < started) -lt 2 ] || until [ -e go ] || ! [ -e started ]; do sleep 0.02; done";
    let turn = json!({"tools": 2, "compacts": true, "command": command});
    let bed = Bed::new(&json!({"turn": turn}), "restart_delay_ms = 0");
    let live = bed.start("1");
    await_until("the second tool", SOON, || {
        let path = bed.scratch.path().join("started");
        fs::read_to_string(path).is_ok_and(|text| text.lines().count() == 2)
    });
    bed.kill_server();
    bed.scratch.write("go", "");
    expect(&live.wait(LOOP), 3);
    assert_eq!(outcomes(&bed), ["succeeded"]);
    assert_eq!(bed.of_type("attempt_cut").len(), 1);
    let prompted = bed.turns("prompted");
    assert_eq!((prompted.len(), bed.prompts()), (2, 1));
    assert_eq!(prompted[0], prompted[1], "the prompt has its original id");
}

/// After a restart of the server the interrupted iteration continues.
#[test]
fn a_requested_restart_during_a_turn_is_not_a_failure() {
    let bed = Bed::new(&json!({"turn": {"command": HELD}}), "restart_delay_ms = 0");
    let up = bed.up();
    bed.await_ready(1);
    let live = bed.start("2");
    bed.await_file("started");
    expect(&bed.tool().run(["opencode", "restart"]), 0);
    bed.scratch.write("go", "");
    expect(&live.wait(LOOP), 3);
    assert_eq!(outcomes(&bed), ["succeeded"; 2]);
    assert_eq!(bed.of_type("attempt_cut").len(), 1);
    assert_eq!(
        bed.of_type("wait_started").len(),
        0,
        "the loop does not wait"
    );
    assert_eq!(bed.prompts(), 2);
    expect(&bed.tool().run(["opencode", "stop"]), 0);
    expect(&up.wait(LOOP), 0);
}

/// A server that hangs during a turn is replaced, and the turn continues in the next one.
#[test]
fn a_server_that_hangs_during_a_turn_is_replaced_and_the_turn_continues() {
    let settings = "restart_delay_ms = 0\nhealth_interval = '50ms'\nhealth_failures = 2";
    let bed = Bed::new(&json!({"turn": {"command": HELD}}), settings);
    let live = bed.start("2");
    bed.await_file("started");
    let pid = bed.server()["pid"].as_i64().expect("a server");
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process")).expect("a process");
    kill_process(pid, Signal::STOP).expect("the test started this process");
    bed.scratch.write("go", "");
    expect(&live.wait(LOOP), 3);
    assert_eq!(outcomes(&bed), ["succeeded"; 2]);
    assert_eq!((bed.starts(), bed.of_type("attempt_cut").len()), (2, 1));
    assert_eq!(
        bed.of_type("wait_started").len(),
        0,
        "the loop does not wait"
    );
    let prompted = bed.turns("prompted");
    assert_eq!(prompted[0], prompted[1], "the prompt has its original id");
    assert_eq!(bed.prompts(), 2);
}

#[test]
fn a_password_in_an_address_is_shown_nowhere() {
    for url in [
        "https://me:hunter2@127.0.0.1:1",
        "http://me:hunter2@127.0.0.1:1",
        "me:hunter2@127.0.0.1:1",
    ] {
        let bed = Bed::new(&json!({}), &format!("attach = '{url}'"));
        let configured = bed.tool().run(RUN);
        let given = bed.tool().run([&RUN[..], &["--attach", url]].concat());
        let dry = bed.tool().run([&RUN[..], &["--dry-run"]].concat());
        let shown = bed.tool().run(["config", "show"]);
        assert_eq!(shown.code(), Some(0), "{}", shown.snapshot());
        assert!(shown.snapshot().contains("127.0.0.1:1"), "{url}");
        for ran in [configured, given, dry, shown] {
            let said = ran.snapshot();
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}

/// Tools know the pid of their server, and a stray `kill` must not end the loop.
#[test]
fn a_loops_own_server_that_a_tool_terminates_is_restarted_and_the_turn_continues() {
    let command = "[ -e killed ] || { touch killed; kill $PPID; sleep 60; }";
    let bed = Bed::new(
        &json!({"turn": {"command": command}}),
        "restart_delay_ms = 0",
    );
    expect(&bed.start("2").wait(LOOP), 3);
    assert_eq!(outcomes(&bed), ["succeeded"; 2]);
    assert_eq!((bed.starts(), bed.of_type("attempt_cut").len()), (2, 1));
}

/// Every tool can read the password of its server, so that password must not be valid for another server.
#[test]
fn a_loops_own_server_does_not_get_the_users_password() {
    let command = "printf %s \"$OPENCODE_SERVER_PASSWORD\" > seen";
    let bed = Bed::new(&json!({"turn": {"command": command}}), "");
    let tool = bed.tool().env("OPENCODE_SERVER_PASSWORD", "hunter2");
    let run = tool.spawn([&RUN[..], &["--max-iterations", "1"]].concat());
    expect(&run.wait(LOOP), 3);
    let seen = bed.scratch.read("seen");
    assert!(seen.len() >= 32 && !seen.contains("hunter2"), "{seen}");
}

#[test]
fn cost_and_tokens_of_an_interrupted_attempt_are_in_the_totals() {
    let command = "echo x >> started; [ $(wc -l < started) -lt 2 ] || until [ -e go ] || ! [ -e started ]; do sleep 0.02; done";
    for budget in [
        "",
        "[stop_conditions]\nmax_tokens = 1000000\nmax_cost_usd = 10.0",
    ] {
        let turn = json!({"tools": 2, "command": command, "tokens": 5_000});
        let bed = Bed::new(
            &json!({"turn": turn}),
            &format!("restart_delay_ms = 0\n{budget}"),
        );
        let live = bed.start("1");
        await_until("the second tool", SOON, || {
            let path = bed.scratch.path().join("started");
            fs::read_to_string(path).is_ok_and(|text| text.lines().count() == 2)
        });
        bed.kill_server();
        bed.scratch.write("go", "");
        expect(&live.wait(LOOP), 3);
        assert_eq!(bed.of_type("attempt_cut").len(), 1);
        // One step ended before the server died. Three steps came after it: two tool calls and the answer.
        let stats = bed.tool().run(["status", "--json"]).json()["stats"].clone();
        assert_eq!(
            (&stats["cost_microusd"], &stats["tokens"]),
            (&json!(4_000), &json!(20_000)),
            "{budget:?}"
        );
    }
}
