//! One test for each rule of the loop: an input, the records and the effects that follow.

mod autocommit;
mod budget;
mod claims;
mod completion;
mod explain_replay;
mod explain_replay_claims;
mod failure;
mod handoff;
mod hooks;
mod lifecycle;
mod limits;
mod objectives;
mod operator;
mod patterns;
mod pause;
mod progress;
mod reboot;
mod session;
mod spending;
mod stop;
mod timeout;
mod triggers;

use tachikoma_core::Policy;
use tachikoma_core::policy::AgentTraits;

/// An agent with an event stream: it reports its tool calls and results while it runs.
fn stream() -> Policy {
    Policy {
        agent: AgentTraits {
            event_stream: true,
            ..AgentTraits::default()
        },
        ..Policy::default()
    }
}
