//! The task that reads the output of one launch, shows its lines, and reports events.

use std::time::Duration;

use tachikoma_agents::{AgentEvent, Decoder, line::Line};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use super::live_output::{INTERVAL, LiveOutput};
use super::pump::{ClosedTranscript, Flow, Output, Pump};
use super::transcript::Transcript;
use crate::clock;
use crate::notice::Stream;
use crate::task::until;

/// Maximum length of the last line on standard error, which may say why there was no result.
const LAST_WORDS_BYTES_MAX: usize = 512;

/// An agent that exits closes its output shortly before the guard reports its exit. If the agent still runs this long after it closed
/// its output, it is reported as running without output.
const EXIT_FOLLOWS: Duration = Duration::from_secs(1);

/// Maximum length of a ping line. A longer unfinished line counts as output of the agent.
const PING_BYTES_MAX: u64 = 1024;

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
pub(super) enum ReaderCommand {
    /// A turn begins. The following output is written to this transcript.
    BeginTurn(Transcript),
    /// Report the agent's text until the next turn begins.
    ReportText,
    /// The process has ended. Read the rest of the output, for a limited time.
    Drain,
}

/// Reads one launch.
pub(super) struct Reader {
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
    pub fn new(decoder: Decoder, events: mpsc::Sender<ReaderEvent>, shown: LiveOutput) -> Self {
        Self {
            decoder,
            events,
            lines: LineHandler {
                shown,
                events: Vec::new(),
                last_words: String::new(),
                not_understood: 0,
                reports_text: false,
                piece: Piece::Unfinished,
            },
        }
    }

    /// Reads until the process has ended or the launch is dropped.
    pub async fn read(mut self, mut pump: Pump, mut commands: mpsc::Receiver<ReaderCommand>) {
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
        AgentEvent::ModelFellBack { from, to } => format!("[{to} answers instead of {from}]"),
        AgentEvent::Compacted { tokens_before, .. } => {
            format!("[the agent compacted its context of {tokens_before} tokens]")
        }
        _ => return None,
    })
}
