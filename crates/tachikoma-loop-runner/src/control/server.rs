//! The runner's end of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tachikoma_core::{Answer, LoopCommand, LoopId, Seq};
use tachikoma_process::control_socket::{ListenError, SocketFile, listen};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};

use super::protocol::{Hello, PROTOCOL, Request, Response};
use crate::handle::{Gone, LoopHandle};
use crate::notice::Notice;
use crate::process::{Hooks, Peer, Whose};
use crate::task::Task;

/// Callers served at a time; more than that are a mistake, and wait.
const CALLERS_MAX: usize = 128;

/// Callers of the agent's at a time, and callers that have ended. The other seats are the operator's: connections of the agent that stay
/// open must not keep the operator from stopping the loop.
const AGENT_CALLERS_MAX: usize = CALLERS_MAX / 2;

/// Callers that stay to follow the loop, at a time: they must never take the last seat from one who wants to stop it.
const FOLLOWERS_MAX: usize = 32;

/// A request is one short line; a caller that does not send it is shown out.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// Callers that wait for the last answer of a runner get it within this, or not at all.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The same loop may run in so many directories at a time, restored from a backup.
const COPIES_MAX: u32 = 16;

/// Returns where a loop may listen. Who listens there already runs the same loop in another directory; its callers are not ours.
fn free_path(runtime_dir: &Path, loop_id: LoopId) -> PathBuf {
    let first = runtime_dir.join(format!("{loop_id}.sock"));
    let others = (1..COPIES_MAX).map(|copy| runtime_dir.join(format!("{loop_id}.{copy}.sock")));
    let mut all = std::iter::once(first.clone()).chain(others);
    let is_free = |path: &PathBuf| std::os::unix::net::UnixStream::connect(path).is_err();
    all.find(is_free).unwrap_or(first)
}

/// A listening control socket. Dropping it removes the socket and shows all callers out.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    /// The socket's file, by device and number.
    file: SocketFile,
    /// Takes another listener in the place of the one before.
    listeners: mpsc::Sender<UnixListener>,
    closing: Option<oneshot::Sender<()>>,
    task: Task,
}

impl Server {
    /// Listens for callers. The working directory's lock must be held: a socket that is there already and at which nobody listens is a
    /// dead runner's, and is replaced.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn bind(
        runtime_dir: &Path,
        loop_id: LoopId,
        handle: LoopHandle,
    ) -> Result<Self, ListenError> {
        let path = free_path(runtime_dir, loop_id);
        let (listener, file) = listen(runtime_dir, &path)?;
        let desk = Desk {
            handle,
            loop_id,
            seats: Arc::new(Semaphore::new(FOLLOWERS_MAX)),
            agents_seats: Arc::new(Semaphore::new(AGENT_CALLERS_MAX)),
        };
        let (closing, closed) = oneshot::channel();
        let (listeners, others) = mpsc::channel(1);
        let task = Task::spawn("control socket", serve(listener, others, desk, closed));
        Ok(Self {
            path,
            file,
            listeners,
            closing: Some(closing),
            task,
        })
    }

    /// Makes sure that callers find the socket. Returns whether it had to be made anew; those who are inside stay.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub(crate) async fn keep(&mut self) -> Result<bool, ListenError> {
        if SocketFile::at(&self.path).is_ok_and(|there| there == self.file) {
            return Ok(false);
        }
        let runtime_dir = self.path.parent().unwrap_or(Path::new("/"));
        let (listener, file) = listen(runtime_dir, &self.path)?;
        self.file = file;
        // The task that takes it ends only after us.
        let _ = self.listeners.send(listener).await;
        Ok(true)
    }

    /// Returns where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Closes the door, and lets those who are inside have their answers.
    pub(crate) async fn close(mut self) {
        if let Some(closing) = self.closing.take() {
            let _ = closing.send(());
        }
        // Whoever is served badly now has the end of the run as an answer.
        let _ = self.task.ended().await;
    }

    /// Returns how serving callers panicked; does not return if it does not. Cancel-safe.
    pub(crate) async fn broken(&mut self) -> String {
        self.task.broken().await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // One that is not ours is another runner's.
        if SocketFile::at(&self.path).is_ok_and(|there| there == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[derive(Clone)]
struct Desk {
    handle: LoopHandle,
    loop_id: LoopId,
    /// For those who follow.
    seats: Arc<Semaphore>,
    /// For callers that are not the operator's.
    agents_seats: Arc<Semaphore>,
}

/// Serves callers until it is closed, or aborted with all of them.
async fn serve(
    mut listener: UnixListener,
    mut others: mpsc::Receiver<UnixListener>,
    desk: Desk,
    mut closed: oneshot::Receiver<()>,
) {
    let room = Arc::new(Semaphore::new(CALLERS_MAX));
    let mut callers = JoinSet::new();
    loop {
        let came = tokio::select! {
            _ = &mut closed => break,
            Some(other) = others.recv() => {
                listener = other;
                continue;
            }
            Some(left) = callers.join_next(), if !callers.is_empty() => {
                pass_panic_on(left);
                continue;
            }
            came = next_caller(&listener, &room) => came,
        };
        match came {
            Ok((stream, permit)) => {
                let desk = desk.clone();
                callers.spawn(async move {
                    // A caller that hangs up in the middle has lost interest.
                    let _ = desk.attend(stream).await;
                    drop(permit);
                });
            }
            // Out of descriptors, for example: others may give some back.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    drop(listener);
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, async {
        while callers.join_next().await.is_some() {}
    })
    .await;
}

/// A panic on behalf of one caller is one of the whole: nobody knows what it left undone.
fn pass_panic_on(left: Result<(), JoinError>) {
    if let Err(error) = left
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

async fn next_caller(
    listener: &UnixListener,
    room: &Arc<Semaphore>,
) -> io::Result<(UnixStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

impl Desk {
    async fn attend(&self, stream: UnixStream) -> io::Result<()> {
        let credentials = stream.peer_cred()?;
        let caller = Peer::of(&stream, credentials.pid());
        let family = self.handle.family();
        let _seat = match is_operators(family.whose_peer(&caller)) {
            true => None,
            false => match self.agents_seats.try_acquire() {
                Ok(seat) => Some(seat),
                // It may call again.
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
        let request = match serde_json::from_str::<Request>(&line) {
            Ok(request) => request,
            Err(error) => {
                let reason = format!("the request is not understood: {error}");
                return say(&mut writer, &Response::Refused { reason }).await;
            }
        };
        let stranger = credentials.uid() != own && credentials.uid() != 0;
        let open = is_open_to_the_agent(&request);
        let whose = match open {
            true => Whose::Operator,
            false => family.whose_peer(&caller),
        };
        if stranger || !is_operators(whose) {
            let gone = whose == Whose::Gone;
            self.handle
                .report_refusal(name_of(&request), caller.pid(), !stranger, gone);
            let reason = match gone && !stranger {
                true => {
                    "only the operator may ask this, and nobody can tell who asked: it has ended, or /proc does not show it (`hidepid`); ask as the user who runs the loop"
                }
                false => {
                    "only the operator may ask this; from inside the agent only `status`, `note` and `done` may be asked"
                }
            };
            let reason = reason.to_owned();
            return say(&mut writer, &Response::Refused { reason }).await;
        }
        match request {
            Request::Status => {
                let status = Box::new(self.handle.status());
                say(&mut writer, &Response::Status { status }).await
            }
            Request::Command { command } => {
                let hooks = hooks_of(whose);
                let answered = self.handle.command_of(command, hooks).await;
                say(&mut writer, &answer_of(answered)).await
            }
            Request::Note { text } => {
                let operator = is_operators(family.whose_peer(&caller));
                let answered = self.handle.note_of(text, operator).await;
                say(&mut writer, &answer_of(answered)).await
            }
            Request::Done { reason } => {
                let answered = self.handle.done(reason).await;
                say(&mut writer, &answer_of(answered)).await
            }
            Request::Answer {
                id,
                choice,
                prompt_file,
            } => {
                let answered = self.handle.answer(id, choice, prompt_file).await;
                say(&mut writer, &answer_of(answered)).await
            }
            Request::Attend { on } => {
                let answered = self.handle.attend(on).await;
                say(&mut writer, &answer_of(answered)).await
            }
            Request::Tell { text } => {
                let answered = self.handle.tell(text).await;
                say(&mut writer, &answer_of(answered)).await
            }
            Request::Reload => {
                let answered = self.handle.reload().await;
                say(&mut writer, &answer_of(answered)).await
            }
            Request::Set { key, value } => {
                let answered = self.handle.set(key, value).await;
                say(&mut writer, &answer_of(answered)).await
            }
            Request::Follow { after } => self.follow(&mut reader, &mut writer, after).await,
        }
    }

    /// Passes records on until the run ends, or the caller hangs up.
    async fn follow(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
        after: Seq,
    ) -> io::Result<()> {
        let Ok(_seat) = self.seats.try_acquire() else {
            let reason = format!("{FOLLOWERS_MAX} others follow this loop already");
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

fn is_operators(whose: Whose) -> bool {
    match whose {
        Whose::Operator | Whose::Hook(_) => true,
        // Nobody but the agent would ask and not wait for the answer.
        Whose::Inside | Whose::Gone => false,
    }
}

fn hooks_of(whose: Whose) -> Option<Hooks> {
    match whose {
        Whose::Hook(hooks) => Some(hooks),
        Whose::Operator | Whose::Inside | Whose::Gone => None,
    }
}

/// What an agent may ask of the loop that it works for.
fn is_open_to_the_agent(request: &Request) -> bool {
    match request {
        Request::Status | Request::Note { .. } | Request::Done { .. } => true,
        Request::Command { .. }
        | Request::Set { .. }
        | Request::Answer { .. }
        | Request::Attend { .. }
        | Request::Tell { .. }
        | Request::Reload
        | Request::Follow { .. } => false,
    }
}

/// Returns the word by which a request is made.
fn name_of(request: &Request) -> String {
    match request {
        Request::Status => "status",
        Request::Command { command } => match command {
            LoopCommand::Pause(_) => "pause",
            LoopCommand::Resume => "resume",
            LoopCommand::Stop(_) => "stop",
            LoopCommand::ForceReboot => "reboot",
            LoopCommand::SkipIteration => "skip",
        },
        Request::Note { .. } => "note",
        Request::Done { .. } => "done",
        Request::Set { .. } => "state set",
        Request::Answer { .. } => "answer",
        Request::Attend { .. } => "attend",
        Request::Tell { .. } => "tell",
        Request::Reload => "reload",
        Request::Follow { .. } => "events --follow",
    }
    .to_owned()
}

fn answer_of(answered: Result<Answer, Gone>) -> Response {
    match answered {
        Ok(answer) => Response::Answer { answer },
        Err(gone) => Response::Refused {
            reason: gone.to_string(),
        },
    }
}

/// Waits until the caller has gone. It has said all it may say; more than a request's length of it is too much.
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
