//! Arguments of `tachikoma agents`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

/// Subcommands of `agents`.
#[derive(Debug, Subcommand)]
pub enum AgentsCommand {
    /// Print outcome, context usage and cost of a recorded agent process
    Decode(DecodeArgs),
}

/// Arguments of `agents decode`.
#[derive(Clone, Debug, ClapArgs)]
pub struct DecodeArgs {
    /// Agent that wrote the output: claude or opencode
    #[arg(hide_possible_values = true)]
    pub agent: DecodedAgent,
    /// File with its stdout, plain or compressed (.zst), or - for stdin
    pub file: PathBuf,
    /// Exit code of the process, or -N if signal N killed it
    #[arg(long, value_name = "CODE", allow_negative_numbers = true)]
    pub exit: Option<i32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Agents with a known output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DecodedAgent {
    /// Claude Code: `--output-format stream-json`
    Claude,
    /// OpenCode: `run --format json`, or the event stream of its server
    Opencode,
}
