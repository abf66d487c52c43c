//! Tests of budgets, which are checked while a turn runs, between turns, and after a crash of the runner.

use std::time::Duration;

use tachikoma_core::policy::budget::{Budgets, Spending, out_of_time};
use tachikoma_core::policy::{AgentTraits, RebootRules};
use tachikoma_core::{AgentInput, Input, Policy, Problem, Status, TurnEnd, next_deadline};

use crate::play::Play;

const DOLLAR: u64 = 1_000_000;

fn spending(budgets: Budgets) -> Policy {
    Policy {
        agent: AgentTraits {
            event_stream: true,
            persistent: true,
            steerable: true,
            tells_cost: true,
            refuses_before: None,
        },
        iteration_delay: Duration::ZERO,
        budgets,
        ..Policy::default()
    }
}

fn dollar() -> Policy {
    spending(Budgets {
        cost_microusd: DOLLAR,
        ..Budgets::default()
    })
}

fn tokens(tokens: u64) -> Policy {
    spending(Budgets {
        tokens,
        ..Budgets::default()
    })
}

fn seconds(seconds: u64) -> Policy {
    spending(Budgets {
        duration: Duration::from_secs(seconds),
        ..Budgets::default()
    })
}

#[test]
fn cost_is_requested_after_each_model_call_and_ends_the_turn_after_the_tool_call() {
    let mut play = Play::new(dollar());
    play.start().launched().named("one").cost(0);
    play.tool("a").called(9_000).cost(600_000).tool_ended("a");
    play.tool("b").called(9_000).cost(1_020_000).tool_ended("b");
    play.resulted(false);
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), SessionStarted(1), IterationStarted(1 attempt 1) ! launch ! ask for the cost
    0.0 launched: AgentLaunched(77)
    0.0 named: SessionNamed(one)
    0.0 cost 0: CostReported(0)
    0.0 tool: ToolStarted(a)
    0.0 called 9000: CallEnded(9000 tokens) ! ask for the cost
    0.0 cost 600000: CostReported(600000)
    0.0 tool ended: ToolEnded(a)
    0.0 tool: ToolStarted(b)
    0.0 called 9000: CallEnded(9000 tokens) ! ask for the cost
    0.0 cost 1020000: CostReported(1020000), StopConditionTriggered(max_cost_usd), StopRequested($1.02 of $1.00 is spent (max_cost_usd)), EndingRequested(interrupt within 30s)
    0.0 tool ended: ToolEnded(b), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 resulted false: TurnResulted(false), IterationCompleted(1 interrupted), Stopped($1.02 of $1.00 is spent (max_cost_usd)) ! finish
    ");
    assert_eq!(play.state.stats.cost_microusd, 1_020_000);
}

#[test]
fn model_answer_beyond_the_budget_is_interrupted_at_once() {
    let mut play = Play::up(dollar());
    play.named("one").cost(0).called(5).hush();
    play.answering(200).cost(DOLLAR).resulted(false);
    insta::assert_snapshot!(play.log(), @"
    0.0 answering 200: ContextMeasured(20%)
    0.0 cost 1000000: CostReported(1000000), StopConditionTriggered(max_cost_usd), StopRequested($1.00 of $1.00 is spent (max_cost_usd)), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 resulted false: TurnResulted(false), IterationCompleted(1 interrupted), Stopped($1.00 of $1.00 is spent (max_cost_usd)) ! finish
    ");
}

/// Sub-agents keep calling the model while the tool call that started them is running.
#[test]
fn sub_agent_is_interrupted_at_once_by_a_budget() {
    let mut play = Play::up(dollar());
    let task = AgentInput::ToolStarted {
        id: "t".to_owned(),
        name: "Task".to_owned(),
        summary: String::new(),
    };
    play.named("one").cost(0).called(5).hush();
    play.event("task", task).called(5).cost(DOLLAR);
    insta::assert_snapshot!(play.log(), @"
    0.0 task: ToolStarted(t)
    0.0 called 5: CallEnded(5 tokens) ! ask for the cost
    0.0 cost 1000000: CostReported(1000000), StopConditionTriggered(max_cost_usd), StopRequested($1.00 of $1.00 is spent (max_cost_usd)), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    ");
}

#[test]
fn turn_that_ends_by_itself_counts_toward_the_budget_which_then_ends_the_loop() {
    let mut play = Play::up(dollar());
    play.named("one").cost(0).hush().priced(400_000, 10);
    play.priced(600_000, 10);
    insta::assert_snapshot!(play.log(), @"
    0.0 resulted for 400000: TurnResulted(true), IterationCompleted(1 succeeded), IterationStarted(2 attempt 1) ! ask for the cost ! prompt
    0.0 resulted for 600000: TurnResulted(true), IterationCompleted(2 succeeded), StopConditionTriggered(max_cost_usd), Stopped($1.00 of $1.00 is spent (max_cost_usd)) ! finish
    ");
    assert_eq!(play.state.stats.successful, 2);
}

#[test]
fn cost_survives_a_crash_and_a_new_run() {
    let mut play = Play::up(dollar());
    play.named("one").cost(0).called(5).cost(700_000).hush();
    // After its process was killed, the agent reports a lower cost of the conversation than before.
    play.crash()
        .launched()
        .cost(100_000)
        .called(5)
        .cost(390_000);
    assert_eq!(play.state.stats.cost_microusd, 990_000);
    play.cost(410_000).resulted(false);
    play.start();
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), AttemptCut(1 attempt 1), IterationStarted(1 attempt 2) ! launch in one ! ask for the cost
    0.0 launched: AgentLaunched(77)
    0.0 cost 100000: CostReported(100000)
    0.0 called 5: CallEnded(5 tokens) ! ask for the cost
    0.0 cost 390000: CostReported(390000)
    0.0 cost 410000: CostReported(410000), StopConditionTriggered(max_cost_usd), StopRequested($1.01 of $1.00 is spent (max_cost_usd)), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 resulted false: TurnResulted(false), IterationCompleted(1 interrupted), Stopped($1.01 of $1.00 is spent (max_cost_usd)) ! finish
    0.0 start: Started(after budget), StopConditionTriggered(max_cost_usd), Stopped($1.01 of $1.00 is spent (max_cost_usd)) ! finish
    ");
    play.policy.budgets.cost_microusd = 2 * DOLLAR;
    play.hush().start();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after budget), IterationStarted(2 attempt 1) ! launch in one ! ask for the cost");
}

#[test]
fn tokens_are_counted_after_each_model_call_and_max_tokens_interrupts_the_turn() {
    let mut play = Play::up(tokens(50_000));
    play.named("one")
        .hush()
        .called(48_000)
        .tool("a")
        .called(2_000);
    play.tool_ended("a").resulted(false);
    insta::assert_snapshot!(play.log(), @"
    0.0 called 48000: CallEnded(48000 tokens)
    0.0 tool: ToolStarted(a)
    0.0 called 2000: CallEnded(2000 tokens), StopConditionTriggered(max_tokens), StopRequested(50000 of 50000 tokens are used (max_tokens)), EndingRequested(interrupt within 30s)
    0.0 tool ended: ToolEnded(a), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 resulted false: TurnResulted(false), IterationCompleted(1 interrupted), Stopped(50000 of 50000 tokens are used (max_tokens)) ! finish
    ");
}

#[test]
fn an_endless_loop_ends_after_max_duration() {
    let mut play = Play::up(seconds(3_600));
    play.hush();
    for _ in 0..40 {
        play.seconds(100).resulted(true);
        if play.state.outcome().is_some() {
            break;
        }
    }
    assert_eq!(play.state.stats.iterations, 36);
    let told = play.log();
    insta::assert_snapshot!(told.lines().last().expect("the log has a last line"), @"3600.0 resulted true: TurnResulted(true), IterationCompleted(36 succeeded), StopConditionTriggered(max_duration), Stopped(it ran 60 min of 60 min (max_duration)) ! finish");
}

#[test]
fn max_duration_ends_turns_and_waits_and_does_not_count_pauses_and_suspension() {
    let mut play = Play::up(seconds(60));
    play.named("one").seconds(20).tool("a").hush();
    play.sleep().tool_ended("a").resulted(false);
    insta::assert_snapshot!(play.log(), @"
    60.0 wake: StopConditionTriggered(max_duration), StopRequested(it ran 60 s of 60 s (max_duration)), EndingRequested(interrupt within 30s)
    60.0 tool ended: ToolEnded(a), AgentSignaled(interrupt 10s) ! signal interrupt
    60.0 resulted false: TurnResulted(false), IterationCompleted(1 interrupted), Stopped(it ran 60 s of 60 s (max_duration)) ! finish
    ");
    let mut waiting = Play::up(Policy {
        iteration_delay: Duration::from_secs(500),
        ..seconds(60)
    });
    waiting.seconds(20).resulted(true).hush().sleep();
    insta::assert_snapshot!(waiting.log(), @"60.0 wake: StopConditionTriggered(max_duration), Stopped(it ran 60 s of 60 s (max_duration)) ! finish");
    let mut paused = Play::up(seconds(60));
    paused.seconds(20).pause(tachikoma_core::Urgency::Graceful);
    paused.resulted(true).seconds(9_000);
    assert_eq!(next_deadline(&paused.policy, &paused.state), None);
    paused.crash().seconds(9_000).resume().launched().hush();
    let duration = Duration::from_secs(5_000);
    paused.seconds(5_010);
    paused.input("stood still", Input::Suspended { duration });
    paused.sleep();
    insta::assert_snapshot!(paused.log(), @"
    23030.0 stood still: Suspended(5000000 ms)
    23060.0 wake: StopConditionTriggered(max_duration), StopRequested(it ran 60 s of 60 s (max_duration)), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    ");
}

#[test]
fn a_wait_for_a_usage_limit_does_not_count_toward_max_duration() {
    let mut play = Play::up(seconds(60));
    let until = Some(play.moment().after(Duration::from_secs(9_000)));
    play.seconds(20)
        .failed("limit", Some(Problem::Limited { until }));
    play.exited(1).seconds(500);
    assert_eq!(
        Spending::of(&play.state, play.moment()).ran,
        Duration::from_secs(20)
    );
    play.sleep();
    assert_eq!(
        play.state.iteration, 1,
        "the wait ended at its own deadline, and no budget ended the loop"
    );
    assert_eq!(
        Spending::of(&play.state, play.moment()).ran,
        Duration::from_secs(20)
    );
}

#[test]
fn subscription_quota_is_a_budget_until_its_window_resets() {
    let mut play = Play::up(spending(Budgets {
        quota_percent: 80.0,
        ..Budgets::default()
    }));
    play.named("one").hush();
    play.quota("five_hour", 79.0, Some(600));
    play.quota("seven_day", 81.0, Some(900)).resulted(false);
    play.start().seconds(899).start().seconds(1).start();
    insta::assert_snapshot!(play.log(), @"
    0.0 quota 79: QuotaReported(five_hour 79%)
    0.0 quota 81: QuotaReported(seven_day 81%), StopConditionTriggered(max_quota_percent), StopRequested(81 % of the subscription's window is used, and 80 % may be (max_quota_percent)), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 resulted false: TurnResulted(false), IterationCompleted(1 interrupted), Stopped(81 % of the subscription's window is used, and 80 % may be (max_quota_percent)) ! finish
    0.0 start: Started(after budget), StopConditionTriggered(max_quota_percent), Stopped(81 % of the subscription's window is used, and 80 % may be (max_quota_percent)) ! finish
    899.0 start: Started(after budget), StopConditionTriggered(max_quota_percent), Stopped(81 % of the subscription's window is used, and 80 % may be (max_quota_percent)) ! finish
    900.0 start: Started(after budget), IterationStarted(2 attempt 1) ! launch in one
    ");
    assert!(play.state.stats.on_subscription);
}

#[test]
fn hand_off_beyond_the_budget_is_canceled_with_the_loop() {
    let mut play = Play::up(Policy {
        reboot: RebootRules {
            after_iterations: Some(1),
            ..RebootRules::default()
        },
        ..dollar()
    });
    play.named("one").cost(0).hush().priced(900_000, 10);
    play.cost(900_000).called(10).cost(1_100_000);
    insta::assert_snapshot!(play.log(), @"
    0.0 resulted for 900000: TurnResulted(true), IterationCompleted(1 succeeded), RebootRequested(1 iteration in this session), RebootStarted(1 iteration in this session), HandOffRequested(within 120s) ! ask for the cost ! ask for the hand-off
    0.0 cost 900000: CostReported(900000)
    0.0 called 10: CallEnded(10 tokens) ! ask for the cost
    0.0 cost 1100000: CostReported(1100000), StopConditionTriggered(max_cost_usd), Stopped($1.10 of $1.00 is spent (max_cost_usd)) ! signal interrupt ! finish
    ");
}

#[test]
fn status_shows_the_value_of_each_stop_condition() {
    let mut play = Play::up(dollar());
    play.named("one")
        .cost(0)
        .seconds(120)
        .called(5)
        .cost(250_000);
    let status = Status::of(&play.state, true);
    let near: Vec<_> = status
        .stop_conditions
        .iter()
        .map(|c| (c.name.as_str(), c.value.as_str(), c.limit.as_str(), c.met))
        .collect();
    assert_eq!(
        near,
        [
            ("max_consecutive_failures", "0", "10", false),
            ("max_cost_usd", "$0.25", "$1.00", false),
        ]
    );
    let exhausted_at = status.stop_conditions[1].exhausted_at;
    assert_eq!(
        exhausted_at,
        Some(play.state.time.after(Duration::from_secs(360)))
    );
}

#[test]
fn an_agent_that_ends_its_turn_at_the_budget_has_not_failed() {
    let spent = |cost_microusd| {
        AgentInput::TurnEnded(TurnEnd {
            reason: Some("Reached maximum budget ($1)".to_owned()),
            cost_microusd,
            ..TurnEnd::default()
        })
    };
    let mut play = Play::up(dollar());
    play.named("one").cost(0).hush();
    play.event("out of budget", spent(1_200_000));
    insta::assert_snapshot!(play.log(), @"0.0 out of budget: TurnResulted(false), IterationCompleted(1 interrupted), StopConditionTriggered(max_cost_usd), Stopped($1.20 of $1.00 is spent (max_cost_usd)) ! finish");
    let mut early = Play::up(dollar());
    early.named("one").cost(0).hush();
    early.event("a limit of its own", spent(200_000));
    insta::assert_snapshot!(early.log(), @"0.0 a limit of its own: TurnResulted(false), IterationFailed(1: the agent reported that its turn failed: Reached maximum budget ($1); streak 1), WaitStarted(backoff 1s)");
}

#[test]
fn time_without_a_runner_does_not_count_toward_max_duration() {
    let mut play = Play::up(seconds(60));
    play.seconds(20).tool("a").seconds(9_000).crash().hush();
    let warning = "somebody left something behind".to_owned();
    play.seconds(5).launched().seconds(5);
    play.input("trouble", Input::Warning { warning });
    let left = out_of_time(&play.policy, &play.state).expect("there is a time budget");
    let since = play.state.time;
    assert_eq!(
        left.since(since),
        Duration::from_secs(30),
        "20 s, 5 s and 5 s of the 60 s are used"
    );
}

#[test]
fn reboot_is_not_resumed_after_the_budget_is_used_up() {
    let mut play = Play::up(Policy {
        reboot: RebootRules {
            after_iterations: Some(1),
            ..RebootRules::default()
        },
        ..dollar()
    });
    play.named("one").cost(0).priced(900_000, 10).hush();
    play.policy.budgets.cost_microusd = 500_000;
    play.crash();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after crash), StopConditionTriggered(max_cost_usd), Stopped($0.9000 of $0.5000 is spent (max_cost_usd)) ! finish");
}

/// A run that ends by a signal before it starts the loop does not add to the running time.
#[test]
fn run_that_ends_before_it_starts_the_loop_adds_no_running_time() {
    let mut play = Play::up(seconds(60));
    play.seconds(20).tool("a").seconds(9_000);
    play.input("decline", Input::Decline { signal: 2 });
    assert_eq!(play.state.accounting.ran_ms, 20_000);
    play.start();
    assert_eq!(play.state.outcome(), None, "the loop continues");
}

#[test]
fn max_duration_includes_the_time_until_a_runner_died_if_the_time_of_death_is_known() {
    for (known, at) in [(true, 1_060), (false, 1_090)] {
        let mut play = Play::up(seconds(60));
        play.seconds(30);
        let died = play.moment();
        play.seconds(1_000);
        let Input::Start { launch, mut runner } = play.start_input() else {
            unreachable!("`start_input` returns `Input::Start`");
        };
        runner.follows_until = Some(died).filter(|_| known);
        play.input("start", Input::Start { launch, runner });
        let over = out_of_time(&play.policy, &play.state);
        let expected = died.after(Duration::from_secs(at - 30));
        assert_eq!(over, Some(expected), "{known}");
    }
}
