//! The command line of OpenCode's server, and of services that keep it.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

/// What can be done with the server of OpenCode.
#[derive(Debug, Subcommand)]
pub enum OpencodeCommand {
    /// Start the server, and start it again when it dies, until it is stopped
    Up(UpArgs),
    /// Show how the server is
    Status {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Replace the server, or start it where it is down; clears a give-up
    Restart,
    /// Stop the server and its supervisor
    Stop,
    /// Read the settings of the server again
    Reload,
    /// Print what the supervisor recorded
    Events {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Print what the server wrote
    Logs {
        /// Go on printing what it writes
        #[arg(long, short)]
        follow: bool,
    },
}

/// How to keep the server running.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct UpArgs {
    /// Leave it running in the background
    #[arg(long)]
    pub detach: bool,
    /// This is the process in the background: said by ourselves
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
    /// Print what is recorded, one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Keep to what an earlier supervisor decided: for systemd and launchd
    #[arg(long)]
    pub service: bool,
}

/// What can be done with services.
#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Print a unit that keeps `tachikoma opencode up` running in this directory
    Print {
        /// For whom
        kind: ServiceKind,
    },
}

/// The supervisors of systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServiceKind {
    /// A user's unit for systemd
    Systemd,
    /// An agent for launchd
    Launchd,
}
