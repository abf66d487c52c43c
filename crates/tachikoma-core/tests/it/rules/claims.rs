//! Claims of completion between the moment they are made and the moment they are accepted or refused.

use std::time::Duration;

use tachikoma_core::policy::{AutocommitRules, Policy};
use tachikoma_core::{
    AgentInput, Choice, Input, Launch, LoopEvent, Outcome, PromptSource, Ticket, Urgency,
    text_before_prompt,
};

use super::completion::gated;
use crate::play::Play;

const PASS: &[(&str, Option<&str>)] = &[("tests", None)];

/// A loop with a claim, stopped while its gates were running.
fn owed() -> Play {
    let mut play = Play::up(gated(&["tests"]));
    play.claimed().stop(Urgency::Now).hush();
    play
}

#[test]
fn pending_claim_is_refused_by_the_next_run_if_prompt_or_agent_changed() {
    let hashed = |hash: &str| Launch {
        prompt_hash: Some(hash.to_owned()),
        ..Launch::default()
    };
    let words = Launch {
        prompt: PromptSource::Text {
            text: "paint it blue".to_owned(),
        },
        ..Launch::default()
    };
    let agent = Launch {
        agent: "other".to_owned(),
        ..Launch::default()
    };
    let mut told = String::new();
    for launch in [words, agent] {
        let mut play = owed();
        play.start_with(launch);
        told += &play.log();
    }
    insta::assert_snapshot!(told, @"
    0.0 start: Started(after operator), CheckGivenUp(the prompt has changed since), ClaimRefused(the agent's promise: the prompt has changed since), IterationStarted(2 attempt 1) ! launch
    0.0 start: Started(after operator), CheckGivenUp(the agent has changed since), ClaimRefused(the agent's promise: the agent has changed since), IterationStarted(2 attempt 1) ! launch
    ");
    for (hash, outcome) in [("a", Some(&Outcome::Done)), ("b", None)] {
        let mut play = Play::new(gated(&["tests"]));
        play.start_with(hashed("a")).launched().claimed();
        play.stop(Urgency::Now).start_with(hashed(hash)).gates(PASS);
        assert_eq!(play.state.outcome(), outcome, "{hash}");
    }
}

#[test]
fn a_claim_of_work_that_was_rolled_back_is_refused() {
    let note = |tell| Input::Note {
        ticket: Ticket(1),
        text: "back".to_owned(),
        tell,
        operator: true,
    };
    let mut play = owed();
    play.input("note", note(true)).input("note", note(true));
    play.start().gates(PASS);
    insta::assert_snapshot!(play.log(), @"
    0.0 note: Noted(back), CheckGivenUp(the work tree was rolled back after the claim) ! ok: noted
    0.0 note: Noted(back), CheckGivenUp(the work tree was rolled back after the claim) ! ok: noted
    0.0 start: Started(after operator), ClaimRefused(the agent's promise: the work tree was rolled back after the claim), IterationStarted(2 attempt 1) ! launch
    0.0 gates: -
    ");
    let mut play = owed();
    play.input("note", note(false)).start().gates(PASS);
    assert_eq!(play.state.outcome(), Some(&Outcome::Done));
}

fn kept(policy: Policy) -> Policy {
    let autocommit = AutocommitRules {
        repository: true,
        commit: true,
        on_failure: false,
        timeout: Duration::ZERO,
    };
    Policy {
        autocommit: Some(autocommit),
        iteration_delay: Duration::ZERO,
        ..policy
    }
}

/// The agent runs a shell command, such as `tachikoma done`.
fn talks(play: &mut Play, summary: &str) {
    let started = AgentInput::ToolStarted {
        id: "t".to_owned(),
        name: "Bash".to_owned(),
        summary: summary.to_owned(),
    };
    play.event("talks", started).tool_ended("t");
}

#[test]
fn tachikoma_done_calls_and_files_written_by_gates_do_not_count_as_work() {
    let mut play = Play::up(super::stream());
    talks(&mut play, "tachikoma done");
    play.done(None).resulted(true).exited(0);
    assert_eq!(play.state.outcome(), None);
    play.sleep().launched();
    talks(&mut play, "make");
    play.done(None).resulted(true).exited(0);
    assert_eq!(play.state.outcome(), Some(&Outcome::Done));
    // Files that the gate wrote after the first iteration are committed after the second, and are not its work.
    let mut play = Play::up(kept(Policy {
        completion: gated(&["tests"]).completion,
        ..super::stream()
    }));
    play.resulted(true).claimed().kept(0, 0).gates(PASS);
    play.snapshot("a", 1).launched().resulted(true).claimed();
    play.kept(0, 1).gates(PASS);
    assert_eq!(play.state.outcome(), None);
}

#[test]
fn blocked_tool_calls_do_not_count_as_work() {
    let mut play = Play::up(super::stream());
    let started = AgentInput::ToolStarted {
        id: "t".to_owned(),
        name: "Bash".to_owned(),
        summary: "make".to_owned(),
    };
    let blocked = AgentInput::ToolEnded {
        id: "t".to_owned(),
        error: Some("PreToolUse:Bash hook error: no".to_owned()),
    };
    play.event("starts", started)
        .hush()
        .event("blocked", blocked);
    play.done(None).resulted(true).exited(0);
    insta::assert_snapshot!(play.log(), @"
    0.0 blocked: ToolEnded(t: PreToolUse:Bash hook error: no)
    0.0 done: Claimed() ! ok: end your turn; the claim is checked after iteration 1
    0.0 resulted true: TurnResulted(true)
    0.0 exited 0: IterationCompleted(1 succeeded), ClaimRefused(`tachikoma done`: nothing was done yet: no tool call succeeded), WaitStarted(delay 5s)
    ");
}

#[test]
fn silent_agent_may_claim_finished_work_if_gates_prove_it() {
    let mut play = Play::up(kept(gated(&["tests"])));
    play.claimed().kept(0, 0).gates(PASS).kept(0, 0);
    assert_eq!(play.state.outcome(), Some(&Outcome::Done));
    let mut play = Play::up(kept(Policy::default()));
    play.hush().claimed().kept(0, 0);
    insta::assert_snapshot!(play.log(), @"
    0.0 claimed: IterationCompleted(1 succeeded, claimed), AutocommitStarted(iteration within no limit) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 kept: ClaimRefused(the agent's promise: nothing was done yet: no file was changed and no commit made), ProgressMeasured(1: 0), IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn changes_of_gates_are_committed_at_the_end() {
    let mut play = Play::up(kept(gated(&["tests"])));
    play.claimed().kept(1, 1).hush().gates(PASS).kept(1, 1);
    insta::assert_snapshot!(play.log(), @"
    0.0 gates: GatesRan(tests ok), ProgressMeasured(1: 11), AutocommitStarted(end within no limit) ! commit iteration 1, end, session 1, context unknown
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000002, 0 left), Completed(the work is complete) ! finish
    ");
}

#[test]
fn claim_survives_the_budget_that_ends_its_turn() {
    let mut policy = gated(&["tests"]);
    policy.budgets.duration = Duration::from_secs(60);
    let mut play = Play::up(policy);
    play.done(None).hush().sleep().killed(2);
    play.policy.budgets.duration = Duration::from_secs(90);
    play.start().gates(PASS);
    insta::assert_snapshot!(play.log(), @"
    60.0 wake: StopConditionTriggered(max_duration), StopRequested(it ran 60 s of 60 s (max_duration)), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    60.0 killed 2: IterationCompleted(1 interrupted), Stopped(it ran 60 s of 60 s (max_duration)) ! finish
    60.0 start: Started(after budget), CheckStarted(claimed, gates within 70s) ! run tests
    60.0 gates: GatesRan(tests ok), Completed(the work is complete) ! finish
    ");
}

#[test]
fn time_limit_cancels_gates_and_the_claim_stays_pending() {
    let mut policy = gated(&["tests"]);
    policy.budgets.duration = Duration::from_secs(60);
    let mut play = Play::up(policy);
    play.seconds(50).claimed().hush().sleep().gates(PASS);
    play.policy.budgets.duration = Duration::from_secs(90);
    play.start().gates(PASS);
    insta::assert_snapshot!(play.log(), @"
    60.0 wake: StopConditionTriggered(max_duration), Stopped(it ran 60 s of 60 s (max_duration)) ! finish
    60.0 gates: -
    60.0 start: Started(after budget), CheckStarted(claimed, gates within 70s) ! run tests
    60.0 gates: GatesRan(tests ok), Completed(the work is complete) ! finish
    ");
}

#[test]
fn outdated_gate_results_are_not_in_the_prompt() {
    let mut play = Play::up(gated(&["tests"]));
    play.claimed().gates(&[("tests", Some("exit 1"))]);
    play.sleep().launched().done(None).exited(1);
    play.sleep().launched();
    let told = text_before_prompt(&play.state, None, "");
    assert!(
        told.contains("iteration 2, which claimed it, failed"),
        "{told}"
    );
    assert!(!told.contains("what tests said"), "{told}");
}

#[test]
fn claims_beyond_the_maximum_are_not_recorded() {
    let mut play = Play::up(Policy::default());
    for number in 0..20 {
        play.done(Some(&number.to_string()));
    }
    let claimed = play.journal.iter();
    let claimed = claimed.filter(|record| matches!(record.event, LoopEvent::Claimed { .. }));
    assert_eq!(claimed.count(), play.state.completion.claims.len());
}

#[test]
fn notes_of_the_agent_do_not_displace_notes_of_the_operator() {
    let note = |operator, text: &str| Input::Note {
        ticket: Ticket(1),
        text: text.to_owned(),
        tell: false,
        operator,
    };
    let mut play = Play::up(Policy::default());
    play.input("note", note(true, "of the operator"));
    for _ in 0..25 {
        play.input("note", note(false, "of the agent"));
    }
    assert_eq!(
        play.state.notes.len(),
        1 + 20,
        "one note of the operator, and at most 20 of the agent per iteration"
    );
    play.input("note", note(true, "of the operator"));
    for _ in 0..60 {
        play.state.iteration += 1;
        play.input("note", note(false, "of the agent"));
    }
    let count = |play: &Play| {
        let (operators, agents): (Vec<_>, Vec<_>) =
            play.state.notes.iter().partition(|note| note.operator);
        (operators.len(), agents.len())
    };
    assert_eq!(count(&play), (2, 50));
    for _ in 0..60 {
        play.input("note", note(true, "of the operator"));
    }
    assert_eq!(count(&play), (50, 50));
}

#[test]
fn claim_is_refused_when_the_operator_rolls_its_work_back() {
    let mut play = Play::new(Policy {
        attended: true,
        ..Policy::default()
    });
    play.start().answer(Choice::Continue).launched().claimed();
    let note = Input::Note {
        ticket: Ticket(1),
        text: "it is back".to_owned(),
        tell: true,
        operator: true,
    };
    play.hush().input("rollback", note);
    play.answer(Choice::Pause).resume();
    insta::assert_snapshot!(play.log(), @"
    0.0 rollback: Noted(it is back), CheckGivenUp(the work tree was rolled back after the claim), ClaimRefused(the agent's promise: the work tree was rolled back after the claim) ! ok: noted
    0.0 answer pause: Answered(2 pause by Operator), Paused(delay 5s) ! ok: paused
    0.0 resume: Resumed, WaitStarted(delay 5s) ! ok: the loop continues
    ");
}
