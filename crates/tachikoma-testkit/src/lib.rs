//! What Tachikoma's tests share: scratch directories, running binaries, awaited states and
//! the search for processes that were left behind.

mod awaiting;
mod marker;
mod mask;
mod scratch;
mod tool;
mod unprivileged;

pub use awaiting::await_until;
pub use marker::{processes_with, unique};
pub use mask::mask;
pub use scratch::Scratch;
pub use tool::{Live, Ran, Tool};
pub use unprivileged::{NOBODY, drop_to_nobody};
