//! An editor or pager uses the terminal of a loop, and the loop gets the terminal back.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tachikoma_testkit::{Scratch, Tool, await_until};

use crate::attended_support::{ATTENDED, await_question};
use crate::live_pty::{CTRL_C, CTRL_Z, Screen, Terminal};
use crate::live_support::{
    BIN, SOON, await_status, is_alive, obey, state_of, status, tool, with_agent,
};

/// An editor script that writes its pid to `editor`, notes a SIGINT, and appends a line to the prompt once `close` exists.
const EDITOR: &str = "#!/bin/sh
trap 'touch interrupted' INT
echo $$ >editor.tmp; mv editor.tmp editor
while [ ! -e close ]; do sleep 0.02; done
echo 'only this once' >>\"$1\"
ls -l \"$1\" >listed
";

/// Like `EDITOR`, but without child processes: a shell waits for a child that is stopped before its `exec`, and cannot be stopped itself.
const ALONE: &str = "#!/bin/sh
mkfifo close
echo $$ >editor.tmp; mv editor.tmp editor
read line <close
echo 'only this once' >>\"$1\"
";

/// Starts a loop that asks a question, with an editor open.
fn editing(scratch: &Scratch) -> (Tool<'_>, Terminal, u32) {
    editing_with(scratch, EDITOR)
}

fn editing_with<'a>(scratch: &'a Scratch, script: &str) -> (Tool<'a>, Terminal, u32) {
    scratch.write_script("editor.sh", script);
    let tool = tool(scratch)
        .env("VISUAL", "./editor.sh")
        .env("TACHIKOMA_QUESTION_TIMEOUT", "2m");
    let terminal = Terminal::start(&tool, &ATTENDED, 100);
    terminal.answer(b'e');
    let path = scratch.path().join("editor");
    await_until("the editor is open", SOON, || path.exists());
    let editor = scratch.read("editor").trim().parse().unwrap();
    // The editor process starts before the loop gives it the terminal.
    await_until("keys are the editor's", SOON, || {
        terminal.has_in_front(editor)
    });
    (tool, terminal, editor)
}

fn close(scratch: &Scratch) {
    fs::write(scratch.path().join("close"), "").unwrap();
}

#[test]
fn ctrl_c_in_an_editor_does_not_stop_the_loop() {
    let scratch = with_agent("cat >>prompts");
    let (tool, terminal, _) = editing(&scratch);
    let interrupted = scratch.path().join("interrupted");
    terminal.press(CTRL_C);
    await_until("the editor hears it", SOON, || interrupted.exists());
    assert_eq!(
        status(&tool)["question"]["id"],
        1,
        "no other process gets the keys"
    );
    close(&scratch);
    terminal.await_text("question 2: iteration 1 is over");
    assert_eq!(scratch.read("prompts"), "work\nonly this once\n");
    let listed = scratch.read("listed");
    assert!(listed.starts_with("-rw------- "), "{listed}");
    terminal.answer(b'q');
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(5), "{screen:#?}");
    screen.assert_clean();
}

#[test]
fn the_loop_gets_the_terminal_back_from_a_killed_editor() {
    let scratch = with_agent("cat >>prompts");
    let (tool, terminal, editor) = editing(&scratch);
    let editor = Pid::from_raw(i32::try_from(editor).unwrap()).unwrap();
    kill_process(editor, Signal::KILL).unwrap();
    terminal.await_text("failed: signal: 9 (SIGKILL); the prompt is unchanged");
    assert_eq!(status(&tool)["question"]["id"], 1);
    terminal.answer(b'c');
    terminal.await_text("question 2: iteration 1 is over");
    assert_eq!(scratch.read("prompts"), "work\n");
    // Ctrl-C now reaches the loop.
    await_until("keys are read", SOON, || terminal.gives_keys());
    terminal.press(CTRL_C);
    assert!(!terminal.keeps_giving_keys());
    assert_eq!(terminal.end().0, Some(130));
}

#[test]
fn ctrl_z_in_an_editor_stops_the_loop_too_and_both_continue() {
    let scratch = with_agent("cat >>prompts");
    let (_tool, terminal, editor) = editing_with(&scratch, ALONE);
    terminal.press(CTRL_Z);
    let mut pressed = Some(Instant::now());
    await_until("the editor is stopped", SOON, || {
        let is_stopped = state_of(editor) == Some('T');
        // A key that is pressed before the editor has the terminal has no effect, so it is pressed again.
        let in_vain = pressed.is_some_and(|pressed| pressed.elapsed() > Duration::from_secs(2));
        if !is_stopped && in_vain && terminal.has_in_front(editor) {
            pressed = None;
            terminal.press(CTRL_Z);
        }
        is_stopped
    });
    await_until("the loop is stopped", SOON, || {
        state_of(terminal.pid()) == Some('T')
    });
    terminal.signal(Signal::CONT);
    await_until("the editor goes on", SOON, || state_of(editor) != Some('T'));
    // The named pipe is opened for reading and writing, so that the open does not block.
    let gate = scratch.path().join("close");
    let mut gate = File::options().read(true).write(true).open(gate).unwrap();
    gate.write_all(b"\n").unwrap();
    terminal.await_text("question 2: iteration 1 is over");
    assert_eq!(scratch.read("prompts"), "work\nonly this once\n");
    terminal.answer(b'q');
    assert_eq!(terminal.end().0, Some(5));
}

#[test]
fn a_loop_that_ends_takes_its_terminal_back_from_an_editor() {
    let scratch = with_agent("cat >>prompts");
    let (tool, terminal, editor) = editing(&scratch);
    obey(&tool, &["stop"]);
    assert!(!terminal.keeps_giving_keys());
    await_until("the editor is gone", SOON, || {
        state_of(editor).is_none_or(|state| state == 'Z')
    });
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(5));
    let draft = screen.behind("note: your unfinished text is in ");
    let draft = fs::read_to_string(draft.expect("the output names the file of the edited prompt"));
    assert_eq!(draft.unwrap(), "work\n");
}

#[test]
fn a_third_ctrl_c_restores_the_terminal() {
    let scratch = with_agent("echo working");
    scratch.write(
        "tachikoma.toml",
        "[[hook]]\non = \"loop_end\"\ncommand = \"touch hook$(ls hook* | wc -l); exec sleep 100\"\ntimeout = \"0s\"\n",
    );
    let tool = tool(&scratch);
    let terminal = Terminal::start(&tool, &ATTENDED, 100);
    await_until("keys are read", SOON, || terminal.gives_keys());
    terminal.press(CTRL_C);
    let hook = scratch.path().join("hook0");
    await_until("the hook at the end hangs", SOON, || hook.exists());
    // Two presses of Ctrl-C at the same time may be merged into one signal.
    await_until("the program ends", SOON, || {
        terminal.press(CTRL_C);
        terminal.has_ended()
    });
    assert!(!terminal.keeps_giving_keys());
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(130), "{screen:#?}");
}

/// While the operator edits, the timeout of the question does not apply.
#[test]
fn a_question_waits_for_a_prompt_that_is_being_edited() {
    let scratch = with_agent("cat >>prompts");
    let (tool, terminal, editor) = editing(&scratch);
    let until = |status: &serde_json::Value| status["question"]["until"].clone();
    await_status(&tool, "held", |status| until(status).is_null());
    let editor = Pid::from_raw(i32::try_from(editor).unwrap()).unwrap();
    kill_process(editor, Signal::KILL).unwrap();
    await_status(&tool, "let go", |status| until(status).is_string());
    let recorded = obey(&tool, &["events"]);
    assert!(
        recorded.contains("question 1 waits for what is written"),
        "{recorded}"
    );
    assert!(
        !terminal.raw().contains("question 1 waits"),
        "the editor has the terminal"
    );
    fs::remove_file(scratch.path().join("editor")).unwrap();
    close(&scratch);
    terminal.answer(b'e');
    terminal.await_text("question 2: iteration 1 is over");
    assert_eq!(scratch.read("prompts"), "work\nonly this once\n");
    terminal.answer(b'q');
    assert_eq!(terminal.end().0, Some(5));
}

/// Another client answers while the operator edits.
#[test]
fn a_late_edit_is_kept_for_the_next_question() {
    let scratch = with_agent("cat >>prompts");
    let (tool, terminal, _) = editing(&scratch);
    obey(&tool, &["answer", "continue"]);
    await_question(&tool, 2);
    close(&scratch);
    terminal.await_text("`e` at the next question opens it again");
    let told = Screen::of(&terminal.raw());
    let kept = told.behind("note: your text is saved in ").unwrap();
    let (draft, _) = kept.split_once(';').unwrap();
    let draft = fs::read_to_string(draft).unwrap();
    assert_eq!(draft, "work\nonly this once\n");
    terminal.answer(b'e');
    terminal.await_text("question 3: iteration 2 is over");
    // The editor appended its line to the saved draft.
    assert_eq!(
        scratch.read("prompts"),
        "work\nwork\nonly this once\nonly this once\n"
    );
    terminal.answer(b'q');
    assert_eq!(terminal.end().0, Some(5));
}

/// An editor that starts a background server, which sends requests to the loop after the editor has exited.
const LEAVES: &str = "#!/bin/sh
(setsid sh server.sh >/dev/null 2>&1 </dev/null &)
while [ ! -e serving ]; do sleep 0.02; done
echo 'only this once' >>\"$1\"
";

#[test]
fn a_server_started_by_an_editor_survives_the_run_but_cannot_command_it() {
    let scratch = with_agent("cat >>prompts");
    scratch.write_script("editor.sh", LEAVES);
    scratch.write(
        "server.sh",
        format!(
            "echo $$ >serving.tmp; mv serving.tmp serving; while [ ! -e prompts ]; do sleep 0.02; done\n\
             {BIN} tell 'of the server' >told; echo $? >answer; while [ ! -e close ]; do sleep 0.02; done\n"
        ),
    );
    let tool = tool(&scratch).env("VISUAL", "./editor.sh");
    let terminal = Terminal::start(&tool, &ATTENDED, 100);
    terminal.answer(b'e');
    terminal.await_text("question 2: iteration 1 is over");
    let answer = scratch.path().join("answer");
    await_until("it has asked", SOON, || {
        fs::read_to_string(&answer).is_ok_and(|answer| answer == "1\n")
    });
    terminal.answer(b'q');
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(5), "{screen:#?}");
    let server = scratch.read("serving").trim().parse().unwrap();
    assert!(
        is_alive(server),
        "the background server still runs after the run"
    );
    close(&scratch);
    await_until("it ends by itself", SOON, || !is_alive(server));
}
