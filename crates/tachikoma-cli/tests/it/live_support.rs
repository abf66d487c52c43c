//! Helpers for tests of a running loop of the real binary.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tachikoma_testkit::{Live, Scratch, Tool, await_until, processes_with};

use crate::support::PATIENCE;

/// The binary under test.
pub(crate) const BIN: &str = env!("CARGO_BIN_EXE_tachikoma");

/// Time limit of waits in these tests.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Script line of an agent that waits until [`go`] is called for its iteration.
pub(crate) const UNTIL_GO: &str = "while [ ! -e \"go$TACHIKOMA_ITERATION\" ]; do sleep 0.01; done;";

/// Lets the agent of an iteration continue.
pub(crate) fn go(scratch: &Scratch, iteration: u32) {
    scratch.write(format!("go{iteration}"), "");
}

/// Returns a unique number of seconds for `sleep`, to identify its process.
pub(crate) fn seconds() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("1{:07}{number:03}", std::process::id())
}

/// Returns a directory with a prompt and an agent that runs `script`.
pub(crate) fn with_agent(script: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "work\n");
    scratch.write("agent.sh", format!("{script}\n"));
    scratch
}

/// Returns the binary, configured for a directory.
pub(crate) fn tool(scratch: &Scratch) -> Tool<'_> {
    Tool::new(BIN, scratch).env(PATIENCE, "0")
}

/// Returns the binary, configured to run without root rights.
pub(crate) fn tool_of_nobody(scratch: &Scratch) -> Tool<'_> {
    // The built binary may be in a directory that other users cannot read.
    let copy = scratch.home().join("tachikoma");
    copy_binary(&copy);
    scratch.hand_to_nobody();
    Tool::new(copy, scratch).env(PATIENCE, "0").unprivileged()
}

/// Copies the binary with `cp`. If this process wrote it, a child of another test could have it open for writing, and it could not
/// be executed.
pub(crate) fn copy_binary(to: &Path) {
    let copied = Command::new("cp").arg(BIN).arg(to).status();
    assert!(copied.unwrap().success());
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Arguments that run the agent of [`with_agent`] repeatedly.
pub(crate) const RUN: [&str; 6] = ["run", "--delay", "0s", "--", "sh", "agent.sh"];

/// Returns the output of `status --json`.
pub(crate) fn status(tool: &Tool<'_>) -> Value {
    let ran = tool.run(["status", "--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    ran.json()
}

/// Waits until `status --json` meets a condition, and returns it.
#[track_caller]
pub(crate) fn await_status(tool: &Tool<'_>, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    await_until(what, SOON, || {
        last = status(tool);
        wanted(&last)
    });
    last
}

/// Waits until the agent of an iteration has run `touch upN`.
#[track_caller]
pub(crate) fn await_up(scratch: &Scratch, iteration: u32) {
    let path = scratch.path().join(format!("up{iteration}"));
    await_until("the agent is up", SOON, || path.exists());
}

/// First script line of an agent: marks its iteration as started.
pub(crate) const UP: &str = "touch \"up$TACHIKOMA_ITERATION\";";

/// Runs a command that must succeed, and returns its output.
#[track_caller]
pub(crate) fn obey(tool: &Tool<'_>, words: &[&str]) -> String {
    let ran = tool.run(words);
    assert_eq!(ran.code(), Some(0), "{words:?}: {}", ran.snapshot());
    ran.stdout
}

/// Stops a loop and returns the exit code of its runner.
#[track_caller]
pub(crate) fn stop(tool: &Tool<'_>, live: Live) -> Option<i32> {
    obey(tool, &["stop", "--now"]);
    live.wait(SOON).code()
}

/// Returns the records of the current loop.
pub(crate) fn events(tool: &Tool<'_>) -> Vec<Value> {
    records(&obey(tool, &["events", "--json"]))
}

/// Parses records, one per line.
pub(crate) fn records(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Returns the types of the given records in order.
pub(crate) fn kinds(records: &[Value]) -> Vec<String> {
    let kind = |record: &Value| record["event"]["type"].as_str().map(str::to_owned);
    records.iter().filter_map(kind).collect()
}

/// Returns the state letter of a process; `None` if it does not exist.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Returns whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    state_of(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Returns the children of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let lists = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let pids = list.split_whitespace().map(|pid| pid.parse().unwrap());
            pids.collect::<Vec<u32>>()
        })
        .collect()
}

/// Returns the standby of a runner, which is the parent of its guard.
#[track_caller]
pub(crate) fn standby_of(runner: u32) -> u32 {
    let standbys = children(runner);
    assert_eq!(standbys.len(), 1, "a runner has one child");
    standbys[0]
}

/// Returns the guard of a runner.
#[track_caller]
pub(crate) fn guard_of(runner: u32) -> u32 {
    let guards = children(standby_of(runner));
    assert_eq!(guards.len(), 1, "a standby has one child, its guard");
    guards[0]
}

/// Waits until no process runs `sleep` with this duration.
#[track_caller]
pub(crate) fn await_nobody(seconds: &str) {
    await_until("no process is left", SOON, || {
        processes_with(seconds).is_empty()
    });
}

/// Returns the control socket of the only loop.
pub(crate) fn socket(scratch: &Scratch) -> PathBuf {
    let dir = scratch.runtime_dir().join("tachikoma");
    let mut entries = fs::read_dir(dir).unwrap();
    entries.next().unwrap().unwrap().path()
}
