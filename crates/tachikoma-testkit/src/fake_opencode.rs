//! A fake OpenCode server: it accepts the command line of `opencode serve`, prints its address in the same form, answers health
//! requests, and misbehaves on request.
//!
//! A test crate builds the program as an example: `fn main() -> ExitCode { fake_opencode::main() }`.
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

/// Environment variable with the path of a file that contains a [`Script`].
pub const SCRIPT_VAR: &str = "FAKE_OPENCODE_SCRIPT";
/// Environment variable with a directory in which starts are counted and state is stored between servers.
pub const STATE_VAR: &str = "FAKE_OPENCODE_STATE";
/// Environment variable with the password, as for the real server.
const PASSWORD_VAR: &str = "OPENCODE_SERVER_PASSWORD";
const USER_VAR: &str = "OPENCODE_SERVER_USERNAME";

/// Behavior of servers that are started one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// How the first, second, ... server misbehaves.
    pub starts: Vec<Misbehavior>,
    /// How all servers after those of `starts` misbehave.
    pub always: Misbehavior,
    /// How each server answers a prompt.
    pub turn: TurnScript,
}

/// How a server answers a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TurnScript {
    /// Number of tool calls.
    pub tools: u32,
    /// Shell command of each tool call; `None` for a call without an effect.
    pub command: Option<String>,
    /// Text of the final answer.
    pub text: String,
    /// Context usage of the final answer, in tokens.
    pub tokens: u64,
    /// Whether the conversation is compacted after the first tool call.
    pub compacts: bool,
    /// Whether a sub-agent requests a permission before the first tool call.
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
pub struct Misbehavior {
    /// The server exits at once with this code.
    pub exit: Option<u8>,
    /// The server exits with this code after this many health requests.
    pub exit_after_health: Option<(u32, u8)>,
    /// The server exits with this code on SIGTERM, instead of being killed by it.
    pub exit_on_sigterm: Option<u8>,
    /// The server ignores SIGTERM.
    pub ignore_sigterm: bool,
    /// The server never listens, and prints nothing.
    pub mute: bool,
    /// After this many answers, the server accepts every request and answers none.
    pub hang_after: Option<u32>,
    /// The server answers every request with this web page.
    pub html: Option<String>,
    /// The server answers health requests with this text.
    pub health: Option<String>,
    /// The server requires this password instead of the one it was given.
    pub password: Option<String>,
    /// Number of bytes of memory that the server uses.
    pub leak_bytes: usize,
    /// The server reports a busy session while this file exists in the state directory.
    pub busy_while: Option<String>,
    /// The server leaves a process running in its own session, with this text in its command line.
    pub grandchild: Option<String>,
    /// The server ends that process when it is asked to dispose of its instances.
    pub disposes: bool,
    /// Number of bytes that the server prints before it listens.
    pub noise_bytes: usize,
    /// The server forgets the conversations of earlier servers.
    pub forgets: bool,
    /// The server accepts this many prompts and neither stores nor answers them.
    pub loses_prompts: u32,
    /// The server stores this many prompts and closes the connection without a response.
    pub swallows_answers: u32,
    /// The server ends an event stream after this many events, three times.
    pub cuts_streams_after: Option<u32>,
    /// The server sends an additional event with this text, which need not be JSON, after every event.
    pub garbage: Option<String>,
    /// The server answers requests for messages with this text.
    pub messages: Option<String>,
    /// The server's clock jumps forward by this many milliseconds after this many prompts.
    pub clock_step: Option<(u32, u64)>,
    /// The server treats a prompt with an id before that of an answer as answered, like older versions of OpenCode.
    pub skips_older_prompts: bool,
    /// The server ends all event streams when a sub-agent starts, before clients get the event.
    pub cuts_births: bool,
}

/// A running server.
struct Server {
    misbehavior: Misbehavior,
    state: Option<PathBuf>,
    /// Required value of the `Authorization` header; `None` if no password is required.
    authorization: Option<String>,
    grandchild: Option<i32>,
    answered: std::sync::atomic::AtomicU32,
    asked_for_health: std::sync::atomic::AtomicU32,
    prompts: std::sync::atomic::AtomicU32,
    cuts: std::sync::atomic::AtomicU32,
    conversations: Conversations,
    turn: TurnScript,
}

/// Runs the fake server as a program.
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
    misbehave::at_start(&server.misbehavior)?;
    if let Some(code) = server.misbehavior.exit {
        return Ok(code);
    }
    if server.misbehavior.mute {
        misbehave::for_ever();
    }
    let listener = TcpListener::bind((args.hostname.as_str(), args.port));
    // Like the real server, this prints few details.
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
        // The thread ends with its connection or with the program.
        thread::spawn(move || server.attend(stream));
    }
    Ok(0)
}

impl Server {
    fn new(misbehavior: Misbehavior, state: Option<PathBuf>, turn: TurnScript) -> Self {
        let variable = |name| std::env::var(name).ok();
        let password = misbehavior.password.clone().or(variable(PASSWORD_VAR));
        let user = variable(USER_VAR).unwrap_or_else(|| "opencode".to_owned());
        let grandchild = misbehavior.grandchild.as_deref().map(misbehave::leave);
        Self {
            conversations: Conversations::kept_in(state.as_ref(), misbehavior.forgets),
            turn,
            prompts: 0.into(),
            cuts: 0.into(),
            authorization: password.map(|password| format!("{user}:{password}")),
            misbehavior,
            state,
            grandchild,
            answered: 0.into(),
            asked_for_health: 0.into(),
        }
    }

    /// Serves one connection. An error means that the client has closed it.
    fn attend(self: &Arc<Self>, mut stream: TcpStream) {
        if let Ok(Some(request)) = http::read(&mut stream) {
            let _ = self.answer(&request, &mut stream);
        }
    }
}

/// Counts a start of the server. Returns its number, from 0.
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

/// Prints a line. Errors are ignored, because the reader may have exited.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
