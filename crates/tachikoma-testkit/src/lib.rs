//! Shared code of tests: scratch directories, running binaries, awaited states, fake agents and servers. Not for products.
//! Real agents are tested with a scripted model, everything else with a fake agent and a fake server.

mod awaiting;
mod behavior;
pub mod fake_agent;
pub mod fake_opencode;
mod marker;
mod mask;
mod model;
#[cfg(feature = "s3")]
pub mod s3;
mod scenario;
mod scratch;
mod talk;
mod tool;
mod unprivileged;

pub use awaiting::await_until;
pub use marker::{processes_with, unique};
pub use mask::mask;
pub use model::{Asked, Dialect, Kind, Listening, Request, ScriptedModel};
pub use scenario::{Afterwards, Fault, Rule, Scenario, ToolCall, Turn, Usage};
pub use scratch::Scratch;
pub use talk::{Ended, Talk};
pub use tool::{Live, Ran, Tool};
pub use unprivileged::{NOBODY, drop_to_nobody};
