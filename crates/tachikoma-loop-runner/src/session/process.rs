//! One launch of the agent's process. Its output is reported as events in order, and the end of the output is the last event.

use tachikoma_agents::Decoder;
use tachikoma_core::{Exit, Generation, Leftover};
use tokio::sync::{broadcast, mpsc};

use super::live_output::LiveOutput;
use super::pump::Pump;
use super::reader::{Reader, ReaderCommand};
use super::stdin::{AgentStdin, StdinError};
use super::transcript::Transcript;
use crate::notice::Notice;
use crate::task::Task;

pub(crate) use super::reader::ReaderEvent;

/// Size of the queue of events for the runner. If it is full, the agent has to wait, and no event is lost.
const EVENTS_MAX: usize = 64;

/// Size of the queue of commands to the reader. There is one command for each turn and one for the end.
const COMMANDS_MAX: usize = 8;

/// Name of the background task in error messages.
const READER: &str = "reader of the agent's output";

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
    stdin: Option<AgentStdin>,
    task: Task,
}

impl LiveLaunch {
    /// Starts reading the output of a launch.
    pub fn start(
        generation: Generation,
        decoder: Decoder,
        pump: Pump,
        stdin: Option<AgentStdin>,
        notices: broadcast::Sender<Notice>,
    ) -> Self {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (commands, waiting) = mpsc::channel(COMMANDS_MAX);
        let reader = Reader::new(decoder, sender, LiveOutput::new(notices));
        Self {
            generation,
            exit: None,
            final_text: None,
            carried: (0, 0),
            background_tasks: 0,
            events,
            commands,
            stdin,
            task: Task::spawn(READER, reader.read(pump, waiting)),
        }
    }

    /// Returns whether the agent reads lines from stdin and its stdin is open.
    pub fn has_stdin(&self) -> bool {
        self.stdin.is_some()
    }

    /// Writes one line to the agent's stdin.
    ///
    /// # Errors
    /// The agent does not read its stdin, or the stdin is closed.
    pub fn write_line(&self, line: String) -> Result<(), StdinError> {
        let stdin = self.stdin.as_ref().ok_or(StdinError::Closed)?;
        stdin.write_line(line)
    }

    /// Closes the agent's stdin, which ends an agent that waits for the next prompt.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Begins a turn in a process that is already running.
    pub fn begin_turn(&mut self, transcript: Transcript) {
        self.final_text = None;
        self.carried = (0, 0);
        self.command(ReaderCommand::BeginTurn(transcript));
    }

    /// Makes the reader report the agent's text until the next turn, because the agent was asked for its hand-off.
    pub fn report_text(&self) {
        self.command(ReaderCommand::ReportText);
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

    fn command(&self, command: ReaderCommand) {
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
