//! The supervisor's control socket: one line of JSON as a question, one as an answer.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::SupervisorHandle;
use super::handle::Answer;
use tachikoma_process::control_socket::{ListenError, listen};
use tachikoma_process::{Peer, Whose, peer};
use tachikoma_runtime::task::Task;
use tachikoma_store::lock;

/// Callers at a time; more are a mistake, and wait.
const CALLERS_MAX: usize = 16;

/// Callers at a time that are not the operator's: they must not keep the operator out.
const AGENT_CALLERS_MAX: usize = CALLERS_MAX / 2;

/// A question is one short line, and so is an answer.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// A caller that does not ask is shown out; a supervisor that does not answer is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// What can be asked of a supervisor from another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// To replace the server, or start it where it is down.
    Restart,
    /// To stop the server and itself.
    Stop,
    /// To read its settings again.
    Reload,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restart => "restart",
            Self::Stop => "stop",
            Self::Reload => "reload",
        })
    }
}

/// A listening socket. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    task: Task,
}

impl Control {
    /// Listens at `<runtime_dir>/opencode-<id>.sock`. The supervisor's lock must be held.
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

    /// Returns how serving callers panicked; does not return if it does not. Cancel-safe.
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

/// Serves callers until it is aborted with all of them.
async fn serve(listener: UnixListener, handle: SupervisorHandle) {
    let mut callers = JoinSet::new();
    let agents_seats = Arc::new(Semaphore::new(AGENT_CALLERS_MAX));
    loop {
        tokio::select! {
            Some(_) = callers.join_next(), if !callers.is_empty() => {}
            came = listener.accept(), if callers.len() < CALLERS_MAX => match came {
                Ok((stream, _)) => {
                    let (handle, seats) = (handle.clone(), Arc::clone(&agents_seats));
                    callers.spawn(async move {
                        // A caller that hangs up in the middle has lost interest.
                        let _ = attend(stream, handle, &seats).await;
                    });
                }
                // Out of descriptors, for example: others may give some back.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

async fn attend(
    stream: UnixStream,
    handle: SupervisorHandle,
    agents_seats: &Semaphore,
) -> io::Result<()> {
    let credentials = stream.peer_cred()?;
    let caller = Peer::of(&stream, credentials.pid());
    let is_operators = || match handle.family.whose_peer(&caller) {
        Whose::Operator | Whose::Hook(_) => true,
        Whose::Inside | Whose::Gone => false,
    };
    let _seat = match is_operators() {
        true => None,
        false => match agents_seats.try_acquire() {
            Ok(seat) => Some(seat),
            // It may call again.
            Err(_) => return Ok(()),
        },
    };
    let own = rustix::process::geteuid().as_raw();
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(LINE_BYTES_MAX));
    tokio::time::timeout(PATIENCE, reader.read_line(&mut line)).await??;
    let stranger = credentials.uid() != own && credentials.uid() != 0;
    let operators = !stranger && is_operators();
    let answer: Answer = match serde_json::from_str::<Asked>(&line) {
        Ok(asked) if !operators => {
            handle.refused(asked.to_string(), caller.pid());
            Err("only the operator may ask this, and no agent or tool of the server".to_owned())
        }
        Ok(Asked::Restart) => handle.restart().await,
        Ok(Asked::Stop) => handle.stop().await,
        Ok(Asked::Reload) => handle.reread().await,
        Err(error) => Err(format!("the question is not understood: {error}")),
    };
    let mut line = serde_json::to_vec(&answer).map_err(io::Error::other)?;
    line.push(b'\n');
    writer.write_all(&line).await
}

/// Why a supervisor could not be talked to.
#[derive(Debug, thiserror::Error)]
pub enum CallerError {
    /// There is none.
    #[error("no supervisor runs in {}", .0.display())]
    Nobody(PathBuf),
    /// It does not answer.
    #[error("the supervisor in {} does not answer", dir.display())]
    Silent {
        /// Its directory.
        dir: PathBuf,
        /// What happened.
        #[source]
        source: io::Error,
    },
    /// It refused.
    #[error("{0}")]
    Refused(String),
}

/// A caller's end of the control socket.
#[derive(Clone, Debug)]
pub struct Caller {
    dir: PathBuf,
    socket: PathBuf,
}

impl Caller {
    /// Finds the supervisor that runs in `dir`.
    ///
    /// # Errors
    /// There is none.
    pub fn find(dir: &Path) -> Result<Self, CallerError> {
        let held = lock::is_held_in(dir).then(|| lock::holder_in(dir));
        match held.flatten() {
            Some(holder) => Ok(Self {
                dir: dir.to_owned(),
                socket: holder.socket,
            }),
            None => Err(CallerError::Nobody(dir.to_owned())),
        }
    }

    /// Asks, and returns what becomes of it.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub async fn ask(&self, asked: Asked) -> Result<String, CallerError> {
        let silent = |source| CallerError::Silent {
            dir: self.dir.clone(),
            source,
        };
        let asking = tokio::time::timeout(PATIENCE, self.exchange(asked)).await;
        let answer = asking.map_err(|_| silent(io::ErrorKind::TimedOut.into()))?;
        answer.map_err(silent)?.map_err(CallerError::Refused)
    }

    async fn exchange(&self, asked: Asked) -> io::Result<Answer> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        if !peer::is_ours(&stream) {
            let what = "the process that listens there belongs to another user";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        let mut line = serde_json::to_vec(&asked)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        let mut answer = String::new();
        let mut reader = BufReader::new(stream.take(LINE_BYTES_MAX));
        reader.read_line(&mut answer).await?;
        Ok(serde_json::from_str(&answer)?)
    }
}
