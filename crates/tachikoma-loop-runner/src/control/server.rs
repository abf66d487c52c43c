//! The runner's end of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tachikoma_core::{Answer, LoopId, Seq};
use tachikoma_process::control_socket::{ListenError, SocketFile, listen};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};

use super::protocol::{Hello, PROTOCOL, Response};
use crate::handle::{Gone, LoopHandle};
use crate::notice::Notice;
use crate::process::{CallerRole, Peer};
use crate::request::ControlRequest;
use crate::task::Task;

/// Maximum number of connections that are served at the same time. Further callers wait.
const CALLERS_MAX: usize = 128;

/// Maximum number of connections of the agent, and of callers that have ended, at the same time. The rest is reserved for the operator:
/// connections that the agent keeps open must not keep the operator from stopping the loop.
const AGENT_CALLERS_MAX: usize = CALLERS_MAX / 2;

/// Maximum number of callers that follow the loop at the same time. They must not keep another caller from stopping it.
const FOLLOWERS_MAX: usize = 32;

/// Timeout for the request line of a caller. After it the connection is closed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// How long the end of the runner waits for connected callers to read their answers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How many copies of one loop, restored from backups, may run at the same time.
const COPIES_MAX: u32 = 16;

/// Returns a free path for the socket of a loop. A runner that listens at another path runs a copy of the loop in another directory.
fn free_path(runtime_dir: &Path, loop_id: LoopId) -> PathBuf {
    let first = runtime_dir.join(format!("{loop_id}.sock"));
    let others = (1..COPIES_MAX).map(|copy| runtime_dir.join(format!("{loop_id}.{copy}.sock")));
    let mut all = std::iter::once(first.clone()).chain(others);
    let is_free = |path: &PathBuf| std::os::unix::net::UnixStream::connect(path).is_err();
    all.find(is_free).unwrap_or(first)
}

/// A listening control socket. Dropping it removes the socket and closes all connections.
#[derive(Debug)]
pub struct ControlServer {
    path: PathBuf,
    /// Identity of the socket's file, to notice that another file replaced it.
    file: SocketFile,
    /// Sends a new listener to the server task after the socket's file was removed.
    listeners: mpsc::Sender<UnixListener>,
    closing: Option<oneshot::Sender<()>>,
    task: Task,
}

impl ControlServer {
    /// Listens on a control socket. The caller must hold the lock of the working directory, because a socket without a listener is treated as
    /// left by a
    /// dead runner and replaced.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn bind(
        runtime_dir: &Path,
        loop_id: LoopId,
        handle: LoopHandle,
    ) -> Result<Self, ListenError> {
        let path = free_path(runtime_dir, loop_id);
        let (listener, file) = listen(runtime_dir, &path)?;
        let handler = CallerHandler {
            handle,
            loop_id,
            followers: Arc::new(Semaphore::new(FOLLOWERS_MAX)),
            agent_callers: Arc::new(Semaphore::new(AGENT_CALLERS_MAX)),
        };
        let (closing, closed) = oneshot::channel();
        let (listeners, others) = mpsc::channel(1);
        let task = Task::spawn("control socket", serve(listener, others, handler, closed));
        Ok(Self {
            path,
            file,
            listeners,
            closing: Some(closing),
            task,
        })
    }

    /// Creates the socket again if its file was deleted. Returns whether the file was deleted. Open connections are kept.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub(crate) async fn keep(&mut self) -> Result<bool, ListenError> {
        if SocketFile::at(&self.path).is_ok_and(|there| there == self.file) {
            return Ok(false);
        }
        let runtime_dir = self.path.parent().unwrap_or(Path::new("/"));
        let (listener, file) = listen(runtime_dir, &self.path)?;
        self.file = file;
        // Sending cannot fail, because the server task ends only after this server.
        let _ = self.listeners.send(listener).await;
        Ok(true)
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts no more callers, and waits for a limited time until connected callers have read their answers.
    pub(crate) async fn close(mut self) {
        if let Some(closing) = self.closing.take() {
            let _ = closing.send(());
        }
        // A panic of the server task has no effect here, because the run is over.
        let _ = self.task.ended().await;
    }

    /// Waits until the server task panics, and returns the message of the panic. Cancel-safe.
    pub(crate) async fn broken(&mut self) -> String {
        self.task.broken().await
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.task.abort();
        // Another file at the path belongs to another runner.
        if SocketFile::at(&self.path).is_ok_and(|there| there == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[derive(Clone)]
struct CallerHandler {
    handle: LoopHandle,
    loop_id: LoopId,
    /// Limits the number of callers that follow the loop.
    followers: Arc<Semaphore>,
    /// Limits the number of callers that are not the operator.
    agent_callers: Arc<Semaphore>,
}

/// Serves callers until the server is closed or aborted.
async fn serve(
    mut listener: UnixListener,
    mut others: mpsc::Receiver<UnixListener>,
    handler: CallerHandler,
    mut closed: oneshot::Receiver<()>,
) {
    let capacity = Arc::new(Semaphore::new(CALLERS_MAX));
    let mut callers = JoinSet::new();
    loop {
        let came = tokio::select! {
            _ = &mut closed => break,
            Some(other) = others.recv() => {
                listener = other;
                continue;
            }
            Some(left) = callers.join_next(), if !callers.is_empty() => {
                propagate_panic(left);
                continue;
            }
            came = next_caller(&listener, &capacity) => came,
        };
        match came {
            Ok((stream, permit)) => {
                let handler = handler.clone();
                callers.spawn(async move {
                    // Errors are ignored: a caller that has closed the connection needs no answer.
                    let _ = handler.serve(stream).await;
                    drop(permit);
                });
            }
            // Accepting fails, for example, if no file descriptor is free. The server tries again soon.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    drop(listener);
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, async {
        while callers.join_next().await.is_some() {}
    })
    .await;
}

/// Passes the panic of one caller's task on, so that it is reported as a bug.
fn propagate_panic(left: Result<(), JoinError>) {
    if let Err(error) = left
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

async fn next_caller(
    listener: &UnixListener,
    capacity: &Arc<Semaphore>,
) -> io::Result<(UnixStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(capacity)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

impl CallerHandler {
    async fn serve(&self, stream: UnixStream) -> io::Result<()> {
        let credentials = stream.peer_cred()?;
        let peer = Peer::of(&stream, credentials.pid());
        let family = self.handle.family();
        let _permit = match family.role_of_peer(&peer).may_control() {
            true => None,
            false => match self.agent_callers.try_acquire() {
                Ok(permit) => Some(permit),
                // The connection is closed without an answer. The caller may try again.
                Err(_) => return Ok(()),
            },
        };
        let own = rustix::process::geteuid().as_raw();
        let (reader, mut writer) = stream.into_split();
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            loop_id: self.loop_id,
        };
        say(&mut writer, &hello).await?;
        let mut line = String::new();
        let mut reader = BufReader::new(reader.take(REQUEST_BYTES_MAX));
        tokio::time::timeout(REQUEST_TIMEOUT, reader.read_line(&mut line)).await??;
        let request = match serde_json::from_str::<ControlRequest>(&line) {
            Ok(request) => request,
            Err(error) => {
                let reason = format!("the request is not understood: {error}");
                return say(&mut writer, &Response::Refused { reason }).await;
            }
        };
        let stranger = credentials.uid() != own && credentials.uid() != 0;
        let role = family.role_of_peer(&peer);
        let allowed = request.is_open_to_agent() || role.may_control();
        if stranger || !allowed {
            let gone = role == CallerRole::Gone;
            self.handle
                .report_refusal(request.name(), peer.pid(), !stranger, gone);
            let reason = match gone && !stranger {
                true => {
                    "only the operator may ask this, and the caller cannot be identified: it has ended, or /proc does not show it (`hidepid`); ask as the user who runs the loop"
                }
                false => {
                    "only the operator may ask this; from inside the agent only `status`, `note` and `done` may be asked"
                }
            };
            let reason = reason.to_owned();
            return say(&mut writer, &Response::Refused { reason }).await;
        }
        match request {
            ControlRequest::Status => {
                let status = Box::new(self.handle.status());
                say(&mut writer, &Response::Status { status }).await
            }
            ControlRequest::Follow { after } => self.follow(&mut reader, &mut writer, after).await,
            request => {
                let answered = self.handle.ask(request, role).await;
                say(&mut writer, &answer_of(answered)).await
            }
        }
    }

    /// Sends records until the run ends or the caller closes the connection.
    async fn follow(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
        after: Seq,
    ) -> io::Result<()> {
        let Ok(_permit) = self.followers.try_acquire() else {
            let reason = format!("{FOLLOWERS_MAX} clients already follow this loop");
            return say(writer, &Response::Refused { reason }).await;
        };
        let mut notices = self.handle.subscribe();
        say(writer, &Response::Following).await?;
        loop {
            let notice = tokio::select! {
                biased;
                () = hung_up(reader) => return Ok(()),
                notice = notices.recv() => notice,
            };
            match notice {
                Ok(Notice::Recorded(record)) if record.seq > after => {
                    let last = record.event.is_terminal();
                    let record = Box::new((*record).clone());
                    say(writer, &Response::Record { record }).await?;
                    if last {
                        return Ok(());
                    }
                }
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => return say(writer, &Response::Behind).await,
                Err(RecvError::Closed) => return Ok(()),
            }
        }
    }
}

fn answer_of(answered: Result<Answer, Gone>) -> Response {
    match answered {
        Ok(answer) => Response::Answer { answer },
        Err(gone) => Response::Refused {
            reason: gone.to_string(),
        },
    }
}

/// Waits until the caller closes the connection. The caller may send at most as many further bytes as a request can have.
async fn hung_up(reader: &mut (impl AsyncRead + Unpin)) {
    let mut rest = [0; 64];
    while reader.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}

async fn say(
    writer: &mut (impl AsyncWrite + Unpin),
    what: &impl serde::Serialize,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(what).map_err(io::Error::other)?;
    line.push(b'\n');
    writer.write_all(&line).await
}
