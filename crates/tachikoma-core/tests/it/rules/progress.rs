//! Progress: what an iteration is worth, which ones count, and when a loop that does not come forward ends.

use std::time::Duration;

use tachikoma_core::policy::completion::GateRule;
use tachikoma_core::policy::{AgentTraits, AutocommitRules};
use tachikoma_core::{
    AutocommitResult, Evidence, Input, Outcome, Policy, Problem, TestsReport, completion_feedback,
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

/// A loop with the first iteration's agent up.
fn up(policy: Policy) -> Play {
    let mut play = Play::up(policy);
    play.hush();
    play
}

/// An iteration that ends well and changes so many files.
fn iterate(play: &mut Play, changed: u32) {
    play.exited(0).kept(changed, 0);
    if play.state.outcome().is_none() {
        play.sleep().launched();
    }
}

/// A policy for an agent with one process for all iterations, which reports usage limits.
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
    // An operator who runs it again wants it to go on.
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

/// What others take for a loop that is stale: the same answer again and again (complaint 26).
#[test]
fn complaint_26_the_same_words_again_are_no_lack_of_progress() {
    let mut play = up(looking());
    for _ in 0..20 {
        // Each time the same claim and the same file: the gates refuse it, and the tree is another.
        iterate(&mut play, 1);
    }
    assert_eq!(streak(&play), 0);
    assert_eq!(play.state.outcome(), None);
}

/// Others saw no progress in a commit that left nothing behind in the work tree (complaint 25).
#[test]
fn complaint_25_a_commit_of_the_agents_own_is_progress() {
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

/// Others ran 6239 iterations in a night (complaint 30).
#[test]
fn complaint_30_a_loop_that_never_ends_by_itself_ends_after_five_iterations() {
    let mut play = up(Policy {
        autocommit: Some(LOOKS),
        ..Policy::default()
    });
    let mut iterations = 0;
    while play.state.outcome().is_none() {
        iterations += 1;
        assert!(iterations < 100, "it goes on and on");
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
fn limited_and_interrupted_iterations_do_not_count_as_no_progress() {
    let mut play = in_a_session();
    play.resulted(true).kept(0, 0).resulted(true).kept(0, 0);
    assert_eq!(streak(&play), 2);
    limited(&mut play, 0);
    assert_eq!((play.state.attempt, streak(&play)), (2, 2));
    for changed in [0, 4] {
        play.skip().killed(2).kept(changed, 0).launched();
        assert_eq!(streak(&play), 2, "neither more nor none");
    }
}

#[test]
fn changes_of_a_limited_attempt_count_for_its_iteration() {
    let mut play = in_a_session();
    limited(&mut play, 3);
    play.hush().resulted(true).kept(0, 0);
    insta::assert_snapshot!(play.log(), @"
    30.0 resulted true: TurnResulted(true), IterationCompleted(1 succeeded), AutocommitStarted(iteration within 60s) ! survey
    30.0 kept: ProgressMeasured(1: 1), IterationStarted(2 attempt 1) ! prompt
    ");
}

#[test]
fn iterations_that_fail_count_and_end_by_their_own_limit() {
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

    // One that goes well and brings nothing ends the loop, with those that failed before it.
    let mut play = up(looking());
    for _ in 0..3 {
        play.exited(1).kept(0, 0).sleep().launched();
    }
    iterate(&mut play, 0);
    assert!(matches!(
        play.state.outcome(),
        Some(Outcome::Condition { .. })
    ));

    // With no limit of their own they are judged like all others.
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
    assert_eq!(streak(&play), 0, "there is nobody to look");

    let mut play = up(looking());
    for _ in 0..10 {
        play.exited(0);
        play.answer_keep(Err("the disk is gone".to_owned()));
        play.sleep().launched();
    }
    assert_eq!(streak(&play), 0, "the look failed");

    let mut play = up(looking());
    for _ in 0..10 {
        play.crash().launched();
        iterate(&mut play, 0);
    }
    assert_eq!(streak(&play), 0, "a runner died in it");
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
        "it is where one starts from"
    );
    round(&mut play, "- [x] a\n- [x] b\n- [ ] c\n", 2);
    let last = play.state.progress.recent.last().unwrap();
    assert_eq!((last.iteration, last.score), (2, 20));
    let known = &play.state.progress;
    assert_eq!(
        known.evidence,
        Evidence::default(),
        "the next iteration begins with nothing"
    );
    assert_eq!(known.tests.as_ref().unwrap().failing, ["parse"]);
    let told = completion_feedback(&play.state);
    assert!(
        told.contains("## Failing tests (1 of 4, after iteration 2)\n\n- parse\n"),
        "{told}"
    );
}
