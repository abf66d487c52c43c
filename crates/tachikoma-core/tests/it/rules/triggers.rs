//! What calls for a reboot between two iterations, each reason with its figures and its own switch.

use std::time::Duration;

use tachikoma_core::policy::{AgentTraits, RebootRules};
use tachikoma_core::{LoopEvent, News, Policy, RebootReason, TurnEnd};

use crate::play::Play;

fn rules(reboot: RebootRules) -> Policy {
    Policy {
        agent: AgentTraits {
            event_stream: true,
            persistent: true,
            steerable: true,
            tells_cost: false,
            refuses_before: None,
        },
        iteration_delay: Duration::ZERO,
        reboot,
        ..Policy::default()
    }
}

/// The reasons for which reboots were wanted, in order.
fn reasons(play: &Play) -> Vec<RebootReason> {
    let wanted = play.journal.iter().filter_map(|record| {
        let LoopEvent::RebootRequested { reason, .. } = &record.event else {
            return None;
        };
        Some(reason.clone())
    });
    wanted.collect()
}

fn matched(play: &mut Play, pattern: &str) {
    let end = TurnEnd {
        success: true,
        pattern: Some(pattern.to_owned()),
        ..TurnEnd::default()
    };
    play.news("resulted", News::Resulted(end));
}

/// So many calls in one turn, of which so many fail.
fn calls(play: &mut Play, count: u32, failing: u32) {
    for number in 0..count {
        let id = format!("t{number}");
        let summary = format!("step {number}");
        let name = "Bash".to_owned();
        play.news(
            "tool",
            News::ToolStarted {
                id: id.clone(),
                name,
                summary,
            },
        );
        let error = (number < failing).then(|| "exit 1".to_owned());
        play.news("tool ended", News::ToolEnded { id, error });
    }
    play.resulted(true);
}

#[test]
fn a_session_that_is_old_enough_is_rebooted_after_its_iteration() {
    let mut play = Play::up(rules(RebootRules {
        after_duration: Some(Duration::from_secs(7200)),
        ..RebootRules::default()
    }));
    play.seconds(7199).resulted(true);
    assert_eq!(reasons(&play), []);
    play.seconds(1).resulted(true);
    assert_eq!(
        reasons(&play),
        [RebootReason::DurationLimit { seconds: 7200 }]
    );
}

#[test]
fn words_of_the_agent_are_a_reason_and_are_forgotten_with_their_session() {
    let mut play = Play::up(rules(RebootRules {
        ask_hand_off: false,
        ..RebootRules::default()
    }));
    matched(&mut play, "start over");
    let pattern = "start over".to_owned();
    assert_eq!(reasons(&play), [RebootReason::PatternMatch { pattern }]);
    play.exited(0).opened().resulted(true);
    assert_eq!(reasons(&play).len(), 1, "the fresh session said nothing");
}

#[test]
fn falling_quality_is_its_own_signal_with_its_own_switch_and_never_early() {
    for on_degradation in [true, false] {
        let mut play = Play::up(rules(RebootRules {
            on_degradation,
            ..RebootRules::default()
        }));
        calls(&mut play, 10, 0);
        calls(&mut play, 10, 9);
        assert_eq!(reasons(&play), [], "two iterations are no session to judge");
        calls(&mut play, 10, 9);
        let found = reasons(&play);
        assert_eq!(found.len(), usize::from(on_degradation));
        let details = found.first().map(ToString::to_string);
        assert!(details.is_none_or(|text| text.contains("of 20 tool calls 18 failed")));
    }
}

#[test]
fn a_full_context_is_named_before_every_other_reason() {
    let everything = RebootRules {
        after_iterations: Some(1),
        after_duration: Some(Duration::from_secs(1)),
        ..RebootRules::default()
    };
    let mut play = Play::up(rules(everything));
    play.answering(860).seconds(9);
    matched(&mut play, "start over");
    assert_eq!(reasons(&play), [RebootReason::Redline { percent: 86 }]);
    let mut play = Play::up(rules(everything));
    play.answering(100).seconds(9);
    matched(&mut play, "start over");
    assert_eq!(reasons(&play), [RebootReason::IterationLimit { count: 1 }]);
    let mut play = Play::up(rules(RebootRules {
        after_iterations: None,
        ..everything
    }));
    play.answering(100).seconds(9);
    matched(&mut play, "start over");
    assert_eq!(reasons(&play), [RebootReason::DurationLimit { seconds: 9 }]);
}

#[test]
fn calls_stand_in_for_a_context_that_nobody_tells_and_for_no_other() {
    let few = RebootRules {
        tool_call_threshold: 3,
        ..RebootRules::default()
    };
    let mut play = Play::up(rules(few));
    calls(&mut play, 3, 0);
    assert_eq!(reasons(&play), [RebootReason::ToolCalls { count: 3 }]);
    let mut told = Play::up(rules(few));
    told.measured(10);
    calls(&mut told, 3, 0);
    assert_eq!(reasons(&told), [], "the agent told its context");
    let mut off = Play::up(rules(RebootRules {
        redline_percent: 100.0,
        ..few
    }));
    calls(&mut off, 3, 0);
    assert_eq!(reasons(&off), [], "100 switches both off");
}
