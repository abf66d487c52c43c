//! Tests of the binary: real files, real child processes, real terminals.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its body does")]

mod agents;
mod claude_fault_support;
mod claude_faults;
mod claude_handoff;
mod claude_input;
mod claude_launch;
mod claude_limits;
mod claude_looking;
mod claude_support;
mod config;
mod demo;
mod errors_control;
mod errors_disk;
mod errors_input;
mod errors_store;
mod hooks;
mod live_control;
mod live_kill;
mod live_pty;
mod live_signals;
mod live_support;
mod live_terminal;
mod odd_files;
mod outcomes;
mod outcomes_status;
mod resume;
mod resume_answers;
mod retention;
mod state;
mod state_change;
mod state_clear;
mod state_groups;
mod support;
mod turns;
mod unkept;
