//! The last iteration of an attended loop is asked about like every other: its changes can be looked at, and brought back.

use tachikoma_testkit::Scratch;

use crate::live_support::{SOON, await_status, obey, tool};
use crate::support::{CLAIMS, events};

fn begin(agent: &str) -> Scratch {
    let scratch = Scratch::with_git();
    scratch.write("prompt.md", "work\n");
    scratch.write("agent.sh", agent);
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "-qm", "begin"]);
    scratch
}

#[test]
fn it_is_asked_before_the_limit_of_iterations_ends_the_loop() {
    let scratch = begin("echo work >>file");
    let tool = tool(&scratch);
    let live = tool.spawn([
        "run",
        "--attended",
        "--delay",
        "0s",
        "--max-iterations",
        "1",
        "--",
        "sh",
        "agent.sh",
    ]);
    let asked = |id: u32| {
        let asked = await_status(&tool, "asked", |status| status["question"]["id"] == id);
        asked["question"].clone()
    };
    asked(1);
    obey(&tool, &["answer", "continue"]);
    let last = asked(2);
    assert_eq!(
        last["about"],
        "iteration 1 is over; it changed 1 file; `continue` ends the loop: the limit of 1 iteration is reached"
    );
    assert_eq!(
        last["choices"],
        serde_json::json!(["continue", "rollback", "pause", "stop"])
    );
    obey(&tool, &["answer", "rollback"]);
    assert!(
        asked(3)["about"]
            .as_str()
            .unwrap()
            .contains("was rolled back")
    );
    assert!(!scratch.path().join("file").exists());
    obey(&tool, &["answer", "continue"]);
    assert_eq!(live.wait(SOON).code(), Some(3));
}

#[test]
fn a_rollback_takes_a_claim_back_and_the_loop_goes_on() {
    let scratch = begin(CLAIMS);
    let tool = tool(&scratch);
    let live = tool.spawn(["run", "--attended", "--delay", "0s", "--", "sh", "agent.sh"]);
    let asked = |id: u32, about: &str| {
        let asked = await_status(&tool, "asked", |status| status["question"]["id"] == id);
        let said = asked["question"]["about"].as_str().unwrap().to_owned();
        assert!(said.contains(about), "{said}");
    };
    asked(1, "about to begin");
    obey(&tool, &["answer", "continue"]);
    asked(2, "`continue` ends the loop: the work is complete");
    obey(&tool, &["answer", "rollback"]);
    asked(3, "iteration 1 is over, and was rolled back");
    obey(&tool, &["answer", "continue"]);
    asked(4, "iteration 2 is over; it changed 1 file; `continue` ends");
    obey(&tool, &["answer", "continue"]);
    assert_eq!(live.wait(SOON).code(), Some(0));
    assert_eq!(events(&scratch, "claim_refused").len(), 1);
}
