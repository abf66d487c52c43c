//! The decoders against recorded output of real agents.

mod claude;
mod claude_costs;
mod claude_damaged;
mod claude_lines;
mod corpus;
mod opencode;
