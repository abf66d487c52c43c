//! A Claude Code that cannot run: a clear message, and the loop continues after the cause is fixed.

use std::fs;
use std::path::Path;

use insta::assert_snapshot;
use tachikoma_testkit::fake_agent::{Misbehavior, REPLAY_VAR};
use tachikoma_testkit::{Ran, Scenario, Scratch, Turn};

use crate::claude_fault_support::{claude, misbehaving, run, trouble, with_scenario};
use crate::support::{events, shown, status};

/// Setting that ends the loop at the first failure.
const ONCE: (&str, &str) = ("TACHIKOMA_STOP_CONDITIONS__MAX_CONSECUTIVE_FAILURES", "1");

/// Checks that the loop continues with a working agent.
#[track_caller]
fn expect_intact(scratch: &Scratch) {
    let before = status(scratch)["loop_id"].clone();
    let ran = claude(scratch).run(run("2"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(status(scratch)["loop_id"], before);
    assert_eq!(status(scratch)["iteration"], 2);
}

fn quiet() -> Scratch {
    with_scenario(&Scenario::of([Turn::text("one")]))
}

/// Runs a loop with a recorded output of the real Claude Code.
fn replayed(name: &str) -> (Scratch, Ran) {
    let scratch = quiet();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tachikoma-agents/tests/corpus");
    let file = corpus.join("claude").join(name);
    assert!(file.exists(), "{}", file.display());
    let ran = claude(&scratch)
        .env(ONCE.0, ONCE.1)
        .env(REPLAY_VAR, file)
        .run(run("2"));
    (scratch, ran)
}

#[test]
fn a_missing_agent_is_reported() {
    let scratch = quiet();
    let ran = claude(&scratch)
        .env("TACHIKOMA_SESSION__CLAUDE_COMMAND", "claude-of-nowhere")
        .env("PATH", "/usr/bin:/bin")
        .run(run("2"));
    assert_snapshot!(shown(&ran), @"
    exit: 2
    --- stdout
    --- stderr
    error: program `claude-of-nowhere` is not found; looked in PATH: /usr/bin:/bin
    hint: install it with `npm install -g @anthropic-ai/claude-code`, or set `session.claude_command`
    ");
}

#[test]
fn an_agent_without_a_login_is_reported() {
    let (scratch, ran) = replayed("66-not-logged-in.jsonl");
    assert_snapshot!(trouble(&ran), @"
    exit: 1
      ✗ failed after [DURATION]: the agent reported that its turn failed: Not logged in · Please run /login
      ! stopping: the agent reported that its turn failed: Not logged in · Please run /login; log in with `claude` and `/login`, or set ANTHROPIC_API_KEY
    ✗ error: the agent reported that its turn failed: Not logged in · Please run /login; log in with `claude` and `/login`, or set ANTHROPIC_API_KEY (1 iteration, 1 failed, [DURATION] of work)
    hint: `tachikoma logs` has what the agent wrote; fix the cause, then `tachikoma run` continues
    ");
    expect_intact(&scratch);
}

#[test]
fn an_unknown_model_is_reported() {
    let (scratch, ran) = replayed("26-404-model.jsonl");
    assert_snapshot!(trouble(&ran), @"
    exit: 1
      ✗ failed after [DURATION]: the agent reported that its turn failed: There's an issue with the selected model (claude-opus-5-5). It may not exist or you may not have access to it. Run --model to pick a different model.
      ! stopping: the agent reported that its turn failed: There's an issue with the selected model (claude-opus-5-5). It may not exist or you may not have access to it. Run --model to pick a different model.; set another `model` in `[agents.claude]`
    ✗ error: the agent reported that its turn failed: There's an issue with the selected model (claude-opus-5-5). It may not exist or you may not have access to it. Run --model to pick a different model.; set another `model` in `[agents.claude]` (1 iteration, 1 failed, [DURATION] of work)
    hint: `tachikoma logs` has what the agent wrote; fix the cause, then `tachikoma run` continues
    ");
    expect_intact(&scratch);
}

#[test]
fn unknown_arguments_of_the_agent_are_reported() {
    let scratch = quiet();
    let ran = claude(&scratch)
        .env(ONCE.0, ONCE.1)
        .env(
            "TACHIKOMA_AGENTS__CLAUDE__ARGS",
            r#"["--flag-of-the-future"]"#,
        )
        .run(run("2"));
    assert_snapshot!(trouble(&ran), @"
    exit: 1
      | error: unknown option '--flag-of-the-future'
      ✗ failed after [DURATION]: the agent ended with exit 1 and without a final result; its last words: error: unknown option '--flag-of-the-future'
    ✗ error: an iteration failed (max_consecutive_failures = 1); the last one: the agent ended with exit 1 and without a final result; its last words: error: unknown option '--flag-of-the-future' (1 iteration, 1 failed, [DURATION] of work)
    hint: `tachikoma logs` has what the agent wrote; fix the cause, then `tachikoma run` continues
    ");
    expect_intact(&scratch);
}

#[test]
fn an_agent_that_ends_without_output_is_reported() {
    let wrong = Misbehavior {
        exit_at_line: Some(1),
        exit_code: 1,
        ..Misbehavior::default()
    };
    let scratch = with_scenario(&misbehaving(Scenario::of([Turn::text("one")]), [wrong]));
    let ran = claude(&scratch).env(ONCE.0, ONCE.1).run(run("2"));
    assert_snapshot!(trouble(&ran), @"
    exit: 1
      ✗ failed after [DURATION]: the agent ended with exit 1 and without a final result
    ✗ error: an iteration failed (max_consecutive_failures = 1); the last one: the agent ended with exit 1 and without a final result (1 iteration, 1 failed, [DURATION] of work)
    hint: `tachikoma logs` has what the agent wrote; fix the cause, then `tachikoma run` continues
    ");
    expect_intact(&scratch);
}

#[test]
fn an_untested_version_is_a_warning() {
    let wrong = Misbehavior {
        version: Some("3.0.0".to_owned()),
        die_after_results: Some(1),
        ..Misbehavior::default()
    };
    let scenario = Scenario::of([Turn::text("one"), Turn::text("two"), Turn::text("three")]);
    let scratch = with_scenario(&misbehaving(scenario, [wrong.clone(), wrong]));
    let ran = claude(&scratch).run(run("2"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_snapshot!(trouble(&ran), @"
    exit: 3
      ! warning: claude 3.0.0 has not been tested with this version of tachikoma; continuing
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
    let warned = events(&scratch, "warned");
    assert_eq!(
        warned.len(),
        1,
        "one warning for all processes of the agent: {warned:?}"
    );
}

// Known fault of other loops: a loop could not continue if its conversation was missing.
#[test]
fn a_missing_conversation_is_replaced() {
    let scenario = Scenario::of([Turn::text("one"), Turn::text("two"), Turn::text("three")]);
    let scratch = with_scenario(&scenario);
    let ran = claude(&scratch).run(run("1"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    fs::remove_dir_all(scratch.home().join("agent")).unwrap();
    let ran = claude(&scratch).run(run("3"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_snapshot!(trouble(&ran), @"
    exit: 3
      ✗ failed after [DURATION]: the agent reported that its turn failed: No conversation found with session ID: [ID]
    ! completed: the limit of 3 iterations is reached (3 iterations, 2 succeeded, 1 failed, [DURATION] of work, $0.0056)
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
    let named = events(&scratch, "session_named");
    assert_eq!(
        named.len(),
        2,
        "the new conversation has its own id: {named:?}"
    );
    assert_eq!(events(&scratch, "iteration_completed").len(), 2);
}
