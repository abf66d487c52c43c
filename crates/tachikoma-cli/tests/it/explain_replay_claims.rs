//! `tachikoma explain` and `tachikoma replay` on claims, gates, stop scripts, patterns and budgets.

use insta::assert_snapshot;
use serde_json::Value;
use tachikoma_testkit::Scratch;

use crate::budgets::{overspending, run_with, short};
use crate::claude_fault_support::{claude, with_scenario};
use crate::explain_replay::{comes_out_the_same, replay};
use crate::support::{CLAIMS, await_events, kill, run, shown, tachikoma};

/// An agent that claims completion three times. The gate passes at the third claim.
const CLAIMS_EARLY: &str = "echo $TACHIKOMA_ITERATION >> work; [ $TACHIKOMA_ITERATION -gt 2 ] && touch proof; echo '<promise>COMPLETE</promise>'";

const PROOF: &str = "[[gate]]\nname = 'proof'\ncommand = 'test -e proof'\n";

fn claimed_early() -> Scratch {
    let scratch = Scratch::new();
    scratch.write("tachikoma.toml", PROOF);
    let ran = tachikoma(&scratch).run(run(&[], CLAIMS_EARLY));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    scratch
}

/// Returns the outcome and the number of iterations of the replayed loop.
#[track_caller]
fn ends(scratch: &Scratch, set: &str) -> (Option<String>, u64) {
    let found = replay(scratch, &["--set", set]);
    assert_eq!(found["unexplained"], 0, "{found:#}");
    let outcome = found["replayed"]["outcome"].as_str().map(str::to_owned);
    let iterations = found["replayed"]["iterations"].as_u64();
    (outcome, iterations.expect("a number"))
}

/// Explain names the claim, the check, and why it failed.
#[test]
fn a_false_claim_is_explained() {
    let scratch = claimed_early();
    comes_out_the_same(&scratch);
    assert_snapshot!(shown(&tachikoma(&scratch).run(["explain", "2"])), @"
    exit: 0
    --- stdout
    iteration 2 of [LOOP], session 1
    [TIME]    iteration 2, attempt 1, session 1: the agent is launched
    [TIME]    agent command is up (pid [PID])
    [TIME]    succeeded after [DURATION]; it claims that the work is complete
    [TIME] => the work tree is surveyed, and nothing is committed (until [TIME])
    [TIME]    1 file changed, nothing committed
    [TIME] => gates run (proof): completion is claimed by the agent's promise (until [TIME])
    [TIME]    the gate `proof` failed after [DURATION]: exit 1
    [TIME] => completion is claimed by the agent's promise, and refused: the gate `proof` failed: exit 1
    [TIME]    progress 1 of 100: 1 for 1 file
    [TIME] => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); it ran [DURATION] of [DURATION] (stop_conditions.max_duration); 2 of 3 failing runs of gates in a row (stop_conditions.max_test_failure_streak); 2 of 100 iterations (max_iterations); the claim of completion was refused
    [TIME] => the session continues: context not known, 0 tool calls of 100 (context.tool_call_threshold); its quality did not fall
    [TIME] => continued with iteration 3
    --- stderr
    ");
    assert_snapshot!(shown(&tachikoma(&scratch).run(["explain"])), @"
    exit: 0
    --- stdout
    [TIME] the loop ended: the work is complete: completion is claimed by the agent's promise; the gate `proof` passed after [DURATION]

    iteration 3 of [LOOP], session 1
    [TIME]    iteration 3, attempt 1, session 1: the agent is launched
    [TIME]    agent command is up (pid [PID])
    [TIME]    succeeded after [DURATION]; it claims that the work is complete
    [TIME] => the work tree is surveyed, and nothing is committed (until [TIME])
    [TIME]    2 files changed, nothing committed
    [TIME] => gates run (proof): completion is claimed by the agent's promise (until [TIME])
    [TIME]    the gate `proof` passed after [DURATION]
    [TIME]    progress 1 of 100: 1 for 2 files
    --- stderr
    ");
    let ran = tachikoma(&scratch).run(["explain", "1", "--json"]);
    let entries = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let entries: Vec<Value> = entries.collect();
    let refused = entries
        .iter()
        .find(|entry| !entry["inputs"]["reasons"].is_null());
    let inputs = &refused.expect("the refusal")["inputs"];
    assert_eq!(inputs["claims"][0]["by"], "promise");
    assert_eq!(inputs["gates"][0]["passed"], false);
}

#[test]
fn replay_applies_other_gates_to_a_claim() {
    let scratch = claimed_early();
    assert_eq!(ends(&scratch, "gate=[]"), (None, 0));
    assert_eq!(ends(&scratch, "stop_conditions.confirmations=2"), (None, 3));
    let failed =
        "gates failed 2 times in a row (max_test_failure_streak = 2), the last time: `proof`";
    let streak = ends(&scratch, "stop_conditions.max_test_failure_streak=2");
    assert_eq!(streak, (Some(failed.to_owned()), 2));
    let fuzz = "gate=[{name='fuzz', command='false'}]";
    let ran = tachikoma(&scratch).run(["replay", "--set", fuzz]);
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    with gate=[{name='fuzz', command='false'}]:

    before the first iteration
      recorded: gates run (proof)
      replayed: gates run (fuzz)
      because:  all gates run once before the first iteration

    The replay stops at record 2: from here on the recorded inputs no longer apply.

                       recorded       replayed  (replayed: up to the difference)
    iterations                3              0
    reboots                   0              0
    cost                $0.0000        $0.0000
    tokens                    0              0
    waited                [DURATION]          [DURATION]
    recorded:    the work is complete
    replayed:    not known
    --- stderr
    ");
}

#[test]
fn replay_reproduces_scripts_objectives_and_a_kill_during_a_gate() {
    let scratch = Scratch::new();
    scratch.write("plan.md", "- [ ] a\n");
    scratch.write("ask.sh", "#!/bin/sh\necho words; exit 0\n");
    let config = format!(
        "[stop_conditions]\nobjectives = 'plan.md'\ncustom_scripts = ['sh ask.sh']\n{PROOF}when = 'iteration'\n"
    );
    scratch.write("tachikoma.toml", config);
    let agent = "[ $TACHIKOMA_ITERATION -gt 1 ] && touch proof && echo '- [x] a' > plan.md; true";
    let ran = tachikoma(&scratch).run(run(&[], agent));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    comes_out_the_same(&scratch);

    let killed = Scratch::new();
    let slow = "[[gate]]\nname = 'slow'\ncommand = 'test -e go || test $TACHIKOMA_ITERATION = 0 || sleep 600'\n";
    killed.write("tachikoma.toml", slow);
    let live = tachikoma(&killed).spawn(run(&[], CLAIMS));
    await_events(&killed, "check_started", 2);
    kill(&killed, live);
    let told = tachikoma(&killed).run(["explain"]);
    let cut = "during the checks of iteration 1";
    assert!(told.stderr.contains(cut), "{}", told.snapshot());
    killed.write("go", "");
    let ran = tachikoma(&killed).run(["run", "--quiet"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    comes_out_the_same(&killed);
}

#[test]
fn a_budget_is_explained_and_replayed() {
    let scratch = with_scenario(&overspending());
    let ran = run_with(&scratch, &[("MAX_COST_USD", "1")]);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    comes_out_the_same(&scratch);
    let told = shown(&tachikoma(&scratch).run(["explain"]));
    for part in [
        "the loop ended: $1.12 of $1.00 is spent (max_cost_usd)",
        "=> a stop condition is met: $1.12 of $1.00 is spent (max_cost_usd)",
        "=> the turn is ended: $1.12 of $1.00 is spent (max_cost_usd)",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    for (set, by) in [
        (
            "stop_conditions.max_cost_usd=0.5",
            "$0.7500 of $0.5000 is spent (max_cost_usd)",
        ),
        (
            "stop_conditions.max_tokens=150000",
            "200000 of 150000 tokens are used (max_tokens)",
        ),
        ("stop_conditions.max_duration=1ms", "(max_duration)"),
        ("stop_conditions.max_cost_usd=9", "no stop condition is met"),
    ] {
        let found = replay(&scratch, &["--set", set]);
        let difference = &found["differences"][0];
        assert!(difference["by"].as_str().unwrap().contains(by), "{found:#}");
    }
}

/// The loop had no budget, so its journal records the cost of a turn only at its end.
#[test]
fn replay_applies_an_added_budget_at_the_end_of_a_turn() {
    let scratch = with_scenario(&short());
    let words = ["run", "--agent", "claude", "--max-iterations", "4"];
    let ran = claude(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    comes_out_the_same(&scratch);
    let found = replay(&scratch, &["--set", "stop_conditions.max_cost_usd=0.5"]);
    assert_eq!(found["replayed"]["iterations"], 2, "{found:#}");
    let (outcome, iterations) = ends(&scratch, "stop_conditions.max_tokens=300000");
    assert_eq!(iterations, 3);
    assert!(outcome.unwrap().ends_with("(max_tokens)"));
}

#[test]
fn replay_applies_removed_patterns_and_names_added_ones() {
    let scratch = Scratch::new();
    let agent = "[ $TACHIKOMA_ITERATION -gt 1 ] && echo 'stuck: no disk'; true";
    let ran = tachikoma(&scratch)
        .env(
            "TACHIKOMA_STOP_CONDITIONS__STOP_ON_PATTERNS",
            "['^stuck:', '^lost']",
        )
        .run(run(&[], agent));
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    comes_out_the_same(&scratch);
    let key = "stop_conditions.stop_on_patterns";
    assert_eq!(ends(&scratch, &format!("{key}=[]")), (None, 2));
    assert_eq!(ends(&scratch, &format!("{key}=['^lost']")), (None, 2));
    let (outcome, _) = ends(&scratch, &format!("{key}=['^stuck:']"));
    assert!(outcome.unwrap().contains("`^stuck:`"));
    let added = format!("{key}=['^stuck:', '^done']");
    let notes = replay(&scratch, &["--set", &added])["notes"].clone();
    let known = "the pattern `^done` cannot be checked: the agent's output is not in the journal";
    assert_eq!(notes, serde_json::json!([known]));
}
