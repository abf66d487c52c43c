//! A loop at a terminal: progress line, hostile output, Ctrl-C, Ctrl-Z, and a closed window.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use tachikoma_testkit::{Scratch, await_until, processes_with};

use crate::live_pty::{CTRL_C, CTRL_Z, PROGRESS, Terminal};
use crate::live_support::{
    RUN, SOON, UP, await_nobody, await_status, await_up, children, events, is_alive, kinds, obey,
    seconds, state_of, status, tool, with_agent,
};

/// An agent that ends at the first signal.
fn obedient(seconds: &str) -> Scratch {
    with_agent(&format!("echo working; {UP} exec sleep {seconds}"))
}

/// An agent that ignores some signals.
fn stubborn(ignored: &str, seconds: &str) -> Scratch {
    with_agent(&format!(
        "trap '' {ignored}; echo working; {UP} while :; do sleep {seconds}; done"
    ))
}

/// Returns the `sleep` process with this duration, without the runner and its shells.
fn agent(seconds: &str) -> u32 {
    let mut found = Vec::new();
    await_until("the agent sleeps", SOON, || {
        found = processes_with(seconds);
        found.len() == 1
    });
    found[0]
}

#[test]
fn a_terminal_has_a_progress_line_and_a_pipe_has_none() {
    let limited = [
        "run",
        "--delay",
        "0s",
        "--max-iterations",
        "2",
        "--",
        "sh",
        "agent.sh",
    ];
    for columns in [0, 80, 30] {
        let scratch = with_agent("echo working");
        let terminal = Terminal::start(&tool(&scratch), &limited, columns);
        terminal.await_text(PROGRESS);
        let (code, screen) = terminal.end();
        assert_eq!(code, Some(3), "{screen:#?}");
        screen.assert_clean();
        assert!(screen.shows("  | working"), "{screen:#?}");
    }
    let scratch = with_agent("echo working");
    let ran = tool(&scratch).run(limited);
    assert_eq!(ran.code(), Some(3));
    assert!(ran.stdout.contains("  | working\n"), "{}", ran.stdout);
    assert!(!ran.stdout.contains(PROGRESS), "{}", ran.stdout);
    assert!(!ran.stdout.contains(['\u{1b}', '\r']), "{}", ran.stdout);
}

#[test]
fn a_progress_line_is_never_wider_than_the_terminal() {
    let seconds = seconds();
    let scratch = obedient(&seconds);
    let terminal = Terminal::start(&tool(&scratch), &RUN, 24);
    terminal.await_text(PROGRESS);
    // The terminal echoes Ctrl-C after the line, so the line is read first.
    let shown = terminal.uncolored();
    terminal.press(CTRL_C);
    let drawn = shown.split("\r\u{1b}[2K").skip(1);
    let drawn = drawn.filter_map(|line| line.split(['\r', '\n']).next());
    for line in drawn.filter(|line| line.contains(PROGRESS)) {
        assert!(line.chars().count() < 24, "{line:?}");
    }
    assert_eq!(terminal.end().0, Some(130));
}

#[test]
fn agents_cannot_write_to_the_terminal() {
    let scratch = with_agent(
        "printf 'a\\033[2Jb\\033]52;c;aGk=\\007c\\033]0;title\\033\\\\d\\n'\n\
         printf 'over\\rwritten\\n'\n\
         printf '\\033[31mred\\033[0m \\033P1;2qsixel\\033\\\\ \\007bell \\010back\\n' >&2\n\
         printf '\\302\\2332Jc1 \\342\\200\\256gnp.exe\\n'\n\
         printf 'half'",
    );
    let words = ["run", "--max-iterations", "1", "--", "sh", "agent.sh"];
    let (code, screen) = Terminal::start(&tool(&scratch), &words, 80).end();
    assert_eq!(code, Some(3));
    // `Screen` panics at unexpected control sequences.
    screen.assert_clean();
    for line in ["  | abcd", "red", "bell back", "gnp.exe", "  | half"] {
        assert!(screen.shows(line), "{line}: {screen:#?}");
    }
    assert!(!screen.shows("aGk="), "{screen:#?}");
    assert!(!screen.lines.iter().any(|line| line.starts_with("written")));
}

#[test]
fn commands_print_no_control_characters_from_outside() {
    // ESC, and U+009B, which some terminals treat as ESC [.
    let hostile = "\u{1b}[2Jhostile\u{9b}2J";
    let scratch = with_agent(&format!(
        "tachikoma note '{hostile}'; echo '{hostile}'; exit 1"
    ));
    let tool = tool(&scratch);
    let agent = ["--", "sh", "agent.sh"];
    let ran = tool.run([&["run", "--max-iterations", "1"][..], &agent].concat());
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let (option, prompt) = ("--prompt-file", format!("{hostile}.md"));
    for words in [
        &["events"][..],
        &["events", "--json"],
        &["explain"],
        &["explain", "--json"],
        &["status", "--json"],
        &["state", "show"],
        &["state", "export"],
        &["run", "--new", option, &prompt],
        &["run", "--new", "--dry-run", option, &prompt],
        &["run", "--new", "--dry-run", "--", hostile],
        &["status", "--dir", hostile],
        &["state", "restore", hostile, "--yes"],
    ] {
        let ran = tool.run(words);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        let obeyed = |character: char| character.is_control() && character != '\n';
        assert!(!said.contains(obeyed), "{words:?}: {said:?}");
    }
    let events = tool.run(["events", "--json"]).stdout;
    let noted = events.lines().find(|line| line.contains("\"noted\""));
    let noted: Value = serde_json::from_str(noted.unwrap()).unwrap();
    assert_eq!(
        noted["event"]["text"], hostile,
        "JSON output keeps the control characters, escaped"
    );
}

#[test]
fn the_first_ctrl_c_stops_the_loop_gracefully() {
    let seconds = seconds();
    let scratch = obedient(&seconds);
    let tool = tool(&scratch);
    let terminal = Terminal::start(&tool, &RUN, 80);
    terminal.await_text("  | working");
    terminal.press(CTRL_C);
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(130), "{screen:#?}");
    screen.assert_clean();
    assert!(screen.shows("stopped by SIGINT (Ctrl-C)"), "{screen:#?}");
    await_nobody(&seconds);
    assert_eq!(status(&tool)["outcome"]["kind"], "signal");
}

// Known fault of other loops: Ctrl-C did not end the loop and its agent.
#[test]
fn the_second_ctrl_c_stops_the_agent_at_once_and_the_third_kills_it() {
    for (ignored, rungs) in [
        ("INT", ["interrupt", "terminate"].as_slice()),
        ("INT TERM", ["interrupt", "terminate", "kill"].as_slice()),
    ] {
        let seconds = seconds();
        let scratch = stubborn(ignored, &seconds);
        let terminal = Terminal::start(&tool(&scratch), &RUN, 80);
        terminal.await_text("  | working");
        let began = Instant::now();
        for rung in rungs {
            terminal.press(CTRL_C);
            terminal.await_text(&format!("ending the agent: {rung}"));
        }
        let (code, screen) = terminal.end();
        assert_eq!(code, Some(130), "{screen:#?}");
        assert!(
            began.elapsed().as_secs() < 10,
            "the loop did not wait for the grace period"
        );
        screen.assert_clean();
        await_nobody(&seconds);
    }
}

#[test]
fn sigterm_ends_the_loop_with_143() {
    let seconds = seconds();
    let scratch = obedient(&seconds);
    let terminal = Terminal::start(&tool(&scratch), &RUN, 80);
    terminal.await_text("  | working");
    terminal.signal(Signal::TERM);
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(143), "{screen:#?}");
    screen.assert_clean();
    await_nobody(&seconds);
}

#[test]
fn ctrl_c_works_while_no_agent_runs() {
    let scratch = with_agent("exit 0");
    let words = ["run", "--delay", "1h", "--", "sh", "agent.sh"];
    let terminal = Terminal::start(&tool(&scratch), &words, 80);
    terminal.await_text("  waiting, ");
    terminal.press(CTRL_C);
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(130), "{screen:#?}");
    screen.assert_clean();
}

#[test]
fn ctrl_z_stops_runner_agent_and_timeouts() {
    let seconds = seconds();
    let scratch = obedient(&seconds);
    scratch.write(
        "tachikoma.toml",
        "[session]\nsession_timeout = \"3s\"\n[stop_conditions]\nmax_consecutive_failures = 1\n",
    );
    let tool = tool(&scratch);
    let began = Instant::now();
    let terminal = Terminal::start(&tool, &RUN, 80);
    terminal.await_text("  | working");
    let agent = agent(&seconds);
    terminal.press(CTRL_Z);
    let both = |state: fn(char) -> bool| {
        [terminal.pid(), agent]
            .iter()
            .all(|pid| state_of(*pid).is_some_and(state))
    };
    await_until("both are stopped", SOON, || both(|state| state == 'T'));
    // The shell prints its prompt on the line of the progress line.
    await_until("the progress line is gone", SOON, || {
        let raw = terminal.raw();
        let last = raw.rsplit("\u{1b}[2K").next().unwrap_or_default();
        !last.contains(PROGRESS)
    });

    // The loop is suspended for longer than the timeout.
    let stopped = Instant::now();
    await_until("time passes", SOON, || stopped.elapsed().as_millis() > 3500);
    assert!(both(|state| state == 'T'));
    terminal.signal(Signal::CONT);
    await_until("both go on", SOON, || both(|state| state != 'T'));
    let (code, screen) = terminal.end();
    assert_eq!(
        code,
        Some(1),
        "the timeout ends the iteration after all: {screen:#?}"
    );
    screen.assert_clean();
    assert!(
        began.elapsed().as_millis() >= 6500,
        "the time of the suspension does not count: {:?}",
        began.elapsed()
    );
    let records = events(&tool);
    let failed = records
        .iter()
        .find(|record| record["event"]["type"] == "iteration_failed");
    let failed = &failed.expect("the iteration failed")["event"];
    assert_eq!(failed["failure"]["timeout"], "session");
    let duration = failed["duration_ms"].as_u64().unwrap();
    assert!((3000..6000).contains(&duration), "{duration}");
    await_nobody(&seconds);
}

#[test]
fn a_loop_obeys_a_stop_that_was_sent_while_it_was_suspended() {
    let seconds = seconds();
    let scratch = obedient(&seconds);
    let terminal = Terminal::start(&tool(&scratch), &RUN, 80);
    terminal.await_text("  | working");
    let agent = agent(&seconds);
    terminal.press(CTRL_Z);
    await_until("both are stopped", SOON, || {
        [terminal.pid(), agent]
            .iter()
            .all(|pid| state_of(*pid) == Some('T'))
    });
    terminal.signal(Signal::TERM);
    terminal.signal(Signal::CONT);
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(143), "{screen:#?}");
    screen.assert_clean();
    await_nobody(&seconds);
}

// Known fault of other loops: the loop and its agent continued after the terminal was closed.
#[test]
fn closing_the_terminal_ends_a_loop_in_the_foreground() {
    let quiet = ["run", "--quiet", "--delay", "0s", "--", "sh", "agent.sh"];
    for words in [RUN.as_slice(), quiet.as_slice()] {
        let seconds = seconds();
        let scratch = obedient(&seconds);
        let tool = tool(&scratch);
        let mut terminal = Terminal::start(&tool, words, 80);
        await_up(&scratch, 1);
        let guard = children(terminal.pid());
        terminal.hang_up();
        assert_eq!(terminal.wait(), Some(129), "{words:?}");
        await_nobody(&seconds);
        assert!(guard.iter().all(|pid| !is_alive(*pid)));
        let outcome = &status(&tool)["outcome"];
        assert_eq!(
            outcome["reason"],
            "stopped by SIGHUP: the terminal went away"
        );
    }
}

#[test]
fn a_detached_loop_survives_its_terminal() {
    let seconds = seconds();
    let scratch = with_agent(&format!(
        "echo \"$@\" >words; env >environment; {UP} exec sleep {seconds}"
    ));
    let tool = tool(&scratch);
    let words = [
        "run", "--detach", "--delay", "0s", "--", "sh", "agent.sh", "--detach", "x",
    ];
    let mut terminal = Terminal::start(&tool, &words, 80);
    assert_eq!(terminal.wait(), Some(0), "{}", terminal.raw());
    terminal.await_text("runs in the background, pid ");
    let live = await_status(&tool, "it runs", |status| status["state"] == "running");
    terminal.hang_up();
    await_up(&scratch, 1);
    let runner = u32::try_from(live["runner"]["pid"].as_u64().unwrap()).unwrap();
    let sent = rustix::process::Pid::from_raw(i32::try_from(runner).unwrap()).unwrap();
    rustix::process::kill_process(sent, Signal::HUP).unwrap();
    assert_eq!(obey(&tool, &["pause"]), "pauses after iteration 1\n");
    assert!(
        is_alive(runner),
        "a detached loop ignores SIGHUP of its terminal"
    );
    assert_eq!(
        scratch.read("words"),
        "--detach x\n",
        "the output of the agent"
    );
    let environment = scratch.read("environment");
    assert!(!environment.contains("DETACHED"), "{environment}");
    obey(&tool, &["stop"]);
    await_nobody(&seconds);
    await_until("the runner is gone", SOON, || !is_alive(runner));
    assert_eq!(status(&tool)["outcome"]["kind"], "operator");
    assert!(kinds(&events(&tool)).contains(&"pause_requested".to_owned()));
}

#[test]
fn detach_prints_errors_of_the_background_process() {
    let scratch = Scratch::new();
    let detached = ["run", "--detach", "--", "true"];
    let ran = tool(&scratch).run(detached);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    assert!(ran.stderr.contains("prompt.md"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "", "no loop runs");

    let seconds = seconds();
    let scratch = obedient(&seconds);
    let tool = tool(&scratch);
    let first = tool.spawn(RUN);
    await_up(&scratch, 1);
    let ran = tool.run(["run", "--detach", "--", "sh", "agent.sh"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    let holder = format!("pid {}, since ", first.pid());
    assert!(ran.stderr.contains(&holder), "{}", ran.stderr);
    assert_eq!(crate::live_support::stop(&tool, first), Some(5));
}

#[test]
fn detach_reports_a_loop_that_is_already_at_its_limit() {
    let scratch = with_agent("exit 0");
    let tool = tool(&scratch);
    let words = [
        "run",
        "--quiet",
        "--max-iterations",
        "1",
        "--",
        "sh",
        "agent.sh",
    ];
    assert_eq!(tool.run(words).code(), Some(3));
    let here = tool.run(["run", "--quiet"]);
    let there = tool.run(["run", "--detach"]);
    assert_eq!(here.code(), Some(3), "{}", here.snapshot());
    assert_eq!(
        there.snapshot(),
        here.snapshot(),
        "the same as in the foreground"
    );
}

#[test]
fn an_unread_report_does_not_affect_the_loop_or_its_exit_code() {
    for quiet in [false, true] {
        let scratch = with_agent("echo working; exit 9");
        scratch.write(
            "tachikoma.toml",
            "[stop_conditions]\nmax_consecutive_failures = 1\n",
        );
        let tool = tool(&scratch);
        let (reader, writer) = std::io::pipe().unwrap();
        let words = if quiet {
            ["run", "--quiet", "--", "sh", "agent.sh"].as_slice()
        } else {
            ["run", "--", "sh", "agent.sh"].as_slice()
        };
        let mut command = tool.command(words);
        drop(reader);
        let code = command.stdout(writer).status().unwrap().code();
        assert_eq!(code, Some(1), "the loop ended in an error");
        assert_eq!(status(&tool)["stats"]["failed"], Value::from(1));
    }
}
