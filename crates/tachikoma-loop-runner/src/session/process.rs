//! One launch of an agent that is a process: its output becomes news, in order, and the end of it is the last.

use std::sync::Arc;
use std::time::Duration;

use tachikoma_agents::{Decoder, Observation, line::Line};
use tachikoma_core::{Exit, Generation, Leftover, News};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use super::pump::{Flow, Output, Pump, Stream};
use crate::handle::Notice;
use crate::task::Task;

/// Observations that may wait for the runner. When it is that far behind, the agent waits: nothing is lost.
const NEWS_MAX: usize = 64;

/// How often output is mentioned, and how often more of it may be shown.
const BEAT: Duration = Duration::from_millis(100);

/// Lines shown per beat: faster than anyone reads, slow enough for any terminal.
const LINES_PER_BEAT: u32 = 40;

/// What is shown of a line.
const SHOWN_BYTES_MAX: usize = 2 << 10;

/// What the task is called when it fails.
const READER: &str = "reader of the agent's output";

/// What a launch has to say.
#[derive(Debug)]
pub(crate) enum LaunchNews {
    Agent(News),
    /// The agent's last words, for the claim.
    FinalText(String),
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
    news: mpsc::Receiver<LaunchNews>,
    drain: Option<oneshot::Sender<()>>,
    task: Task,
}

impl LiveLaunch {
    /// Begins to read the output of a launch.
    pub fn begin(
        generation: Generation,
        decoder: Decoder,
        pump: Pump,
        notices: broadcast::Sender<Notice>,
    ) -> Self {
        let (out, news) = mpsc::channel(NEWS_MAX);
        let (drain, drained) = oneshot::channel();
        let reader = Reader {
            decoder,
            out,
            screen: Screen::new(notices),
            seen: Vec::new(),
        };
        let task = Task::spawn(READER, reader.read(pump, drained));
        Self {
            generation,
            exit: None,
            final_text: None,
            news,
            drain: Some(drain),
            task,
        }
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
        if let Some(drain) = self.drain.take() {
            // A reader that is gone needs no telling.
            let _ = drain.send(());
        }
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
        Self {
            generation: Generation(1),
            exit: None,
            final_text: None,
            news,
            drain: None,
            task: Task::spawn(READER, reader),
        }
    }
}

/// The task that reads one launch.
struct Reader {
    decoder: Decoder,
    out: mpsc::Sender<LaunchNews>,
    screen: Screen,
    seen: Vec<Observation>,
}

impl Reader {
    async fn read(mut self, mut pump: Pump, mut drain: oneshot::Receiver<()>) {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut mentioned = false;
        let mut ended = false;
        loop {
            let Self {
                decoder,
                screen,
                seen,
                ..
            } = &mut self;
            let throttled = mentioned || screen.is_throttled();
            let mut sink = |stream, line: Line<'_>| take(decoder, screen, seen, stream, &line);
            // Ends when the process is gone, or when the launch is given up and the other end is dropped.
            let brought = tokio::select! {
                biased;
                _ = &mut drain => break,
                _ = beat.tick(), if throttled => Brought::Beat,
                flow = pump.read(&mut sink), if !ended => Brought::Flow(flow),
            };
            match brought {
                Brought::Beat => {
                    mentioned = false;
                    self.screen.refill();
                }
                Brought::Flow(flow) => {
                    ended = flow == Flow::Ended;
                    // A stream that ends says nothing: the agent has closed it, and may be as silent as before.
                    if !mentioned && flow == Flow::Output {
                        mentioned = true;
                        self.send(LaunchNews::Agent(News::Output)).await;
                    }
                    self.report().await;
                }
            }
        }
        let Self {
            decoder,
            screen,
            seen,
            ..
        } = &mut self;
        pump.drain(&mut |stream, line: Line<'_>| take(decoder, screen, seen, stream, &line))
            .await;
        self.report().await;
        self.screen.refill();
        self.send(LaunchNews::Drained(pump.finish())).await;
    }

    async fn report(&mut self) {
        for observation in std::mem::take(&mut self.seen) {
            let news = match observation {
                Observation::Said(_) => continue,
                Observation::Measured(context) => News::Measured(context),
                Observation::ToolStarted { id, name } => News::ToolStarted { id, name },
                Observation::ToolEnded { id } => News::ToolEnded { id },
                Observation::Resulted { success, text } => {
                    self.send(LaunchNews::FinalText(text)).await;
                    News::Resulted { success }
                }
            };
            self.send(LaunchNews::Agent(news)).await;
        }
    }

    async fn send(&self, news: LaunchNews) {
        // When the runner has given the launch up, what is left to do is to empty the pipes.
        let _ = self.out.send(news).await;
    }
}

enum Brought {
    Beat,
    Flow(Flow),
}

/// Takes one line of output: shown to whoever watches, and read for what the agent does.
fn take(
    decoder: &mut Decoder,
    screen: &mut Screen,
    seen: &mut Vec<Observation>,
    stream: Stream,
    line: &Line<'_>,
) {
    if stream == Stream::Stderr {
        return screen.show(stream, &line.text);
    }
    for observation in decoder.observe(&line.text) {
        match observation {
            Observation::Said(text) => screen.show(stream, &text),
            Observation::Measured(_)
            | Observation::ToolStarted { .. }
            | Observation::ToolEnded { .. }
            | Observation::Resulted { .. } => seen.push(observation),
        }
    }
}

/// What is shown of the output, no faster than anyone can read.
struct Screen {
    notices: broadcast::Sender<Notice>,
    left: u32,
    unsaid: u64,
}

impl Screen {
    fn new(notices: broadcast::Sender<Notice>) -> Self {
        Self {
            notices,
            left: LINES_PER_BEAT,
            unsaid: 0,
        }
    }

    fn is_throttled(&self) -> bool {
        self.left < LINES_PER_BEAT
    }

    fn show(&mut self, stream: Stream, text: &str) {
        if self.left == 0 {
            self.unsaid += 1;
            return;
        }
        self.left -= 1;
        let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
        // Nobody may be listening.
        let _ = self.notices.send(Notice::Said {
            stream,
            line: Arc::from(&text[..end]),
        });
    }

    fn refill(&mut self) {
        self.left = LINES_PER_BEAT;
        if self.unsaid > 0 {
            let _ = self.notices.send(Notice::Unsaid { lines: self.unsaid });
            self.unsaid = 0;
        }
    }
}
