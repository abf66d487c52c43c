//! Signals sent by the agent do not control the runner.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tachikoma_testkit::{Scratch, await_until};

use crate::access::refused;
use crate::live_support::{
    SOON, UNTIL_GO, UP, await_status, await_up, events, go, is_alive, obey, state_of, tool,
    with_agent,
};
use crate::support::{CLAIMS, run, tachikoma};

/// Shell code that finds the process id of the runner from the agent: the parent of the guard's parent.
const RUNNER: &str =
    "above() { sed -n 's/^PPid:[^0-9]*//p' /proc/$1/status; }; runner=$(above $(above $PPID))";

const CONFIG: &str = "iteration_delay = \"0s\"\n[agent]\nname = \"command\"\n[agents.command]\nprogram = [\"sh\", \"agent.sh\"]\n";

fn runner_of(tool: &tachikoma_testkit::Tool<'_>) -> u32 {
    let live = await_status(tool, "it runs", |status| status["state"] == "running");
    u32::try_from(live["runner"]["pid"].as_u64().unwrap()).unwrap()
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn reloads(tool: &tachikoma_testkit::Tool<'_>) -> usize {
    let events = events(tool);
    let of = |record: &&Value| record["event"]["what"] == "reloaded";
    events.iter().filter(of).count()
}

/// Waits until the runner has refused a SIGHUP because its sender is unknown.
fn await_refusal_in_doubt(tool: &tachikoma_testkit::Tool<'_>) {
    await_until("it is recorded", SOON, || {
        events(tool).iter().any(|record| {
            let it = &record["event"];
            it["kind"] == "access_refused" && it["request"] == "SIGHUP" && it["gone"] == true
        })
    });
}

#[test]
fn signals_of_the_agent_do_not_end_the_loop() {
    let scratch = Scratch::new();
    // The agent sends one signal at a time, because pending signals have no order.
    let signals = "n=0; for s in TERM INT INT INT HUP TSTP; do kill -s $s $runner; n=$((n+1)); \
         until [ $(grep -c access_refuse[d] .ralph/loops/*/journal-0001.jsonl) = $n ]; do sleep 0.01; done; done";
    let script = format!("{RUNNER}; {signals}; {CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(
        refused(&scratch),
        ["SIGTERM", "SIGINT", "SIGINT", "SIGINT", "SIGHUP", "SIGTSTP"]
    );
    assert!(
        ran.stdout
            .contains("the agent, or a program that the loop runs, sent SIGTERM and was refused"),
        "{}",
        ran.stdout
    );
}

#[test]
fn the_agent_cannot_make_a_detached_loop_reload() {
    let scratch = with_agent(&format!(
        "{RUNNER}; echo 'max_iterations = 1' > tachikoma.toml; kill -HUP $runner; {UP} {UNTIL_GO}"
    ));
    scratch.write("tachikoma.toml", CONFIG);
    let tool = tool(&scratch);
    obey(&tool, &["run", "--detach"]);
    await_up(&scratch, 1);
    let runner = runner_of(&tool);
    await_until("it is recorded", SOON, || refused(&scratch) == ["SIGHUP"]);
    assert_eq!(reloads(&tool), 0);
    go(&scratch, 1);
    await_up(&scratch, 2);
    signal(runner, Signal::TERM);
    await_until("the operator's is obeyed", SOON, || !is_alive(runner));
}

#[test]
fn a_signal_from_a_sender_that_has_exited_is_obeyed_only_if_it_is_sigterm() {
    let scratch = with_agent(&format!("{UP} {UNTIL_GO}"));
    scratch.write("tachikoma.toml", CONFIG);
    let tool = tool(&scratch);
    obey(&tool, &["run", "--detach"]);
    await_up(&scratch, 1);
    let runner = runner_of(&tool);
    scratch.write("tachikoma.toml", format!("max_iterations = 1\n{CONFIG}"));
    let by_a_program = |name: &str| {
        signal(runner, Signal::STOP);
        await_until("it stands still", SOON, || state_of(runner) == Some('T'));
        let script = format!("kill -s {name} {runner}");
        let sent = Command::new("sh").args(["-c", &script]).status().unwrap();
        assert!(sent.success());
        signal(runner, Signal::CONT);
    };
    by_a_program("HUP");
    await_refusal_in_doubt(&tool);
    assert_eq!(reloads(&tool), 0);
    by_a_program("TERM");
    await_until("it ends", SOON, || !is_alive(runner));
}

/// A C program that sends a signal for which the kernel reports no trustworthy sender: by `F_SETSIG` of a pipe, or by `sigqueue`.
const POKES: &str = "#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
  int ends[2];
  if (count != 4) return 1;
  int runner = atoi(words[1]), number = atoi(words[2]);
  union sigval value = {0};
  if (words[3][0] == 'q') return sigqueue(runner, number, value);
  if (pipe(ends) || fcntl(ends[0], F_SETOWN, runner) || fcntl(ends[0], F_SETSIG, number)) return 2;
  if (fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK) || write(ends[1], \"x\", 1) != 1) return 3;
  return pause();
}
";

#[test]
fn signals_with_a_forgeable_sender_are_refused() {
    // The programs send one signal at a time, because pending signals have no order.
    let pokes = "n=0; for s in 1 2 15; do for how in p q; do ./pokes $runner $s $how & n=$((n+1)); \
         until [ $(grep -c access_refuse[d] .ralph/loops/*/journal-0001.jsonl) = $n ]; do sleep 0.01; done; done; done";
    let scratch = with_agent(&format!("{RUNNER}; {pokes}; {UP} {UNTIL_GO}"));
    scratch.write("tachikoma.toml", CONFIG);
    scratch.write("pokes.c", POKES);
    let built = Command::new("cc")
        .args(["-o", "pokes", "pokes.c"])
        .current_dir(scratch.path())
        .status();
    assert!(built.unwrap().success());
    let tool = tool(&scratch);
    obey(&tool, &["run", "--detach"]);
    await_up(&scratch, 1);
    let runner = runner_of(&tool);
    let incidents = crate::support::events(&scratch, "incident");
    let refused: Vec<_> = incidents
        .iter()
        .filter(|it| it["kind"] == "access_refused" && it["gone"] == true)
        .map(|it| it["request"].as_str().unwrap())
        .collect();
    assert_eq!(
        refused,
        ["SIGHUP", "SIGHUP", "SIGINT", "SIGINT", "SIGTERM", "SIGTERM"]
    );
    assert_eq!(reloads(&tool), 0);
    signal(runner, Signal::TERM);
    await_until("it ends", SOON, || !is_alive(runner));
}
