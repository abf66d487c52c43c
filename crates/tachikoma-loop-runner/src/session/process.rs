//! One launch of the agent's process. A task reads its output, shows its lines and reports events in order. The end of the output is the
//! last event. Another task writes lines to the agent's stdin. Neither waits for the other.

use std::sync::Arc;
use std::time::Duration;

use tachikoma_agents::{AgentEvent, Decoder, line::Line};
use tachikoma_core::{Exit, Generation, Leftover};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::Sender;
use tokio::sync::broadcast;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::{Instant, MissedTickBehavior};

use super::pump::{ClosedTranscript, Flow, Output, Pump};
use super::transcript::Transcript;
use crate::clock;
use crate::notice::{Notice, Stream};
use crate::task::{Task, until};

/// Maximum number of lines that wait for an agent that does not read: prompts, messages and interrupts. An agent that leaves more unread hangs, and
/// a
/// timeout of the core ends it.
const LINES_MAX: usize = 16;

/// Maximum length of the last line on standard error, which may say why there was no result.
const LAST_WORDS_BYTES_MAX: usize = 512;

/// An agent that exits closes its output shortly before the guard reports its exit. If the agent still runs this long after it closed
/// its output, it is reported as running without output.
const EXIT_FOLLOWS: Duration = Duration::from_secs(1);

/// Maximum length of a ping line. A longer unfinished line counts as output of the agent.
const PING_BYTES_MAX: u64 = 1024;

/// Interval at which output is reported to the core, and after which more lines may be shown.
const INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of lines shown per interval. It is more than a person can read, and any terminal can show it.
const LINES_PER_INTERVAL: u32 = 40;

/// Maximum length of the part of a line that is shown.
const SHOWN_BYTES_MAX: usize = 2 << 10;

/// Size of the queue of events for the runner. If it is full, the agent has to wait, and no event is lost.
const EVENTS_MAX: usize = 64;

/// Size of the queue of commands to the reader. There is one command for each turn and one for the end.
const COMMANDS_MAX: usize = 8;

/// Name of the background task in error messages.
const READER: &str = "reader of the agent's output";

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

/// A running or ended process of the agent.
#[derive(Debug)]
pub(crate) struct LiveLaunch {
    pub generation: Generation,
    /// How the process ended, and its leftover processes; `None` while it runs.
    pub exit: Option<(Exit, Vec<Leftover>)>,
    /// Text of the last result in this turn; `None` before the first result.
    pub final_text: Option<String>,
    /// Sums of the earlier results in this turn: cost in millionths of a dollar, and tokens.
    pub carried: (u64, u64),
    /// Number of background tasks of the agent. While there are any, a result does not end the turn.
    pub background_tasks: usize,
    events: mpsc::Receiver<ReaderEvent>,
    commands: mpsc::Sender<ReaderCommand>,
    /// The agent's stdin; `None` if the agent does not read lines, or if its stdin is closed. An agent that waits for the next prompt ends when
    /// its stdin is closed.
    pub stdin: Option<AgentStdin>,
    task: Task,
}

impl LiveLaunch {
    /// Starts reading the output of a launch. `stdin` is the agent's stdin with the first lines to write, if it reads lines.
    pub fn start(
        generation: Generation,
        decoder: Decoder,
        pump: Pump,
        stdin: Option<(Sender, Vec<String>)>,
        notices: broadcast::Sender<Notice>,
    ) -> Self {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (commands, waiting) = mpsc::channel(COMMANDS_MAX);
        let reader = Reader {
            decoder,
            events: sender,
            lines: LineHandler {
                shown: LiveOutput {
                    notices,
                    left: LINES_PER_INTERVAL,
                    skipped: 0,
                },
                events: Vec::new(),
                last_words: String::new(),
                not_understood: 0,
                reports_text: false,
                piece: Piece::Unfinished,
            },
        };
        Self {
            generation,
            exit: None,
            final_text: None,
            carried: (0, 0),
            background_tasks: 0,
            events,
            commands,
            stdin: stdin.map(|(pipe, first)| start_stdin(pipe, first)),
            task: Task::spawn(READER, reader.read(pump, waiting)),
        }
    }

    /// Queues one line for the agent's stdin. Does not wait until the agent reads it.
    ///
    /// # Errors
    /// The queue is full, or the stdin is closed.
    pub fn write_line(&self, line: String) -> Result<(), StdinError> {
        let stdin = self.stdin.as_ref().ok_or(StdinError::Closed)?;
        stdin.lines.try_send(line).map_err(|error| match error {
            TrySendError::Full(_) => StdinError::Full,
            TrySendError::Closed(_) => StdinError::Closed,
        })
    }

    /// Begins a turn in a process that is already running.
    pub fn begin_turn(&mut self, transcript: Transcript) {
        self.final_text = None;
        self.carried = (0, 0);
        self.command(ReaderCommand::BeginTurn(transcript));
    }

    /// Waits for the next event. Cancel-safe. No event follows [`ReaderEvent::Drained`].
    pub async fn next_event(&mut self) -> ReaderEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => ReaderEvent::ReaderPanicked(self.task.broken().await),
        }
    }

    /// Makes the reader read the rest of the output after the process has ended, for a limited time.
    pub fn drain(&mut self) {
        self.stdin = None;
        self.command(ReaderCommand::Drain);
    }

    /// Sends a command to the reader.
    pub fn command(&self, command: ReaderCommand) {
        // If the reader has ended, or its queue is full, it does not need the command.
        let _ = self.commands.try_send(command);
    }

    /// Waits until the reader has ended. Returns the message of its panic, if it panicked.
    pub async fn join(mut self) -> Option<String> {
        self.drain();
        self.events.close();
        self.task.ended().await
    }
}

/// Starts the task that writes to an agent's stdin, beginning with these lines.
fn start_stdin(mut pipe: Sender, first: Vec<String>) -> AgentStdin {
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
    AgentStdin { lines, _task: task }
}

/// An event of a launch that the reader reports.
#[derive(Debug)]
pub(crate) enum ReaderEvent {
    /// The agent wrote something other than pings. Reported once per interval.
    Output,
    /// An event that the decoder found in the output.
    Agent(AgentEvent),
    /// The agent has closed its output but still runs.
    StreamEnded,
    /// The transcript of a turn is closed.
    TranscriptClosed(ClosedTranscript),
    /// Both streams have ended, or the time to read the rest is over. This is the last event.
    Drained(Output),
    /// The reader panicked, with the message of the panic. This is the last event.
    ReaderPanicked(String),
}

/// A command to the reader.
pub(crate) enum ReaderCommand {
    /// A turn begins. The following output is written to this transcript.
    BeginTurn(Transcript),
    /// Report the agent's text until the next turn begins.
    ReportText,
    /// The process has ended. Read the rest of the output, for a limited time.
    Drain,
}

/// Reads one launch.
struct Reader {
    decoder: Decoder,
    events: mpsc::Sender<ReaderEvent>,
    lines: LineHandler,
}

/// Handles lines, and stores events that were not reported yet.
struct LineHandler {
    shown: LiveOutput,
    events: Vec<AgentEvent>,
    /// The last line that the agent wrote to standard error.
    last_words: String,
    /// Number of lines that the decoder did not understand.
    not_understood: u64,
    /// Whether the agent's text is reported, because it was asked for a hand-off.
    reports_text: bool,
    /// The kind of the latest output.
    piece: Piece,
}

/// The kind of output that was read. Pings do not reset `silence_timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// A part of a line.
    Unfinished,
    /// Only pings.
    Pings,
    /// Output of the agent.
    Output,
}

/// The next step of the reader.
enum Step {
    BeginTurn(Transcript),
    ReportText,
    OutputClosed,
    NextInterval,
    Flow(Flow),
}

impl Reader {
    /// Reads until the process has ended or the launch is dropped.
    async fn read(mut self, mut pump: Pump, mut commands: mpsc::Receiver<ReaderCommand>) {
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut output_reported = false;
        let mut ended = false;
        // Time by which an agent that closed its output should have exited; `None` while its output is open.
        let mut exit_due = None;
        let mut closing_reported = false;
        loop {
            let Self { decoder, lines, .. } = &mut self;
            lines.piece = Piece::Unfinished;
            let bytes_before = pump.bytes();
            let throttled = output_reported || lines.shown.is_throttled();
            let mut sink = |stream, line: Line<'_>| lines.handle(decoder, stream, &line);
            let step = tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(ReaderCommand::BeginTurn(transcript)) => Step::BeginTurn(transcript),
                    Some(ReaderCommand::ReportText) => Step::ReportText,
                    Some(ReaderCommand::Drain) | None => break,
                },
                _ = interval.tick(), if throttled => Step::NextInterval,
                () = until(exit_due), if !closing_reported => Step::OutputClosed,
                flow = pump.read(&mut sink), if !ended => Step::Flow(flow),
            };
            match step {
                Step::ReportText => self.lines.reports_text = true,
                Step::BeginTurn(transcript) => {
                    self.lines.reports_text = false;
                    let closed = pump.switch(transcript);
                    self.send(ReaderEvent::TranscriptClosed(closed)).await;
                }
                Step::OutputClosed => {
                    closing_reported = true;
                    self.send(ReaderEvent::StreamEnded).await;
                }
                Step::NextInterval => {
                    output_reported = false;
                    self.lines.shown.refill();
                }
                Step::Flow(flow) => {
                    ended = flow == Flow::Ended;
                    if exit_due.is_none() && (ended || flow == Flow::StreamEnded(Stream::Stdout)) {
                        exit_due = Some(Instant::from_std(clock::monotonic() + EXIT_FOLLOWS));
                    }
                    // The end of a stream does not count as output: the agent may still be silent.
                    let is_output = match self.lines.piece {
                        Piece::Output => true,
                        Piece::Pings => false,
                        Piece::Unfinished => pump.bytes() - bytes_before > PING_BYTES_MAX,
                    };
                    if !output_reported && flow == Flow::Output && is_output {
                        output_reported = true;
                        self.send(ReaderEvent::Output).await;
                    }
                    self.report().await;
                }
            }
        }
        let Self { decoder, lines, .. } = &mut self;
        pump.drain(&mut |stream, line: Line<'_>| lines.handle(decoder, stream, &line))
            .await;
        self.report().await;
        self.lines.shown.refill();
        let mut output = pump.finish();
        output.last_words = std::mem::take(&mut self.lines.last_words);
        output.not_understood = self.lines.not_understood;
        self.send(ReaderEvent::Drained(output)).await;
    }

    async fn report(&mut self) {
        for event in std::mem::take(&mut self.lines.events) {
            self.send(ReaderEvent::Agent(event)).await;
        }
    }

    async fn send(&self, event: ReaderEvent) {
        // Sending fails if the launch was abandoned. The reader then only empties the pipes.
        let _ = self.events.send(event).await;
    }
}

impl LineHandler {
    /// Shows one line of output, and decodes the events in it.
    fn handle(&mut self, decoder: &mut Decoder, stream: Stream, line: &Line<'_>) {
        if stream == Stream::Stderr {
            self.piece = Piece::Output;
            if !line.text.trim().is_empty() {
                let end = line.text.floor_char_boundary(LAST_WORDS_BYTES_MAX);
                line.text
                    .get(..end)
                    .unwrap_or_default()
                    .clone_into(&mut self.last_words);
            }
            return self.shown.show(stream, &line.text);
        }
        let events = decoder.decode(line.text.as_bytes());
        if self.piece != Piece::Output {
            self.piece = match events[..] {
                [AgentEvent::Ping] => Piece::Pings,
                _ => Piece::Output,
            };
        }
        for event in events {
            if let Some(shown) = shown(&event) {
                for line in shown.lines() {
                    self.shown.show(stream, line);
                }
            }
            match event {
                AgentEvent::NotUnderstood(_) => self.not_understood += 1,
                AgentEvent::Ping => {}
                AgentEvent::Said(_) if !self.reports_text => {}
                event => self.events.push(event),
            }
        }
    }
}

/// Returns the text of an event that is shown to the user.
fn shown(event: &AgentEvent) -> Option<String> {
    Some(match event {
        AgentEvent::Said(text) | AgentEvent::NotUnderstood(text) => text.clone(),
        AgentEvent::Retrying(retry) => format!(
            "[the model's service: {}, attempt {} of {}, next in {:.1} s]",
            retry.error,
            retry.attempt,
            retry.attempts_max,
            Duration::from_millis(retry.delay_ms).as_secs_f64()
        ),
        AgentEvent::AwaitingServer(why) => format!("[waiting for the OpenCode server: {why}]"),
        AgentEvent::RequestFailed { text, .. } if !text.is_empty() => format!("[{text}]"),
        AgentEvent::ModelFellBack { from, to } => format!("[model {to} answers instead of {from}]"),
        AgentEvent::Compacted { tokens_before, .. } => {
            format!("[the agent compacted its context of {tokens_before} tokens]")
        }
        _ => return None,
    })
}

/// Shows the output of one launch.
struct LiveOutput {
    notices: broadcast::Sender<Notice>,
    left: u32,
    /// Number of lines that were not shown in this interval.
    skipped: u64,
}

impl LiveOutput {
    /// Returns whether the next interval must begin ([`LiveOutput::refill`]) before more lines are shown.
    fn is_throttled(&self) -> bool {
        self.left < LINES_PER_INTERVAL
    }

    /// Shows a line. If too many lines were shown in this interval, only counts it.
    fn show(&mut self, stream: Stream, text: &str) {
        if self.left == 0 {
            self.skipped += 1;
            return;
        }
        self.left -= 1;
        let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
        // Sending fails if there is no subscriber, which does not matter.
        let _ = self.notices.send(Notice::Output {
            stream,
            line: Arc::from(&text[..end]),
        });
    }

    /// Begins the next interval, in which lines may be shown again.
    fn refill(&mut self) {
        self.left = LINES_PER_INTERVAL;
        if self.skipped > 0 {
            let lines = std::mem::take(&mut self.skipped);
            let _ = self.notices.send(Notice::OutputSkipped { lines });
        }
    }
}

#[cfg(test)]
impl LiveLaunch {
    /// Returns a launch with another task instead of its reader, for tests.
    pub fn with_reader(reader: impl Future<Output = ()> + Send + 'static) -> Self {
        let (_, events) = mpsc::channel(EVENTS_MAX);
        let (commands, _) = mpsc::channel(COMMANDS_MAX);
        Self {
            generation: Generation(1),
            exit: None,
            final_text: None,
            carried: (0, 0),
            background_tasks: 0,
            events,
            commands,
            stdin: None,
            task: Task::spawn(READER, reader),
        }
    }
}
