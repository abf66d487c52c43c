//! Claims of completion: who makes them, what they have to prove, and when they are accepted.

use std::time::Duration;

use tachikoma_core::policy::AutocommitRules;
use tachikoma_core::policy::completion::GateRule;
use tachikoma_core::{
    LoopEvent, Outcome, Policy, Problem, ScriptVerdict, Urgency, next_deadline, text_before_prompt,
};

use crate::play::Play;

const PASS: &[(&str, Option<&str>)] = &[("tests", None)];
const FAIL: &[(&str, Option<&str>)] = &[("tests", Some("exit 1"))];

/// A policy with gates that run when completion is claimed.
pub fn gated(names: &[&str]) -> Policy {
    let gate = |name: &&str| GateRule {
        name: (*name).to_owned(),
        timeout: Duration::from_secs(60),
        each_iteration: false,
    };
    let mut policy = Policy::default();
    policy.completion.gates = names.iter().map(gate).collect();
    policy
}

fn each_iteration() -> Policy {
    let mut policy = gated(&["tests", "lint"]);
    policy.completion.gates[1].each_iteration = true;
    policy
}

pub fn with_objectives() -> Policy {
    let mut policy = Policy::default();
    policy.completion.objectives = true;
    policy.completion.asking = Some(Duration::from_secs(10));
    policy
}

fn with_scripts() -> Policy {
    let mut policy = gated(&["tests"]);
    policy.completion.asking = Some(Duration::from_secs(40));
    policy
}

#[test]
fn claim_is_accepted_when_every_gate_passes() {
    let mut play = Play::up(gated(&["tests", "lint"]));
    play.hush().claimed();
    play.gates(&[("tests", Some("exit 1")), ("lint", None)]);
    play.sleep().launched().claimed();
    play.gates(&[("tests", None), ("lint", None)]);
    insta::assert_snapshot!(play.log(), @"
    0.0 claimed: IterationCompleted(1 succeeded, claimed), CheckStarted(claimed, gates within 140s) ! run tests, lint
    0.0 gates: GatesRan(tests exit 1, lint ok), ClaimRefused(the agent's promise: the gate `tests` failed: exit 1), WaitStarted(delay 5s)
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    5.0 launched: AgentLaunched(77)
    5.0 claimed: IterationCompleted(2 succeeded, claimed), CheckStarted(claimed, gates within 140s) ! run tests, lint
    5.0 gates: GatesRan(tests ok, lint ok), Completed(the work is complete) ! finish
    ");
}

#[test]
fn ten_false_claims_are_refused_and_a_true_one_is_accepted() {
    let mut play = Play::up(Policy {
        max_test_failure_streak: 0,
        iteration_delay: Duration::ZERO,
        ..gated(&["tests"])
    });
    for _ in 0..10 {
        play.claimed().gates(FAIL).launched();
        assert_eq!(play.state.outcome(), None);
    }
    assert_eq!(play.state.stats.test_failure_streak, 10);
    play.claimed().gates(PASS);
    assert_eq!(play.state.outcome(), Some(&Outcome::Done));
    assert_eq!(play.state.iteration, 11);
    let believed = play
        .journal
        .iter()
        .filter(|record| matches!(record.event, LoopEvent::ClaimRefused(_)));
    assert_eq!(believed.count(), 10);
}

#[test]
fn failing_gate_runs_in_a_row_end_the_loop_and_failed_iterations_do_not_count() {
    let mut play = Play::up(Policy {
        iteration_delay: Duration::ZERO,
        ..each_iteration()
    });
    let fail: &[_] = &[("lint", Some("exit 2"))];
    play.exited(0).gates(fail).launched();
    play.exited(1).sleep().launched();
    play.exited(0).gates(&[("lint", None)]).launched();
    assert_eq!(
        play.state.stats.test_failure_streak, 0,
        "a passed gate resets the streak"
    );
    play.hush().exited(0).gates(fail).launched();
    play.exited(1).sleep().launched().exited(0).gates(fail);
    play.launched().exited(0).gates(fail);
    insta::assert_snapshot!(play.log(), @"
    1.0 exited 0: IterationCompleted(4 succeeded), CheckStarted(gates within 70s) ! run lint
    1.0 gates: GatesRan(lint exit 2), IterationStarted(5 attempt 1) ! launch
    1.0 launched: AgentLaunched(77)
    1.0 exited 1: IterationFailed(5: the agent ended with exit 1; streak 1), WaitStarted(backoff 1s)
    2.0 wake: IterationStarted(6 attempt 1) ! launch
    2.0 launched: AgentLaunched(77)
    2.0 exited 0: IterationCompleted(6 succeeded), CheckStarted(gates within 70s) ! run lint
    2.0 gates: GatesRan(lint exit 2), IterationStarted(7 attempt 1) ! launch
    2.0 launched: AgentLaunched(77)
    2.0 exited 0: IterationCompleted(7 succeeded), CheckStarted(gates within 70s) ! run lint
    2.0 gates: GatesRan(lint exit 2), StopConditionTriggered(max_test_failure_streak), Stopped(gates failed 3 times in a row (max_test_failure_streak = 3), the last time: `lint`) ! finish
    ");
    play.hush().start();
    assert_eq!(
        play.state.stats.test_failure_streak, 0,
        "a new run starts with an empty streak"
    );
}

#[test]
fn gates_run_after_successful_iterations_and_for_claims() {
    let mut play = Play::up(each_iteration());
    play.hush().exited(0).gates(&[("lint", None)]);
    play.sleep().launched().exited(1).sleep().launched();
    play.skip().killed(2).launched();
    play.claimed();
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), CheckStarted(gates within 70s) ! run lint
    0.0 gates: GatesRan(lint ok), WaitStarted(delay 5s)
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    5.0 launched: AgentLaunched(77)
    5.0 exited 1: IterationFailed(2: the agent ended with exit 1; streak 1), WaitStarted(backoff 1s)
    6.0 wake: IterationStarted(3 attempt 1) ! launch
    6.0 launched: AgentLaunched(77)
    6.0 skip: EndingRequested(skip within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: skips iteration 3
    6.0 killed 2: IterationCompleted(3 skipped), IterationStarted(4 attempt 1) ! launch
    6.0 launched: AgentLaunched(77)
    6.0 claimed: IterationCompleted(4 succeeded, claimed), CheckStarted(claimed, gates within 140s) ! run tests, lint
    ");
}

#[test]
fn failed_gates_stay_in_the_prompt_until_an_iteration_succeeds() {
    let mut play = Play::up(gated(&["tests"]));
    play.claimed().gates(FAIL).sleep().launched();
    let told = text_before_prompt(&play.state, None, "");
    assert!(told.contains("what tests said about exit 1"), "{told}");
    assert!(told.contains("the gate `tests` failed: exit 1"), "{told}");
    play.exited(1).sleep().launched();
    assert_eq!(
        text_before_prompt(&play.state, None, ""),
        told,
        "the failed iteration has not changed the feedback"
    );
    play.exited(0).sleep().launched();
    assert_eq!(text_before_prompt(&play.state, None, ""), "");
}

#[test]
fn claim_without_any_work_is_refused() {
    let mut play = Play::up(super::stream());
    play.hush().resulted(true).claimed();
    play.sleep()
        .launched()
        .tool("t")
        .tool_ended("t")
        .resulted(true)
        .claimed();
    insta::assert_snapshot!(play.log(), @"
    0.0 resulted true: TurnResulted(true)
    0.0 claimed: IterationCompleted(1 succeeded, claimed), ClaimRefused(the agent's promise: nothing was done yet: no tool call succeeded), WaitStarted(delay 5s)
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    5.0 launched: AgentLaunched(77)
    5.0 tool: ToolStarted(t)
    5.0 tool ended: ToolEnded(t)
    5.0 resulted true: TurnResulted(true)
    5.0 claimed: IterationCompleted(2 succeeded, claimed), Completed(the work is complete) ! finish
    ");
    // An agent that reports nothing, in a loop without auto-commit, may have done any work. Its claim is accepted.
    let mut play = Play::up(Policy::default());
    play.claimed();
    assert_eq!(play.state.outcome(), Some(&Outcome::Done));
    // With auto-commit, the survey of the work tree shows whether the agent did any work.
    let autocommit = AutocommitRules {
        repository: true,
        commit: true,
        on_failure: false,
        timeout: Duration::ZERO,
    };
    let looked_at = || {
        Play::up(Policy {
            autocommit: Some(autocommit),
            ..Policy::default()
        })
    };
    let mut play = looked_at();
    play.claimed().kept(0, 0);
    assert_eq!(play.state.outcome(), None);
    play.sleep().launched().claimed().kept(1, 1);
    assert_eq!(play.state.outcome(), Some(&Outcome::Done));
    let mut play = looked_at();
    play.claimed().answer_keep(Err("git is gone".to_owned()));
    assert_eq!(
        play.state.outcome(),
        Some(&Outcome::Done),
        "the survey failed, so it is unknown whether work was done"
    );
}

#[test]
fn tachikoma_done_is_checked_after_its_iteration_and_refused_between_iterations() {
    let mut play = Play::new(gated(&["tests"]));
    play.done(None).start().launched();
    play.done(Some("all tests pass"))
        .done(Some("all tests pass"));
    play.exited(0).done(None).gates(PASS).done(None);
    insta::assert_snapshot!(play.log(), @"
    0.0 done: - ! refused in idle: no iteration is running
    0.0 start: Started(new), SessionStarted(1), IterationStarted(1 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 done: Claimed(all tests pass) ! ok: end your turn; the claim is checked after iteration 1, and accepted if these gates pass: `tests`
    0.0 done: - ! ok: end your turn; the claim is checked after iteration 1, and accepted if these gates pass: `tests`
    0.0 exited 0: IterationCompleted(1 succeeded), CheckStarted(claimed, gates within 70s) ! run tests
    0.0 done: - ! refused in running: no iteration is running
    0.0 gates: GatesRan(tests ok), Completed(the work is complete) ! finish
    0.0 done: - ! refused in completed: no iteration is running
    ");
}

#[test]
fn tachikoma_done_answers_with_the_checks_that_follow() {
    let mut play = Play::up(Policy::default());
    play.hush().done(None);
    play.policy = with_objectives();
    play.policy.completion.gates = gated(&["a", "b"]).completion.gates;
    play.policy.completion.confirmations = 2;
    play.done(None);
    insta::assert_snapshot!(play.log(), @"
    0.0 done: Claimed() ! ok: end your turn; the claim is checked after iteration 1
    0.0 done: - ! ok: end your turn; the claim is checked after iteration 1, and accepted if completion is claimed 2 times in a row and all objectives are ticked and these gates pass: `a`, `b`
    ");
}

#[test]
fn claim_of_a_failed_or_interrupted_iteration_is_refused() {
    let mut play = Play::up(gated(&["tests"]));
    play.hush().done(None).exited(1);
    play.sleep().launched().done(None).skip().killed(2);
    let mut limited = Play::up(super::stream());
    limited.hush().done(None);
    limited
        .failed("limit", Some(Problem::Limited { until: None }))
        .exited(1);
    insta::assert_snapshot!(play.log() + &limited.log(), @"
    0.0 done: Claimed() ! ok: end your turn; the claim is checked after iteration 1, and accepted if these gates pass: `tests`
    0.0 exited 1: IterationFailed(1: the agent ended with exit 1; streak 1), ClaimRefused(`tachikoma done`: iteration 1, which claimed it, failed), WaitStarted(backoff 1s)
    1.0 wake: IterationStarted(2 attempt 1) ! launch
    1.0 launched: AgentLaunched(77)
    1.0 done: Claimed() ! ok: end your turn; the claim is checked after iteration 2, and accepted if these gates pass: `tests`
    1.0 skip: EndingRequested(skip within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: skips iteration 2
    1.0 killed 2: IterationCompleted(2 skipped), ClaimRefused(`tachikoma done`: iteration 2, which claimed it, was interrupted), IterationStarted(3 attempt 1) ! launch
    0.0 done: Claimed() ! ok: end your turn; the claim is checked after iteration 1
    0.0 failed: TurnResulted(false)
    0.0 exited 1: IterationLimited(1 attempt 1: limit; streak 1), ClaimRefused(`tachikoma done`: iteration 1, which claimed it, was interrupted), WaitStarted(usage_limit 30s)
    ");
}

#[test]
fn claim_is_accepted_after_the_configured_number_of_claims_in_a_row() {
    let mut policy = gated(&["tests"]);
    policy.completion.confirmations = 2;
    policy.iteration_delay = Duration::ZERO;
    let mut play = Play::up(policy);
    play.claimed().gates(PASS).launched();
    assert_eq!(play.state.completion.confirmed, 1);
    play.exited(0).launched().hush();
    play.claimed().gates(PASS).launched();
    assert_eq!(
        play.state.completion.confirmed, 1,
        "an iteration without a claim came in between"
    );
    play.claimed().gates(FAIL).launched();
    assert_eq!(
        play.state.completion.confirmed, 0,
        "a gate refused the claim"
    );
    play.claimed()
        .gates(PASS)
        .launched()
        .exited(1)
        .sleep()
        .launched();
    play.claimed().gates(PASS);
    assert_eq!(
        play.state.outcome(),
        Some(&Outcome::Done),
        "a failed iteration does not reset the confirmations"
    );
    insta::assert_snapshot!(play.log(), @"
    0.0 claimed: IterationCompleted(3 succeeded, claimed), CheckStarted(claimed, gates within 70s) ! run tests
    0.0 gates: GatesRan(tests ok), ClaimRefused(the agent's promise: this is claim 1 of 2 in a row; review the work, and claim completion again if it is complete), IterationStarted(4 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 claimed: IterationCompleted(4 succeeded, claimed), CheckStarted(claimed, gates within 70s) ! run tests
    0.0 gates: GatesRan(tests exit 1), ClaimRefused(the agent's promise: the gate `tests` failed: exit 1), IterationStarted(5 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 claimed: IterationCompleted(5 succeeded, claimed), CheckStarted(claimed, gates within 70s) ! run tests
    0.0 gates: GatesRan(tests ok), ClaimRefused(the agent's promise: this is claim 1 of 2 in a row; review the work, and claim completion again if it is complete), IterationStarted(6 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 exited 1: IterationFailed(6: the agent ended with exit 1; streak 1), WaitStarted(backoff 1s)
    1.0 wake: IterationStarted(7 attempt 1) ! launch
    1.0 launched: AgentLaunched(77)
    1.0 claimed: IterationCompleted(7 succeeded, claimed), CheckStarted(claimed, gates within 70s) ! run tests
    1.0 gates: GatesRan(tests ok), Completed(the work is complete) ! finish
    ");
}

#[test]
fn stop_script_claims_completion_stops_or_continues_the_loop_or_causes_a_warning() {
    let mut play = Play::up(with_scripts());
    play.hush().exited(0).scripts(ScriptVerdict::GoOn);
    let problem = "exit 3".to_owned();
    play.sleep().launched().exited(0);
    play.scripts(ScriptVerdict::Unclear { problem });
    play.sleep()
        .launched()
        .exited(1)
        .scripts(ScriptVerdict::Claim)
        .gates(FAIL);
    play.sleep()
        .launched()
        .exited(0)
        .scripts(ScriptVerdict::Stop);
    insta::assert_snapshot!(play.log(), @r#"
    0.0 exited 0: IterationCompleted(1 succeeded), CheckStarted(asking within 40s) ! ask
    0.0 answered: ConditionsAnswered(ask.sh GoOn), WaitStarted(delay 5s)
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    5.0 launched: AgentLaunched(77)
    5.0 exited 0: IterationCompleted(2 succeeded), CheckStarted(asking within 40s) ! ask
    5.0 answered: ConditionsAnswered(ask.sh Unclear { problem: "exit 3" }), Warned(the stop script `ask.sh` gave no usable answer: exit 3), WaitStarted(delay 5s)
    10.0 wake: IterationStarted(3 attempt 1) ! launch
    10.0 launched: AgentLaunched(77)
    10.0 exited 1: IterationFailed(3: the agent ended with exit 1; streak 1), CheckStarted(asking within 40s) ! ask
    10.0 answered: ConditionsAnswered(ask.sh Claim), CheckStarted(claimed, gates within 70s) ! run tests
    10.0 gates: GatesRan(tests exit 1), ClaimRefused(the stop script `ask.sh`: the gate `tests` failed: exit 1), WaitStarted(backoff 1s)
    11.0 wake: IterationStarted(4 attempt 1) ! launch
    11.0 launched: AgentLaunched(77)
    11.0 exited 0: IterationCompleted(4 succeeded), CheckStarted(asking within 40s) ! ask
    11.0 answered: ConditionsAnswered(ask.sh Stop), StopRequested(the stop script `ask.sh` ended the loop: words), Stopped(the stop script `ask.sh` ended the loop: words) ! finish
    "#);
    let mut play = Play::up(with_scripts());
    play.exited(0).scripts(ScriptVerdict::Claim).gates(PASS);
    assert_eq!(play.state.outcome(), Some(&Outcome::Done));
}

#[test]
fn stop_cancels_gates_at_once_and_the_next_run_checks_the_claim() {
    for urgency in [Urgency::Graceful, Urgency::Now, Urgency::Kill] {
        let mut play = Play::up(gated(&["tests"]));
        play.claimed().hush().stop(urgency).start().gates(PASS);
        insta::allow_duplicates! {
            insta::assert_snapshot!(play.log(), @"
            0.0 stop: Stopped(stopped by the operator) ! finish ! ok: stopped
            0.0 start: Started(after operator), CheckStarted(claimed, gates within 70s) ! run tests
            0.0 gates: GatesRan(tests ok), Completed(the work is complete) ! finish
            ");
        }
        let mut play = Play::up(gated(&["tests"]));
        play.claimed().hush().shutdown(2, urgency);
        assert!(play.state.outcome().is_some());
    }
}

#[test]
fn pause_skip_and_reboot_are_accepted_while_gates_run() {
    let mut play = Play::up(gated(&["tests"]));
    play.claimed().hush().pause(Urgency::Graceful).gates(FAIL);
    let mut now = Play::up(gated(&["tests"]));
    now.claimed().hush().pause(Urgency::Now).gates(PASS);
    let mut skip = Play::up(gated(&["tests"]));
    skip.claimed().hush().skip();
    let mut reboot = Play::up(gated(&["tests"]));
    reboot.claimed().hush().reboot().gates(FAIL);
    insta::assert_snapshot!(play.log() + &now.log() + &skip.log() + &reboot.log(), @"
    0.0 pause: PauseRequested ! ok: pauses after the checks
    0.0 gates: GatesRan(tests exit 1), ClaimRefused(the agent's promise: the gate `tests` failed: exit 1), Paused(delay 5s)
    0.0 pause: PauseRequested, CheckGivenUp(the operator skipped the gates and the stop scripts), ClaimRefused(the agent's promise: the operator skipped the gates and the stop scripts), Paused(delay 5s) ! ok: pauses after the checks
    0.0 gates: -
    0.0 skip: CheckGivenUp(the operator skipped the gates and the stop scripts), ClaimRefused(the agent's promise: the operator skipped the gates and the stop scripts), IterationStarted(2 attempt 1) ! launch ! ok: skips the gates and the stop scripts
    0.0 reboot: RebootRequested(asked for by the operator) ! ok: reboots after the checks
    0.0 gates: GatesRan(tests exit 1), ClaimRefused(the agent's promise: the gate `tests` failed: exit 1), RebootStarted(asked for by the operator), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), WaitStarted(delay 5s)
    ");
}

#[test]
fn hanging_gates_time_out_and_late_results_are_dropped() {
    let mut play = Play::up(gated(&["tests", "lint"]));
    play.hush().claimed().sleep().gates(PASS);
    insta::assert_snapshot!(play.log(), @"
    0.0 claimed: IterationCompleted(1 succeeded, claimed), CheckStarted(claimed, gates within 140s) ! run tests, lint
    140.0 wake: CheckGivenUp(the gates did not end in time), ClaimRefused(the agent's promise: the gates did not end in time), IterationStarted(2 attempt 1) ! launch
    140.0 gates: -
    ");
    let mut endless = gated(&["tests"]);
    endless.completion.gates[0].timeout = Duration::ZERO;
    let mut play = Play::up(endless);
    play.claimed();
    assert_eq!(
        next_deadline(&play.policy, &play.state),
        None,
        "timeout 0 means no limit"
    );
}

#[test]
fn checks_interrupted_by_a_crash_of_the_runner_are_repeated() {
    let mut policy = with_scripts();
    policy.completion.gates[0].each_iteration = true;
    let mut play = Play::up(policy);
    play.claimed().hush().crash().scripts(ScriptVerdict::GoOn);
    play.crash().gates(FAIL);
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), CheckStarted(asking within 40s) ! ask
    0.0 answered: ConditionsAnswered(ask.sh GoOn), CheckStarted(claimed, gates within 70s) ! run tests
    0.0 start: Started(after crash), CheckStarted(claimed, gates within 70s) ! run tests
    0.0 gates: GatesRan(tests exit 1), ClaimRefused(the agent's promise: the gate `tests` failed: exit 1), WaitStarted(delay 5s)
    ");
    // The runner dies after the record of the iteration and before the gates start.
    let mut play = Play::up(gated(&["tests"]));
    play.claimed().hush();
    let without_the_check = play.journal.len() - 1;
    play.crash_after(without_the_check).gates(PASS);
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), CheckStarted(claimed, gates within 70s) ! run tests
    0.0 gates: GatesRan(tests ok), Completed(the work is complete) ! finish
    ");
}

#[test]
fn a_claim_of_an_earlier_run_is_checked_before_it_ends_the_next_run() {
    let mut play = Play::up(gated(&["tests"]));
    play.claimed().stop(Urgency::Now).hush().start().gates(FAIL);
    assert_eq!(play.state.outcome(), None);
    play.sleep().launched().exited(0);
    assert_eq!(
        play.state.outcome(),
        None,
        "the claim was refused and is no longer pending"
    );
}

#[test]
fn gates_run_once_before_the_first_iteration_and_their_results_have_no_effect() {
    let mut policy = gated(&["tests"]);
    policy.completion.baseline = true;
    policy.max_test_failure_streak = 1;
    let failed = [("tests", Some("exit 127"))];
    let mut play = Play::new(policy.clone());
    play.start().gates(&failed).launched();
    assert_eq!(play.state.stats.test_failure_streak, 0);
    assert_eq!(text_before_prompt(&play.state, None, ""), "");
    play.exited(0).stop(Urgency::Graceful).start();
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), CheckStarted(gates within 370s) ! run tests
    0.0 gates: GatesRan(tests exit 127), SessionStarted(1), IterationStarted(1 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 exited 0: IterationCompleted(1 succeeded), WaitStarted(delay 5s)
    0.0 stop: Stopped(stopped by the operator) ! finish ! ok: stopped
    0.0 start: Started(after operator), IterationStarted(2 attempt 1) ! launch
    ");
    // If the runner dies while gates run, the next runner starts them again. If they time out, the loop continues without results.
    let mut play = Play::new(policy.clone());
    play.start().hush().crash().sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), CheckStarted(gates within 370s) ! run tests
    370.0 wake: CheckGivenUp(the gates did not end in time), SessionStarted(1), IterationStarted(1 attempt 1) ! launch
    ");
    // A run that ends at once does not run the gates.
    let mut play = Play::new(Policy {
        max_iterations: 1,
        ..policy
    });
    play.start().gates(&[("tests", None)]).launched().exited(0);
    play.hush().start();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after limit_reached), Completed(the limit of 1 iteration is reached) ! finish");
}
