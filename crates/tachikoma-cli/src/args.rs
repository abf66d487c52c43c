//! The command line: commands, arguments and their help texts.

mod agents;
mod groups;
mod opencode;
mod state;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{
    Args as ClapArgs, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
};
use tachikoma_core::LoopId;
use tachikoma_loop_runner::git::snapshots::Moment;

pub use agents::{AgentsCommand, DecodeArgs, DecodedAgent};
pub use opencode::{OpencodeCommand, ServiceCommand, ServiceKind, UpArgs};
pub use state::{FromArgs, StateCommand};

/// Run a coding agent in a loop, unattended, until the work is proven done.
#[derive(Debug, Parser)]
#[command(name = "tachikoma", version, max_term_width = 100, help_template = HELP_TEMPLATE)]
pub struct Args {
    /// Command to run; without one, the loop of this directory is shown
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Print diagnostics to stderr; repeat for more detail
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// When to print colors: auto, always or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub color: clap::ColorChoice,
}

/// Order of the parts of the main help. The groups of commands are set by [`Args::parse`].
const HELP_TEMPLATE: &str =
    "{about}\n\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}";

impl Args {
    /// Parses the words of the command line. Prints help, or an error, and exits if they ask for it or are wrong.
    pub fn parse(words: impl IntoIterator<Item = OsString>) -> Self {
        let command = Self::command();
        let (short, long) = (groups::short(&command), groups::long(&command));
        let command = command.before_help(short).before_long_help(long);
        let matches = command.get_matches_from(words);
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a configuration, a prompt and a plan for this project
    Init {
        /// Ask no questions and take all defaults
        #[arg(long, short)]
        yes: bool,
    },
    /// Check the agents, the configuration and this machine
    #[command(after_help = DOCTOR_HELP)]
    Doctor {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Start or continue the loop in this directory
    Run(RunArgs),
    /// Run a scripted agent that crashes, reboots and finishes
    Demo(DemoArgs),
    /// Show the state of the loop
    Status {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Pause after the current iteration
    Pause {
        /// Interrupt the current iteration
        #[arg(long)]
        now: bool,
    },
    /// Continue a paused loop
    Resume,
    /// Stop the loop
    Stop {
        /// Do not wait for the current tool call to end
        #[arg(long)]
        now: bool,
    },
    /// Skip the current iteration or the current wait
    Skip,
    /// Start a fresh agent session
    Reboot,
    /// Answer the question that the loop is waiting on
    #[command(after_help = ANSWER_EXAMPLES)]
    Answer(AnswerArgs),
    /// Turn attended mode on or off
    Attend {
        /// Whether attended mode is on
        switch: Switch,
    },
    /// Send a message to the agent
    #[command(
        after_help = "The agent gets the message once: during its next tool call if it supports that, otherwise with the next prompt. Use `tachikoma note` for facts that every later session needs.\n\n\
        Examples:\n  tachikoma tell \"do not change the parser, the bug is in the printer\"\n  tachikoma tell - <words.txt"
    )]
    Tell {
        /// Text of the message, or - to read it from stdin
        #[arg(required = true, value_name = "TEXT")]
        words: Vec<String>,
    },
    /// Apply changes of the configuration to the running loop
    Reload,
    /// Print the events of the loop
    Events {
        /// Keep printing new events
        #[arg(long, short)]
        follow: bool,
        /// Print the journal's records, one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Print the agent's output
    Logs {
        /// Iteration [default: the latest with output]
        iteration: Option<u32>,
    },
    /// Show the context usage of a session over time
    Context {
        /// Session [default: the latest with a reading]
        #[arg(long, value_name = "N")]
        session: Option<u32>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the iterations and their results
    History {
        /// List the reboots instead, with totals
        #[arg(long)]
        reboots: bool,
        /// Print one JSON object per iteration, or one for all reboots
        #[arg(long)]
        json: bool,
    },
    /// Explain the decisions after an iteration, and their inputs
    Explain {
        /// Iteration [default: the last]
        iteration: Option<u32>,
        /// Id of another loop, for example an archived one
        #[arg(long = "loop", value_name = "ID")]
        loop_id: Option<String>,
        /// Print events and decisions as JSON, one object per line
        #[arg(long)]
        json: bool,
    },
    /// Replay recorded decisions with different settings
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Show the changes of an iteration as a git diff
    Diff(DiffArgs),
    /// Restore the work tree to its state before an iteration
    #[command(
        after_help = "Branches, commits, the index, stashes, protected files, ignored files and submodules are not changed. The current work tree is \
        saved first and can be restored in the same way.\n\n\
        Examples:\n  tachikoma rollback 12\n  tachikoma rollback before-rollback-1"
    )]
    Rollback(RollbackArgs),
    /// Show the hand-off given to a new session
    Checkpoint {
        /// Action
        #[command(subcommand)]
        command: CheckpointCommand,
    },
    /// Add a note to the hand-off of all later sessions
    #[command(after_help = "The agent can run this command too.\n\n\
        Example:\n  tachikoma note \"the parser is done; the tests of the printer need a terminal\"")]
    Note {
        /// Text of the note
        #[arg(required = true, value_name = "TEXT")]
        words: Vec<String>,
    },
    /// Claim that the work is complete
    #[command(
        after_help = "The agent can run this command too. The claim is checked when the current iteration ends: every gate has to pass, and all objectives have to be ticked.\n\n\
        Example:\n  tachikoma done --reason \"all tests pass, the README is written\""
    )]
    Done {
        /// Reason, recorded with the claim
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Show, check, back up and restore the stored state
    State {
        /// Action
        #[command(subcommand)]
        command: StateCommand,
    },
    /// Trust the programs and permissions that tachikoma.toml names
    #[command(after_help = TRUST_HELP)]
    Trust {
        /// Remove all trust given in this directory
        #[arg(long)]
        revoke: bool,
    },
    /// Show and check the configuration
    Config {
        /// Action
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Test the notification targets
    Notify {
        /// Action
        #[command(subcommand)]
        command: NotifyCommand,
    },
    /// Decode recorded agent output
    Agents {
        /// Action
        #[command(subcommand)]
        command: AgentsCommand,
    },
    /// Run and supervise `opencode serve`
    #[command(
        after_help = "Settings are in `[opencode]` of tachikoma.toml, and `enabled = true` turns it on. The password is read from \
        OPENCODE_SERVER_PASSWORD.\n\nExample:\n  TACHIKOMA_OPENCODE__ENABLED=true tachikoma opencode up --detach"
    )]
    Opencode {
        /// Action
        #[command(subcommand)]
        command: OpencodeCommand,
    },
    /// Print a systemd or launchd unit
    Service {
        /// Action
        #[command(subcommand)]
        command: ServiceCommand,
    },
    /// Print a shell completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Help text of `doctor`.
const DOCTOR_HELP: &str = "\
Sends no request to a model and no notification. Gates run once, if the configuration is trusted. Exit code 1 means that a check found an error.";

/// Help text of `trust`.
const TRUST_HELP: &str = "\
Trusts exactly the settings that are printed, in this directory. If one of them changes, you are asked again. An existing loop in this \
directory is trusted too, with the programs of its launch. See docs/trust.md.

Examples:
  tachikoma run --dry-run     # show what would run
  tachikoma trust
  tachikoma run --trust       # trust for this run only";

/// Help text of `answer`.
const ANSWER_EXAMPLES: &str = "\
`tachikoma status` shows the question, its number, the possible answers, and the default after the timeout.

Examples:
  tachikoma answer continue
  tachikoma answer 7 rollback                     # only if question 7 is still open
  tachikoma answer edit --prompt-file next.md     # use another prompt for one iteration";

/// Arguments of `answer`.
#[derive(Clone, Debug, ClapArgs)]
pub struct AnswerArgs {
    /// Number of the question [default: the open one] and the answer: continue, skip, reboot, rollback, edit, yes, no, pause or stop
    #[arg(required = true, num_args = 1..=2, value_names = ["ID", "CHOICE"])]
    pub words: Vec<String>,
    /// File with the prompt for `edit`
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Turn it on
    On,
    /// Turn it off
    Off,
}

/// Arguments of `diff`.
#[derive(Clone, Debug, ClapArgs)]
pub struct DiffArgs {
    /// Iteration [default: the last]
    #[arg(value_parser = iteration)]
    pub iteration: Option<u32>,
    /// Print a diffstat
    #[arg(long, conflicts_with = "name_only")]
    pub stat: bool,
    /// Print only the names of changed files
    #[arg(long)]
    pub name_only: bool,
    /// List the snapshots and their commits
    #[arg(long, conflicts_with_all = ["iteration", "stat", "name_only"])]
    pub list: bool,
    /// Id of the loop [default: the current one]
    #[arg(long = "loop", value_name = "ID")]
    pub loop_id: Option<LoopId>,
}

/// Arguments of `rollback`.
#[derive(Clone, Debug, ClapArgs)]
pub struct RollbackArgs {
    /// Iteration, or the name of a saved work tree, such as before-rollback-1
    #[arg(value_name = "ITERATION")]
    pub to: Moment,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
    /// Id of the loop [default: the current one]
    #[arg(long = "loop", value_name = "ID")]
    pub loop_id: Option<LoopId>,
}

/// Subcommands of `checkpoint`.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Print the hand-off given to a session
    Show {
        /// Session [default: the latest]
        session: Option<u32>,
        /// Print the hand-off that a new session would get now
        #[arg(long, conflicts_with = "session")]
        now: bool,
    },
}

/// Subcommands of `config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every setting with its value and origin
    Show,
    /// Check all configuration files and variables
    Check,
    /// Print the JSON Schema of `tachikoma.toml`
    Schema,
}

/// Subcommands of `notify`.
#[derive(Debug, Subcommand)]
pub enum NotifyCommand {
    /// Send a test message to all targets, or to one
    Test {
        /// Number of the `[[notify]]` table, from 1
        number: Option<usize>,
    },
}

/// Help text of `replay`.
const REPLAY_EXAMPLES: &str = "\
Runs nothing and writes nothing. Without --set, the recorded settings are used, and every decision has to be the same.

Examples:
  tachikoma replay --set context_redline_percent=60
  tachikoma replay --set stop_conditions.max_consecutive_failures=3 --set iteration_delay=30s";

/// Arguments of `replay`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ReplayArgs {
    /// Setting to change: its dotted key in tachikoma.toml and a value; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Id of another loop, for example an archived one
    #[arg(long = "loop", value_name = "ID")]
    pub loop_id: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Help text of `run`.
const RUN_EXAMPLES: &str = "\
Examples:
  tachikoma run prompt.md --agent claude     # Claude Code
  tachikoma run --context-threshold 72.5     # fresh session at 72.5 %
  tachikoma run --context-threshold 100      # never a fresh session
  tachikoma run --context-tokens 150000      # fresh session at 150000 tokens
  tachikoma run --max-restarts 3             # at most 4 sessions, then an error
  tachikoma run --fresh-session              # fresh session for each iteration
  tachikoma run prompt.md -- my-agent        # any program
  tachikoma run                              # continue with the same arguments";

/// Arguments of `run`.
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// File with the prompt, read again before every iteration
    #[arg(conflicts_with = "prompt_text")]
    pub prompt: Option<PathBuf>,
    /// Text of the prompt
    #[arg(long, short = 'p', value_name = "TEXT")]
    pub prompt_text: Option<String>,
    /// Agent: claude (Claude Code), opencode, command (any program) or demo
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Model, as the agent names it
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Use a running OpenCode server, such as http://127.0.0.1:4096, and never restart it; `own` reverts this
    #[arg(long, value_name = "URL")]
    pub attach: Option<String>,
    /// Maximum number of iterations over all runs of the loop; 0 = no limit
    #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub max_iterations: Option<u32>,
    /// Stop at this cost, as reported by the agent; 0 = no limit
    #[arg(long, value_name = "USD", allow_negative_numbers = true)]
    pub max_cost: Option<f64>,
    /// Stop after this time, such as 8h, without waits for usage limits and answers; 0s = no limit
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub max_duration: Option<String>,
    /// Start a fresh session at this context usage, such as 85 or 72.5; 100 = never
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = percent)]
    pub context_threshold: Option<f64>,
    /// Start a fresh session at this many tokens of context; 0 = off
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub context_tokens: Option<u32>,
    /// Maximum number of reboots; 0 = never reboot
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub max_restarts: Option<u32>,
    /// Start a fresh session for every iteration
    #[arg(long)]
    pub fresh_session: bool,
    /// Wait this long after an iteration, such as 5s
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub delay: Option<String>,
    /// Print the journal's records, one JSON object per line
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Print only errors and the outcome
    #[arg(long, short)]
    pub quiet: bool,
    /// Start a new loop and archive the current one
    #[arg(long)]
    pub new: bool,
    /// Continue although records are lost; damaged files are moved to quarantine
    #[arg(long)]
    pub accept_loss: bool,
    /// Run the loop in the background
    #[arg(long)]
    pub detach: bool,
    /// Set by `--detach` for the background process
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
    /// Show what would be run, and exit
    #[arg(long)]
    pub dry_run: bool,
    /// Do not commit after iterations
    #[arg(long, conflicts_with = "auto_commit")]
    pub no_auto_commit: bool,
    /// Commit after iterations; reverts --no-auto-commit of an earlier run
    #[arg(long)]
    pub auto_commit: bool,
    /// Start even if tracked files have uncommitted changes
    #[arg(long)]
    pub allow_dirty: bool,
    /// Ask before the first and after each iteration
    #[arg(long, conflicts_with = "unattended")]
    pub attended: bool,
    /// Do not ask between iterations; reverts --attended of an earlier run
    #[arg(long)]
    pub unattended: bool,
    /// Trust the configuration and the loop in this directory, for this run
    #[arg(long)]
    pub trust: bool,
    /// Allow a start from inside the agent of another loop
    #[arg(long)]
    pub nested: bool,
    /// Program to run as the agent: reads the prompt from stdin; exit code 0 means success
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<String>,
}

/// Arguments of `demo`.
#[derive(Clone, Debug, ClapArgs)]
pub struct DemoArgs {
    /// Print the journal's records, one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Directory to use [default: a new temporary one]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Do not pause between the steps of the agent
    #[arg(long)]
    pub fast: bool,
}

/// Parses a count. The standard message ("invalid digit found in string") does not say which values are valid.
fn count(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("it must be a whole number from 0 to {}", u32::MAX))
}

/// Parses the number of an iteration.
fn iteration(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        Ok(_) | Err(_) => Err("it must be the number of an iteration, from 1".to_owned()),
    }
}

/// Parses a percentage of the context window.
fn percent(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.parse().ok();
    percent
        .filter(|percent| (1.0..=100.0).contains(percent))
        .ok_or_else(|| "it must be a percentage from 1 to 100, such as 85 or 72.5".to_owned())
}
