//! Conversations that the agent itself cannot continue.

use std::time::Duration;

use tachikoma_core::policy::{AgentTraits, RebootRules};
use tachikoma_core::{Policy, Spent};

use crate::play::Play;

fn policy() -> Policy {
    Policy {
        agent: AgentTraits {
            event_stream: true,
            persistent: true,
            steerable: true,
            tells_cost: false,
            refuses_before: None,
        },
        iteration_delay: Duration::ZERO,
        reboot: RebootRules {
            min_interval: Duration::ZERO,
            ..RebootRules::default()
        },
        ..Policy::default()
    }
}

#[test]
fn refused_prompt_leads_to_a_reboot_and_is_not_a_failure() {
    let mut play = Play::up(policy());
    play.named("one").measured(500).tool("a").tool_ended("a");
    play.hush().spent(Spent::Full).exited(0).opened();
    insta::assert_snapshot!(play.log(), @"
    0.0 spent: TurnResulted(full), IterationCompleted(1 handed over, needs reboot), RebootRequested(the context of the agent is full), RebootStarted(the context of the agent is full), ClosingStarted(within 10s) ! close
    0.0 exited 0: AgentExited(exit 0), SessionOpening(2) ! open 2
    0.0 launched: AgentLaunched(77)
    0.0 opened: SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! prompt
    ");
}

#[test]
fn first_prompt_that_is_refused_in_every_new_session_ends_the_loop() {
    let mut play = Play::up(policy());
    play.named("one").spent(Spent::Full);
    play.exited(0).opened().named("two").hush();
    play.spent(Spent::Full).exited(0).opened().named("three");
    play.spent(Spent::Full);
    insta::assert_snapshot!(play.log(), @"
    0.0 spent: TurnResulted(full), RebootVerified(the agent rejected its first prompt, which is too long), IterationCompleted(2 handed over, needs reboot), RebootRequested(the context of the agent is full), RebootStarted(the context of the agent is full), ClosingStarted(within 10s) ! close
    0.0 exited 0: AgentExited(exit 0), SessionOpening(3) ! open 3
    0.0 launched: AgentLaunched(77)
    0.0 opened: SessionEnded(2), SessionStarted(3), RebootCompleted(2 to 3), IterationStarted(3 attempt 1) ! prompt
    0.0 named: SessionNamed(three)
    0.0 spent: TurnResulted(full), RebootVerified(the agent rejected its first prompt, which is too long), StopRequested(2 reboots in a row changed nothing (the agent rejected its first prompt, which is too long): the prompt and its hand-off alone fill the context; shorten the prompt, or lower handoff_max_bytes), EndingRequested(interrupt within 0s), IterationCompleted(3 handed over, needs reboot), Error(2 reboots in a row changed nothing (the agent rejected its first prompt, which is too long): the prompt and its hand-off alone fill the context; shorten the prompt, or lower handoff_max_bytes) ! finish
    ");
}

#[test]
fn refused_prompt_waits_for_the_allowed_reboot_instead_of_another_prompt() {
    let mut play = Play::up(Policy {
        reboot: RebootRules::default(),
        ..policy()
    });
    play.named("one").measured(860).resulted(true).said("half");
    play.exited(0).opened().named("two").measured(100);
    play.hush().spent(Spent::Full).sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 spent: TurnResulted(full), IterationCompleted(2 handed over, needs reboot), RebootRequested(the context of the agent is full, not before 300s), WaitStarted(reboot_window 300s)
    300.0 wake: RebootStarted(the context of the agent is full), ClosingStarted(within 10s) ! close
    ");
}

#[test]
fn refused_prompt_is_a_failure_if_reboots_are_off() {
    let mut play = Play::up(Policy {
        reboot: RebootRules {
            enabled: false,
            ..RebootRules::default()
        },
        ..policy()
    });
    play.named("one").hush().spent(Spent::Full);
    insta::assert_snapshot!(play.log(), @"0.0 spent: TurnResulted(full), IterationFailed(1: the agent reported that its turn failed; streak 1), WaitStarted(backoff 1s)");
}

#[test]
fn lost_conversation_leads_to_a_new_session() {
    let mut play = Play::up(policy());
    play.named("one").resulted(true).crash().launched().hush();
    play.spent(Spent::Lost).exited(1).sleep().launched();
    play.named("two");
    insta::assert_snapshot!(play.log(), @"
    0.0 spent: TurnResulted(lost), IterationFailed(2: the agent reported that its turn failed; streak 1), WaitStarted(backoff 1s)
    0.0 exited 1: AgentExited(exit 1)
    1.0 wake: SessionEnded(1), SessionStarted(2), IterationStarted(3 attempt 1) ! launch
    1.0 launched: AgentLaunched(77)
    1.0 named: SessionNamed(two)
    ");
}
