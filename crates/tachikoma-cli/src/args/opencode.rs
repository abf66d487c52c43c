//! Arguments of `tachikoma opencode` and `tachikoma service`.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

/// Subcommands of `opencode`.
#[derive(Debug, Subcommand)]
pub enum OpencodeCommand {
    /// Start the server and restart it when it dies, until `opencode stop`
    Up(UpArgs),
    /// Show the state of the server
    Status {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Restart the server, also after the supervisor gave up
    Restart,
    /// Stop the server and its supervisor
    Stop,
    /// Apply changed settings to the server
    Reload,
    /// Print the events of the supervisor
    Events {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Print the server's output
    Logs {
        /// Keep printing new output
        #[arg(long, short)]
        follow: bool,
    },
}

/// Arguments of `opencode up`.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct UpArgs {
    /// Run in the background
    #[arg(long)]
    pub detach: bool,
    /// Set by `--detach` for the background process
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
    /// Print the supervisor's records, one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Keep the decisions of an earlier supervisor (for systemd and launchd)
    #[arg(long)]
    pub service: bool,
}

/// Subcommands of `service`.
#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Print a unit that runs `tachikoma opencode up` in this directory
    Print {
        /// Format of the unit
        kind: ServiceKind,
    },
}

/// System supervisors with their own unit format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServiceKind {
    /// User unit for systemd
    Systemd,
    /// Agent for launchd
    Launchd,
}
