//! Stop patterns: the loop ends when the agent's final text matches one.

use tachikoma_core::{AgentInput, Exit, Policy, TurnEnd};

use super::stream;
use crate::play::{Play, exited};

fn patterns() -> Policy {
    Policy {
        stop_patterns: 1,
        ..stream()
    }
}

fn blocked(success: bool) -> AgentInput {
    AgentInput::TurnEnded(TurnEnd {
        success,
        stop_pattern: Some("^BLOCKED".to_owned()),
        ..TurnEnd::default()
    })
}

#[test]
fn stop_pattern_ends_the_loop_after_its_iteration_once() {
    let mut play = Play::up(patterns());
    play.hush().event("blocked", blocked(true)).exited(0);
    play.start().launched().resulted(true).exited(0);
    insta::assert_snapshot!(play.log(), @"
    0.0 blocked: TurnResulted(true), StopPatternMatched(^BLOCKED)
    0.0 exited 0: IterationCompleted(1 succeeded), StopConditionTriggered(stop_on_patterns), Stopped(the agent's words match the pattern `^BLOCKED` (stop_on_patterns)) ! finish
    0.0 start: Started(after condition), IterationStarted(2 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 resulted true: TurnResulted(true)
    0.0 exited 0: IterationCompleted(2 succeeded), WaitStarted(delay 5s)
    ");
}

#[test]
fn stop_pattern_of_an_agent_without_event_stream_applies_at_its_exit() {
    let mut play = Play::up(Policy {
        stop_patterns: 1,
        ..Policy::default()
    });
    let AgentInput::Exited { leftovers, .. } = exited(Exit::Code(0), false) else {
        panic!("`exited` returns `AgentInput::Exited`")
    };
    let event = AgentInput::Exited {
        exit: Exit::Code(3),
        claimed: false,
        stop_pattern: Some("^BLOCKED".to_owned()),
        leftovers,
        last_words: None,
        problem: None,
    };
    play.hush().event("exited", event);
    insta::assert_snapshot!(play.log(), @"0.0 exited: StopPatternMatched(^BLOCKED), IterationFailed(1: the agent ended with exit 3; streak 1), StopConditionTriggered(stop_on_patterns), Stopped(the agent's words match the pattern `^BLOCKED` (stop_on_patterns)) ! finish");
}
