//! Helpers for tests of the binary: the binary, shell agents and journals.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use tachikoma_testkit::{Live, Ran, Scratch, Tool, await_until};

/// Time limit of waits.
pub const SOON: Duration = Duration::from_secs(30);

/// An agent that changes a file and claims completion.
pub const CLAIMS: &str = "{ echo done >> work; echo '<promise>COMPLETE</promise>'; }";

/// An agent that works until it is interrupted.
pub const BUSY: &str = "exec sleep 600";

/// Returns the binary in the directory of `scratch`, without no-progress detection, because most test agents change nothing.
pub fn tachikoma(scratch: &Scratch) -> Tool<'_> {
    as_configured(scratch).env(PATIENCE, "0")
}

/// Variable that turns no-progress detection off.
pub const PATIENCE: &str = "TACHIKOMA_STOP_CONDITIONS__MAX_NO_PROGRESS_ITERATIONS";

/// Returns the binary without the setting that turns no-progress detection off.
pub fn as_configured(scratch: &Scratch) -> Tool<'_> {
    Tool::new(env!("CARGO_BIN_EXE_tachikoma"), scratch)
}

/// Returns the binary for a run without root rights. All files in `scratch` change their owner. The binary is copied, because
/// others may not be able to read the original.
pub fn unprivileged(scratch: &Scratch) -> Tool<'_> {
    let copy = scratch.home().join("tachikoma");
    // `cp` copies the binary. If this process wrote it, a child of another test could have it open for writing, and it could not
    // be executed.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_tachikoma"))
        .arg(&copy)
        .status();
    assert!(
        copied.expect("cp starts").success(),
        "cp {}",
        copy.display()
    );
    scratch.hand_to_nobody();
    Tool::new(copy, scratch).env(PATIENCE, "0").unprivileged()
}

/// Returns the arguments `run --prompt-text go FLAGS -- sh -c SCRIPT`, with `--delay 0s` unless the flags set a delay.
pub fn run<'a>(flags: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let mut words = vec!["run", "--prompt-text", "go"];
    if !flags.contains(&"--delay") {
        words.extend(["--delay", "0s"]);
    }
    words.extend(flags);
    words.extend(["--", "sh", "-c", script]);
    words
}

/// Returns a directory with a prompt and a loop that ended at its limit after one iteration.
pub fn with_history() -> Scratch {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "go\n");
    let words = ["run", "--quiet", "--max-iterations", "1", "--", "true"];
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    scratch
}

const STATE_FROM: &str = "the state is from ";

const STOOD_STILL: &str = "stood still for ";

/// Returns the output, with machine-dependent parts replaced.
pub fn shown(ran: &Ran) -> String {
    // Whether the snapshot is up to date when the runner is killed depends on timing.
    let text = ran.snapshot();
    // A suspend of the machine causes additional lines, which are removed.
    let lines = text.lines().filter(|line| !line.contains(STOOD_STILL));
    let lines = lines.map(|line| match line.split_once(STATE_FROM) {
        Some((before, _)) => format!("{before}{STATE_FROM}[SOURCE]"),
        None => line.to_owned(),
    });
    let text: String = lines.map(|line| line + "\n").collect();
    ["cgroup", "guard", "group"]
        .iter()
        .fold(text, |text, kind| {
            text.replace(&format!("containment {kind}"), "containment [HELD]")
        })
}

/// Returns all files below `dir` with their content.
pub fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("the directory is ours").path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(files(&path));
        } else {
            let bytes = fs::read(&path).unwrap_or_default();
            found.insert(path, bytes);
        }
    }
    found
}

/// Returns the content of the journals of all loops.
pub fn journals(scratch: &Scratch) -> BTreeMap<PathBuf, Vec<u8>> {
    files(&scratch.path().join(".ralph/loops"))
}

/// Returns the directories of all loops, sorted by name.
pub fn loops(scratch: &Scratch) -> Vec<PathBuf> {
    let entries = fs::read_dir(scratch.path().join(".ralph/loops"))
        .into_iter()
        .flatten();
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// Returns the path of the journal of the only loop.
#[track_caller]
pub fn journal(scratch: &Scratch) -> PathBuf {
    let loops = loops(scratch);
    assert_eq!(loops.len(), 1, "{loops:?}");
    loops[0].join("journal-0001.jsonl")
}

/// Returns the lines of the only loop's journal, without checksums.
#[track_caller]
pub fn lines(scratch: &Scratch) -> Vec<String> {
    let mut text = String::new();
    // A line that is being written has no newline yet.
    await_until("whole lines", SOON, || {
        text = fs::read_to_string(journal(scratch)).expect("the journal is ours");
        text.is_empty() || text.ends_with('\n')
    });
    text.lines()
        .map(|line| {
            let (record, crc) = line.rsplit_once(",\"crc\":\"").expect("a checksum");
            assert_eq!(crc.len(), "01234567\"}".len(), "{line}");
            format!("{record}}}")
        })
        .collect()
}

/// Returns the events of one type in the only loop's journal.
#[track_caller]
pub fn events(scratch: &Scratch, kind: &str) -> Vec<Value> {
    let lines = lines(scratch);
    let events = lines.iter().map(|line| {
        let record: Value = serde_json::from_str(line).expect("a record");
        record["event"].clone()
    });
    events.filter(|event| event["type"] == kind).collect()
}

/// Waits until the journals have at least `count` events of a type.
#[track_caller]
pub fn await_events(scratch: &Scratch, kind: &str, count: usize) {
    let mark = format!("\"type\":\"{kind}\"");
    await_until(&format!("{count} x {kind}"), SOON, || {
        let journals = journals(scratch);
        let texts = journals
            .values()
            .map(|bytes| String::from_utf8_lossy(bytes));
        texts.map(|text| text.matches(&mark).count()).sum::<usize>() >= count
    });
}

/// Starts a loop and waits until its agent has started.
#[track_caller]
pub fn start_busy(scratch: &Scratch, flags: &[&str]) -> Live {
    let live = tachikoma(scratch).spawn(run(flags, BUSY));
    await_events(scratch, "agent_launched", 1);
    live
}

/// Kills the runner and waits until its guard has cleaned up and released the lock.
#[track_caller]
pub fn kill(scratch: &Scratch, mut live: Live) -> Ran {
    live.signal(rustix::process::Signal::KILL);
    let ran = live.wait(SOON);
    await_until("the lock to be free", SOON, || {
        let lock = File::open(scratch.path().join(".ralph/lock")).expect("there is a lock");
        flock(&lock, FlockOperation::NonBlockingLockShared).is_ok()
    });
    ran
}

/// Returns the output of `status` for a live loop. Retries if the runner is too busy to answer.
pub fn status_of_live(scratch: &Scratch) -> Ran {
    let answered = || {
        let ran = tachikoma(scratch).run(["status"]);
        ran.stderr.is_empty().then_some(ran)
    };
    let mut told = None;
    await_until("an answer of the runner", SOON, || {
        told = answered();
        told.is_some()
    });
    told.expect("it is awaited")
}

/// Returns the output of `status --json`.
#[track_caller]
pub fn status(scratch: &Scratch) -> Value {
    let ran = tachikoma(scratch).run(["status", "--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    ran.json()
}
