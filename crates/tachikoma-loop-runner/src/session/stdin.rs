//! Writes to the agent's stdin.

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::task::Task;

/// Maximum number of lines that wait for an agent that does not read: prompts, messages and interrupts. An agent that leaves more unread hangs, and
/// a
/// timeout of the core ends it.
const LINES_MAX: usize = 16;

/// Why a line was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StdinError {
    /// The queue is full: the agent runs but has not read earlier lines.
    Full,
    /// The stdin is closed, because the agent has ended or is ending.
    Closed,
}

/// Writes lines to the stdin of one agent. Dropping it closes the stdin.
#[derive(Debug)]
pub(crate) struct AgentStdin {
    lines: mpsc::Sender<String>,
    /// The task that writes. It ends when the stdin is closed on either side.
    _task: Task,
}

impl AgentStdin {
    /// Starts writing with these lines.
    pub fn start(mut pipe: Sender, first: Vec<String>) -> Self {
        let (lines, mut waiting) = mpsc::channel::<String>(LINES_MAX);
        let task = Task::spawn("writer of the agent's input", async move {
            for line in first {
                if pipe.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
            while let Some(line) = waiting.recv().await {
                // The task ends if the agent has closed its stdin. The guard reports the end of the agent.
                if pipe.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        Self { lines, _task: task }
    }

    /// Queues one line. Does not wait until the agent reads it.
    ///
    /// # Errors
    /// The queue is full, or the stdin is closed.
    pub fn write_line(&self, line: String) -> Result<(), StdinError> {
        self.lines.try_send(line).map_err(|error| match error {
            TrySendError::Full(_) => StdinError::Full,
            TrySendError::Closed(_) => StdinError::Closed,
        })
    }
}
