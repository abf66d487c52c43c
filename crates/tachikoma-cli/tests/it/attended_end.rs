//! The operator is also asked after the last iteration, and can roll it back.

use crate::attended_support::{ATTENDED, await_question, repository};
use crate::live_support::{SOON, obey, tool};
use crate::support::{CLAIMS, events};

#[test]
fn the_operator_is_asked_before_the_limit_of_iterations_ends_the_loop() {
    let scratch = repository("echo work >>file", |_| {});
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
    await_question(&tool, 1);
    obey(&tool, &["answer", "continue"]);
    let last = await_question(&tool, 2);
    assert_eq!(
        last["about"],
        "iteration 1 is over; it changed 1 file; `continue` ends the loop: the limit of 1 iteration is reached"
    );
    assert_eq!(
        last["choices"],
        serde_json::json!(["continue", "rollback", "pause", "stop"])
    );
    obey(&tool, &["answer", "rollback"]);
    let about = await_question(&tool, 3)["about"].clone();
    assert!(about.as_str().unwrap().contains("was rolled back"));
    assert!(!scratch.path().join("file").exists());
    obey(&tool, &["answer", "continue"]);
    assert_eq!(live.wait(SOON).code(), Some(3));
}

#[test]
fn a_rollback_revokes_a_claim_and_the_loop_continues() {
    let scratch = repository(CLAIMS, |_| {});
    let tool = tool(&scratch);
    let live = tool.spawn(ATTENDED);
    let asked = |id: u32, about: &str| {
        let said = await_question(&tool, id)["about"].clone();
        assert!(said.as_str().unwrap().contains(about), "{said}");
    };
    asked(1, "is next");
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
