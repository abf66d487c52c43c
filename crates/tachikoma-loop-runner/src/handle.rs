//! The ends that others hold of a running loop: commands in, records out. All of it is bounded, and none of it can
//! stall the loop.

use std::sync::Arc;

use tachikoma_core::{Answer, LoopCommand, Record, Status, Urgency};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::session::pump::Stream;

/// Commands that may wait for the runner; a caller beyond that waits itself.
pub const COMMANDS_MAX: usize = 32;

/// Signals that may wait for the runner. Four presses of Ctrl-C say everything there is to say.
const SHUTDOWNS_MAX: usize = 4;

/// Notices that a reader may be behind before it misses some: a second of the busiest loop.
const NOTICES_MAX: usize = 1024;

/// Something that happened, for whoever watches.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A fact, on disk already.
    Recorded(Arc<Record>),
    /// A line that the agent wrote, shortened; not sanitised.
    Said {
        /// Where to.
        stream: Stream,
        /// The line.
        line: Arc<str>,
    },
    /// Lines that the agent wrote faster than anyone can read.
    Unsaid {
        /// How many.
        lines: u64,
    },
}

/// What the runner is asked.
#[derive(Debug)]
pub(crate) enum Request {
    Command {
        command: LoopCommand,
        reply: oneshot::Sender<Answer>,
    },
    /// The whole process is about to be stopped (Ctrl-Z).
    Suspend { done: oneshot::Sender<()> },
    /// It goes on.
    Continue,
}

/// A handle on a loop: cheap to clone, and harmless to drop.
#[derive(Clone, Debug)]
pub struct LoopHandle {
    requests: mpsc::Sender<Request>,
    shutdowns: mpsc::Sender<(i32, Urgency)>,
    notices: broadcast::Sender<Notice>,
    status: watch::Receiver<Status>,
}

/// The runner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runner is gone")]
pub struct Gone;

impl LoopHandle {
    /// Gives a command and returns the core's answer to it.
    ///
    /// # Errors
    /// The runner is gone.
    pub async fn command(&self, command: LoopCommand) -> Result<Answer, Gone> {
        let (reply, answer) = oneshot::channel();
        self.requests
            .send(Request::Command { command, reply })
            .await
            .map_err(|_| Gone)?;
        answer.await.map_err(|_| Gone)
    }

    /// Tells the runner that its process is to end. Goes before all commands, is never lost, and never waits.
    pub fn shut_down(&self, signal: i32, urgency: Urgency) {
        // When the queue is full, the runner has been told often enough.
        let _ = self.shutdowns.try_send((signal, urgency));
    }

    /// Stops the agent because the whole process is about to be stopped, and returns when that is done.
    pub async fn suspend(&self) {
        let (done, is_done) = oneshot::channel();
        if self.requests.send(Request::Suspend { done }).await.is_ok() {
            let _ = is_done.await;
        }
    }

    /// Lets the agent go on after [`LoopHandle::suspend`]. The time in between does not count.
    pub async fn go_on(&self) {
        let _ = self.requests.send(Request::Continue).await;
    }

    /// Returns what there is to know now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Returns everything that happens from now on. A reader that falls behind is told how much it missed.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }
}

/// The runner's ends.
#[derive(Debug)]
pub(crate) struct Ends {
    pub requests: mpsc::Receiver<Request>,
    pub shutdowns: mpsc::Receiver<(i32, Urgency)>,
    pub notices: broadcast::Sender<Notice>,
    pub status: watch::Sender<Status>,
}

pub(crate) fn channel(status: Status) -> (LoopHandle, Ends) {
    let (request_in, requests) = mpsc::channel(COMMANDS_MAX);
    let (shutdown_in, shutdowns) = mpsc::channel(SHUTDOWNS_MAX);
    let (notices, _) = broadcast::channel(NOTICES_MAX);
    let (status, status_out) = watch::channel(status);
    let handle = LoopHandle {
        requests: request_in,
        shutdowns: shutdown_in,
        notices: notices.clone(),
        status: status_out,
    };
    (
        handle,
        Ends {
            requests,
            shutdowns,
            notices,
            status,
        },
    )
}
