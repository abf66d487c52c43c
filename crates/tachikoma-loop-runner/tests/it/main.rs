//! Drives real child processes through the public interface of the crate.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod disk_full;
mod embedding;
mod formats;
mod loop_child;
mod loop_command;
mod loop_hooks;
mod loop_life;
mod loop_maintenance;
mod loop_snapshots;
mod loop_support;
mod opencode_bad;
mod opencode_choice;
mod opencode_restart;
mod opencode_support;
mod process_cost;
mod process_end;
mod process_ladder;
mod process_orphans;
mod process_output;
mod process_start;
mod repair;
mod repair_long;
mod support;
