//! What is said to an agent that reads lines while its process is up.

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::task::Task;

/// Lines that may wait for an agent that does not read: a prompt, a word to the side, an interrupt. One that leaves more
/// unread is stuck, and has a time-out of its own.
const LINES_MAX: usize = 16;

/// Why the agent does not hear something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unheard {
    /// It is there, and leaves too much unread.
    Busy,
    /// Its input is closed: it is gone, or will be missed soon.
    Gone,
}

/// The way to one agent's ear. Dropping it ends the agent's input.
#[derive(Debug)]
pub(crate) struct Talk {
    lines: mpsc::Sender<String>,
    /// Ends by itself: when the input is to end, or when the agent is gone.
    _task: Task,
}

impl Talk {
    /// Begins to talk with these lines.
    pub fn begin(mut pipe: Sender, first: Vec<String>) -> Self {
        let (lines, mut wanted) = mpsc::channel::<String>(LINES_MAX);
        let task = Task::spawn("writer of the agent's input", async move {
            for line in first {
                if pipe.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
            while let Some(line) = wanted.recv().await {
                // Whoever has closed its input hears nothing more; its end is reported elsewhere.
                if pipe.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        Self { lines, _task: task }
    }

    /// Says one line. Does not wait for the agent to read it.
    pub fn say(&self, line: String) -> Result<(), Unheard> {
        self.lines.try_send(line).map_err(|error| match error {
            TrySendError::Full(_) => Unheard::Busy,
            TrySendError::Closed(_) => Unheard::Gone,
        })
    }
}
