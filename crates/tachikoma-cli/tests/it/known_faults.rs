//! Known faults of similar programs, which their users complained about. Each test shows that Tachikoma does not have the fault.

use serde_json::Value;
use tachikoma_testkit::fake_agent::Misbehavior;
use tachikoma_testkit::{Scenario, Scratch, Turn, processes_with, unique};

use crate::claude_fault_support::{claude, loop_of, misbehaving, run, with_scenario};
use crate::support::{events, run as run_shell, tachikoma};

fn outcomes(scratch: &Scratch) -> Vec<Value> {
    let completed = events(scratch, "iteration_completed");
    completed
        .iter()
        .map(|e| e["report"]["outcome"].clone())
        .collect()
}

/// Known fault of other loops: agents finish their work and never exit.
#[test]
fn agents_that_stay_after_their_result_are_killed() {
    let mark = unique();
    let stays = Misbehavior {
        hang_after_result: true,
        escaping_child: Some(mark.clone()),
        ..Misbehavior::default()
    };
    let mut scenario = Scenario::of([Turn::text("done for now")]).for_ever();
    scenario.agent.always = stays;
    let scratch = with_scenario(&scenario);
    let settings = [
        ("SESSION__FRESH_EACH_ITERATION", "true"),
        ("SESSION__RESULT_GRACE", "100ms"),
    ];
    let shown = loop_of(&scratch, "3", &settings);
    assert_eq!(outcomes(&scratch), ["succeeded"; 3], "{shown}");
    assert_eq!(events(&scratch, "agent_launched").len(), 3);
    assert_eq!(
        processes_with(&mark),
        Vec::<u32>::new(),
        "no agent process is left"
    );
}

/// Known fault of other loops: certain words in the output started a timer, and the agent was killed five seconds later.
#[test]
fn agent_text_does_not_end_a_turn_before_its_result() {
    let work = Turn::bash("echo 'Event emitted: build.done'; sleep 6; echo x > made")
        .saying("Event emitted: build.done");
    let scratch = with_scenario(&Scenario::of([work, Turn::text("built")]));
    let shown = loop_of(&scratch, "1", &[("SESSION__SILENCE_TIMEOUT", "1s")]);
    assert_eq!(outcomes(&scratch), ["succeeded"], "{shown}");
    assert_eq!(events(&scratch, "rung_climbed"), Vec::<Value>::new());
    assert_eq!(scratch.read("made"), "x\n");
}

/// Known fault of other loops: after a timeout during a task, the agent lost its whole conversation.
#[test]
fn work_and_conversation_continue_after_a_timeout() {
    let stuck = Turn::bash("echo half > work; sleep 600");
    let scratch = with_scenario(&Scenario::of([stuck, Turn::text("the other half")]));
    let shown = loop_of(&scratch, "2", &[("SESSION__TOOL_TIMEOUT", "3s")]);
    let failed = events(&scratch, "iteration_failed");
    assert_eq!(failed[0]["failure"]["timeout"], "tool", "{shown}");
    let seen = failed[0]["failure"]["last_seen"]
        .as_str()
        .unwrap_or_default();
    assert!(seen.starts_with("tool Bash: echo half > work"), "{seen}");
    assert_eq!(outcomes(&scratch), ["succeeded"], "{shown}");
    assert_eq!(
        events(&scratch, "session_named").len(),
        1,
        "the same conversation continues"
    );
    assert_eq!(scratch.read("work"), "half\n");
}

/// Known fault of other loops: a file or package with "limit" in its name was mistaken for a usage limit.
#[test]
fn text_about_limits_from_tools_or_the_agent_is_not_a_usage_limit() {
    let file = "@upstash/ratelimit\n5-hour limit reached\nClaude AI usage limit reached|1794715906";
    let work = Turn::bash(&format!("printf '%s' '{file}'; exit 1"))
        .saying("You've hit your limit · resets 4:11am (UTC)");
    let says = Turn::text("You've hit your limit · resets 4:11am (UTC)");
    let scratch = with_scenario(&Scenario::of([work, says]));
    let shown = loop_of(&scratch, "1", &[]);
    assert_eq!(outcomes(&scratch), ["succeeded"], "{shown}");
    assert_eq!(events(&scratch, "iteration_limited"), Vec::<Value>::new());
    assert_eq!(events(&scratch, "wait_started"), Vec::<Value>::new());
}

/// Known fault of other loops: a timeout counted as a usage limit because earlier output mentioned limits.
#[test]
fn a_timeout_after_text_about_limits_is_a_timeout() {
    let stuck = Turn::bash("echo 'API rate limit reached'; sleep 600")
        .saying("You've hit your limit · resets 4:11am (UTC)");
    let scratch = with_scenario(&Scenario::of([stuck, Turn::text("well")]));
    let shown = loop_of(&scratch, "2", &[("SESSION__TOOL_TIMEOUT", "1s")]);
    assert_eq!(
        events(&scratch, "iteration_limited"),
        Vec::<Value>::new(),
        "{shown}"
    );
    assert_eq!(
        events(&scratch, "iteration_failed")[0]["failure"]["kind"],
        "timed_out"
    );
}

/// Known fault of other loops: a usage limit message was mistaken for the answer of the agent.
#[test]
fn a_usage_limit_is_neither_an_answer_nor_a_claim_nor_a_failure() {
    let limit = Turn::status(429, "rate_limit_error", "<promise>COMPLETE</promise>");
    let turns = [
        limit,
        Turn::bash("true"),
        Turn::text("<promise>COMPLETE</promise>"),
    ];
    let scratch = with_scenario(&Scenario::of(turns));
    let tool = claude(&scratch).env("CLAUDE_CODE_MAX_RETRIES", "0");
    let live = tool.spawn(run("9"));
    crate::support::await_events(&scratch, "wait_started", 1);
    assert_eq!(tool.run(["skip"]).code(), Some(0));
    assert_eq!(live.wait(crate::support::SOON).code(), Some(0), "done");
    assert_eq!(events(&scratch, "iteration_limited").len(), 1);
    assert_eq!(events(&scratch, "iteration_failed"), Vec::<Value>::new());
    assert_eq!(
        outcomes(&scratch),
        ["succeeded"],
        "this is the second attempt"
    );
}

/// Known fault of other loops: descendants of the agent kept running after a timeout.
#[test]
fn a_timeout_kills_all_descendants_of_the_agent() {
    let scratch = Scratch::new();
    let mark = unique();
    let end = format!("sleep 600; : {mark}");
    let chain = format!("sh -c \"sh -c '{end}'; :\" & setsid sh -c '{end}' & sh -c '{end}'; :");
    let words = run_shell(&["--max-iterations", "1"], &chain);
    let ran = tachikoma(&scratch)
        .env("TACHIKOMA_SESSION__SESSION_TIMEOUT", "1s")
        .run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let failed = &events(&scratch, "iteration_failed")[0]["failure"];
    assert_eq!(failed["timeout"], "session", "{failed}");
    assert_eq!(
        processes_with(&mark),
        Vec::<u32>::new(),
        "no descendant is left"
    );
}

/// Known fault of other loops: the agent crashed every time it resumed the same conversation.
#[test]
fn a_conversation_that_crashes_its_process_three_times_is_replaced() {
    let dies = Misbehavior {
        exit_at_line: Some(2),
        exit_code: 1,
        ..Misbehavior::default()
    };
    let first = Misbehavior {
        die_after_results: Some(1),
        ..Misbehavior::default()
    };
    let starts = [first, dies.clone(), dies.clone(), dies];
    let scenario = Scenario::of([Turn::text("well")]).for_ever();
    let scratch = with_scenario(&misbehaving(scenario, starts));
    let shown = loop_of(&scratch, "5", &[]);
    let failed = events(&scratch, "iteration_failed");
    assert_eq!(failed.len(), 3, "{shown}");
    let reboots = events(&scratch, "reboot_completed");
    assert_eq!(reboots.len(), 1, "{shown}");
    assert_eq!(reboots[0]["reason"]["kind"], "error_recovery");
    assert_eq!(outcomes(&scratch), ["succeeded", "succeeded"], "{shown}");
}

#[test]
fn a_conversation_in_use_elsewhere_is_replaced_at_once() {
    let taken = Misbehavior {
        exit_at_line: Some(1),
        exit_code: 1,
        last_words: Some("Error: Session ID 3f0b is already in use.".to_owned()),
        ..Misbehavior::default()
    };
    let scenario = Scenario::of([Turn::text("well")]).for_ever();
    let scratch = with_scenario(&misbehaving(scenario, [taken]));
    let shown = loop_of(&scratch, "2", &[]);
    let failed = events(&scratch, "iteration_failed");
    assert_eq!(
        failed[0]["failure"]["problem"]["kind"], "poisoned",
        "{shown}"
    );
    let reason = &events(&scratch, "reboot_completed")[0]["reason"];
    assert_eq!(reason["kind"], "error_recovery");
    assert_eq!(outcomes(&scratch), ["succeeded"], "{shown}");
}
