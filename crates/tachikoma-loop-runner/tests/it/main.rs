//! Drives real child processes through the public interface of the crate.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its body does")]

mod formats;
mod heal;
mod heal_long;
mod heal_room;
mod loop_child;
mod loop_command;
mod loop_hooks;
mod loop_life;
mod loop_save;
mod loop_support;
mod loop_upkeep;
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
mod support;
