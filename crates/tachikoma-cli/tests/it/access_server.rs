//! A shared OpenCode server: agents cannot stop it, and its tools cannot command a loop.

use rustix::process::Signal;
use serde_json::{Value, json};
use tachikoma_testkit::Ran;

use crate::live_support::BIN;
use crate::opencode::Bed;
use crate::opencode_agent::{Books as _, LOOP};
use crate::support::{CLAIMS, run};

#[track_caller]
fn expect(ran: &Ran, code: i32) {
    assert_eq!(ran.code(), Some(code), "{}", ran.snapshot());
}

fn server_records(bed: &Bed) -> Vec<Value> {
    let dir = bed.scratch.path().join(".ralph/opencode");
    let files = std::fs::read_dir(dir).unwrap().flatten();
    let journals = files.filter(|file| file.file_name().to_string_lossy().contains("journal"));
    let lines = journals.flat_map(|file| {
        let text = std::fs::read_to_string(file.path()).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    lines
        .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
        .map(|record| record["event"].clone())
        .collect()
}

#[test]
fn agents_cannot_stop_or_replace_the_shared_server() {
    let bed = Bed::new(&json!({}), "");
    let mut up = bed.up();
    let before = bed.await_ready(1);
    // The agent also sends these requests without the variables that identify it, and from a process with another parent.
    let asks = format!(
        "{BIN} opencode stop; echo $? >> answers; {BIN} opencode restart; echo $? >> answers; \
         (setsid env -u TACHIKOMA_LOOP_ID -u TACHIKOMA_INSIDE {BIN} opencode stop; echo $? >> answers) & wait; {CLAIMS}"
    );
    let ran = bed.tool().run(run(&[], &asks));
    expect(&ran, 0);
    assert_eq!(bed.scratch.read("answers"), "1\n1\n1\n");
    assert!(up.is_running());
    assert_eq!(bed.status()["pid"], before["pid"]);
    let refused = server_records(&bed).into_iter();
    let refused = refused.filter(|event| event["kind"] == "access_refused");
    let refused: Vec<Value> = refused.map(|event| event["request"].clone()).collect();
    assert_eq!(refused, ["stop", "restart", "stop"]);
    expect(&bed.tool().run(["opencode", "stop"]), 0);
    expect(&up.wait(LOOP), 0);
}

#[test]
fn the_supervisor_obeys_signals_of_the_operator_only() {
    let bed = Bed::new(&json!({}), "");
    let mut up = bed.up();
    let before = bed.await_ready(1);
    let changed = "sed -i 's/^enabled.*/&\\nauto_restart = false/' tachikoma.toml";
    let signals = format!(
        "{changed}; for s in HUP TERM INT; do kill -s $s {}; until grep -q \\\"SIG$s .ralph/opencode/*journal*; do sleep 0.02; done; done; {BIN} opencode reload; echo $? > answer; {CLAIMS}",
        up.pid()
    );
    let text = bed.scratch.read("tachikoma.toml");
    let ran = bed.tool().run(run(&[], &signals));
    expect(&ran, 0);
    assert_eq!(bed.scratch.read("answer"), "1\n");
    assert_ne!(
        bed.scratch.read("tachikoma.toml"),
        text,
        "the tool changed the configuration"
    );
    assert!(up.is_running());
    assert!(!up.stdout().contains("the settings were read again"));
    assert_eq!(bed.status()["pid"], before["pid"]);
    let refused = server_records(&bed).into_iter();
    let refused = refused.filter(|event| event["kind"] == "access_refused");
    let refused: Vec<Value> = refused.map(|event| event["request"].clone()).collect();
    assert_eq!(refused, ["SIGHUP", "SIGTERM", "SIGINT", "reload"]);
    let reloaded = bed.tool().run(["opencode", "reload"]);
    expect(&reloaded, 0);
    assert!(
        reloaded.stdout.contains("the settings were read again"),
        "{}",
        reloaded.snapshot()
    );
    up.signal(Signal::TERM);
    expect(&up.wait(LOOP), 143);
}

#[test]
fn a_tool_in_the_shared_server_cannot_command_a_loop() {
    let command = "tachikoma note mind the beans; tachikoma stop --now 2> refused; echo x > asked";
    let bed = Bed::new(
        &json!({"turn": {"command": command.replace("tachikoma", BIN)}}),
        "",
    );
    let up = bed.up();
    bed.await_ready(1);
    let ran = bed.start("1").wait(LOOP);
    expect(&ran, 3);
    assert!(bed.scratch.path().join("asked").exists());
    let said = bed.scratch.read("refused");
    assert!(said.contains("only the operator may ask this"), "{said}");
    assert_eq!(bed.of_type("noted").len(), 1);
    let incidents = bed.of_type("incident");
    assert_eq!(incidents.len(), 1, "{incidents:?}");
    assert_eq!(incidents[0]["request"], "stop");
    expect(&bed.tool().run(["opencode", "stop"]), 0);
    expect(&up.wait(LOOP), 0);
}
