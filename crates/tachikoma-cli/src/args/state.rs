//! Arguments of `tachikoma state`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// Subcommands of `state`.
#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Show the whole state, and whether it is saved
    Show {
        /// Print the JSON of the snapshot
        #[arg(long)]
        json: bool,
    },
    /// Check all journals, snapshots, transcripts and backups
    Verify {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Store a value for hooks and scripts
    Set {
        /// Name of the value
        key: String,
        /// Value as JSON; null removes it
        #[arg(value_name = "JSON", allow_hyphen_values = true)]
        value: String,
    },
    /// Print the state and all records, one JSON object per line
    Export {
        /// Write to a new file
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Replace the file if it exists
        #[arg(long, requires = "output")]
        force: bool,
    },
    /// Make a backup of the loop now, running or not
    Backup,
    /// List and check the backups, newest first
    Backups {
        /// List the backups in an object store instead, such as `s3://bucket/prefix`
        #[arg(long, value_name = "URL")]
        from: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Restore a loop from a backup; the current loop is archived
    Restore {
        /// File of the backup, or its name with `--from` [default: the newest good one]
        file: Option<PathBuf>,
        #[command(flatten)]
        from: FromArgs,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
    /// Archive the loop, so that the next run starts a new one
    Clear {
        /// Delete all loops and their files instead
        #[arg(long)]
        purge: bool,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
}

/// Source of a restored backup.
#[derive(Clone, Debug, ClapArgs)]
pub struct FromArgs {
    /// Restore from an object store, such as `s3://bucket/prefix`
    #[arg(long, value_name = "URL")]
    pub from: Option<String>,
    /// Restore the newest good backup of this loop; needs `--from`
    #[arg(
        long = "loop",
        value_name = "ID",
        requires = "from",
        conflicts_with = "file"
    )]
    pub of_loop: Option<String>,
}
