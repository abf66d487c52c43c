//! The runner is killed at each record of an attended loop, and the next runner continues.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tachikoma_testkit::{Live, Scratch, Tool, await_until};

use crate::live_support::{SOON, events, records, tool};

const RUN: [&str; 7] = ["run", "--attended", "--delay", "0s", "--", "sh", "agent.sh"];

/// A reboot is due after the second iteration, and has to be confirmed.
const CONFIG: &str = "[reboot]\nmode = \"confirm\"\nmin_reboot_interval = \"0s\"\n\
                      [reboot.triggers]\nafter_iterations = 2\n";

fn ground() -> Scratch {
    let scratch = Scratch::with_git();
    scratch.write("prompt.md", "work\n");
    scratch.write("tachikoma.toml", CONFIG);
    scratch.write(
        "agent.sh",
        "cat >/dev/null; echo \"$TACHIKOMA_ITERATION\" >file; echo \"$TACHIKOMA_ITERATION $TACHIKOMA_ATTEMPT\" >>.git/ran\n",
    );
    scratch.write("file", "good\n");
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "-qm", "begin"]);
    scratch
}

/// Returns the complete records that the journal has so far.
fn journal(scratch: &Scratch) -> Vec<Value> {
    let loops = scratch.path().join(".ralph/loops");
    let mut found: Vec<PathBuf> = fs::read_dir(loops)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path().join("journal-0001.jsonl"))
        .collect();
    let text = found.pop().and_then(|path| fs::read_to_string(path).ok());
    let text = text.unwrap_or_default();
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let lines = text.get(..whole).unwrap_or_default();
    let lines = lines.lines().skip_while(|line| !line.contains("\"event\""));
    lines.flat_map(records).collect()
}

/// Returns the record of the open question; `None` if no question is open.
fn open(records: &[Value]) -> Option<Value> {
    let said = records.iter().rev().map(|record| &record["event"]);
    let last = said
        .filter(|event| event["type"] != "warned" && event["type"] != "started")
        .find(|event| event["type"] != "repaired")?;
    (last["what"] == "asked").then(|| last.clone())
}

/// Returns the answer that the test gives to a question.
fn answer(scratch: &Scratch, question: &Value) -> &'static str {
    let offers = |choice: &str| {
        let choices = question["choices"].as_array().unwrap();
        choices.iter().any(|it| it == choice)
    };
    match (
        question["kind"].as_str().unwrap(),
        question["iteration"].as_u64(),
    ) {
        ("confirm_reboot", _) => "yes",
        ("after_iteration", Some(1)) if offers("rollback") => "rollback",
        ("after_iteration", Some(1)) => {
            assert_eq!(
                scratch.read("file"),
                "good\n",
                "the iteration was rolled back"
            );
            "continue"
        }
        ("after_iteration", Some(3)) => "stop",
        _ => "continue",
    }
}

/// Answers questions until the loop ends or `kill_at` records are written, then kills the runner. Returns whether the loop ended by itself.
fn live(scratch: &Scratch, tool: &Tool<'_>, runner: Live, kill_at: usize) -> bool {
    let mut runner = Some(runner);
    let mut answered = 0;
    await_until("a life", SOON, || {
        let records = journal(scratch);
        if records.len() >= kill_at {
            let live = runner.take().unwrap();
            let pid = Pid::from_raw(i32::try_from(live.pid()).unwrap()).unwrap();
            kill_process(pid, Signal::KILL).unwrap();
            live.wait(SOON);
            return true;
        }
        if let Some(question) = open(&records) {
            let id = question["id"].as_u64().unwrap();
            if id > answered {
                let choice = answer(scratch, &question);
                // A runner that has just started may not accept connections yet.
                if tool.run(["answer", &id.to_string(), choice]).code() == Some(0) {
                    answered = id;
                }
            }
        }
        records
            .last()
            .is_some_and(|last| last["event"]["type"] == "stopped")
    });
    match runner {
        Some(runner) => {
            let ran = runner.wait(SOON);
            assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
            true
        }
        None => false,
    }
}

/// Returns the numbers of the records before and after questions in a run without kills.
fn around_questions() -> Vec<usize> {
    let scratch = ground();
    let tool = tool(&scratch);
    assert!(live(&scratch, &tool, tool.spawn(RUN), usize::MAX));
    let records = journal(&scratch);
    let kinds = records
        .iter()
        .map(|it| it["event"]["type"].as_str().unwrap());
    let around = kinds.enumerate().filter(|(_, kind)| {
        ["operator", "noted", "check_given_up"].contains(kind) || kind.starts_with("reboot_")
    });
    around.map(|(index, _)| index + 1).collect()
}

#[test]
fn a_runner_killed_at_each_record_around_questions_is_replaced_and_the_loop_continues() {
    let around = around_questions();
    assert!(around.len() >= 15, "{around:?}");
    for kill_at in around {
        let scratch = ground();
        let tool = tool(&scratch);
        assert!(!live(&scratch, &tool, tool.spawn(RUN), kill_at));
        let begun = journal(&scratch);
        if begun.last().unwrap()["event"]["type"] == "stopped" {
            // The loop ended before the runner could be killed.
            continue;
        }
        // Arguments are needed only if no run recorded them yet.
        let words = match begun.iter().any(|it| it["event"]["type"] == "started") {
            true => vec!["run"],
            false => RUN.to_vec(),
        };
        let whole = live(&scratch, &tool, tool.spawn(words), usize::MAX);
        assert!(whole, "killed at {kill_at}");
        let verified = tool.run(["state", "verify"]);
        assert_eq!(
            verified.code(),
            Some(0),
            "{kill_at}: {}",
            verified.snapshot()
        );
        let said = events(&tool);
        let of = |what: &str| {
            let said = said.iter().map(|record| &record["event"]);
            said.filter(|event| event["what"] == what || event["type"] == what)
                .cloned()
                .collect::<Vec<_>>()
        };
        let rolled_back = of("rolled_back");
        assert_eq!(rolled_back.len(), 1, "{kill_at}: {rolled_back:?}");
        assert_eq!(rolled_back[0]["error"], Value::Null, "{kill_at}");
        let answered = of("answered");
        let asked_for = answered.iter().filter(|it| it["choice"] == "rollback");
        assert_eq!(
            asked_for.count(),
            1,
            "{kill_at}: the same question is not answered twice"
        );
        assert_eq!(
            of("noted").len(),
            1,
            "{kill_at}: the agent gets the message once"
        );
        assert_eq!(of("reboot_completed").len(), 1, "{kill_at}");
        let ids: Vec<u64> = of("asked")
            .iter()
            .map(|it| it["id"].as_u64().unwrap())
            .collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "{kill_at}: {ids:?}");
        let ran = scratch.read(".git/ran");
        let mut turns: Vec<&str> = ran.lines().collect();
        turns.dedup();
        assert_eq!(turns.len(), ran.lines().count(), "{kill_at}: {ran}");
        assert_eq!(
            turns.last().unwrap().chars().next(),
            Some('3'),
            "{kill_at}: {ran}"
        );
    }
}
