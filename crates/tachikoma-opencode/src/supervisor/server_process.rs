//! The process of the server: starts it below a guard, reads its output, and sends requests to it.

use std::ffi::OsString;
use std::net::TcpListener;
use std::time::Duration;

use serde_json::Value;
use tachikoma_agents::line::LineSplitter;
use tachikoma_core::supervise::{Answered, ServerInput, ServerPhase};
use tachikoma_core::{Generation, error_chain};
use tachikoma_process::{
    Guard, GuardOptions, GuardReport, Spawn, SpawnSubject, StopSignal, input, memory_below, output,
};
use tachikoma_runtime::task;
use tachikoma_store::StoreError;
use tachikoma_store::lock::WorkLock;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use super::command_line::{self, address, host, listening_port};
use super::log::LogSender;
use super::{SupervisorError, SupervisorSettings};
use crate::client::{Address, Client, Failure, Login, Request};

/// Timeout of a health request during the start. A starting server never answers requests that come too early, so the next one has
/// to follow soon.
const START_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout of a health request. A busy server may answer slowly.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of bytes per read from the server's output.
const CHUNK_BYTES: usize = 16 * 1024;

/// Maximum length in bytes of the line with the server's address.
const LINE_BYTES_MAX: usize = 4 * 1024;

/// How long the rest of the output is read after the server has ended. A descendant of the server can keep the pipes open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Owns the guard, the current server, and the tasks that send requests to the server.
#[derive(Debug)]
pub(super) struct ServerProcess {
    /// User name and password of the server; `None` if it has no password.
    login: Option<Login>,
    /// The guard process; `None` before the first start, and after it was killed.
    guard: Option<Guard>,
    /// The server that was started last; `None` if it has ended.
    current: Option<Current>,
    /// Requests to the server and readers of its output. Each task returns an input for the core, or `None`.
    tasks: JoinSet<Option<ServerInput>>,
    /// The running health request; `None` if there is none.
    probe: Option<AbortHandle>,
    /// Channel on which the readers of the output send the address of a server.
    listening: (mpsc::Sender<Listening>, mpsc::Receiver<Listening>),
}

/// Number of a server, and the address at which it listens.
type Listening = (Generation, Address);

#[derive(Debug)]
struct Current {
    generation: Generation,
    /// Address at which the server listens; `None` until it has printed its port, if it chooses the port itself.
    address: Option<Address>,
    /// Dropping the sender tells the task that reads the output that the server has ended.
    _reader: oneshot::Sender<()>,
}

impl ServerProcess {
    pub fn new(login: Option<Login>) -> Self {
        Self {
            login,
            guard: None,
            current: None,
            tasks: JoinSet::new(),
            probe: None,
            listening: mpsc::channel(16),
        }
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn next(
        &mut self,
        settings: &SupervisorSettings,
    ) -> Result<Option<ServerInput>, SupervisorError> {
        let guard = async {
            match &mut self.guard {
                Some(guard) => guard.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            report = guard => Ok(Some(self.guard_report(report, settings))),
            Some((generation, address)) = self.listening.1.recv() => {
                if let Some(current) = &mut self.current
                    && current.generation == generation
                {
                    current.address = Some(address);
                }
                Ok(Some(ServerInput::Listening { generation }))
            }
            Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => match ended {
                Ok(input) => Ok(input),
                Err(error) if error.is_panic() => {
                    let name = "task of the supervisor";
                    let reason = task::panicked(name, error.into_panic().as_ref());
                    Err(SupervisorError::Broken(reason))
                }
                Err(_) => Ok(None),
            },
        }
    }

    fn guard_report(&mut self, report: GuardReport, settings: &SupervisorSettings) -> ServerInput {
        match report {
            GuardReport::Spawned { generation, pid } => ServerInput::Spawned {
                generation: Generation(generation),
                pid,
            },
            GuardReport::SpawnFailed {
                generation,
                subject,
                message,
                ..
            } => {
                self.current = None;
                let words = command_line::argv(&settings.opencode).unwrap_or_default();
                let program = words.first().map_or("", String::as_str);
                ServerInput::NotStarted {
                    generation: Generation(generation),
                    why: match subject {
                        SpawnSubject::Program => format!(
                            "`{program}`: {message}; install OpenCode, or set `opencode.serve_command` to the command that starts it"
                        ),
                        SpawnSubject::WorkingDirectory => {
                            format!("the working directory cannot be used: {message}")
                        }
                        SpawnSubject::Guard => format!("`{program}`: {message}"),
                    },
                }
            }
            GuardReport::Exited {
                generation,
                exit,
                leftovers,
                ..
            } => {
                self.forget();
                ServerInput::Exited {
                    generation: Generation(generation),
                    exit,
                    leftovers,
                }
            }
            GuardReport::Lost { .. } => {
                self.guard = None;
                self.forget();
                ServerInput::GuardLost
            }
        }
    }

    /// Clears the data of the last server and aborts its health request.
    fn forget(&mut self) {
        self.current = None;
        if let Some(probe) = self.probe.take() {
            probe.abort();
        }
    }

    /// Starts the server. Returns the failure as an input for the core, if it is known at once.
    pub fn start(
        &mut self,
        settings: &SupervisorSettings,
        generation: Generation,
        lock: &WorkLock,
        log: LogSender,
    ) -> Result<Option<ServerInput>, SupervisorError> {
        self.forget();
        let not_started = |why| Ok(Some(ServerInput::NotStarted { generation, why }));
        let hostname = settings.opencode.serve_hostname.clone();
        let port = settings.opencode.serve_port;
        let fixed = match port {
            0 => None,
            port => match address(&hostname, port) {
                Ok(address) => Some(address),
                Err(error) => return not_started(error.to_string()),
            },
        };
        if let Some(address) = &fixed
            && is_taken(host(&hostname), port)
        {
            self.tasks
                .spawn(explain_taken_port(generation, address.clone()));
            return Ok(None);
        }
        let (spawn, streams) = match prepare(settings, self.login.as_ref(), generation) {
            Ok(prepared) => prepared,
            Err(why) => return not_started(why),
        };
        let guard = match &mut self.guard {
            Some(guard) => guard,
            None => self
                .guard
                .insert(Guard::start(&guard_options(settings, lock)?)?),
        };
        if let Err(error) = guard.spawn(spawn) {
            return not_started(format!(
                "the guard process cannot start the server: {error}"
            ));
        }
        let (reader, server_ended) = oneshot::channel();
        self.current = Some(Current {
            generation,
            address: fixed,
            _reader: reader,
        });
        let found = self.listening.0.clone();
        self.tasks.spawn(async move {
            let read = read_output(streams, &log, |port| {
                let address = address(&hostname, port).ok();
                // The queue has space for more addresses than a server prints.
                address.map(|address| found.try_send((generation, address)))
            });
            tokio::pin!(read);
            tokio::select! {
                () = &mut read => return None,
                _ = server_ended => {}
            }
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, read).await;
            None
        });
        Ok(None)
    }

    /// Passes a new lock to the guard, which holds the lock until all processes of the server have ended.
    pub fn hold(&mut self, lock: &WorkLock) {
        if let (Some(guard), Ok(lock)) = (&mut self.guard, lock.share()) {
            // If the guard has died, an event reports it, so the error is ignored here.
            let _ = guard.hold(lock);
        }
    }

    pub fn signal(&mut self, generation: Generation, signal: StopSignal) {
        if let Some(guard) = &mut self.guard {
            guard.signal(generation.0, signal);
        }
    }

    /// Sends a health request to the server. Returns the result if it is known at once.
    pub fn probe(&mut self, generation: Generation, phase: &ServerPhase) -> Option<ServerInput> {
        if let Some(before) = self.probe.take() {
            before.abort();
        }
        let timeout = match phase {
            ServerPhase::Ready { .. } => HEALTH_TIMEOUT,
            _ => START_TIMEOUT,
        };
        let answered = move |answered| ServerInput::Answered {
            generation,
            answered,
        };
        let client = match self.client(phase) {
            Ok(client) => client,
            Err(what) => {
                let what = what.to_owned();
                return Some(answered(Answered::Silent { what }));
            }
        };
        self.probe = Some(self.tasks.spawn(async move {
            Some(answered(match client.health(timeout).await {
                Ok(version) => Answered::Healthy {
                    url: client.address().to_string(),
                    version,
                },
                Err(error) => {
                    let what = error_chain(&error);
                    let is_foreign = matches!(error.failure, Failure::OtherListener { .. });
                    match error.is_absence() && !is_foreign {
                        true => Answered::Silent { what },
                        false => Answered::Wrong { what },
                    }
                }
            }))
        }));
        None
    }

    /// Measures the memory of the server and of all processes that its tools have started.
    pub fn measure(&mut self, generation: Generation) {
        if let Some(guard) = self.guard.as_ref().map(Guard::pid) {
            self.tasks.spawn(async move {
                let rss_bytes = memory_below(guard).await?;
                Some(ServerInput::Measured {
                    generation,
                    rss_bytes,
                })
            });
        }
    }

    /// Asks whether all sessions are idle. A server that does not answer counts as busy.
    pub fn ask_idle(&mut self, generation: Generation, phase: &ServerPhase) {
        if let Ok(client) = self.client(phase) {
            self.tasks.spawn(async move {
                let request = Request {
                    timeout: HEALTH_TIMEOUT,
                    ..Request::get("/session/status")
                };
                let sessions = client.ask(request).await.ok()?;
                let is_idle = sessions.as_object().is_some_and(serde_json::Map::is_empty);
                is_idle.then_some(ServerInput::Boundary { generation })
            });
        }
    }

    /// Asks the server to end its tools. If the server is killed while a tool runs, the tool keeps running.
    pub fn release(&mut self, generation: Generation, phase: &ServerPhase) {
        if let Ok(client) = self.client(phase) {
            self.tasks.spawn(async move {
                let request = Request {
                    timeout: HEALTH_TIMEOUT,
                    ..Request::post("/global/dispose", None)
                };
                // The server gets a signal next, even if this request failed.
                let _: Result<Value, _> = client.ask(request).await;
                Some(ServerInput::Released { generation })
            });
        }
    }

    /// Returns a client of the current server, or why there is none.
    fn client(&self, phase: &ServerPhase) -> Result<Client, &'static str> {
        let address = self.current.as_ref().and_then(|it| it.address.clone());
        let address = address.ok_or("the server has not printed its address yet")?;
        let pid = phase.pid();
        if self.login.is_some() && pid.is_none() {
            return Err("the process id of the server is not known yet");
        }
        Ok(Client::new(address, self.login.clone(), pid))
    }

    /// Ends all processes of the server, and all tasks.
    pub async fn shutdown(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.finish().await;
        }
        self.tasks.shutdown().await;
    }
}

fn guard_options(
    settings: &SupervisorSettings,
    lock: &WorkLock,
) -> Result<GuardOptions, SupervisorError> {
    let lock = lock.share();
    let lock = lock.map_err(StoreError::io("share", &settings.dir.join("lock")))?;
    Ok(GuardOptions {
        lock: Some(lock),
        cgroup: settings.cgroup,
        adoption: settings.adoption,
        hidden: settings.hidden.clone(),
        ..GuardOptions::new(&settings.guard, settings.id.to_string())
    })
}

/// Returns the command for the guard to start, and the read ends of the pipes for stdout and stderr.
fn prepare(
    settings: &SupervisorSettings,
    login: Option<&Login>,
    generation: Generation,
) -> Result<(Spawn, [Receiver; 2]), String> {
    let words = command_line::argv(&settings.opencode)?;
    let mut words = words.into_iter().map(OsString::from);
    let failed = |error: std::io::Error| format!("its pipes cannot be created: {error}");
    let (stdout, stdout_writer) = output().map_err(failed)?;
    let (stderr, stderr_writer) = output().map_err(failed)?;
    let mut env = settings.env.clone();
    if let Some(Login { user, password }) = login {
        let password = password.expose();
        env.push(("OPENCODE_SERVER_PASSWORD".into(), password.into()));
        env.push(("OPENCODE_SERVER_USERNAME".into(), user.into()));
    }
    let spawn = Spawn {
        generation: generation.0,
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        env,
        // systemd set these variables for this process, not for the server.
        env_remove: ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"]
            .map(Into::into)
            .into(),
        cwd: settings.working_dir.clone().into(),
        streams: Some([input(b"").map_err(failed)?, stdout_writer, stderr_writer]),
    };
    Ok((spawn, [stdout, stderr]))
}

/// Returns whether another process listens at the port. The server itself does not report that.
fn is_taken(host: &str, port: u16) -> bool {
    let bound = TcpListener::bind((host, port));
    bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

/// Finds out which kind of server uses the port. The request contains no password.
async fn explain_taken_port(generation: Generation, address: Address) -> Option<ServerInput> {
    let client = Client::new(address, None, None);
    let by = match client.health(HEALTH_TIMEOUT).await.map_err(|e| e.failure) {
        Ok(_) => "another OpenCode server",
        Err(Failure::Unauthorized { .. }) => {
            "a server that requires a password (probably another OpenCode server)"
        }
        Err(_) => "another program",
    };
    let address = client.address().authority();
    Some(ServerInput::NotStarted {
        generation,
        why: format!(
            "{by} already listens at {address}; stop it, or set another `opencode.serve_port`"
        ),
    })
}

/// Copies stdout and stderr of a server to its log until they end. Reports the port when the server prints it.
async fn read_output<T>(
    streams: [Receiver; 2],
    log: &LogSender,
    mut listening: impl FnMut(u16) -> T,
) {
    let [stdout, stderr] = streams;
    let mut lines = LineSplitter::new(LINE_BYTES_MAX);
    let mut found = false;
    let stdout = copy(stdout, log, |bytes| {
        lines.push(bytes, &mut |line| {
            if let Some(port) = listening_port(&line.text).filter(|_| !found) {
                found = true;
                listening(port);
            }
        });
    });
    tokio::join!(stdout, copy(stderr, log, |_| {}));
}

async fn copy(pipe: Receiver, log: &LogSender, mut seen: impl FnMut(&[u8])) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = match pipe.readable().await {
            Ok(()) => pipe.try_read(&mut chunk),
            Err(_) => return,
        };
        match read {
            Ok(0) => return,
            Ok(read) => {
                let bytes = chunk.get(..read).unwrap_or_default();
                log.write(bytes.to_vec()).await;
                seen(bytes);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
