//! How a server is kept alive: the pure part of the supervisor of `opencode serve`.
//!
//! As with the loop, [`step`] is a function from event ([`ServerInput`]) to facts ([`ServerRecord`]) and wishes
//! ([`ServerEffect`]); facts are journalled before wishes are carried out, and deadlines are state. What to do about a dead
//! server is one question, [`verdict`], which answers with its reason.

mod apply;
mod effect;
mod end;
mod event;
mod input;
mod policy;
mod state;
mod step;
mod verdict;
mod words;

pub use apply::apply;
pub use effect::{ServerEffect, ServerStep};
pub use end::{Purpose, ServerEnd};
pub use event::{ServerEvent, ServerRecord};
pub use input::{Answered, ServerInput, StartedBy};
pub use policy::{
    CRASH_LOOP, CRASH_WINDOW, HEALTHY_UPTIME, Jitter, RestartBackoff, RestartPolicy, ServerPolicy,
    StopSignals,
};
pub use state::{Pulse, ServerPhase, ServerState};
pub use step::step;
pub use verdict::{History, StayReason, Verdict, verdict};
pub use words::{Level, words};
