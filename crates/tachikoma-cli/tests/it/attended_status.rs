//! The status, hooks and notifications of an attended loop.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};
use tachikoma_testkit::await_until;

use crate::attended_support::await_question;
use crate::hooks::hook;
use crate::live_support::{
    BIN, SOON, UNTIL_GO, UP, await_status, await_up, go, obey, status, stop, tool, with_agent,
};

#[test]
fn hooks_and_notifications_of_a_question_contain_all_that_an_answer_needs() {
    let scratch = with_agent(UP);
    let answers = format!("cat >told; {BIN} answer $TACHIKOMA_QUESTION stop >answered 2>&1");
    let message = "[[notify]]\nto = 'command'\ncommand = 'cat >message.tmp; mv message.tmp message'\non = ['question']\n";
    scratch.write(
        "tachikoma.toml",
        format!("{}{message}", hook("question", &answers, "")),
    );
    let tool = tool(&scratch);
    let live = tool.spawn(["run", "--attended", "--", "sh", "agent.sh"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
    let message = scratch.path().join("message");
    await_until("the message", SOON, || message.exists());
    for file in ["told", "message"] {
        let told: Value = serde_json::from_str(&scratch.read(file)).unwrap();
        let question = &told["question"];
        assert_eq!(question["id"], 1, "{told}");
        assert_eq!(question["default"], "pause");
        assert_eq!(
            question["choices"],
            json!(["continue", "reboot", "edit", "pause", "stop"])
        );
        assert!(question["until"].is_string(), "{told}");
    }
}

#[test]
fn status_shows_an_open_question_and_pending_messages() {
    let scratch = with_agent(&format!("{UP} {UNTIL_GO}"));
    let tool = tool(&scratch);
    let live = tool.spawn(["run", "--delay", "0s", "--", "sh", "agent.sh"]);
    await_up(&scratch, 1);
    let before = status(&tool);
    assert_eq!(before["attended"], false, "{before}");
    assert_eq!(before["told"], json!([]));
    let mut command = tool.command(["tell", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"look at\nthe printer\n").unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    let told = status(&tool)["told"].clone();
    assert_eq!(told, json!([{"number": 1, "text": "look at\nthe printer"}]));
    let shown = obey(&tool, &["status"]);
    assert!(shown.contains("to agent   waits: look at"), "{shown}");
    go(&scratch, 1);
    await_up(&scratch, 2);
    assert_eq!(status(&tool)["told"][0]["in_prompt"], true);
    go(&scratch, 2);
    await_status(&tool, "it is told", |status| status["told"] == json!([]));
    assert_eq!(stop(&tool, live), Some(5));

    let live = tool.spawn(["run", "--attended"]);
    await_question(&tool, 1);
    assert_eq!(status(&tool)["attended"], true);
    obey(&tool, &["attend", "off"]);
    assert_eq!(status(&tool)["attended"], false);
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn status_shows_a_canceled_reboot() {
    let scratch = with_agent(&format!("{UP} {UNTIL_GO}"));
    scratch.write(
        "tachikoma.toml",
        hook("before_reboot", "echo not today; exit 3", ""),
    );
    let tool = tool(&scratch);
    let live = tool.spawn(["run", "--delay", "0s", "--", "sh", "agent.sh"]);
    await_up(&scratch, 1);
    obey(&tool, &["reboot"]);
    go(&scratch, 1);
    let status = await_status(&tool, "called off", |it| it["reboot_failed"].is_object());
    assert_eq!(status["reboot_failed"]["called_off"], true);
    let shown = obey(&tool, &["status"]);
    let words = "reboot     the last one was called off at iteration 1 (1 in a row): ";
    assert!(
        shown.contains(words) && shown.contains("not today"),
        "{shown}"
    );
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn rejected_output_of_a_hook_is_reported_and_removed_values_are_unset() {
    let scratch = with_agent("exit 0");
    let long =
        "printf '{\"custom\": {\"n\": \"'; head -c 200000 /dev/zero | tr '\\0' x; echo '\"}}'";
    scratch.write_script("long.sh", format!("#!/bin/sh\n{long}\n"));
    scratch.write(
        "tachikoma.toml",
        hook("iteration_end", "./long.sh", "")
            + &hook("loop_start", "echo '{\"custom\": {\"m\": 1}}'", "")
            + &hook("loop_end", "echo '{\"custom\": {\"m\": null}}'", ""),
    );
    let tool = tool(&scratch);
    let words = ["run", "--max-iterations", "1", "--", "sh", "agent.sh"];
    let ran = tool.run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    for said in [
        "warning: the hook `./long.sh` printed a line that is too long; custom data in it is ignored",
        "`m` is set\n",
        "`m` is removed\n",
    ] {
        assert!(ran.stdout.contains(said), "{}", ran.snapshot());
    }
}
