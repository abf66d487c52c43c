//! What can be typed.

mod agents;
mod opencode;
mod state;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use tachikoma_core::LoopId;
use tachikoma_loop_runner::git::snapshots::Moment;

pub use agents::{AgentsCommand, DecodeArgs, DecodedAgent};
pub use opencode::{OpencodeCommand, ServiceCommand, ServiceKind, UpArgs};
pub use state::{FromArgs, StateCommand};

/// Leave a coding agent working alone for hours, and find the work where it ought to be.
#[derive(Debug, Parser)]
#[command(name = "tachikoma", version, max_term_width = 100)]
pub struct Args {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
    /// Print diagnostics to standard error; repeat it for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the loop here, or go on with it
    Run(RunArgs),
    /// Watch a scripted agent work, crash, be rebooted and finish, in a scratch directory
    Demo(DemoArgs),
    /// Show what the loop is doing
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
    /// Go on after a pause
    Resume,
    /// End the loop
    Stop {
        /// Do not wait for a tool call to end
        #[arg(long)]
        now: bool,
    },
    /// Give up the current iteration, or the current wait, and go on
    Skip,
    /// Replace the agent's session by a fresh one
    Reboot,
    /// Answer the question that the loop waits with: before or after an iteration, or before a reboot
    #[command(after_help = ANSWER_EXAMPLES)]
    Answer(AnswerArgs),
    /// Turn attended mode on or off
    Attend {
        /// Whether
        switch: Switch,
    },
    /// Tell the agent something: while its next tool runs where it can hear it, else with the next prompt
    #[command(
        after_help = "For this iteration or the next one, once. What all sessions to come have to know is a note: `tachikoma note`.\n\n\
        Examples:\n  tachikoma tell \"leave the parser alone, the printer is what is broken\"\n  tachikoma tell - <words.txt"
    )]
    Tell {
        /// The words, or - for those on standard input
        #[arg(required = true, value_name = "TEXT")]
        words: Vec<String>,
    },
    /// Read the configuration again: what changed holds from the next decision on
    Reload,
    /// Print what has happened
    Events {
        /// Go on printing what happens
        #[arg(long, short)]
        follow: bool,
        /// Print the journal's records, one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Print what the agent wrote
    Logs {
        /// The iteration; the latest that wrote something, if not given
        iteration: Option<u32>,
    },
    /// Show how full the context of a session became, reading by reading
    Context {
        /// The session; the latest with a reading, if not given
        #[arg(long, value_name = "N")]
        session: Option<u32>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show what became of each iteration
    History {
        /// Show the reboots instead: each attempt, and the sums
        #[arg(long)]
        reboots: bool,
        /// Print one JSON object per iteration; with --reboots, one for all of them
        #[arg(long)]
        json: bool,
    },
    /// Say why the loop went on, waited, rebooted or stopped: the decisions of an iteration, and what they were made from
    Explain {
        /// The iteration; the last, if not given
        iteration: Option<u32>,
        /// Another loop than the current one, such as an archived one
        #[arg(long = "loop", value_name = "ID")]
        loop_id: Option<String>,
        /// Print one JSON object per line: what happened, and each decision with its inputs
        #[arg(long)]
        json: bool,
    },
    /// Decide the recorded loop again by other settings, and show where it would have gone another way
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Show what an iteration changed, as git shows it
    Diff(DiffArgs),
    /// Bring the work tree back to what it was before an iteration
    #[command(
        after_help = "Branch, commits, index and stashes stay as they are, and so do protected and ignored files and submodules. What the \
        work tree is now is kept first, and can be brought back in the same way.\n\n\
        Examples:\n  tachikoma rollback 12\n  tachikoma rollback before-rollback-1"
    )]
    Rollback(RollbackArgs),
    /// Show the hand-off given to a new session
    Checkpoint {
        /// What to do with it
        #[command(subcommand)]
        command: CheckpointCommand,
    },
    /// Leave a note for the sessions to come: what was found out, decided, or is left to do
    #[command(
        after_help = "For the agent as well as for you. The notes are in the hand-off of every session that takes over.\n\n\
        Example:\n  tachikoma note \"the parser is done; the tests of the printer need a terminal\""
    )]
    Note {
        /// The note
        #[arg(required = true, value_name = "TEXT")]
        words: Vec<String>,
    },
    /// Claim that the whole work is complete: judged when the iteration under way is over
    #[command(
        after_help = "For the agent as well as for you. The claim is believed if every gate passes and all objectives are ticked.\n\n\
        Example:\n  tachikoma done --reason \"all tests pass, the README is written\""
    )]
    Done {
        /// Why
        #[arg(long, value_name = "WORDS")]
        reason: Option<String>,
    },
    /// Look at the state that is kept, and change it
    State {
        /// What to do with it
        #[command(subcommand)]
        command: StateCommand,
    },
    /// Allow the programs and permissions that the configuration here names
    #[command(after_help = TRUST_HELP)]
    Trust {
        /// Forget everything that was trusted in this directory
        #[arg(long)]
        revoke: bool,
    },
    /// Look at the configuration
    Config {
        /// What to do with it
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Try the messages of `[[notify]]`
    Notify {
        /// What to do with them
        #[command(subcommand)]
        command: NotifyCommand,
    },
    /// Look at what agents write
    Agents {
        /// What to do with it
        #[command(subcommand)]
        command: AgentsCommand,
    },
    /// Keep `opencode serve` running
    #[command(
        after_help = "Settings are in `[opencode]` of tachikoma.toml; `enabled = true` switches it on. A password is taken from \
        OPENCODE_SERVER_PASSWORD.\n\nExample:\n  TACHIKOMA_OPENCODE__ENABLED=true tachikoma opencode up --detach"
    )]
    Opencode {
        /// What to do with it
        #[command(subcommand)]
        command: OpencodeCommand,
    },
    /// Have the system's own supervisor run something of ours
    Service {
        /// What to do with it
        #[command(subcommand)]
        command: ServiceCommand,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// What is trusted, and what is not.
const TRUST_HELP: &str = "\
Exactly the settings that are printed are trusted, in this directory. When one of them changes, you are asked again. A loop that is \
here is adopted, with the programs of its launch. See docs/trust.md.

Examples:
  tachikoma run --dry-run     # look at what would run
  tachikoma trust
  tachikoma run --trust       # only this run, and not recorded";

/// How a question is answered, by example.
const ANSWER_EXAMPLES: &str = "\
`tachikoma status` shows the question, its number, what can be answered, and what holds when nobody does.

Examples:
  tachikoma answer continue
  tachikoma answer 7 rollback                     # only if it is still question 7
  tachikoma answer edit --prompt-file next.md     # another prompt, for one iteration";

/// What to answer.
#[derive(Clone, Debug, ClapArgs)]
pub struct AnswerArgs {
    /// The number of the question, the open one if not given, and the answer: continue, skip, reboot, rollback, edit, yes, no, pause, stop
    #[arg(required = true, num_args = 1..=2, value_names = ["ID", "CHOICE"])]
    pub words: Vec<String>,
    /// The prompt that goes with `edit`
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// From now on
    On,
    /// Off
    Off,
}

/// What to compare.
#[derive(Clone, Debug, ClapArgs)]
pub struct DiffArgs {
    /// The iteration; the last, if not given
    #[arg(value_parser = iteration)]
    pub iteration: Option<u32>,
    /// Print the names of the files and how much changed in each
    #[arg(long, conflicts_with = "name_only")]
    pub stat: bool,
    /// Print the names of the files
    #[arg(long)]
    pub name_only: bool,
    /// Print which snapshots there are, and in which commits
    #[arg(long, conflicts_with_all = ["iteration", "stat", "name_only"])]
    pub list: bool,
    /// The loop; the current one, if not given
    #[arg(long = "loop", value_name = "ID")]
    pub loop_id: Option<LoopId>,
}

/// Where to go back to.
#[derive(Clone, Debug, ClapArgs)]
pub struct RollbackArgs {
    /// The iteration, or the name of what an earlier rollback has kept, such as before-rollback-1
    #[arg(value_name = "ITERATION")]
    pub to: Moment,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    /// The loop; the current one, if not given
    #[arg(long = "loop", value_name = "ID")]
    pub loop_id: Option<LoopId>,
}

/// What can be done with hand-offs.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Print the hand-off that a session got
    Show {
        /// The session; the latest, if not given
        session: Option<u32>,
        /// Print the hand-off that a new session would get now
        #[arg(long, conflicts_with = "session")]
        now: bool,
    },
}

/// What can be done with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every setting with its value and where that comes from
    Show,
    /// Check all files and variables
    Check,
    /// Print the JSON Schema of `tachikoma.toml`
    Schema,
}

/// What can be done with messages.
#[derive(Debug, Subcommand)]
pub enum NotifyCommand {
    /// Send a message to every target, or to one
    Test {
        /// The number of its `[[notify]]`, from 1
        number: Option<usize>,
    },
}

/// How a loop is decided again, by example.
const REPLAY_EXAMPLES: &str = "\
Nothing is run and nothing is written. Without --set the settings are those of the record, and nothing may differ.

Examples:
  tachikoma replay --set context_redline_percent=60
  tachikoma replay --set stop_conditions.max_consecutive_failures=3 --set iteration_delay=30s";

/// By which settings to decide again.
#[derive(Clone, Debug, ClapArgs)]
pub struct ReplayArgs {
    /// A setting, by its key in `tachikoma.toml`, written with dots; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Another loop than the current one, such as an archived one
    #[arg(long = "loop", value_name = "ID")]
    pub loop_id: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// How a loop is run, by example.
const RUN_EXAMPLES: &str = "\
Examples:
  tachikoma run prompt.md --agent claude     # Claude Code
  tachikoma run --context-threshold 72.5     # a fresh session from 72.5 % on
  tachikoma run --context-threshold 100      # never one
  tachikoma run --context-tokens 150000      # or from 150000 tokens on
  tachikoma run --max-restarts 3             # at most 4 sessions, then an error
  tachikoma run --fresh-session              # each iteration begins anew
  tachikoma run prompt.md -- my-agent        # any program
  tachikoma run                              # go on, with what was given before";

/// How to run a loop.
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// The file with the prompt, read again at every iteration
    #[arg(conflicts_with = "prompt_text")]
    pub prompt: Option<PathBuf>,
    /// The prompt itself
    #[arg(long, short = 'p', value_name = "TEXT")]
    pub prompt_text: Option<String>,
    /// The agent: claude (Claude Code), opencode, command (any program), demo
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// The model, by the agent's own name for it
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Use the OpenCode server at this address, such as http://127.0.0.1:4096, and never restart it; `own` takes that back
    #[arg(long, value_name = "URL")]
    pub attach: Option<String>,
    /// How many iterations the loop may run over all its runs; 0 = no limit
    #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub max_iterations: Option<u32>,
    /// Stop when the agent's own figures say that the loop has cost this much; 0 = no limit
    #[arg(long, value_name = "USD", allow_negative_numbers = true)]
    pub max_cost: Option<f64>,
    /// Stop after this much work, such as 8h; waits for usage limits and for you do not count; 0s = no limit
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub max_duration: Option<String>,
    /// Replace the session by a fresh one when its context is this full, in percent, such as 85 or 72.5; 100 = never
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = percent)]
    pub context_threshold: Option<f64>,
    /// Replace the session at this many tokens of context; 0 = off
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub context_tokens: Option<u32>,
    /// How often the session may be replaced; 0 = never
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub max_restarts: Option<u32>,
    /// Give every iteration a session of its own
    #[arg(long)]
    pub fresh_session: bool,
    /// How long to wait after an iteration, such as 5s
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub delay: Option<String>,
    /// Print the journal's records, one JSON object per line
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Print nothing but errors and the outcome
    #[arg(long, short)]
    pub quiet: bool,
    /// Begin a new loop, even if the last one could go on; that one is archived
    #[arg(long)]
    pub new: bool,
    /// Go on although records of the loop are lost; what is left of them is kept in quarantine
    #[arg(long)]
    pub accept_loss: bool,
    /// Leave the loop running in the background
    #[arg(long)]
    pub detach: bool,
    /// This is the process in the background: said by ourselves
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
    /// Say what would be run, and do not
    #[arg(long)]
    pub dry_run: bool,
    /// Do not commit after iterations
    #[arg(long, conflicts_with = "auto_commit")]
    pub no_auto_commit: bool,
    /// Commit after iterations: takes back the --no-auto-commit of an earlier run
    #[arg(long)]
    pub auto_commit: bool,
    /// Start even if tracked files have changes that are not committed
    #[arg(long)]
    pub allow_dirty: bool,
    /// Ask before the first iteration and after each
    #[arg(long, conflicts_with = "unattended")]
    pub attended: bool,
    /// Ask nothing between iterations: takes back the --attended of an earlier run
    #[arg(long)]
    pub unattended: bool,
    /// Trust the configuration and the loop that are here, for this run only
    #[arg(long)]
    pub trust: bool,
    /// Start even from inside the agent of another loop
    #[arg(long)]
    pub nested: bool,
    /// A program to be run as the agent: it gets the prompt on its standard input, and exit code 0 means success
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<String>,
}

/// How to run the demonstration.
#[derive(Clone, Debug, ClapArgs)]
pub struct DemoArgs {
    /// Print the journal's records, one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Where to work; a temporary directory, removed afterwards, if not given
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Reads a number of things. The usual message ("invalid digit found in string") does not say what would be right.
fn count(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("it must be a whole number from 0 to {}", u32::MAX))
}

/// Reads the number of an iteration.
fn iteration(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        Ok(_) | Err(_) => Err("it must be the number of an iteration, from 1".to_owned()),
    }
}

/// Reads a share of a context window.
fn percent(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.parse().ok();
    percent
        .filter(|percent| (1.0..=100.0).contains(percent))
        .ok_or_else(|| "it must be a percentage from 1 to 100, such as 85 or 72.5".to_owned())
}
