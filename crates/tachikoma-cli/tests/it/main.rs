//! Drives the binary as people and programs do.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its body does")]

mod live_control;
mod live_kill;
mod live_pty;
mod live_support;
mod live_terminal;
