//! A scripted model: it answers real agents from a scenario, over the Messages API and chat completions, on a local port. Every
//! request is logged, so that a test can compare it with reports.

mod answer;
mod completions;
pub(crate) mod http;
pub(crate) mod message;
mod request;
mod stop;

pub use request::{Asked, Dialect, Kind, Request};

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use serde_json::{Value, json};

use crate::scenario::{Scenario, Turn};
use stop::Stop;

/// Maximum number of connections. An agent has one or two at a time, its sub-agents a few more.
const CONNECTIONS_MAX: usize = 64;

/// Number of characters of the last prompt in the log: enough to recognize it.
const LAST_USER_CHARS: usize = 4_000;

/// Maximum number of requests in the log. A test makes some hundreds.
const LOG_MAX: usize = 100_000;

/// Computes an answer from a request; `None` means that the scenario answers.
type Reaction = Box<dyn FnMut(&Request) -> Option<Turn> + Send>;

/// Port and log of the scripted model.
#[derive(Debug, Clone, Default)]
pub struct Listening {
    /// Port to listen at; 0 means any free port.
    pub port: u16,
    /// File to which each line of the log is written as JSON; `None` = no file.
    pub log: Option<PathBuf>,
}

/// A running model. When it is dropped, all its connections are closed and its threads joined.
pub struct ScriptedModel {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedModel({})", self.address)
    }
}

/// State that all connections share.
struct Shared {
    started: Instant,
    stop: Stop,
    script: Mutex<Script>,
    log: Mutex<Log>,
    open: Mutex<BTreeMap<u64, TcpStream>>,
}

/// The position in the scenario.
struct Script {
    scenario: Scenario,
    reaction: Option<Reaction>,
    main: usize,
    subagent: usize,
    answered: u64,
    /// Prompts of sub-agents, by which their requests are recognized.
    agent_prompts: Vec<String>,
}

#[derive(Default)]
struct Log {
    lines: Vec<Asked>,
    file: Option<File>,
}

/// Locks a mutex, even after a panic. A panic in a reaction is reported when the model is dropped.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ScriptedModel {
    /// Starts a model that answers from the scenario.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    #[must_use]
    pub fn start(scenario: Scenario) -> Self {
        Self::listen(scenario, None, &Listening::default()).expect("a port on loopback")
    }

    /// Starts a model that answers with `reaction`, except for token counts. If it returns `None`, the scenario answers.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    #[must_use]
    pub fn reacting(
        scenario: Scenario,
        reaction: impl FnMut(&Request) -> Option<Turn> + Send + 'static,
    ) -> Self {
        let reaction: Option<Reaction> = Some(Box::new(reaction));
        Self::listen(scenario, reaction, &Listening::default()).expect("a port on loopback")
    }

    /// Starts a model at the given port.
    ///
    /// # Errors
    ///
    /// If the port is taken or the log cannot be created.
    pub fn listening(scenario: Scenario, listening: &Listening) -> io::Result<Self> {
        Self::listen(scenario, None, listening)
    }

    fn listen(
        scenario: Scenario,
        reaction: Option<Reaction>,
        listening: &Listening,
    ) -> io::Result<Self> {
        let file = listening.log.as_ref().map(File::create).transpose()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, listening.port))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            started: Instant::now(),
            stop: Stop::default(),
            script: Mutex::new(Script {
                scenario,
                reaction,
                main: 0,
                subagent: 0,
                answered: 0,
                agent_prompts: Vec::new(),
            }),
            log: Mutex::new(Log {
                lines: Vec::new(),
                file,
            }),
            open: Mutex::default(),
        });
        let for_acceptor = Arc::clone(&shared);
        let acceptor = thread::spawn(move || accept(&listener, &for_acceptor));
        Ok(Self {
            address,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Returns the address of the model.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the value for `ANTHROPIC_BASE_URL`. The base URL of the chat completions API is this URL plus `/v1`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns every request so far, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.log).lines.clone()
    }

    /// Returns the requests of one kind.
    #[must_use]
    pub fn asked_for(&self, kind: Kind) -> Vec<Asked> {
        let mut asked = self.asked();
        asked.retain(|asked| asked.kind == kind);
        asked
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.shared.stop.stop();
        for stream in lock(&self.shared.open).values() {
            // Shutting down fails if the connection is already closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
        // A connection wakes the accepting thread, which then notices the stop.
        let _ = TcpStream::connect(self.address);
        let joined = self.acceptor.take().map(JoinHandle::join);
        let panicked = matches!(joined, Some(Err(_)));
        assert!(
            !panicked || thread::panicking(),
            "a thread of the scripted model panicked; its message is above"
        );
    }
}

/// Accepts connections until the stop, then waits for all of them.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    for number in 0.. {
        let Ok((mut stream, _)) = listener.accept() else {
            // The client closed the connection before it was accepted.
            continue;
        };
        if shared.stop.is_stopped() {
            break;
        }
        let (ended, running): (Vec<_>, Vec<_>) =
            connections.into_iter().partition(JoinHandle::is_finished);
        connections = running;
        join(ended);
        if connections.len() >= CONNECTIONS_MAX {
            let _ = answer::refuse(
                &mut stream,
                503,
                "api_error",
                "too many connections",
                &BTreeMap::new(),
            );
            continue;
        }
        let Ok(handle) = stream.try_clone() else {
            continue;
        };
        lock(&shared.open).insert(number, handle);
        let shared = Arc::clone(shared);
        connections.push(thread::spawn(move || {
            let _closed = Closed(&shared, number);
            // An error means that the client has closed the connection. Its answer is in the log.
            let _ = serve(&mut stream, &shared);
        }));
    }
    // These connections were opened after the stop.
    for stream in lock(&shared.open).values() {
        let _ = stream.shutdown(Shutdown::Both);
    }
    join(connections);
}

/// Joins threads and forwards a panic.
fn join(threads: Vec<JoinHandle<()>>) {
    let results: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
    for result in results {
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Removes a connection from the list of open ones when it is dropped, even after a panic.
struct Closed<'a>(&'a Shared, u64);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        lock(&self.0.open).remove(&self.1);
    }
}

/// Answers one request.
fn serve(stream: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let none = BTreeMap::new();
    let raw = match http::read(stream) {
        Ok(Some(raw)) => raw,
        Ok(None) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            let why = error.to_string();
            return answer::refuse(stream, 400, "invalid_request_error", &why, &none);
        }
        Err(error) => return Err(error),
    };
    let counting = match (raw.method.as_str(), raw.path.as_str()) {
        ("POST", "/v1/messages" | "/v1/chat/completions") => false,
        ("POST", "/v1/messages/count_tokens") => true,
        ("HEAD", _) | ("GET", "/") => return http::respond(stream, 200, "text/plain", &none, b""),
        (method, path) => {
            let why = format!("no such endpoint: {method} {path}");
            return answer::refuse(stream, 404, "not_found_error", &why, &none);
        }
    };
    let Ok(body) = serde_json::from_slice::<Value>(&raw.body) else {
        let why = "the body is not JSON";
        return answer::refuse(stream, 400, "invalid_request_error", why, &none);
    };
    let dialect = match raw.path.as_str() {
        "/v1/chat/completions" => Dialect::Completions,
        _ => Dialect::Messages,
    };
    if counting {
        let request = Request::new(true, raw.headers, body, &[]);
        // The count is an estimate: a token has about four bytes.
        let tokens = raw.body.len() / 4;
        shared.log(&request, "count".into(), None);
        let body = json!({"input_tokens": tokens}).to_string();
        return http::respond(stream, 200, "application/json", &none, body.as_bytes());
    }
    let (request, turn, number) = shared.next(dialect, raw.headers, body);
    let (word, usage) = answer::account(&turn);
    shared.log(&request, word, usage);
    answer::answer(stream, &request, &turn, number, &shared.stop)
}

impl Shared {
    /// Returns the parsed request, its answer, and the number of the answer.
    fn next(
        &self,
        dialect: Dialect,
        headers: BTreeMap<String, String>,
        body: Value,
    ) -> (Request, Turn, u64) {
        let mut script = lock(&self.script);
        let mut request = Request::new(false, headers, body, &script.agent_prompts);
        request.dialect = dialect;
        let reaction = script.reaction.as_mut();
        let computed = reaction.and_then(|reaction| reaction(&request));
        let mut turn = computed.unwrap_or_else(|| script.scripted(&request));
        turn.usage = turn.usage.settled(request.tool_results);
        script.remember(&turn);
        script.answered += 1;
        (request, turn, script.answered)
    }

    fn log(&self, request: &Request, answer: String, usage: Option<crate::scenario::Usage>) {
        let at = self.started.elapsed().as_millis();
        let chars = request.last_user.chars().count();
        let end = request.last_user.chars();
        let end = end.skip(chars.saturating_sub(LAST_USER_CHARS)).collect();
        let asked = Asked {
            at_ms: u64::try_from(at).unwrap_or(u64::MAX),
            kind: request.kind,
            model: request.model.clone(),
            session: request.session.clone(),
            stream: request.stream,
            messages: request.messages,
            prompts: request.prompts,
            tool_results: request.tool_results,
            last_user: end,
            answer,
            usage,
        };
        let mut log = lock(&self.log);
        if let Some(file) = &mut log.file {
            let line = serde_json::to_string(&asked).expect("it is data");
            writeln!(file, "{line}").expect("the log can be written");
        }
        if log.lines.len() < LOG_MAX {
            log.lines.push(asked);
        }
    }
}

impl Script {
    /// Returns the scenario's answer to a request.
    fn scripted(&mut self, request: &Request) -> Turn {
        let scenario = &self.scenario;
        let or_text = |turn: &Option<Turn>, text: &str| {
            let turn = turn.clone();
            turn.unwrap_or_else(|| Turn::text(text))
        };
        match request.kind {
            Kind::Helper | Kind::CountTokens => or_text(&scenario.helper, "An errand, run."),
            Kind::Compaction => or_text(
                &scenario.compaction,
                "<summary>What happened, in short.</summary>",
            ),
            Kind::Subagent => {
                let turn = scenario.subagent.get(self.subagent).cloned();
                self.subagent += 1;
                turn.unwrap_or_else(|| Turn::text("The sub-agent is done."))
            }
            Kind::Main => scenario.rule_for(&request.last_user).unwrap_or_else(|| {
                let turn = scenario.turn_at(self.main);
                self.main += 1;
                turn
            }),
        }
    }

    /// Stores the prompts of sub-agents, by which their requests are recognized later.
    fn remember(&mut self, turn: &Turn) {
        let agents = turn
            .tools
            .iter()
            .filter(|tool| tool.name == "Agent" || tool.name == "Task");
        for prompt in agents.filter_map(|tool| tool.input["prompt"].as_str()) {
            if !self.agent_prompts.iter().any(|known| known == prompt) {
                self.agent_prompts.push(prompt.to_owned());
            }
        }
    }
}
