//! The operator answers questions with keys at the terminal.

use std::io::Write as _;
use std::process::Stdio;

use rustix::process::Signal;
use tachikoma_testkit::{Scratch, await_until};

use crate::attended_support::{ATTENDED, await_question};
use crate::live_pty::{CTRL_C, CTRL_Z, Terminal};
use crate::live_support::{
    SOON, UNTIL_GO, UP, await_status, await_up, go, obey, state_of, status, tool, with_agent,
};

#[test]
fn only_the_keys_of_a_question_answer_it() {
    let scratch = with_agent("echo working");
    let tool = tool(&scratch);
    let terminal = Terminal::start(&tool, &ATTENDED, 100);
    terminal.await_text("question 1: iteration 1 is next");
    terminal.await_text("  c continue · r reboot · e edit · p pause · q stop; pause in ");
    // These inputs are a key that is not offered, keys that send several bytes, and a newline.
    for wrong in ["y", "\u{1b}[C", "cc", "\n", "\u{4}"] {
        let before = terminal.raw().matches("not a valid key").count();
        await_until("keys are read", SOON, || terminal.gives_keys());
        terminal.type_in(wrong);
        await_until("it says so", SOON, || {
            terminal.raw().matches("not a valid key").count() > before
        });
    }
    assert_eq!(
        status(&tool)["question"]["id"],
        1,
        "the question is still open"
    );
    terminal.answer(b'c');
    terminal.await_text("question 2: iteration 1 is over");
    terminal.answer(b'q');
    let gives_keys = terminal.keeps_giving_keys();
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(5), "{screen:#?}");
    assert!(!gives_keys, "the terminal has its original mode");
    screen.assert_clean();
    assert!(screen.shows("question 2 is answered: stop"), "{screen:#?}");
}

#[test]
fn keys_resume_and_stop_a_paused_loop() {
    let scratch = with_agent("echo working");
    let tool = tool(&scratch);
    let terminal = Terminal::start(&tool, &ATTENDED, 100);
    terminal.answer(b'p');
    terminal.await_text("paused; `tachikoma resume` continues");
    terminal.await_text("  c continue · q stop");
    terminal.answer(b'p');
    terminal.await_text("not a valid key; c continue · q stop");
    terminal.answer(b'c');
    terminal.await_text("question 2: iteration 1 is over");
    terminal.answer(b'p');
    await_status(&tool, "paused", |status| status["state"] == "paused");
    terminal.answer(b'q');
    assert!(!terminal.keeps_giving_keys());
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(5), "{screen:#?}");
    assert!(!screen.shows("iteration 0"), "{screen:#?}");
}

#[test]
fn keys_pressed_before_a_question_do_not_answer_it() {
    let scratch = with_agent(&format!("{UP} {UNTIL_GO}"));
    let tool = tool(&scratch);
    let terminal = Terminal::start(&tool, &ATTENDED, 100);
    terminal.answer(b'c');
    await_up(&scratch, 1);
    await_until("nobody reads keys", SOON, || !terminal.gives_keys());
    terminal.type_in("c");
    go(&scratch, 1);
    await_until("keys are read", SOON, || terminal.gives_keys());
    // Only keys that are pressed after the question answer it.
    terminal.press(b'p');
    await_status(&tool, "paused", |status| status["state"] == "paused");
    obey(&tool, &["stop"]);
    assert_eq!(terminal.end().0, Some(5));
}

#[test]
fn the_changes_are_shown_and_the_next_prompt_is_edited() {
    let scratch = Scratch::with_git();
    scratch.write("prompt.md", "work\n");
    scratch.write("agent.sh", "cat >>.git/prompts; echo spoilt >>file\n");
    scratch.write_script("editor.sh", "#!/bin/sh\necho 'only this once' >>\"$1\"\n");
    scratch.write("file", "good\n");
    scratch.git(&["config", "color.ui", "false"]);
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "-qm", "begin"]);
    let tool = tool(&scratch)
        .env("EDITOR", "./editor.sh")
        .env("GIT_PAGER", "cat");
    let terminal = Terminal::start(&tool, &ATTENDED, 100);
    terminal.answer(b'c');
    terminal.await_text("question 2: iteration 1 is over; it changed 1 file");
    terminal.answer(b'd');
    terminal.await_text("+spoilt");
    terminal.answer(b'e');
    terminal.await_text("question 3: iteration 2 is over");
    assert_eq!(scratch.read(".git/prompts"), "work\nwork\nonly this once\n");
    terminal.answer(b'b');
    terminal.await_text("the work tree is restored to its state before iteration 2");
    assert_eq!(scratch.read("file"), "good\nspoilt\n");
    terminal.await_text("question 4: iteration 2 is over");
    terminal.answer(b'q');
    assert_eq!(terminal.end().0, Some(5));
}

#[test]
fn every_exit_restores_the_terminal() {
    let question = || {
        let scratch = with_agent("echo working");
        let tool = tool(&scratch);
        let terminal = Terminal::start(&tool, &ATTENDED, 100);
        terminal.await_text("question 1");
        await_until("keys are read", SOON, || terminal.gives_keys());
        (scratch, terminal)
    };
    let (_scratch, terminal) = question();
    terminal.press(CTRL_C);
    assert!(!terminal.keeps_giving_keys());
    assert_eq!(terminal.end().0, Some(130));

    let (_scratch, terminal) = question();
    terminal.signal(Signal::TERM);
    assert!(!terminal.keeps_giving_keys());
    assert_eq!(terminal.end().0, Some(143));

    let (_scratch, terminal) = question();
    terminal.press(CTRL_Z);
    await_until("it is stopped", SOON, || {
        state_of(terminal.pid()) == Some('T')
    });
    assert!(
        !terminal.gives_keys(),
        "the terminal may belong to a shell again"
    );
    terminal.signal(Signal::CONT);
    terminal.answer(b'q');
    assert!(!terminal.keeps_giving_keys());
    assert_eq!(terminal.end().0, Some(5));

    let (scratch, terminal) = question();
    obey(&tool(&scratch), &["answer", "stop"]);
    assert!(!terminal.keeps_giving_keys());
    assert_eq!(terminal.end().0, Some(5));
}

#[test]
fn without_a_terminal_stdin_is_not_read() {
    let scratch = with_agent(UP);
    let tool = tool(&scratch);
    let mut command = tool.command(ATTENDED);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"c\ny\ncontinue\n").unwrap();
    drop(stdin);
    await_question(&tool, 1);
    // If the runner had read `continue` from stdin, the question would be closed now.
    assert_eq!(status(&tool)["question"]["id"], 1);
    assert!(!scratch.path().join("up1").exists());
    obey(&tool, &["stop"]);
    assert_eq!(child.wait().unwrap().code(), Some(5));
}
