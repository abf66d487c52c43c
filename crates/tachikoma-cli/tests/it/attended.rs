//! Attended mode of the real binary: the operator answers from another process.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tachikoma_testkit::{Live, Scratch, Tool, await_until};

use crate::attended_support::{ATTENDED, await_question};
use crate::live_support::{
    SOON, UNTIL_GO, UP, await_status, await_up, events, go, obey, socket, status, stop, tool,
    with_agent,
};

/// Kills a runner and waits until its guard has ended the agent's processes.
fn kill(live: Live) {
    let pid = i32::try_from(live.pid()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    live.wait(SOON);
}

/// Returns the questions, answers and requests in the journal, in order.
fn operator(tool: &Tool<'_>) -> Vec<Value> {
    let events = events(tool)
        .into_iter()
        .map(|record| record["event"].clone());
    events.filter(|event| event["type"] == "operator").collect()
}

/// The question is the last record of this journal, so `run --detach` must not wait for a record after it.
#[test]
fn a_detached_loop_may_start_with_a_question() {
    let scratch = with_agent(UP);
    let tool = tool(&scratch);
    let mut words = ATTENDED.to_vec();
    words.insert(1, "--detach");
    let left = tool.spawn(words);
    assert_eq!(left.wait(SOON).code(), Some(0));
    await_question(&tool, 1);
    obey(&tool, &["stop"]);
    await_status(&tool, "stopped", |status| status["state"] == "stopped");
}

#[test]
fn a_question_is_answered_by_a_command_and_a_stale_answer_is_refused() {
    let scratch = with_agent(UP);
    let tool = tool(&scratch);
    let live = tool.spawn(ATTENDED);
    let first = await_question(&tool, 1);
    assert_eq!(first["kind"], "before_iteration");
    assert_eq!(first["default"], "pause");
    assert_eq!(status(&tool)["waiting"]["reason"], "operator");
    let shown = obey(&tool, &["status"]);
    assert!(
        shown.contains("question   1: iteration 1 is next\nanswer     continue, reboot, edit, pause, stop; without an answer: pause at "),
        "{shown}"
    );
    assert!(
        !scratch.path().join("up1").exists(),
        "no iteration has started"
    );

    for (words, says) in [
        (
            vec!["answer", "7", "continue"],
            "question 7 is no longer open; question 1 is",
        ),
        (
            vec!["answer", "yes"],
            "`yes` is not an answer to question 1",
        ),
    ] {
        let refused = tool.run(&words);
        assert_eq!(refused.code(), Some(1), "{}", refused.snapshot());
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
    for words in [
        vec!["answer", "y"],
        vec!["answer", "x", "continue"],
        vec!["answer", "edit"],
    ] {
        assert_eq!(tool.run(&words).code(), Some(2), "{words:?}");
    }
    assert_eq!(
        obey(&tool, &["answer", "1", "continue"]),
        "the loop continues\n"
    );
    let second = await_question(&tool, 2);
    assert_eq!(second["kind"], "after_iteration");
    await_up(&scratch, 1);
    assert_eq!(obey(&tool, &["answer", "pause"]), "paused\n");
    await_status(&tool, "paused", |status| status["state"] == "paused");
    obey(&tool, &["resume"]);
    await_question(&tool, 3);
    await_up(&scratch, 2);
    obey(&tool, &["answer", "stop"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
    let refused = tool.run(["answer", "continue"]);
    assert_eq!(refused.code(), Some(1));
    assert!(
        refused.stderr.contains("no loop runs"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_question_without_an_answer_pauses_the_loop() {
    let scratch = with_agent(UP);
    let tool = tool(&scratch).env("TACHIKOMA_QUESTION_TIMEOUT", "100ms");
    let live = tool.spawn(ATTENDED);
    await_status(&tool, "paused", |status| status["state"] == "paused");
    let said = operator(&tool);
    assert_eq!(said[1]["by"], "default", "{said:?}");
    assert_eq!(status(&tool)["unanswered"], 1);
    let shown = obey(&tool, &["status"]);
    assert!(
        shown.contains("question   1 was not answered in time, and the loop is paused; `tachikoma resume` continues\n"),
        "{shown}"
    );
    assert!(!scratch.path().join("up1").exists());
    obey(&tool, &["stop"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
}

#[test]
fn a_question_stays_open_after_the_runner_is_killed() {
    let scratch = with_agent(UP);
    let tool = tool(&scratch);
    let live = tool.spawn(ATTENDED);
    let before = await_question(&tool, 1);
    kill(live);
    let shown = obey(&tool, &["status"]);
    assert!(
        shown.contains("question   1: iteration 1 is next\nanswer     the loop is not running; `tachikoma run` asks again\n"),
        "{shown}"
    );
    let live = tool.spawn(["run"]);
    let after = await_question(&tool, 1);
    assert_eq!(before, after, "the question has the same number and time");
    obey(&tool, &["answer", "1", "continue"]);
    await_question(&tool, 2);
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn an_agent_cannot_answer_for_the_operator() {
    let scratch = with_agent(&format!(
        "{UP} tachikoma answer continue >answered 2>&1; echo $? >>answered; tachikoma attend off >>answered 2>&1; \
         tachikoma tell me >>answered 2>&1; echo $? >>answered; touch done1; {UNTIL_GO}"
    ));
    let tool = tool(&scratch);
    let live = tool.spawn(ATTENDED);
    await_question(&tool, 1);
    obey(&tool, &["answer", "continue"]);
    let done = scratch.path().join("done1");
    await_until("the agent has tried", SOON, || done.exists());
    let answered = fs::read_to_string(scratch.path().join("answered")).unwrap();
    assert_eq!(
        answered.matches("only the operator may ask this").count(),
        3,
        "{answered}"
    );
    assert_eq!(answered.matches("\n1\n").count(), 2, "{answered}");
    go(&scratch, 1);
    await_question(&tool, 2);
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn an_edited_prompt_is_used_for_one_iteration_and_survives_a_kill() {
    let scratch = with_agent(&format!(
        "cat >>prompts; echo == >>prompts; {UP} {UNTIL_GO}"
    ));
    scratch.write("next.md", "only this once\n");
    let tool = tool(&scratch);
    let live = tool.spawn(ATTENDED);
    await_question(&tool, 1);
    let kept = || {
        let loops = fs::read_dir(scratch.path().join(".ralph/loops")).unwrap();
        let dirs = loops.map(|entry| entry.unwrap().path().join("prompts"));
        dirs.filter_map(|dir| fs::read_dir(dir).ok())
            .flatten()
            .count()
    };
    let stale = tool.run(["answer", "7", "edit", "--prompt-file", "next.md"]);
    assert_eq!(stale.code(), Some(1), "{}", stale.snapshot());
    assert_eq!(kept(), 0, "an invalid answer saves no prompt");
    let said = obey(&tool, &["answer", "edit", "--prompt-file", "next.md"]);
    assert_eq!(kept(), 1);
    assert_eq!(
        said,
        "the loop continues; the next iteration uses this prompt\n"
    );
    fs::remove_file(scratch.path().join("next.md")).unwrap();
    await_up(&scratch, 1);
    kill(live);
    go(&scratch, 1);
    let live = tool.spawn(["run"]);
    await_question(&tool, 2);
    obey(&tool, &["answer", "continue"]);
    await_question(&tool, 3);
    obey(&tool, &["answer", "continue"]);
    await_up(&scratch, 2);
    let prompts = scratch.read("prompts");
    let parts: Vec<&str> = prompts.split("==\n").collect();
    assert_eq!(
        (parts[0], parts[2]),
        ("only this once\n", "work\n"),
        "{prompts}"
    );
    assert!(
        parts[1].starts_with("An earlier attempt at this iteration was cut short;")
            && parts[1].ends_with("\n\nonly this once\n"),
        "{prompts}"
    );
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn a_message_of_the_operator_is_in_the_next_prompt_once() {
    let scratch = with_agent(&format!(
        "cat >>prompts; echo == >>prompts; {UP} {UNTIL_GO}"
    ));
    let tool = tool(&scratch);
    let live = tool.spawn(["run", "--delay", "0s", "--", "sh", "agent.sh"]);
    await_up(&scratch, 1);
    let said = obey(&tool, &["tell", "look at", "the printer"]);
    assert_eq!(said, "the agent gets the message with the next prompt\n");
    go(&scratch, 1);
    await_up(&scratch, 2);
    go(&scratch, 2);
    await_up(&scratch, 3);
    let prompts = fs::read_to_string(scratch.path().join("prompts")).unwrap();
    let told = "The operator says:\n\nlook at the printer\n\nwork\n";
    assert_eq!(prompts, format!("work\n==\n{told}==\nwork\n==\n"));
    assert_eq!(tool.run(["tell", " "]).code(), Some(2));
    assert_eq!(tool.run(["tell", &"x".repeat(5000)]).code(), Some(2));
    assert_eq!(stop(&tool, live), Some(5));
    let nobody = tool.run(["tell", "hello"]);
    assert_eq!(nobody.code(), Some(1));
    assert!(nobody.stderr.contains("no loop runs"), "{}", nobody.stderr);
}

#[test]
fn a_message_of_the_operator_is_repeated_after_its_iteration_was_interrupted() {
    let scratch = with_agent(&format!(
        "cat >>prompts; echo == >>prompts; {UP} touch attempt$TACHIKOMA_ATTEMPT; {UNTIL_GO}"
    ));
    let tool = tool(&scratch);
    let live = tool.spawn(["run", "--delay", "0s", "--", "sh", "agent.sh"]);
    await_up(&scratch, 1);
    obey(&tool, &["tell", "look at the printer"]);
    go(&scratch, 1);
    await_up(&scratch, 2);
    assert_eq!(stop(&tool, live), Some(5));
    let live = tool.spawn(["run"]);
    await_up(&scratch, 3);
    kill(live);
    let live = tool.spawn(["run"]);
    let repeated = scratch.path().join("attempt2");
    await_until("the second attempt is up", SOON, || repeated.exists());
    go(&scratch, 3);
    await_up(&scratch, 4);
    assert_eq!(stop(&tool, live), Some(5));
    let prompts = scratch.read("prompts");
    let told: Vec<bool> = prompts
        .split_terminator("==\n")
        .map(|prompt| prompt.starts_with("The operator says:\n\nlook at the printer\n\n"))
        .collect();
    assert_eq!(told, [false, true, true, true, false], "{prompts}");
}

#[test]
fn attended_mode_can_be_switched_during_a_run() {
    let scratch = with_agent(&format!("{UP} {UNTIL_GO}"));
    let tool = tool(&scratch);
    let live = tool.spawn(["run", "--delay", "0s", "--", "sh", "agent.sh"]);
    await_up(&scratch, 1);
    obey(&tool, &["attend", "on"]);
    go(&scratch, 1);
    await_question(&tool, 1);
    obey(&tool, &["attend", "off"]);
    await_up(&scratch, 2);
    assert_eq!(status(&tool)["question"], Value::Null);
    assert_eq!(status(&tool)["attended"], json!(false));
    let said = operator(&tool);
    let switched: Vec<_> = said.iter().filter(|it| it["what"] == "attended").collect();
    assert_eq!(switched.len(), 2, "{said:?}");
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn an_iteration_is_rolled_back_and_asked_about_again() {
    let scratch = Scratch::with_git();
    scratch.write("prompt.md", "work\n");
    scratch.write(
        "agent.sh",
        "echo spoilt >file; cat >>.git/prompts; echo == >>.git/prompts\n",
    );
    scratch.write("file", "good\n");
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "-qm", "begin"]);
    let tool = tool(&scratch);
    let live = tool.spawn(ATTENDED);
    await_question(&tool, 1);
    obey(&tool, &["answer", "continue"]);
    await_question(&tool, 2);
    assert_eq!(scratch.read("file"), "spoilt\n");
    obey(&tool, &["answer", "rollback"]);
    let again = await_question(&tool, 3);
    assert_eq!(again["kind"], "after_iteration");
    assert_eq!(scratch.read("file"), "good\n");
    let kept = scratch.git(&["for-each-ref", "--format=%(refname)"]);
    assert!(kept.contains("before-rollback-1"), "{kept}");
    obey(&tool, &["answer", "continue"]);
    await_question(&tool, 4);
    let prompts = scratch.read(".git/prompts");
    assert!(
        prompts.contains("The operator rolled the work tree back to its state before iteration 1."),
        "{prompts}"
    );
    assert_eq!(stop(&tool, live), Some(5));
    let said = operator(&tool);
    assert!(
        said.iter()
            .any(|it| it["what"] == "rolled_back" && it["error"].is_null()),
        "{said:?}"
    );
}

#[test]
fn a_reboot_is_confirmed() {
    let scratch = with_agent(UP);
    scratch.write(
        "tachikoma.toml",
        "[reboot]\nmode = \"confirm\"\nmin_reboot_interval = \"0s\"\n[reboot.triggers]\nafter_iterations = 1\n",
    );
    let tool = tool(&scratch);
    let live = tool.spawn(["run", "--delay", "0s", "--", "sh", "agent.sh"]);
    let asked = await_question(&tool, 1);
    assert_eq!(asked["kind"], "confirm_reboot");
    assert_eq!(asked["choices"], json!(["yes", "no", "pause", "stop"]));
    obey(&tool, &["answer", "yes"]);
    await_question(&tool, 2);
    assert_eq!(status(&tool)["session"]["number"], 2);
    obey(&tool, &["answer", "no"]);
    await_question(&tool, 3);
    assert_eq!(
        status(&tool)["iteration"],
        7,
        "the reboot is delayed for five iterations"
    );
    assert_eq!(status(&tool)["session"]["number"], 2);
    assert_eq!(
        obey(&tool, &["skip"]),
        "continues without the reboot, as with the answer `no`\n"
    );
    await_question(&tool, 4);
    assert_eq!(
        status(&tool)["iteration"],
        12,
        "the reboot is delayed again"
    );
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn the_socket_rejects_an_incomplete_answer() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let scratch = with_agent(UP);
    let tool = tool(&scratch);
    let live = tool.spawn(ATTENDED);
    await_question(&tool, 1);
    for line in [
        "",
        "\n",
        "{\"kind\":\"answer\",\"id\":1}\n",
        "{\"kind\":\"answer\",\"id\":1,\"choice\":\"yup\"}\n",
        "{\"kind\":\"answer\",\"id\":1,\"choice\":\"\"}\n",
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(socket(&scratch)).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let replies: Vec<String> = BufReader::new(stream)
            .lines()
            .map_while(Result::ok)
            .collect();
        assert!(
            replies.iter().all(|it| !it.contains("accepted")),
            "{replies:?}"
        );
    }
    assert_eq!(
        await_question(&tool, 1)["id"],
        1,
        "the question is still open"
    );
    assert_eq!(stop(&tool, live), Some(5));
}
