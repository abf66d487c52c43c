//! One launch of an agent that is a process: its output becomes news, in order, and the end of it is the last.

use tachikoma_agents::{Decoder, SessionInfo, TurnResult};
use tachikoma_core::{AgentEvent, Exit, Generation, Leftover, QuotaWindow};
use tokio::sync::{broadcast, mpsc};

use super::pump::{Output, Pump, Written};
use super::reader::{Ears, Order, Reader};
use super::screen::Screen;
use super::talk::{Talk, Unheard};
use super::transcript::Transcript;
use crate::handle::Notice;
use crate::task::Task;

/// Observations that may wait for the runner. When it is that far behind, the agent waits: nothing is lost.
const NEWS_MAX: usize = 64;

/// A reader is told of a turn and of the end, and is never far behind.
const ORDERS_MAX: usize = 8;

/// What the task is called when it fails.
const READER: &str = "reader of the agent's output";

/// What a launch has to say.
#[derive(Debug)]
pub(crate) enum LaunchNews {
    Agent(AgentEvent),
    /// The agent tells which conversation it is in, and who it is.
    Known(SessionInfo),
    /// A turn is over; with `more`, another follows without a prompt.
    Resulted {
        result: Box<TurnResult>,
        more: bool,
    },
    /// How much of each window of the subscription is used.
    Quota(Vec<QuotaWindow>),
    /// The agent was asked what its conversation has cost, and cannot say.
    CostUnsaid,
    /// The transcript of a turn is closed.
    TurnWritten(Written),
    /// Both streams have ended, or nobody waits for them any more. The last news.
    Drained(Output),
    /// The reader panicked, and nobody reads the output any more.
    Broken(String),
}

/// A launch under way.
#[derive(Debug)]
pub(crate) struct LiveLaunch {
    pub generation: Generation,
    /// How the process ended, once it has.
    pub exit: Option<(Exit, Vec<Leftover>)>,
    /// The final text that the agent's own result carried.
    pub final_text: Option<String>,
    /// What results of this turn told that were not its end: cost, in millionths of a dollar, and tokens.
    pub carried: (u64, u64),
    news: mpsc::Receiver<LaunchNews>,
    orders: mpsc::Sender<Order>,
    talk: Option<Talk>,
    task: Task,
}

impl LiveLaunch {
    /// Begins to read the output of a launch, and to talk to it where it listens.
    pub fn begin(
        generation: Generation,
        decoder: Decoder,
        pump: Pump,
        talk: Option<Talk>,
        notices: broadcast::Sender<Notice>,
    ) -> Self {
        let (out, news) = mpsc::channel(NEWS_MAX);
        let (orders, wanted) = mpsc::channel(ORDERS_MAX);
        let reader = Reader {
            decoder,
            out,
            ears: Ears::new(Screen::new(notices)),
        };
        let task = Task::spawn(READER, reader.read(pump, wanted));
        Self {
            generation,
            exit: None,
            final_text: None,
            carried: (0, 0),
            news,
            orders,
            talk,
            task,
        }
    }

    /// Returns whether the agent reads lines.
    pub fn listens(&self) -> bool {
        self.talk.is_some()
    }

    /// Says one line to the agent.
    pub fn say(&self, line: String) -> Result<(), Unheard> {
        self.talk.as_ref().ok_or(Unheard::Gone)?.say(line)
    }

    /// Ends the agent's input: whoever waits for the next prompt ends by that.
    pub fn end_input(&mut self) {
        self.talk = None;
    }

    /// A turn begins in a process that is up.
    pub fn begin_turn(&mut self, transcript: Transcript) {
        self.final_text = None;
        self.carried = (0, 0);
        // A reader that is gone, or that far behind, has no use for it.
        let _ = self.orders.try_send(Order::Begin(transcript));
    }

    /// The agent is asked for its hand-off: what it says is news.
    pub fn listen(&mut self) {
        // A reader that is gone, or that far behind, has no use for it.
        let _ = self.orders.try_send(Order::Listen);
    }

    /// Returns the next news. Cancel-safe. Nothing comes after [`LaunchNews::Drained`].
    pub async fn next(&mut self) -> LaunchNews {
        match self.news.recv().await {
            Some(news) => news,
            None => LaunchNews::Broken(self.task.broken().await),
        }
    }

    /// The process is gone: reads what is left, and no longer than it has to.
    pub fn drain(&mut self) {
        self.talk = None;
        // A reader that is gone needs no telling.
        let _ = self.orders.try_send(Order::Drain);
    }

    /// Waits for the reader to end. Returns how it panicked, if it did.
    pub async fn join(mut self) -> Option<String> {
        self.drain();
        self.news.close();
        self.task.ended().await
    }
}

#[cfg(test)]
impl LiveLaunch {
    /// A launch whose reader does something else than to read.
    pub fn with_reader(reader: impl Future<Output = ()> + Send + 'static) -> Self {
        let (_, news) = mpsc::channel(NEWS_MAX);
        let (orders, _) = mpsc::channel(ORDERS_MAX);
        Self {
            generation: Generation(1),
            exit: None,
            final_text: None,
            carried: (0, 0),
            news,
            orders,
            talk: None,
            task: Task::spawn(READER, reader),
        }
    }
}
