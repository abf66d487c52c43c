//! The rules of a loop, one test each: what comes in, what is recorded and what is wished for.

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

/// An agent that reports what it does while it does it.
fn stream() -> Policy {
    Policy {
        agent: AgentTraits {
            event_stream: true,
            ..AgentTraits::default()
        },
        ..Policy::default()
    }
}
