//! What can be typed after `tachikoma state`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// What can be done with the state that is kept.
#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Show all that the loop knows, and whether it is saved
    Show {
        /// Print it as the snapshot is written
        #[arg(long)]
        json: bool,
    },
    /// Check every journal, snapshot, transcript and backup, line by line
    Verify {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write down a value for later
    Set {
        /// Its name
        key: String,
        /// The value, as JSON; null removes it
        #[arg(value_name = "JSON", allow_hyphen_values = true)]
        value: String,
    },
    /// Print everything as one text: the state and all records, one JSON object per line
    Export {
        /// Write it to a file, which must not exist
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Replace a file that exists
        #[arg(long, requires = "output")]
        force: bool,
    },
    /// Take a backup of the loop now, live or not
    Backup,
    /// List the backups, newest first, and check each
    Backups {
        /// List the copies in an object store instead, such as `s3://bucket/prefix`
        #[arg(long, value_name = "URL")]
        from: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Bring a loop back from a backup; what is here is kept
    Restore {
        /// The backup; the newest good one of the loop, if not given. With `--from` its name
        file: Option<PathBuf>,
        #[command(flatten)]
        from: FromArgs,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Archive the loop, so that the next run begins a new one
    Clear {
        /// Delete all loops instead, with everything that is kept of them
        #[arg(long)]
        purge: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// From where a backup is brought.
#[derive(Clone, Debug, ClapArgs)]
pub struct FromArgs {
    /// Bring it from an object store, such as `s3://bucket/prefix`
    #[arg(long, value_name = "URL")]
    pub from: Option<String>,
    /// With `--from`: the newest good one of this loop
    #[arg(
        long = "loop",
        value_name = "ID",
        requires = "from",
        conflicts_with = "file"
    )]
    pub of_loop: Option<String>,
}
