//! The supervisor's control socket: a request and its answer are one line of JSON each.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::SupervisorHandle;
use super::handle::Answer;
use tachikoma_process::control_socket::{ListenError, listen};
use tachikoma_process::{Peer, peer};
use tachikoma_runtime::task::Task;
use tachikoma_store::lock;

/// Maximum number of callers that are served at the same time. Further callers wait.
const CALLERS_MAX: usize = 16;

/// Maximum number of callers at the same time that are not the operator, so that they cannot block the operator.
const AGENT_CALLERS_MAX: usize = CALLERS_MAX / 2;

/// Maximum length of a request or an answer in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Time limit for a caller to send its request, and for the supervisor to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A request of another process to a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SupervisorRequest {
    /// Restart the server, or start it if it is down.
    Restart,
    /// Stop the server and the supervisor.
    Stop,
    /// Read the settings again.
    Reload,
}

impl fmt::Display for SupervisorRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restart => "restart",
            Self::Stop => "stop",
            Self::Reload => "reload",
        })
    }
}

/// The listening socket. Dropping it removes its file.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    task: Task,
}

impl Control {
    /// Listens at `<runtime_dir>/opencode-<id>.sock`. The caller must hold the supervisor's lock.
    pub fn bind(
        runtime_dir: &Path,
        id: &str,
        handle: SupervisorHandle,
    ) -> Result<Self, ListenError> {
        let path = runtime_dir.join(format!("opencode-{id}.sock"));
        let (listener, _) = listen(runtime_dir, &path)?;
        let task = Task::spawn("control socket of the supervisor", serve(listener, handle));
        Ok(Self { path, task })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the task that serves the socket panics, and returns the message of the panic. Cancel-safe.
    pub async fn broken(&mut self) -> String {
        self.task.broken().await
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves callers until the task is aborted.
async fn serve(listener: UnixListener, handle: SupervisorHandle) {
    let mut callers = JoinSet::new();
    let agent_callers = Arc::new(Semaphore::new(AGENT_CALLERS_MAX));
    loop {
        tokio::select! {
            Some(_) = callers.join_next(), if !callers.is_empty() => {}
            accepted = listener.accept(), if callers.len() < CALLERS_MAX => match accepted {
                Ok((stream, _)) => {
                    let (handle, permits) = (handle.clone(), Arc::clone(&agent_callers));
                    callers.spawn(async move {
                        // A caller that closes the connection needs no answer.
                        let _ = serve_caller(stream, handle, &permits).await;
                    });
                }
                // The error may be temporary, for example if no file descriptor is free.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

async fn serve_caller(
    mut stream: UnixStream,
    handle: SupervisorHandle,
    agent_callers: &Semaphore,
) -> io::Result<()> {
    let credentials = stream.peer_cred()?;
    let caller = Peer::of(&stream, credentials.pid());
    let is_operator = || handle.family.role_of_peer(&caller).may_control();
    let _permit = match is_operator() {
        true => None,
        false => match agent_callers.try_acquire() {
            Ok(permit) => Some(permit),
            // All slots for other callers are in use. The caller may try again.
            Err(_) => return Ok(()),
        },
    };
    let request = tokio::time::timeout(TIMEOUT, receive(&mut stream)).await?;
    let own = rustix::process::geteuid().as_raw();
    let is_other_user = credentials.uid() != own && credentials.uid() != 0;
    let answer: Answer = match request {
        Ok(request) if is_other_user || !is_operator() => {
            let request: SupervisorRequest = request;
            handle.refused(request.to_string(), caller.pid());
            let why = "only the operator may ask this, not another user, an agent or a tool of the server";
            Err(why.to_owned())
        }
        Ok(SupervisorRequest::Restart) => handle.restart().await,
        Ok(SupervisorRequest::Stop) => handle.stop().await,
        Ok(SupervisorRequest::Reload) => handle.reread().await,
        Err(error) => Err(format!("the request is not valid: {error}")),
    };
    send(&mut stream, &answer).await
}

async fn receive<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream.take(LINE_BYTES_MAX));
    reader.read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line).await
}

/// Why a request to a supervisor failed.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorClientError {
    /// No supervisor runs in the directory.
    #[error("no supervisor runs in {}", .0.display())]
    NotRunning(PathBuf),
    /// The supervisor does not answer.
    #[error("the supervisor in {} does not answer", dir.display())]
    Silent {
        /// The supervisor's directory.
        dir: PathBuf,
        /// The error of the connection.
        #[source]
        source: io::Error,
    },
    /// The supervisor refused the request.
    #[error("{0}")]
    Refused(String),
}

/// Sends requests to a supervisor in another process.
#[derive(Clone, Debug)]
pub struct SupervisorClient {
    dir: PathBuf,
    socket: PathBuf,
}

impl SupervisorClient {
    /// Finds the supervisor that runs in `dir`.
    ///
    /// # Errors
    /// No supervisor runs in the directory.
    pub fn find(dir: &Path) -> Result<Self, SupervisorClientError> {
        let held = lock::is_held_in(dir).then(|| lock::holder_in(dir));
        match held.flatten() {
            Some(holder) => Ok(Self {
                dir: dir.to_owned(),
                socket: holder.socket,
            }),
            None => Err(SupervisorClientError::NotRunning(dir.to_owned())),
        }
    }

    /// Sends a request. Returns the supervisor's description of what it does.
    ///
    /// # Errors
    /// The supervisor does not answer, or refuses.
    pub async fn ask(&self, request: SupervisorRequest) -> Result<String, SupervisorClientError> {
        let silent = |source| SupervisorClientError::Silent {
            dir: self.dir.clone(),
            source,
        };
        let answer = tokio::time::timeout(TIMEOUT, self.exchange(request)).await;
        let answer = answer.map_err(|_| silent(io::ErrorKind::TimedOut.into()))?;
        let answer = answer.map_err(silent)?;
        answer.map_err(SupervisorClientError::Refused)
    }

    async fn exchange(&self, request: SupervisorRequest) -> io::Result<Answer> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        if !peer::is_ours(&stream) {
            let what = "the process that listens on the socket belongs to another user";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        send(&mut stream, &request).await?;
        receive(&mut stream).await
    }
}
