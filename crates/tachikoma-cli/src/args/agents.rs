//! The command line of what reads the output of agents.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

/// What can be done with the output of agents.
#[derive(Debug, Subcommand)]
pub enum AgentsCommand {
    /// Say what the recorded output of one process comes to: outcome, context, cost
    Decode(DecodeArgs),
}

/// What to decode.
#[derive(Clone, Debug, ClapArgs)]
pub struct DecodeArgs {
    /// The agent that wrote it: claude (Claude Code, with `--output-format stream-json`)
    #[arg(hide_possible_values = true)]
    pub agent: DecodedAgent,
    /// The file with its standard output, plain or compressed (.zst); - for standard input
    pub file: PathBuf,
    /// The exit code of the process, or the negated number of the signal that killed it
    #[arg(long, value_name = "CODE", allow_negative_numbers = true)]
    pub exit: Option<i32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Agents with an output format that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DecodedAgent {
    /// Claude Code: `--output-format stream-json`
    Claude,
    /// OpenCode: `run --format json`, or the event stream of its server
    Opencode,
}
