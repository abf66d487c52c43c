//! A misbehaving Claude Code: how the loop reacts, and which messages it prints.

use insta::assert_snapshot;
use tachikoma_testkit::fake_agent::{Ignored, Misbehavior};
use tachikoma_testkit::{
    Afterwards, Fault, Scenario, Scratch, Turn, Usage, processes_with, unique,
};

use crate::claude_fault_support::{claude, loop_of, misbehaving, run, trouble, with_scenario};
use crate::support::{SOON, await_events, events};

fn texts() -> Scenario {
    Scenario::of([Turn::text("one"), Turn::text("two"), Turn::text("three")])
}

/// Runs the given number of iterations. The first agent process misbehaves.
fn first_one(wrong: Misbehavior, iterations: &str, settings: &[(&str, &str)]) -> (Scratch, String) {
    let scratch = with_scenario(&misbehaving(texts(), [wrong]));
    let shown = loop_of(&scratch, iterations, settings);
    (scratch, shown)
}

/// Returns the results of the iterations and the number of agent starts.
fn outline(scratch: &Scratch) -> (Vec<String>, usize) {
    let completed = events(scratch, "iteration_completed").len();
    let failed = events(scratch, "iteration_failed");
    let failures = failed
        .iter()
        .map(|event| event["failure"]["kind"].to_string());
    let mut outcomes: Vec<String> = failures.collect();
    outcomes.extend((0..completed).map(|_| "completed".to_owned()));
    (outcomes, events(scratch, "agent_launched").len())
}

// Known fault of other loops: an agent that printed nothing blocked the loop forever.
#[test]
fn a_silent_agent_times_out() {
    let wrong = Misbehavior {
        hang_at_start: true,
        ..Misbehavior::default()
    };
    let settings = [("SESSION__FIRST_OUTPUT_TIMEOUT", "1s")];
    let (_scratch, shown) = first_one(wrong, "2", &settings);
    assert_snapshot!(shown, @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent claude (`[HOME]/claude`)  in [DIR]
      permission  bypass: nothing it does is denied
      limits      2 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent claude, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ! ending the agent: interrupt
      ✗ failed after [DURATION]: first_output_timeout ran out: the agent said nothing at all
      ↻ retry in [DURATION] (failure 1 of 10)
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | one
      context 4 % (9k of 200k tokens, redline at 170k)
      ✓ done in [DURATION]   $0.0028   9k tokens
    ! completed: the limit of 2 iterations is reached (2 iterations, 1 succeeded, 1 failed, [DURATION] of work, $0.0028)
      this run: [CLOCK] to [CLOCK], 9k tokens
    --- stderr
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
}

// Known fault of other loops: an agent that became silent during an answer blocked the loop forever.
#[test]
fn an_agent_that_becomes_silent_times_out() {
    let wrong = Misbehavior {
        silent_after_line: Some(4),
        ..Misbehavior::default()
    };
    let settings = [("SESSION__SILENCE_TIMEOUT", "1s")];
    let (_scratch, shown) = first_one(wrong, "2", &settings);
    assert_snapshot!(shown, @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent claude (`[HOME]/claude`)  in [DIR]
      permission  bypass: nothing it does is denied
      limits      2 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent claude, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ! ending the agent: interrupt
      context 4 % (9k of 200k tokens, redline at 170k)
      ✗ failed after [DURATION]: silence_timeout ran out: the agent fell silent (last seen: an answer, [DURATION] ago)
      ↻ retry in [DURATION] (failure 1 of 10)
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | two
      context 4 % (9k of 200k tokens, redline at 170k)
      ✓ done in [DURATION]   $0.0028   9k tokens
    ! completed: the limit of 2 iterations is reached (2 iterations, 1 succeeded, 1 failed, [DURATION] of work, $0.0028)
      this run: [CLOCK] to [CLOCK], 9k tokens
    --- stderr
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
}

#[test]
fn pings_do_not_extend_silence_timeout() {
    let pings = Turn::fault(Fault::Pings {
        after: 4,
        every_ms: 250,
    });
    let scratch = with_scenario(&Scenario::of([pings, Turn::text("well")]));
    let shown = loop_of(&scratch, "2", &[("SESSION__SILENCE_TIMEOUT", "1s")]);
    assert!(shown.contains("silence_timeout ran out"), "{shown}");
    assert!(shown.contains("✓ done in"), "{shown}");
}

#[test]
fn garbage_in_the_output_is_skipped() {
    let wrong = Misbehavior {
        garbage_before_line: Some(3),
        ..Misbehavior::default()
    };
    let (scratch, shown) = first_one(wrong, "1", &[]);
    assert_snapshot!(shown, @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent claude (`[HOME]/claude`)  in [DIR]
      permission  bypass: nothing it does is denied
      limits      1 iteration, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent claude, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | warning: this is not JSON {
      | ��� nor is this text
      | one
      context 4 % (9k of 200k tokens, redline at 170k)
      ✓ done in [DURATION]   $0.0028   9k tokens
    ! completed: the limit of 1 iteration is reached (1 iteration, 1 succeeded, [DURATION] of work, $0.0028)
      this run: [CLOCK] to [CLOCK], 9k tokens
    --- stderr
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
    assert_eq!(outline(&scratch).0, ["completed"]);
}

#[test]
fn a_very_long_line_of_output_does_not_fail_the_iteration() {
    let wrong = Misbehavior {
        huge_line_bytes: Some(20 << 20),
        ..Misbehavior::default()
    };
    let (scratch, shown) = first_one(wrong, "1", &[]);
    assert_eq!(outline(&scratch).0, ["completed"], "{shown:.2000}");
}

#[test]
fn an_agent_that_ignores_an_interrupt_is_killed() {
    let wrong = Misbehavior {
        ignore: vec![Ignored::Interrupt, Ignored::Sigint],
        ..Misbehavior::default()
    };
    let work = Turn::bash("echo x > started; sleep 600");
    let scratch = with_scenario(&misbehaving(Scenario::of([work]), [wrong]));
    let tool = claude(&scratch);
    let live = tool.spawn(run("1"));
    await_events(&scratch, "tool_started", 1);
    let ran = tool.run(["stop", "--now"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let ended = live.wait(SOON);
    assert_eq!(ended.code(), Some(5), "{}", ended.snapshot());
    let rungs = events(&scratch, "rung_climbed");
    let rungs: Vec<_> = rungs.iter().map(|event| event["rung"].as_str()).collect();
    assert_eq!(rungs, [Some("interrupt"), Some("terminate")]);
}

#[test]
fn an_agent_that_dies_during_a_turn_is_a_failure() {
    let wrong = Misbehavior {
        exit_at_line: Some(5),
        exit_code: 7,
        last_words: Some("panic: the beans are out".to_owned()),
        ..Misbehavior::default()
    };
    let (scratch, shown) = first_one(wrong, "2", &[]);
    assert_snapshot!(shown, @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent claude (`[HOME]/claude`)  in [DIR]
      permission  bypass: nothing it does is denied
      limits      2 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent claude, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | panic: the beans are out
      context 4 % (9k of 200k tokens, redline at 170k)
      ✗ failed after [DURATION]: the agent ended with exit 7 and without a final result; its last words: panic: the beans are out
      ↻ retry in [DURATION] (failure 1 of 10)
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | two
      context 4 % (9k of 200k tokens, redline at 170k)
      ✓ done in [DURATION]   $0.0028   9k tokens
    ! completed: the limit of 2 iterations is reached (2 iterations, 1 succeeded, 1 failed, [DURATION] of work, $0.0028)
      this run: [CLOCK] to [CLOCK], 9k tokens
    --- stderr
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
    assert_eq!(
        events(&scratch, "session_named").len(),
        1,
        "the same conversation continues"
    );
}

// Known fault of other loops: an agent that did not exit after its result blocked the loop forever.
#[test]
fn an_agent_that_stays_after_its_result_is_killed() {
    let wrong = Misbehavior {
        hang_after_result: true,
        ..Misbehavior::default()
    };
    let settings = [
        ("SESSION__FRESH_EACH_ITERATION", "true"),
        ("SESSION__RESULT_GRACE", "1s"),
    ];
    let (scratch, shown) = first_one(wrong, "2", &settings);
    assert_eq!(
        outline(&scratch),
        (vec!["completed".to_owned(); 2], 2),
        "{shown}"
    );
}

#[test]
fn a_repeated_result_counts_once() {
    let wrong = Misbehavior {
        second_result: true,
        ..Misbehavior::default()
    };
    let (scratch, shown) = first_one(wrong, "3", &[]);
    assert_eq!(
        outline(&scratch),
        (vec!["completed".to_owned(); 3], 1),
        "{shown}"
    );
}

#[test]
fn an_agent_that_dies_before_it_reads_a_prompt_is_restarted() {
    let wrong = Misbehavior {
        die_after_results: Some(1),
        ..Misbehavior::default()
    };
    let (scratch, shown) = first_one(wrong, "2", &[]);
    assert_eq!(
        outline(&scratch),
        (vec!["completed".to_owned(); 2], 2),
        "{shown}"
    );
    assert_eq!(
        events(&scratch, "session_named").len(),
        1,
        "the same conversation continues"
    );
}

#[test]
fn an_agent_that_dies_between_prompts_is_restarted() {
    let wrong = Misbehavior {
        die_after_results: Some(1),
        ..Misbehavior::default()
    };
    let settings = [("ITERATION_DELAY", "3s")];
    let (scratch, shown) = first_one(wrong, "2", &settings);
    // The agent may die before or after the loop starts to wait.
    let gone = "  the agent's process ended between two turns with exit 0\n";
    assert_eq!(shown.matches(gone).count(), 1, "{shown}");
    assert_snapshot!(shown.replace(gone, ""), @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent claude (`[HOME]/claude`)  in [DIR]
      permission  bypass: nothing it does is denied
      limits      2 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent claude, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | one
      context 4 % (9k of 200k tokens, redline at 170k)
      ✓ done in [DURATION]   $0.0028   9k tokens
      ↻ waits [DURATION] before the next iteration
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | two
      context 4 % (9k of 200k tokens, redline at 170k)
      ✓ done in [DURATION]   $0.0028   9k tokens
    ! completed: the limit of 2 iterations is reached (2 iterations, 2 succeeded, [DURATION] of work, $0.0056)
      this run: [CLOCK] to [CLOCK], 18k tokens
    --- stderr
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
    assert_eq!(outline(&scratch), (vec!["completed".to_owned(); 2], 2));
    assert_eq!(
        events(&scratch, "session_named").len(),
        1,
        "the same conversation continues"
    );
}

/// Text in the request that asks a session for its hand-off.
const HAND_OFF: &str = "Write its hand-off";

/// A tool call with a context above the redline.
fn fill() -> Turn {
    Turn::bash("true").using(Usage::cached(171_000))
}

/// A tool call that never ends.
fn interrupted() -> Turn {
    Turn {
        delay_ms: 60_000,
        ..fill()
    }
}

/// A model that reaches the redline in the first turn of every session.
fn full() -> Scenario {
    let scenario = Scenario::of([fill(), interrupted()]);
    let scenario = Scenario {
        afterwards: Afterwards::Again,
        ..scenario
    };
    scenario.when(
        HAND_OFF,
        Turn::text("Half done.").using(Usage::cached(171_100)),
    )
}

#[test]
fn a_reboot_into_the_same_conversation_fails() {
    let wrong = Misbehavior {
        session_id: Some("3f0b8c1e-7c3d-4a53-9d0c-2d7a1a6c7f10".to_owned()),
        ..Misbehavior::default()
    };
    let mut scenario = full();
    scenario.agent.always = wrong;
    let scratch = with_scenario(&scenario);
    let ran = claude(&scratch).run(run("9"));
    // The last turn is interrupted, so its cost may be missing.
    let shown = trouble(&ran).replace("$0.2571", "[COST]");
    let shown = shown.replace("$0.2057", "[COST]");
    // The interrupt may come before or after the start of the tool call.
    let shown: Vec<&str> = shown
        .lines()
        .filter(|line| !line.contains("Bash"))
        .collect();
    assert_snapshot!(shown.join("\n"), @"
    exit: 1
    ✗ error: 2 reboots in a row changed nothing (the agent continued the same conversation): check whether an argument of the agent names a conversation (3 iterations, 2 handed over, 1 interrupted, 2 reboots, [DURATION] of work, [COST])
    hint: `tachikoma logs` has what the agent wrote; fix the cause, then `tachikoma run` continues
    ");
    let outcomes = outline(&scratch).0;
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
}

#[test]
fn a_failed_new_session_keeps_the_old_one() {
    let dead = Misbehavior {
        hang_at_start: true,
        ..Misbehavior::default()
    };
    let good = Misbehavior::default();
    let scenario = Scenario::of([fill(), interrupted(), Turn::text("on we go")]).when(
        HAND_OFF,
        Turn::text("Half done.").using(Usage::cached(171_100)),
    );
    let scratch = with_scenario(&misbehaving(scenario, [good, dead]));
    let settings = [
        ("SESSION__FIRST_OUTPUT_TIMEOUT", "1s"),
        ("REBOOT__FAILURE_COOLDOWN", "10m"),
    ];
    let shown = loop_of(&scratch, "2", &settings);
    assert_snapshot!(shown, @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent claude (`[HOME]/claude`)  in [DIR]
      permission  bypass: nothing it does is denied
      limits      2 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent claude, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ↻ a reboot is due: context at 85%
      context 85 % (171k of 200k tokens, over the redline at 170k)
      ● Bash   true  [DURATION]  ok
      ! ending the agent: interrupt
      ↻ handed over after [DURATION]   $0.05   171k tokens
      the old session is asked for its hand-off
      | Half done.
      hand-off written, 10 bytes
      ✗ the reboot failed, the old session continues: the new session did not answer in time
      ↻ a reboot is pending: context at 85%; it may happen in [DURATION]
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | on we go
      context 4 % (9k of 200k tokens, redline at 170k)
      ✓ done in [DURATION]   $0.0028   9k tokens
    ! completed: the limit of 2 iterations is reached (2 iterations, 1 succeeded, 1 handed over, [DURATION] of work, $0.1057)
      this run: [CLOCK] to [CLOCK], 351k tokens
    --- stderr
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
    assert_eq!(
        events(&scratch, "session_named").len(),
        1,
        "the old conversation continues"
    );
}

#[test]
fn detached_children_of_the_agent_are_killed() {
    let marker = unique();
    let wrong = Misbehavior {
        escaping_child: Some(marker.clone()),
        ..Misbehavior::default()
    };
    let (scratch, shown) = first_one(wrong, "1", &[]);
    assert_eq!(outline(&scratch).0, ["completed"], "{shown}");
    assert!(processes_with(&marker).is_empty());
}
