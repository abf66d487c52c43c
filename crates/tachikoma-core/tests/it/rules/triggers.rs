//! Reasons for a reboot between two iterations, each with its values and its own switch.

use std::time::Duration;

use tachikoma_core::policy::{AgentTraits, RebootRules};
use tachikoma_core::{AgentInput, Context, Launch, LoopEvent, Policy, RebootReason, TurnEnd};

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

/// The reasons of all requested reboots, in order.
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
    play.event("resulted", AgentInput::TurnEnded(end));
}

/// One turn with `count` tool calls, of which `failing` fail.
fn calls(play: &mut Play, count: u32, failing: u32) {
    for number in 0..count {
        let id = format!("t{number}");
        let summary = format!("step {number}");
        let name = "Bash".to_owned();
        play.event(
            "tool",
            AgentInput::ToolStarted {
                id: id.clone(),
                name,
                summary,
            },
        );
        let error = (number < failing).then(|| "exit 1".to_owned());
        play.event("tool ended", AgentInput::ToolEnded { id, error });
    }
    play.resulted(true);
}

#[test]
fn session_that_reached_its_maximum_age_is_rebooted_after_its_iteration() {
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
fn pattern_match_reboots_its_own_session_only() {
    let mut play = Play::up(rules(RebootRules {
        ask_hand_off: false,
        ..RebootRules::default()
    }));
    matched(&mut play, "start over");
    let pattern = "start over".to_owned();
    assert_eq!(reasons(&play), [RebootReason::PatternMatch { pattern }]);
    play.exited(0).opened().resulted(true);
    assert_eq!(
        reasons(&play).len(),
        1,
        "the new session did not print the pattern"
    );
}

#[test]
fn falling_quality_causes_a_reboot_if_enabled_and_not_in_a_young_session() {
    for on_degradation in [true, false] {
        let mut play = Play::up(rules(RebootRules {
            on_degradation,
            ..RebootRules::default()
        }));
        calls(&mut play, 10, 0);
        calls(&mut play, 10, 9);
        assert_eq!(
            reasons(&play),
            [],
            "two iterations are too few to judge the quality"
        );
        calls(&mut play, 10, 9);
        let found = reasons(&play);
        assert_eq!(found.len(), usize::from(on_degradation));
        let details = found.first().map(ToString::to_string);
        assert!(details.is_none_or(|text| text.contains("of 20 tool calls 18 failed")));
    }
}

#[test]
fn denied_tool_calls_are_recorded_with_count_and_remedy_and_are_not_degradation() {
    let mut play = Play::new(rules(RebootRules::default()));
    let agent = "claude".to_owned();
    play.start_with(Launch {
        agent,
        ..Launch::default()
    })
    .launched();
    calls(&mut play, 10, 0);
    for _ in 0..2 {
        play.hush();
        for id in ["a", "b"] {
            let denied = AgentInput::ToolDenied {
                tool: "Bash".to_owned(),
                id: id.to_owned(),
            };
            play.tool(id).event("denied", denied).tool_ended(id);
        }
        play.resulted(true);
    }
    assert_eq!(reasons(&play), []);
    assert_eq!(play.state.denials.len(), 1);
    insta::assert_snapshot!(play.log(), @r#"
    0.0 tool: ToolStarted(a)
    0.0 denied: ToolDenied(Bash make test, time 3, allowed by agents.claude.allow = ["make test"])
    0.0 tool ended: -
    0.0 tool: ToolStarted(b)
    0.0 denied: ToolDenied(Bash make test, time 4, allowed by agents.claude.allow = ["make test"])
    0.0 tool ended: -
    0.0 resulted true: TurnResulted(true), IterationCompleted(3 succeeded), IterationStarted(4 attempt 1) ! prompt
    "#);
}

#[test]
fn denied_calls_beyond_the_first_32_different_ones_are_only_counted() {
    let mut play = Play::new(rules(RebootRules::default()));
    play.start().launched();
    for call in (0..34).chain([3, 33]) {
        let started = AgentInput::ToolStarted {
            id: "t".to_owned(),
            name: "Bash".to_owned(),
            summary: format!("make {call}"),
        };
        let denied = AgentInput::ToolDenied {
            tool: "Bash".to_owned(),
            id: "t".to_owned(),
        };
        play.event("tool", started).event("denied", denied);
    }
    let mut recorded = Vec::new();
    for record in &play.journal {
        if let LoopEvent::ToolDenied(denial) = &record.event {
            recorded.push((denial.times, denial.others));
        }
    }
    assert_eq!(recorded[..32], [(1, 0); 32]);
    assert_eq!(recorded[32..], [(1, 1), (1, 2), (2, 0), (1, 3)]);
    assert_eq!(play.state.denials.len(), 32);
    assert_eq!(play.state.other_denials, 3);
}

#[test]
fn full_context_is_the_recorded_reason_even_if_others_apply() {
    let everything = RebootRules {
        after_iterations: Some(1),
        after_duration: Some(Duration::from_secs(1)),
        ..RebootRules::default()
    };
    let mut play = Play::up(rules(everything));
    play.answering(860).seconds(9);
    matched(&mut play, "start over");
    assert_eq!(
        reasons(&play),
        [RebootReason::Redline {
            percent: 86,
            tokens: None
        }]
    );
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
fn tool_call_count_causes_a_reboot_only_if_the_context_is_unknown() {
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
    assert_eq!(reasons(&told), [], "the agent reported its context");
    let mut off = Play::up(rules(RebootRules {
        redline_percent: 100.0,
        ..few
    }));
    calls(&mut off, 3, 0);
    assert_eq!(
        reasons(&off),
        [],
        "a threshold of 100 percent switches both off"
    );
}

/// The agent reports these readings in a window of a million tokens.
fn measured_in_a_million(play: &mut Play, readings: &[u64]) {
    for tokens in readings {
        let context = Context {
            tokens: *tokens,
            window: 1_000_000,
            estimated: false,
        };
        let answering = false;
        play.event(
            "measured",
            AgentInput::ContextMeasured { context, answering },
        );
    }
}

#[test]
fn a_session_is_replaced_at_the_redline_in_tokens() {
    let mut play = Play::up(rules(RebootRules::default()));
    play.hush();
    measured_in_a_million(&mut play, &[30_000, 199_999, 200_000]);
    insta::assert_snapshot!(play.log(), @"
    0.0 measured: ContextMeasured(3%)
    0.0 measured: ContextMeasured(19.9999%)
    0.0 measured: ContextMeasured(20%), RebootRequested(context at 200000 tokens (20%)), EndingRequested(hand over within 0s), AgentSignaled(interrupt 5s) ! signal interrupt
    ");
}

#[test]
fn session_that_begins_near_the_redline_in_tokens_is_not_rebooted_again_and_again() {
    let mut play = Play::up(rules(RebootRules::default()));
    play.hush();
    measured_in_a_million(&mut play, &[180_000, 260_000, 849_999, 850_000]);
    insta::assert_snapshot!(play.log(), @"
    0.0 measured: ContextMeasured(18%), Warned(session 1 begins with 180000 tokens of context, near reboot.context_redline_tokens = 200000: that redline does not apply to this session, the one at 85.0 % does; raise it, or shorten the prompt, the hand-off (reboot.handoff_max_bytes) or what the agent loads by itself)
    0.0 measured: ContextMeasured(26%)
    0.0 measured: ContextMeasured(84.9999%)
    0.0 measured: ContextMeasured(85%), RebootRequested(context at 85%), EndingRequested(hand over within 0s), AgentSignaled(interrupt 5s) ! signal interrupt
    ");
}
