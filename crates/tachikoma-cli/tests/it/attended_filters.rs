//! A rollback in a repository whose filters fail, hang or are killed: the work tree is of one moment, and never half of two.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tachikoma_testkit::{Live, Scratch, Tool, await_until};

use crate::live_support::{SOON, await_status, events, obey, tool};

const ATTENDED: [&str; 7] = ["run", "--attended", "--delay", "0s", "--", "sh", "agent.sh"];

/// What is said of one that a stop ended.
const CALLED_OFF: &str = "it was called off, and nothing was changed";

/// A repository whose agent spoils two files, adds one and takes one away. A filter writes the last of them: it fails, or hangs, while
/// there is a file of that name.
struct Ground {
    scratch: Scratch,
}

impl Ground {
    fn new() -> Self {
        let scratch = Scratch::with_git();
        scratch.write("prompt.md", "work\n");
        scratch.write(
            "agent.sh",
            "cat >/dev/null; echo spoilt >a; echo spoilt >z; mkdir -p new; echo new >new/file; rm -rf dir\n",
        );
        scratch.write("a", "good\n");
        scratch.write("dir/gone", "good\n");
        scratch.write("z", "good\n");
        scratch.write(".gitattributes", "z filter=odd\n");
        let ground = Self { scratch };
        for (verb, flag) in [("smudge", "s"), ("clean", "c")] {
            let script = format!(
                "if [ -e {fails} ]; then exit 1; fi; while [ -e {hangs} ]; do touch {reached}; sleep 600; done; cat",
                fails = ground.at(&format!("{flag}-fails")).display(),
                hangs = ground.at(&format!("{flag}-hangs")).display(),
                reached = ground.at("reached").display(),
            );
            let name = format!("filter.odd.{verb}");
            ground.scratch.git(&["config", &name, &script]);
        }
        let scratch = &ground.scratch;
        scratch.git(&["config", "filter.odd.required", "true"]);
        scratch.git(&["add", "."]);
        scratch.git(&["commit", "-qm", "begin"]);
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

    /// Begins a loop whose first iteration is over and asked about.
    fn begin(&self) -> (Tool<'_>, Live) {
        let tool = tool(&self.scratch);
        let live = tool.spawn(ATTENDED);
        asked(&tool, 1);
        obey(&tool, &["answer", "continue"]);
        asked(&tool, 2);
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

fn asked(tool: &Tool<'_>, id: u32) {
    await_status(tool, "asked", |it| it["question"]["id"] == id);
}

/// What was said of rollbacks: the errors.
fn rolled_back(tool: &Tool<'_>) -> Vec<Value> {
    let records = events(tool).into_iter();
    let records = records.map(|record| record["event"].clone());
    records
        .filter(|event| event["what"] == "rolled_back")
        .map(|event| event["error"].clone())
        .collect()
}

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
fn a_filter_that_fails_in_the_middle_leaves_the_work_tree_as_it_was() {
    let ground = Ground::new();
    let (tool, live) = ground.begin();
    ground.set("s-fails");
    obey(&tool, &["answer", "rollback"]);
    asked(&tool, 3);
    assert_eq!(ground.files(), SPOILT);
    let said = rolled_back(&tool);
    let said = said[0].as_str().unwrap();
    assert!(said.contains("; the work tree is as it was"), "{said}");
    ground.unset("s-fails");
    obey(&tool, &["answer", "rollback"]);
    asked(&tool, 4);
    assert_eq!(ground.files(), GOOD);
    leaves_nothing(&ground);
    obey(&tool, &["stop"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
}

#[test]
fn who_takes_the_loop_up_undoes_what_cannot_be_finished() {
    let ground = Ground::new();
    let (_, live) = ground.begin();
    ground.set("s-hangs");
    let tool = tool(&ground.scratch);
    obey(&tool, &["answer", "rollback"]);
    ground.reached();
    kill(live);
    assert_ne!(ground.files(), SPOILT, "half of it");
    assert_ne!(ground.files(), GOOD, "half of it");
    ground.unset("s-hangs");
    ground.set("s-fails");
    let live = tool.spawn(["run"]);
    asked(&tool, 3);
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
fn a_rollback_that_can_neither_be_done_nor_undone_ends_the_loop() {
    let ground = Ground::new();
    let (tool, live) = ground.begin();
    ground.set("s-hangs");
    obey(&tool, &["answer", "rollback"]);
    ground.reached();
    // In the place of a file that has to be put back.
    let place = ground.scratch.path().join("z");
    let _ = fs::remove_file(&place);
    fs::create_dir(&place).unwrap();
    fs::write(place.join("in-the-way"), "").unwrap();
    obey(&tool, &["stop"]);
    let head = ground.scratch.git(&["rev-parse", "HEAD"]);
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains("error: the rollback is half done"),
        "{}",
        ran.snapshot()
    );
    assert_eq!(ground.scratch.git(&["rev-parse", "HEAD"]), head);
    let said = rolled_back(&tool);
    let said = said[0].as_str().unwrap();
    assert!(said.contains("the work tree may be half"), "{said}");
}

#[test]
fn a_stop_is_obeyed_while_a_filter_sleeps() {
    for hangs in ["c-hangs", "s-hangs"] {
        let ground = Ground::new();
        let (tool, live) = ground.begin();
        // So that there is something to look into.
        ground.scratch.write("z", "spoilt again\n");
        ground.set(hangs);
        obey(&tool, &["answer", "rollback"]);
        ground.reached();
        // The look at the end of the run is not what is asked for here.
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
