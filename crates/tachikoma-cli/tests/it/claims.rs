//! Claims of completion that are not checked yet.

use tachikoma_testkit::Scratch;

use crate::gates::{gate, judging};
use crate::git_support::repository;
use crate::live_support::seconds;
use crate::support::{SOON, events, run, tachikoma};

/// Creates a loop that was stopped while a gate checked its claim. The gate passes from now on.
fn owed(scratch: &Scratch) {
    let live = judging(scratch, &seconds(), "");
    assert_eq!(tachikoma(scratch).run(["stop"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    scratch.write("tachikoma.toml", gate("slow", "exit 0", ""));
}

#[track_caller]
fn refused_for(scratch: &Scratch, reason: &str) {
    let refused = events(scratch, "claim_refused");
    assert_eq!(refused.len(), 1);
    let reasons = refused[0]["reasons"].as_array().unwrap();
    assert!(reasons.iter().any(|said| said == reason), "{reasons:?}");
    assert!(
        scratch.path().join("worked").exists(),
        "the loop continued after the claim"
    );
}

#[test]
fn a_claim_is_valid_only_for_the_prompt_it_was_made_for() {
    let scratch = Scratch::new();
    owed(&scratch);
    let mut words = run(&["--max-iterations", "2"], "touch worked");
    words[2] = "paint it blue now";
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    refused_for(&scratch, "the prompt has changed since");
}

#[test]
fn an_edit_of_the_prompt_revokes_a_claim() {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "go\n");
    let again = |script| ["run", "--max-iterations", "2", "--", "sh", "-c", script];
    scratch.write("tachikoma.toml", gate("slow", "exec sleep 600", ""));
    let live = tachikoma(&scratch).spawn(again(crate::support::CLAIMS));
    crate::support::await_events(&scratch, "check_started", 2);
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    scratch.write("tachikoma.toml", gate("slow", "exit 0", ""));
    scratch.write("prompt.md", "paint it blue now\n");
    let ran = tachikoma(&scratch).run(again("touch worked"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    refused_for(&scratch, "the prompt has changed since");
}

#[test]
fn a_rollback_revokes_a_claim() {
    let scratch = repository();
    owed(&scratch);
    let back = tachikoma(&scratch).run(["rollback", "1", "--yes"]);
    assert_eq!(back.code(), Some(0), "{}", back.snapshot());
    scratch.write("tachikoma.toml", gate("slow", "exit 0", ""));
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], "touch worked"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert!(!ran.stderr.contains("is judged first"), "{}", ran.stderr);
    refused_for(&scratch, "the work tree was rolled back after the claim");
}
