//! Progress: the score of an iteration, the iterations that are measured, and the end of a loop without progress.

use std::time::Duration;

use tachikoma_core::policy::completion::GateRule;
use tachikoma_core::policy::{AgentTraits, AutocommitRules};
use tachikoma_core::{
    AutocommitResult, Evidence, Input, Outcome, Policy, Problem, TestsReport, text_before_prompt,
};

use crate::play::{Play, gate};

const LOOKS: AutocommitRules = AutocommitRules {
    repository: false,
    commit: false,
    on_failure: false,
    timeout: Duration::ZERO,
};

fn looking() -> Policy {
    Policy {
        max_no_progress_iterations: 3,
        autocommit: Some(LOOKS),
        ..Policy::default()
    }
}

/// A loop in which the agent of the first iteration is running.
fn up(policy: Policy) -> Play {
    let mut play = Play::up(policy);
    play.hush();
    play
}

/// An iteration that succeeds and changes this many files.
fn iterate(play: &mut Play, changed: u32) {
    play.exited(0).kept(changed, 0);
    if play.state.outcome().is_none() {
        play.sleep().launched();
    }
}

/// A loop with an agent that has one process for all iterations and reports usage limits.
fn in_a_session() -> Play {
    up(Policy {
        agent: AgentTraits {
            event_stream: true,
            persistent: true,
            ..AgentTraits::default()
        },
        iteration_delay: Duration::ZERO,
        ..looking()
    })
}

fn limited(play: &mut Play, changed: u32) {
    let problem = Some(Problem::Limited { until: None });
    play.failed("overloaded", problem).kept(changed, 0).sleep();
}

fn streak(play: &Play) -> u32 {
    play.state.stats.no_progress_count
}

#[test]
fn loop_without_progress_ends_with_its_reason() {
    let mut play = up(looking());
    for changed in [2, 0, 0] {
        iterate(&mut play, changed);
    }
    play.hush().exited(0).kept(0, 0);
    insta::assert_snapshot!(play.log(), @"
    15.0 exited 0: IterationCompleted(4 succeeded), AutocommitStarted(iteration within 60s) ! survey
    15.0 kept: ProgressMeasured(4: 0), StopConditionTriggered(max_no_progress_iterations), Stopped(3 iterations in a row without progress (max_no_progress_iterations = 3)) ! finish
    ");
    assert_eq!(play.state.progress.last, Some(1));
    assert!(matches!(
        play.state.outcome(),
        Some(Outcome::Condition { .. })
    ));
    // A new run resets the count of iterations without progress.
    play.start();
    assert_eq!((play.state.iteration, streak(&play)), (5, 0));
}

#[test]
fn without_a_limit_no_progress_does_not_end_the_loop() {
    let mut play = up(Policy {
        max_no_progress_iterations: 0,
        ..looking()
    });
    for _ in 0..40 {
        iterate(&mut play, 0);
    }
    assert_eq!((play.state.iteration, streak(&play)), (41, 40));
    assert_eq!(play.state.progress.recent.len(), 20);
}

/// Other tools stop a loop when the agent gives the same answer again and again.
#[test]
fn repeated_answers_with_changed_files_are_progress() {
    let mut play = up(looking());
    for _ in 0..20 {
        // The agent makes the same claim and changes the same file each time, and the gates refuse the claim.
        iterate(&mut play, 1);
    }
    assert_eq!(streak(&play), 0);
    assert_eq!(play.state.outcome(), None);
}

/// Other tools saw no progress if the agent had committed all its changes itself.
#[test]
fn a_commit_made_by_the_agent_is_progress() {
    let mut play = up(looking());
    for _ in 0..10 {
        play.exited(0);
        let kept = AutocommitResult {
            head_moved: true,
            ..AutocommitResult::default()
        };
        play.answer_keep(Ok(kept)).sleep().launched();
    }
    assert_eq!(streak(&play), 0);
    assert_eq!(play.state.progress.recent[0].score, 10);
}

/// Another tool ran 6239 iterations in a night.
#[test]
fn a_loop_without_progress_ends_after_five_iterations() {
    let mut play = up(Policy {
        autocommit: Some(LOOKS),
        ..Policy::default()
    });
    let mut iterations = 0;
    while play.state.outcome().is_none() {
        iterations += 1;
        assert!(iterations < 100, "the loop does not end");
        iterate(&mut play, 0);
    }
    assert_eq!(iterations, 5);
}

#[test]
fn commit_of_earlier_changes_is_not_progress() {
    let mut play = up(Policy {
        autocommit: Some(AutocommitRules {
            repository: true,
            commit: true,
            ..LOOKS
        }),
        ..looking()
    });
    play.skip().killed(2).kept(2, 0).launched();
    play.hush().exited(0).kept(0, 2);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(2 succeeded), AutocommitStarted(iteration within no limit) ! commit iteration 2, succeeded, session 1, context unknown
    0.0 kept: AutocommitFinished(0 changed, 2 as 0000002, 0 left), ProgressMeasured(2: 0), WaitStarted(delay 5s)
    ");
    assert_eq!(streak(&play), 1);
}

#[test]
fn usage_limited_and_skipped_iterations_do_not_count_as_no_progress() {
    let mut play = in_a_session();
    play.resulted(true).kept(0, 0).resulted(true).kept(0, 0);
    assert_eq!(streak(&play), 2);
    limited(&mut play, 0);
    assert_eq!((play.state.attempt, streak(&play)), (2, 2));
    for changed in [0, 4] {
        play.skip().killed(2).kept(changed, 0).launched();
        assert_eq!(
            streak(&play),
            2,
            "a skipped iteration does not change the streak"
        );
    }
}

#[test]
fn changes_of_an_attempt_ended_by_a_usage_limit_count_for_its_iteration() {
    let mut play = in_a_session();
    limited(&mut play, 3);
    play.hush().resulted(true).kept(0, 0);
    insta::assert_snapshot!(play.log(), @"
    30.0 resulted true: TurnResulted(true), IterationCompleted(1 succeeded), AutocommitStarted(iteration within 60s) ! survey
    30.0 kept: ProgressMeasured(1: 1), IterationStarted(2 attempt 1) ! prompt
    ");
}

#[test]
fn failed_iterations_count_as_no_progress_and_end_the_loop_by_their_own_limit() {
    let mut play = up(Policy {
        max_consecutive_failures: 6,
        ..looking()
    });
    for _ in 0..5 {
        play.exited(1).kept(0, 0).sleep().launched();
    }
    assert_eq!((streak(&play), play.state.outcome()), (5, None));
    play.exited(1).kept(0, 0);
    assert!(matches!(play.state.outcome(), Some(Outcome::Error { .. })));

    // A successful iteration without progress ends the loop. The failed iterations before it count too.
    let mut play = up(looking());
    for _ in 0..3 {
        play.exited(1).kept(0, 0).sleep().launched();
    }
    iterate(&mut play, 0);
    assert!(matches!(
        play.state.outcome(),
        Some(Outcome::Condition { .. })
    ));

    // Without `max_consecutive_failures`, failed iterations without progress end the loop too.
    let mut play = up(Policy {
        max_consecutive_failures: 0,
        ..looking()
    });
    for _ in 0..2 {
        play.exited(1).kept(0, 0).sleep().launched();
    }
    play.exited(1).kept(0, 0);
    assert!(matches!(
        play.state.outcome(),
        Some(Outcome::Condition { .. })
    ));
}

#[test]
fn unsurveyed_iteration_is_not_counted_as_no_progress() {
    let mut play = up(Policy {
        autocommit: None,
        ..looking()
    });
    for _ in 0..10 {
        play.exited(0).sleep().launched();
    }
    assert_eq!(streak(&play), 0, "nothing surveys the work tree");

    let mut play = up(looking());
    for _ in 0..10 {
        play.exited(0);
        play.answer_keep(Err("the disk is gone".to_owned()));
        play.sleep().launched();
    }
    assert_eq!(streak(&play), 0, "the survey failed");

    let mut play = up(looking());
    for _ in 0..10 {
        play.crash().launched();
        iterate(&mut play, 0);
    }
    assert_eq!(streak(&play), 0, "a runner died during the iteration");
    assert_eq!(play.state.outcome(), None);
}

#[test]
fn passing_tests_and_ticked_objectives_are_progress_without_a_survey() {
    let mut policy = Policy {
        autocommit: None,
        ..Policy::default()
    };
    policy.completion.objectives = true;
    policy.completion.asking = Some(Duration::from_secs(10));
    policy.completion.gates = vec![GateRule {
        name: "tests".to_owned(),
        timeout: Duration::ZERO,
        each_iteration: true,
    }];
    let mut play = Play::new(policy);
    play.start()
        .objectives("- [x] a\n- [ ] b\n- [ ] c\n")
        .launched();
    let report = |iteration, newly_passing| TestsReport {
        iteration,
        passed: 3,
        failed: 1,
        newly_passing,
        failing: vec!["parse".to_owned()],
        ..TestsReport::default()
    };
    let round = |play: &mut Play, ticked: &str, newly_passing| {
        play.exited(0).objectives(ticked);
        let number = play.state.completion.number;
        let results = vec![gate("tests", Some("exit 1"))];
        let tests = Some(report(play.state.iteration, newly_passing));
        play.input(
            "gates",
            Input::GatesRan {
                number,
                results,
                tests,
            },
        );
        play.sleep().launched();
    };
    round(&mut play, "- [x] a\n- [ ] b\n- [ ] c\n", 0);
    assert_eq!(
        play.state.progress.last, None,
        "the first results are only the baseline"
    );
    round(&mut play, "- [x] a\n- [x] b\n- [ ] c\n", 2);
    let last = play.state.progress.recent.last().unwrap();
    assert_eq!((last.iteration, last.score), (2, 20));
    let known = &play.state.progress;
    assert_eq!(
        known.evidence,
        Evidence::default(),
        "the next iteration starts without evidence"
    );
    assert_eq!(known.tests.as_ref().unwrap().failing, ["parse"]);
    let told = text_before_prompt(&play.state, None, "");
    assert!(
        told.contains("## Failing tests (1 of 4, after iteration 2)\n\n- parse\n"),
        "{told}"
    );
}
