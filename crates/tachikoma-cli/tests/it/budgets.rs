//! Budgets and stop patterns end a loop, even during a turn.

use serde_json::Value;
use tachikoma_testkit::fake_agent::Misbehavior;
use tachikoma_testkit::{Ran, Scenario, Scratch, Turn, Usage, await_until};

use crate::claude_fault_support::{claude, with_scenario};
use crate::support::{SOON, await_events, events, kill, run, status, tachikoma};

/// Usage of an answer that costs $0.375 at the prices of the fake agent: 100 000 tokens are written to the cache.
const DEAR: Usage = Usage {
    input: 0,
    cache_read: 0,
    cache_creation: 100_000,
    output: 0,
    per_tool_result: 0,
};

/// A turn that calls a tool repeatedly and counts the calls in a file.
fn endless() -> Scenario {
    let mut turn = Turn::bash("echo x >> calls").using(DEAR);
    // The delay lets the interrupt arrive before the next answer.
    turn.delay_ms = 1000;
    Scenario::of([turn]).for_ever()
}

/// Like `endless`, for an agent that does not enforce a budget itself.
pub fn overspending() -> Scenario {
    let mut scenario = endless();
    scenario.agent.always = Misbehavior {
        overspends: true,
        ..Misbehavior::default()
    };
    scenario
}

/// A scenario with turns that end by themselves.
pub fn short() -> Scenario {
    Scenario::of([Turn::text("did a part").using(DEAR)]).for_ever()
}

pub fn run_with(scratch: &Scratch, budgets: &[(&str, &str)]) -> Ran {
    let tool = budgets.iter().fold(claude(scratch), |tool, (key, value)| {
        tool.env(format!("TACHIKOMA_STOP_CONDITIONS__{key}"), value)
    });
    tool.run(["run", "--agent", "claude"])
}

fn calls(scratch: &Scratch) -> usize {
    scratch.read("calls").lines().count()
}

/// Returns the outcome of the loop and its cost in dollars.
#[track_caller]
fn ended(scratch: &Scratch) -> (String, f64) {
    let status = status(scratch);
    let kind = status["outcome"]["kind"].as_str().expect("the loop ended");
    let cost = status["stats"]["cost_microusd"]
        .as_f64()
        .expect("the cost is a number");
    (kind.to_owned(), cost / 1e6)
}

#[test]
fn a_cost_budget_stops_the_loop_during_a_turn() {
    // Claude Code ends at the answer that exceeds the budget. Other agents are interrupted after their next tool call.
    for (scenario, calls_made) in [(endless(), 2), (overspending(), 3)] {
        let scratch = with_scenario(&scenario);
        let ran = run_with(&scratch, &[("MAX_COST_USD", "1.0")]);
        assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
        let (kind, cost) = ended(&scratch);
        assert_eq!((kind.as_str(), cost), ("budget", 1.125));
        assert_eq!(calls(&scratch), calls_made, "{}", ran.snapshot());
        let said = "stop condition: $1.1";
        assert!(ran.stdout.contains(said), "{}", ran.snapshot());
        let interrupted = "! interrupted after ";
        assert!(ran.stdout.contains(interrupted), "{}", ran.snapshot());
        let advice = "raise the budget to continue, or use `--new` to start over";
        assert!(ran.stderr.contains(advice), "{}", ran.snapshot());
        let triggered = &events(&scratch, "stop_condition_triggered");
        assert_eq!(triggered.len(), 1, "{triggered:?}");
        assert_eq!(triggered[0]["condition"], "max_cost_usd");
        assert_eq!(events(&scratch, "iteration_failed"), Vec::<Value>::new());
    }
}

#[test]
fn a_spent_budget_stays_spent_until_it_is_raised() {
    let scratch = with_scenario(&short());
    let dollar = [("MAX_COST_USD", "1")];
    let ran = run_with(&scratch, &dollar);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert_eq!(ended(&scratch), ("budget".to_owned(), 1.125));
    let begun = events(&scratch, "iteration_started").len();
    assert_eq!(begun, 3, "{}", ran.snapshot());
    let ran = run_with(&scratch, &dollar);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert_eq!(events(&scratch, "iteration_started").len(), begun);
    let ran = run_with(&scratch, &[("MAX_COST_USD", "2")]);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert_eq!(ended(&scratch), ("budget".to_owned(), 2.25));
}

#[test]
fn costs_survive_a_killed_runner() {
    let scratch = with_scenario(&overspending());
    let live = claude(&scratch)
        .env("TACHIKOMA_STOP_CONDITIONS__MAX_COST_USD", "1")
        .spawn(["run", "--agent", "claude"]);
    // One cost record is written before the first answer, one after it.
    await_events(&scratch, "cost_told", 2);
    kill(&scratch, live);
    let spent = status(&scratch)["stats"]["cost_microusd"].as_u64();
    assert!(spent >= Some(375_000), "{spent:?}");
    let ran = run_with(&scratch, &[("MAX_COST_USD", "1")]);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    let (_, cost) = ended(&scratch);
    // The last answer of the killed agent may not have been reported.
    assert!((1.0..1.4).contains(&cost), "${cost}");
    assert!(calls(&scratch) <= 4, "{}", ran.snapshot());
}

/// The loop reaches its token budget during the first turn.
#[test]
fn a_token_budget_ends_the_first_turn() {
    let scratch = with_scenario(&endless());
    let ran = run_with(&scratch, &[("MAX_TOKENS", "250000")]);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert_eq!(ended(&scratch).0, "budget");
    assert_eq!(calls(&scratch), 3, "{}", ran.snapshot());
    assert_eq!(status(&scratch)["stats"]["tokens"], 300_000);
    assert_eq!(
        events(&scratch, "cost_told"),
        Vec::<Value>::new(),
        "without a cost budget no costs are recorded"
    );
}

#[test]
fn without_live_costs_the_budget_is_checked_between_iterations() {
    let mut scenario = short();
    scenario.agent.always = Misbehavior {
        tells_no_cost: true,
        overspends: true,
        ..Misbehavior::default()
    };
    let scratch = with_scenario(&scenario);
    let ran = run_with(&scratch, &[("MAX_COST_USD", "0.7")]);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert_eq!(ended(&scratch), ("budget".to_owned(), 0.75));
    let warned = "max_cost_usd is checked between iterations only";
    assert_eq!(ran.stdout.matches(warned).count(), 1, "{}", ran.snapshot());
}

#[test]
fn a_subscription_has_a_quota_and_no_cost() {
    let allowed = |used: &str| {
        Turn::text("did a part")
            .using(DEAR)
            .header("anthropic-ratelimit-unified-status", "allowed")
            .header("anthropic-ratelimit-unified-reset", "4102444800")
            .header("anthropic-ratelimit-unified-7d-utilization", used)
    };
    let turns = [allowed("0.42"), allowed("0.805"), Turn::text("too much")];
    let scratch = with_scenario(&Scenario::of(turns));
    let ran = run_with(&scratch, &[("MAX_QUOTA_PERCENT", "80")]);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert_eq!(ended(&scratch).0, "budget");
    let quota: Vec<_> = events(&scratch, "quota_told")
        .iter()
        .map(|told| told["percent"].clone())
        .collect();
    assert_eq!(quota, [42.0, 80.5]);
    assert!(ran.stdout.contains("est. $"), "{}", ran.snapshot());
    assert!(!ran.stdout.contains("too much"), "{}", ran.snapshot());
    let again = run_with(&scratch, &[("MAX_QUOTA_PERCENT", "80")]);
    assert_eq!(again.code(), Some(4), "until 2100: {}", again.snapshot());
}

/// The loop has no iteration limit, and its agent never claims completion.
#[test]
fn max_duration_ends_an_endless_loop() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch)
        .env("TACHIKOMA_STOP_CONDITIONS__MAX_DURATION", "1s")
        .run(run(&["--max-iterations", "0"], "true"));
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert_eq!(ended(&scratch).0, "budget");
    let ran = tachikoma(&scratch)
        .env("TACHIKOMA_STOP_CONDITIONS__MAX_DURATION", "1s")
        .run(["run", "--max-iterations", "0"]);
    assert_eq!(ran.code(), Some(4), "over restarts: {}", ran.snapshot());
    assert!(ran.stdout.contains("(max_duration)"), "{}", ran.snapshot());
}

#[test]
fn the_time_limit_ends_a_working_agent() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch)
        .env("TACHIKOMA_STOP_CONDITIONS__MAX_DURATION", "1s")
        .run(run(&[], "exec sleep 600"));
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains("! interrupted after "),
        "{}",
        ran.snapshot()
    );
}

/// The flag also works with an equals sign, and no part of it gets into the prompt.
#[test]
fn a_limit_flag_with_an_equals_sign_works() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&["--max-iterations=3"], "cat >> heard"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scratch.read("heard"), "gogogo");
}

/// Without this check, nested loops could start agents without a limit.
#[test]
fn an_agent_cannot_start_a_loop_without_nested() {
    let scratch = Scratch::new();
    scratch.write("inner/prompt.md", "inner");
    let start = |flag: &str| {
        let program = env!("CARGO_BIN_EXE_tachikoma");
        format!(
            "cd inner && {program} run prompt.md --max-iterations 1 {flag} -- sh -c 'cat > heard' 2> said; echo $? > code"
        )
    };
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], &start("")));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scratch.read("inner/code").trim(), "2");
    let said = scratch.read("inner/said");
    let expected = "an agent must not start another loop";
    assert!(
        said.contains("this is session 1") && said.contains(expected) && said.contains("--nested"),
        "{said}"
    );
    assert!(!scratch.path().join("inner/heard").exists());
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], &start("--nested")));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scratch.read("inner/heard"), "inner");
}

#[test]
fn budgets_that_cannot_be_enforced_are_reported() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch)
        .env("TACHIKOMA_STOP_CONDITIONS__MAX_COST_USD", "1")
        .env("TACHIKOMA_STOP_CONDITIONS__MAX_TOKENS", "5")
        .run(run(&["--max-iterations", "1"], "true"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    for key in ["max_cost_usd", "max_tokens"] {
        let said = format!("agent command does not report its usage: {key} has no effect");
        assert!(ran.stderr.contains(&said), "{}", ran.snapshot());
    }
}

#[test]
fn status_shows_the_rest_of_each_budget() {
    let turns = [
        Turn::text("a").using(DEAR),
        Turn::bash("exec sleep 600").using(DEAR),
    ];
    let scratch = with_scenario(&Scenario::of(turns));
    let live = claude(&scratch)
        .env("TACHIKOMA_STOP_CONDITIONS__MAX_COST_USD", "10")
        .env("TACHIKOMA_STOP_CONDITIONS__MAX_DURATION", "8h")
        .env("TACHIKOMA_STOP_CONDITIONS__STOP_ON_PATTERNS", "['BLOCKED']")
        .spawn(["run", "--agent", "claude", "--max-iterations", "7"]);
    await_until("the cost of the second answer", SOON, || {
        status(&scratch)["stop_conditions"][1]["value"] == "$0.75"
    });
    let near = status(&scratch)["stop_conditions"].clone();
    let names: Vec<_> = near
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| &row["name"])
        .collect();
    assert_eq!(
        names,
        [
            "max_consecutive_failures",
            "max_cost_usd",
            "max_duration",
            "stop_on_patterns",
            "max_iterations"
        ]
    );
    assert_eq!(near[1]["limit"], "$10.00");
    assert_eq!(near[1]["percent"], 7);
    let text = tachikoma(&scratch).run(["status"]).stdout;
    for line in [
        "stops      $0.75 of $10.00 is spent\n",
        "of 8.0 h\n",
        "stops      2 of 7 iterations\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    kill(&scratch, live);
    let again = status(&scratch)["stop_conditions"].clone();
    assert_eq!(
        again[1]["value"], "$0.75",
        "from the journal alone: {again}"
    );
    let state = tachikoma(&scratch).run(["state", "show"]).stdout;
    assert!(state.contains("max_cost_usd 7%"), "{state}");
}

#[test]
fn stop_patterns_match_text_of_the_agent_but_not_of_tools_or_the_prompt() {
    let prompt = "do the next thing\nIf you cannot go on, say BLOCKED and why.\n";
    let turns = [
        Turn::bash("echo BLOCKED"),
        Turn::text("The tool said it, I did not."),
        Turn::text(format!("You told me:\n{prompt}I can go on.")),
        Turn::text("I am BLOCKED: there is no key."),
        // Two iterations without a tool call are degradation, so the resumed session writes a hand-off first.
        Turn::text("The hand-off."),
        Turn::text("more"),
    ];
    let scratch = with_scenario(&Scenario::of(turns));
    scratch.write("prompt.md", prompt);
    let blocked = [("STOP_ON_PATTERNS", "['\\bBLOCKED\\b']")];
    let ran = run_with(&scratch, &blocked);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert_eq!(ended(&scratch).0, "condition");
    assert_eq!(
        events(&scratch, "iteration_completed").len(),
        3,
        "{}",
        ran.snapshot()
    );
    let said = "the agent's words match the pattern `\\bBLOCKED\\b` (stop_on_patterns)";
    assert!(ran.stdout.contains(said), "{}", ran.snapshot());
    let again = run_with(&scratch, &[("STOP_ON_PATTERNS", "['more']")]);
    assert_eq!(
        again.code(),
        Some(4),
        "the loop continues: {}",
        again.snapshot()
    );
    assert_eq!(events(&scratch, "iteration_completed").len(), 4);
}

#[test]
fn stop_patterns_match_the_last_output_of_a_command() {
    let scratch = Scratch::new();
    let script =
        "echo x >> runs; if [ $(wc -l < runs) = 2 ]; then echo 'stuck: no disk'; exit 3; fi";
    let ran = tachikoma(&scratch)
        .env("TACHIKOMA_STOP_CONDITIONS__STOP_ON_PATTERNS", "['^stuck:']")
        .run(run(&[], script));
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert_eq!(scratch.read("runs").lines().count(), 2);
}

#[test]
fn an_invalid_pattern_is_an_error_before_the_first_iteration() {
    let scratch = Scratch::new();
    for wrong in ["['(']", "['']"] {
        let ran = tachikoma(&scratch)
            .env("TACHIKOMA_STOP_CONDITIONS__STOP_ON_PATTERNS", wrong)
            .run(run(&[], "true"));
        assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
        assert!(
            ran.stderr.contains("stop_on_patterns"),
            "{}",
            ran.snapshot()
        );
    }
    assert!(!scratch.path().join(".ralph").exists());
}
