//! A server that is not there: it takes the command line of `opencode serve`, says where it listens as that does, answers
//! for its health, and misbehaves on request. For tests of everything around a server, without a server.
//!
//! A test crate gets the program by an example of its own: `fn main() -> ExitCode { fake_opencode::main() }`.
//! `docs/testing-agents.md` has the words of its script.

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
/// A directory in which starts are counted, and whatever is to outlive a server is kept.
pub const STATE_VAR: &str = "FAKE_OPENCODE_STATE";
/// As the real one's.
const PASSWORD_VAR: &str = "OPENCODE_SERVER_PASSWORD";
const USER_VAR: &str = "OPENCODE_SERVER_USERNAME";

/// How the servers behave, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// The first, second, ... one.
    pub starts: Vec<Misbehaviour>,
    /// All later ones.
    pub always: Misbehaviour,
    /// What each of them does with a prompt.
    pub turn: TurnScript,
}

/// What a server does with a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TurnScript {
    /// How many tools are run.
    pub tools: u32,
    /// What each of them is, for the shell.
    pub command: Option<String>,
    /// What is said in the end.
    pub text: String,
    /// How full the context is then.
    pub tokens: u64,
    /// Whether a conversation is compacted behind its first tool.
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

/// What one server does that it should not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Misbehaviour {
    /// Exits at once with this code.
    pub exit: Option<u8>,
    /// Exits with this code after it was asked for its health so many times.
    pub exit_after_health: Option<(u32, u8)>,
    /// Exits with this code when it gets SIGTERM, instead of dying by it.
    pub exit_on_sigterm: Option<u8>,
    /// Does not hear SIGTERM.
    pub ignore_sigterm: bool,
    /// Never listens, and says nothing.
    pub mute: bool,
    /// Takes every request and answers none, after so many that it answered.
    pub hang_after: Option<u32>,
    /// Answers every request with this page.
    pub html: Option<String>,
    /// Answers the question for its health with this.
    pub health: Option<String>,
    /// Wants this password, whatever it was told.
    pub password: Option<String>,
    /// Takes so much memory.
    pub leak_bytes: usize,
    /// Says that a session is busy while this file is there, below the state directory.
    pub busy_while: Option<String>,
    /// Leaves a process behind that has this in its command line and a session of its own.
    pub grandchild: Option<String>,
    /// Lets go of that process when it is asked to dispose of everything.
    pub disposes: bool,
    /// Says so much on standard output before it listens.
    pub noise_bytes: usize,
    /// Knows no conversation of an earlier server.
    pub forgets: bool,
    /// Takes so many prompts without noticing, and without an answer.
    pub loses_prompts: u32,
    /// Takes so many prompts and does not say so.
    pub swallows_answers: u32,
    /// Ends a stream of events behind so many, three times.
    pub cuts_streams_after: Option<u32>,
    /// Sends this behind every event.
    pub garbage: Option<String>,
    /// Answers the question for messages with this.
    pub messages: Option<String>,
    /// Its clock is set forward by so many milliseconds when it has taken so many prompts.
    pub clock_step: Option<(u32, u64)>,
    /// Takes a prompt that sorts before an answer for one that is answered, as older versions of OpenCode do.
    pub skips_older_prompts: bool,
    /// Ends all streams when a sub-agent begins, before anyone hears of it.
    pub cuts_births: bool,
}

/// A server that runs.
struct Server {
    misbehaviour: Misbehaviour,
    state: Option<PathBuf>,
    /// What a request has to prove, as the value of its header.
    authorization: Option<String>,
    grandchild: Option<i32>,
    answered: std::sync::atomic::AtomicU32,
    asked_for_health: std::sync::atomic::AtomicU32,
    prompts: std::sync::atomic::AtomicU32,
    cuts: std::sync::atomic::AtomicU32,
    conversations: Conversations,
    turn: TurnScript,
}

/// The whole program.
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
    // As little as the real one says.
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

    /// A connection that breaks has lost interest.
    fn attend(self: &Arc<Self>, mut stream: TcpStream) {
        if let Ok(Some(request)) = http::read(&mut stream) {
            let _ = self.answer(&request, &mut stream);
        }
    }
}

/// Writes a start down, and returns its number, from 0.
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

/// Whoever read it may be gone.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
