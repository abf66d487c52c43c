//! The pure part of the supervisor of `opencode serve`.
//!
//! As for the loop, [`step`] turns an input ([`ServerInput`]) into records ([`ServerRecord`]) and effects ([`ServerEffect`]). Records are
//! written before effects are performed, and deadlines are state. [`verdict`] decides what to do after a server has ended.

mod apply;
mod effect;
mod end;
mod event;
mod input;
mod messages;
mod policy;
mod state;
mod step;
mod verdict;

pub use apply::apply;
pub use effect::{ServerEffect, ServerStep};
pub use end::{Purpose, ServerEnd};
pub use event::{ServerEvent, ServerRecord};
pub use input::{Answered, ServerInput, StartedBy};
pub use messages::{Level, messages};
pub use policy::{
    CRASH_LOOP, CRASH_WINDOW, HEALTHY_UPTIME, Jitter, RestartBackoff, RestartPolicy, ServerPolicy,
    StopSignals,
};
pub use state::{Pulse, ServerPhase, ServerState};
pub use step::step;
pub use verdict::{History, StayReason, Verdict, verdict};
