//! Signals that are ignored, a loop that hangs, and a loop in the background.

use std::io::Write as _;
use std::time::Instant;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use tachikoma_testkit::{Live, Tool, await_until};

use crate::claude_support::{bash, claude, scenario, stage};
use crate::live_pty::{PROGRESS, Terminal};
use crate::live_support::{
    BIN, RUN, SOON, UP, await_nobody, await_up, children, events, guard_of, kinds, obey, seconds,
    stop, tool, with_agent,
};
use crate::support::await_events;

#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    for (name, signal) in [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
    ] {
        let scratch = with_agent(&format!("{UP} exec sleep 1000"));
        let tool = tool(&scratch);
        let script = format!("trap '' {name}; exec \"$@\"");
        let shell = Tool::new("sh", &scratch);
        let mut live = shell.spawn(["-c", &script, "sh", BIN].into_iter().chain(RUN));
        await_up(&scratch, 1);
        live.signal(signal);
        assert_eq!(
            obey(&tool, &["pause"]),
            "pauses after iteration 1\n",
            "{name}"
        );
        assert!(!kinds(&events(&tool)).contains(&"stop_requested".to_owned()));
        assert_eq!(stop(&tool, live), Some(5));
    }
}

#[test]
fn three_ctrl_c_end_a_run_that_hangs() {
    let scratch = with_agent("exit 0");
    let tool = tool(&scratch);
    // The last output of the run goes to a full pipe without a reader.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    let words = [
        "run",
        "--quiet",
        "--max-iterations",
        "1",
        "--",
        "sh",
        "agent.sh",
    ];
    let mut child = tool.command(words).stdout(writer).spawn().unwrap();
    await_until("the loop has ended", SOON, || {
        tool.run(["status"]).stdout.contains("limit_reached")
    });
    let began = Instant::now();
    for _ in 0..3 {
        press(Pid::from_child(&child), child.id());
    }
    await_until("it ends", SOON, || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    drop(reader);
}

/// Sends SIGINT and waits until the runner has handled it, because a pending one would be merged with the next.
fn press(pid: Pid, number: u32) {
    kill_process(pid, Signal::INT).unwrap();
    await_until("the signal is taken in", SOON, || {
        let status = std::fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
        let mut lines = status.lines();
        let pending = lines.find_map(|line| line.strip_prefix("ShdPnd:"));
        pending.is_none_or(|mask| mask.trim().trim_matches('0').is_empty())
    });
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap()).unwrap()
}

#[test]
fn three_ctrl_c_end_everything_even_if_the_guard_is_stopped() {
    let seconds = seconds();
    let scratch = with_agent(&format!(
        "trap '' INT TERM; {UP} while :; do sleep {seconds}; done"
    ));
    let live: Live = tool(&scratch).spawn(RUN);
    await_up(&scratch, 1);
    kill_process(pid(guard_of(live.pid())), Signal::STOP).unwrap();
    let began = Instant::now();
    for _ in 0..3 {
        press(pid(live.pid()), live.pid());
    }
    assert_eq!(live.wait(SOON).code(), Some(130));
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    await_nobody(&seconds);
}

#[test]
fn a_background_job_draws_no_progress_line() {
    let seconds = seconds();
    let scratch = with_agent(&format!("echo working; {UP} exec sleep {seconds}"));
    let tool = tool(&scratch);
    // A shell with job control keeps this program in the background until a line is entered.
    let script = "set -m; \"$@\" & read -r line; fg %1";
    let words = ["-c", script, "sh", BIN].into_iter().chain(RUN);
    let shell = Tool::new("sh", &scratch);
    let terminal = Terminal::start(&shell, &words.collect::<Vec<_>>(), 80);
    terminal.await_text("  | working");
    assert!(!terminal.raw().contains(PROGRESS), "{}", terminal.raw());
    terminal.press(b'\n');
    terminal.await_text(PROGRESS);
    obey(&tool, &["stop", "--now"]);
    assert_eq!(terminal.end().0, Some(5));
    await_nobody(&seconds);
}

#[test]
fn timeouts_do_not_include_time_in_which_all_processes_are_stopped() {
    let seconds = seconds();
    let scratch = with_agent(&format!("{UP} exec sleep {seconds}"));
    scratch.write("tachikoma.toml", "[session]\nsession_timeout = \"8s\"\n");
    let tool = tool(&scratch);
    let live = tool.spawn(RUN);
    await_up(&scratch, 1);
    // A process that is stopped before it starts to wait does not notice that it was stopped.
    await_until("the runner has heard of it", SOON, || {
        kinds(&events(&tool)).contains(&"agent_launched".to_owned())
    });
    let guard = guard_of(live.pid());
    let all = [live.pid(), guard, children(guard)[0]];
    for process in all {
        kill_process(pid(process), Signal::STOP).unwrap();
    }
    // The stop is much longer than the timeout, so that delays of a busy machine do not matter.
    let stopped = Instant::now();
    await_until("time passes", SOON, || {
        stopped.elapsed().as_millis() > 10_000
    });
    for process in all {
        kill_process(pid(process), Signal::CONT).unwrap();
    }
    let went_on = Instant::now();
    await_until("the time-out", SOON, || {
        kinds(&events(&tool)).contains(&"ending_requested".to_owned())
    });
    assert!(
        went_on.elapsed().as_millis() > 1500,
        "the agent still had most of its time: {:?}",
        went_on.elapsed()
    );
    let stood = events(&tool)
        .iter()
        .filter(|record| record["event"]["type"] == "stood_still")
        .map(|record| record["event"]["duration_ms"].as_u64().unwrap())
        .collect::<Vec<_>>();
    // A busy machine may cause further, shorter suspends.
    let long: Vec<u64> = stood.iter().copied().filter(|it| *it >= 10_000).collect();
    assert!(matches!(long[..], [..20_000]), "{stood:?}");
    assert!(stood.iter().all(|it| *it >= 2_000), "{stood:?}");
    assert_eq!(stop(&tool, live), Some(5));
    await_nobody(&seconds);
}

#[test]
fn a_signal_during_a_tool_call_names_the_wait_and_a_second_one_interrupts() {
    let scratch = stage(
        &scenario([bash("until [ -e go ]; do sleep 0.05; done", 1_000)]),
        "",
    );
    let mut live = claude(&scratch).spawn(["run"]);
    await_events(&scratch, "tool_started", 1);
    live.signal(Signal::HUP);
    await_events(&scratch, "ending_requested", 1);
    live.signal(Signal::TERM);
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(129), "{}", ran.snapshot());
    let waiting = "for the tool call or answer under way; Ctrl-C, SIGTERM or `tachikoma stop --now` interrupts it";
    assert!(ran.stdout.contains(waiting), "{}", ran.snapshot());
}
