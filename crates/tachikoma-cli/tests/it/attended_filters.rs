//! A rollback with git filters that fail, hang or are killed never leaves a mixed work tree.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tachikoma_testkit::{Live, Scratch, Tool, await_until};

use crate::attended_support::{ATTENDED, CALLED_OFF, await_question, repository, rolled_back};
use crate::live_support::{SOON, obey, tool};

/// A repository with an agent that damages two files, adds one and removes one. A git filter writes the last file. It fails or
/// hangs while a marker file exists.
struct Ground {
    scratch: Scratch,
}

impl Ground {
    fn new() -> Self {
        let script = "cat >/dev/null; echo spoilt >a; echo spoilt >z; mkdir -p new; echo new >new/file; rm -rf dir";
        let scratch = repository(script, |scratch| {
            scratch.write("a", "good\n");
            scratch.write("dir/gone", "good\n");
            scratch.write("z", "good\n");
            scratch.write(".gitattributes", "z filter=odd\nlate filter=late\n");
        });
        let ground = Self { scratch };
        for (name, flag) in [("odd.smudge", "s"), ("odd.clean", "c"), ("late.clean", "p")] {
            let script = format!(
                "if [ -e {fails} ]; then exit 1; fi; while [ -e {hangs} ]; do touch {reached}; sleep 600; done; cat",
                fails = ground.at(&format!("{flag}-fails")).display(),
                hangs = ground.at(&format!("{flag}-hangs")).display(),
                reached = ground.at("reached").display(),
            );
            let name = format!("filter.{name}");
            ground.scratch.git(&["config", &name, &script]);
        }
        let required = ["config", "filter.odd.required", "true"];
        ground.scratch.git(&required);
        ground
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.home().join(name)
    }

    fn set(&self, flag: &str) {
        fs::write(self.at(flag), "").unwrap();
    }

    fn unset(&self, flag: &str) {
        fs::remove_file(self.at(flag)).unwrap();
    }

    fn reached(&self) {
        let reached = self.at("reached");
        await_until("the filter hangs", SOON, || reached.exists());
    }

    /// Starts a loop that asks about its finished first iteration.
    fn begin(&self) -> (Tool<'_>, Live) {
        let tool = tool(&self.scratch);
        let live = tool.spawn(ATTENDED);
        await_question(&tool, 1);
        obey(&tool, &["answer", "continue"]);
        await_question(&tool, 2);
        assert_eq!(self.files(), SPOILT);
        (tool, live)
    }

    fn files(&self) -> [String; 4] {
        ["a", "dir/gone", "new/file", "z"].map(|name| {
            let text = fs::read_to_string(self.scratch.path().join(name));
            text.unwrap_or_default()
        })
    }
}

const SPOILT: [&str; 4] = ["spoilt\n", "", "new\n", "spoilt\n"];
const GOOD: [&str; 4] = ["good\n", "good\n", "", "good\n"];

fn kill(live: Live) {
    let pid = Pid::from_raw(i32::try_from(live.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    live.wait(SOON);
}

fn leaves_nothing(ground: &Ground) {
    let left: Vec<_> = fs::read_dir(ground.scratch.path().join(".ralph/loops"))
        .unwrap()
        .flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("rolling-back"))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_failing_filter_leaves_the_work_tree_unchanged() {
    let ground = Ground::new();
    let (tool, live) = ground.begin();
    ground.set("s-fails");
    obey(&tool, &["answer", "rollback"]);
    await_question(&tool, 3);
    assert_eq!(ground.files(), SPOILT);
    let said = rolled_back(&tool);
    let said = said[0].as_str().unwrap();
    assert!(
        said.contains("; the rollback was undone, and the work tree is unchanged"),
        "{said}"
    );
    ground.unset("s-fails");
    obey(&tool, &["answer", "rollback"]);
    await_question(&tool, 4);
    assert_eq!(ground.files(), GOOD);
    leaves_nothing(&ground);
    obey(&tool, &["stop"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
}

/// Starts a rollback and kills the runner before the rollback is complete.
fn killed_half_way(ground: &Ground) -> Tool<'_> {
    let (tool, live) = ground.begin();
    ground.set("s-hangs");
    obey(&tool, &["answer", "rollback"]);
    ground.reached();
    kill(live);
    tool
}

#[test]
fn a_purge_deletes_the_backup_of_a_killed_rollback() {
    let ground = Ground::new();
    let tool = killed_half_way(&ground);
    obey(&tool, &["state", "clear", "--purge", "--yes"]);
    let left = ground.scratch.path().join(".ralph/loops");
    assert!(!left.exists() || fs::read_dir(&left).unwrap().next().is_none());
}

#[test]
fn the_next_runner_undoes_a_rollback_that_cannot_be_finished() {
    let ground = Ground::new();
    let tool = killed_half_way(&ground);
    assert_ne!(ground.files(), SPOILT, "the rollback is incomplete");
    assert_ne!(ground.files(), GOOD, "the rollback is incomplete");
    ground.unset("s-hangs");
    ground.set("s-fails");
    let live = tool.spawn(["run"]);
    await_question(&tool, 3);
    assert_eq!(ground.files(), SPOILT);
    let said = rolled_back(&tool);
    let said = said[0].as_str().unwrap();
    assert!(
        said.contains("what was begun before the runner died is undone"),
        "{said}"
    );
    leaves_nothing(&ground);
    obey(&tool, &["stop"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
}

#[test]
fn a_rollback_that_can_be_neither_finished_nor_undone_ends_the_loop() {
    let ground = Ground::new();
    let (tool, live) = ground.begin();
    ground.set("s-hangs");
    obey(&tool, &["answer", "rollback"]);
    ground.reached();
    // There is a directory at the path of a file that the rollback has to restore.
    let place = ground.scratch.path().join("z");
    let _ = fs::remove_file(&place);
    fs::create_dir(&place).unwrap();
    fs::write(place.join("in-the-way"), "").unwrap();
    obey(&tool, &["stop"]);
    let head = ground.scratch.git(&["rev-parse", "HEAD"]);
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains("error: the rollback is incomplete"),
        "{}",
        ran.snapshot()
    );
    assert_eq!(ground.scratch.git(&["rev-parse", "HEAD"]), head);
    let said = rolled_back(&tool);
    let said = said[0].as_str().unwrap();
    assert!(
        said.contains("the work tree may be rolled back in part"),
        "{said}"
    );
}

#[test]
fn a_stop_is_obeyed_while_a_filter_sleeps() {
    // The filter hangs during the survey, the planning and the checkout of the rollback.
    for hangs in ["c-hangs", "p-hangs", "s-hangs"] {
        let ground = Ground::new();
        let (tool, live) = ground.begin();
        if hangs == "p-hangs" {
            // The planning step of a rollback runs the `clean` filter first.
            let leaves = ["config", "filter.odd.clean", "echo late >late; cat"];
            ground.scratch.git(&leaves);
        }
        // A changed file makes the survey run the filter.
        ground.scratch.write("z", "spoilt again\n");
        ground.set(hangs);
        obey(&tool, &["answer", "rollback"]);
        ground.reached();
        // The survey at the end of the run is not part of this test.
        ground.unset(hangs);
        obey(&tool, &["stop"]);
        let ran = live.wait(SOON);
        assert_eq!(ran.code(), Some(5), "{hangs}: {}", ran.snapshot());
        assert_eq!(rolled_back(&tool), [json!(CALLED_OFF)], "{hangs}");
        let mut spoilt = SPOILT;
        spoilt[3] = "spoilt again\n";
        assert_eq!(ground.files(), spoilt, "{hangs}");
    }
}
