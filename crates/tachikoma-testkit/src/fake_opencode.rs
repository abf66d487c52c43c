//! A fake server: it takes the command line of `opencode serve`, prints its address in the same form, answers
//! health checks, and misbehaves on request. For tests of everything around a server.
//!
//! A test crate gets the program by its own example: `fn main() -> ExitCode { fake_opencode::main() }`.
//! `docs/testing-agents.md` describes its script.

mod api;
mod args;
mod conversations;
mod misbehave;
mod routes;
mod turn;

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::model::http;
use args::Args;
use conversations::Conversations;

/// The script: a file with a [`Script`].
pub const SCRIPT_VAR: &str = "FAKE_OPENCODE_SCRIPT";
/// A directory in which starts are counted, and state is kept between servers.
pub const STATE_VAR: &str = "FAKE_OPENCODE_STATE";
/// The variable of the real server.
const PASSWORD_VAR: &str = "OPENCODE_SERVER_PASSWORD";
const USER_VAR: &str = "OPENCODE_SERVER_USERNAME";

/// How the servers behave, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// The first, second, ... server.
    pub starts: Vec<Misbehaviour>,
    /// All later servers.
    pub always: Misbehaviour,
    /// What each of them does with a prompt.
    pub turn: TurnScript,
}

/// What a server does with a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TurnScript {
    /// The number of tools.
    pub tools: u32,
    /// The command of each tool.
    pub command: Option<String>,
    /// The final text.
    pub text: String,
    /// The fill of the context then.
    pub tokens: u64,
    /// Whether a conversation is compacted after its first tool.
    pub compacts: bool,
    /// Whether a sub-agent asks for a permission before the first tool.
    pub child_asks: bool,
}

impl Default for TurnScript {
    fn default() -> Self {
        Self {
            tools: 1,
            command: None,
            text: "Done.".to_owned(),
            tokens: 5_000,
            compacts: false,
            child_asks: false,
        }
    }
}

/// How one server misbehaves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Misbehaviour {
    /// Exits at once with this code.
    pub exit: Option<u8>,
    /// Exits with this code after this many health checks.
    pub exit_after_health: Option<(u32, u8)>,
    /// Exits with this code on SIGTERM, instead of being killed by it.
    pub exit_on_sigterm: Option<u8>,
    /// Ignores SIGTERM.
    pub ignore_sigterm: bool,
    /// Never listens, and prints nothing.
    pub mute: bool,
    /// Accepts every request and answers none, after this many answers.
    pub hang_after: Option<u32>,
    /// Answers every request with this page.
    pub html: Option<String>,
    /// Answers health checks with this.
    pub health: Option<String>,
    /// Requires this password instead of the given one.
    pub password: Option<String>,
    /// Uses this much memory.
    pub leak_bytes: usize,
    /// Reports a busy session while this file exists in the state directory.
    pub busy_while: Option<String>,
    /// Leaves a process running that has this in its command line and its own session.
    pub grandchild: Option<String>,
    /// Ends that process when it is asked to dispose of everything.
    pub disposes: bool,
    /// Prints this much before it listens.
    pub noise_bytes: usize,
    /// Forgets the conversations of earlier servers.
    pub forgets: bool,
    /// Accepts this many prompts without storing and answering them.
    pub loses_prompts: u32,
    /// Accepts this many prompts without confirming them.
    pub swallows_answers: u32,
    /// Ends a stream of events after this many, three times.
    pub cuts_streams_after: Option<u32>,
    /// Sends this after every event.
    pub garbage: Option<String>,
    /// Answers requests for messages with this.
    pub messages: Option<String>,
    /// Its clock jumps forward by this many milliseconds after this many prompts.
    pub clock_step: Option<(u32, u64)>,
    /// Treats a prompt that sorts before an answer as answered, like older versions of OpenCode.
    pub skips_older_prompts: bool,
    /// Ends all streams when a sub-agent begins, before clients get the event.
    pub cuts_births: bool,
}

/// A running server.
struct Server {
    misbehaviour: Misbehaviour,
    state: Option<PathBuf>,
    /// The required value of the authorization header.
    authorization: Option<String>,
    grandchild: Option<i32>,
    answered: std::sync::atomic::AtomicU32,
    asked_for_health: std::sync::atomic::AtomicU32,
    prompts: std::sync::atomic::AtomicU32,
    cuts: std::sync::atomic::AtomicU32,
    conversations: Conversations,
    turn: TurnScript,
}

/// Runs the program.
#[must_use]
#[expect(clippy::print_stderr, reason = "it is a program's main")]
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<u8, String> {
    let args = Args::parse(words)?;
    let path = |name| std::env::var_os(name).map(PathBuf::from);
    let state = path(STATE_VAR);
    let number = match &state {
        Some(state) => note_start(state, words)?,
        None => 0,
    };
    let script = match path(SCRIPT_VAR) {
        Some(script) => read_script(&script)?,
        None => Script::default(),
    };
    let mine = script.starts.get(number).unwrap_or(&script.always).clone();
    let server = Server::new(mine, state, script.turn);
    misbehave::at_start(&server.misbehaviour)?;
    if let Some(code) = server.misbehaviour.exit {
        return Ok(code);
    }
    if server.misbehaviour.mute {
        misbehave::for_ever();
    }
    let listener = TcpListener::bind((args.hostname.as_str(), args.port));
    // As little output as the real server.
    let listener = listener.map_err(|_| "Unexpected error\n\nServeError".to_owned())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?;
    say(&format!(
        "opencode server listening on http://{}:{}",
        args.hostname,
        port.port()
    ));
    let server = Arc::new(server);
    for stream in listener.incoming().flatten() {
        let server = Arc::clone(&server);
        // Ends with its connection, or with the program.
        thread::spawn(move || server.attend(stream));
    }
    Ok(0)
}

impl Server {
    fn new(misbehaviour: Misbehaviour, state: Option<PathBuf>, turn: TurnScript) -> Self {
        let variable = |name| std::env::var(name).ok();
        let password = misbehaviour.password.clone().or(variable(PASSWORD_VAR));
        let user = variable(USER_VAR).unwrap_or_else(|| "opencode".to_owned());
        let grandchild = misbehaviour.grandchild.as_deref().map(misbehave::leave);
        Self {
            conversations: Conversations::kept_in(state.as_ref(), misbehaviour.forgets),
            turn,
            prompts: 0.into(),
            cuts: 0.into(),
            authorization: password.map(|password| format!("{user}:{password}")),
            misbehaviour,
            state,
            grandchild,
            answered: 0.into(),
            asked_for_health: 0.into(),
        }
    }

    /// A broken connection means that the client is gone.
    fn attend(self: &Arc<Self>, mut stream: TcpStream) {
        if let Ok(Some(request)) = http::read(&mut stream) {
            let _ = self.answer(&request, &mut stream);
        }
    }
}

/// Records a start, and returns its number, from 0.
fn note_start(state: &Path, words: &[String]) -> Result<usize, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", state.display());
    fs::create_dir_all(state).map_err(failed)?;
    let path = state.join("starts.jsonl");
    let before = fs::read_to_string(&path).unwrap_or_default();
    let cwd = std::env::current_dir().map_err(failed)?;
    let start = serde_json::json!({
        "pid": std::process::id(),
        "args": words,
        "cwd": cwd,
    });
    let mut options = fs::OpenOptions::new();
    let file = options.create(true).append(true).open(&path);
    writeln!(file.map_err(failed)?, "{start}").map_err(failed)?;
    Ok(before.lines().count())
}

fn read_script(path: &Path) -> Result<Script, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The reader may be gone.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
