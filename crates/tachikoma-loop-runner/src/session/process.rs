//! One launch of the agent's process: its output becomes events, in order, and the end of the output is the last event.

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

/// Events that may wait for the runner. If the runner is that far behind, the agent waits, and nothing is lost.
const EVENTS_MAX: usize = 64;

/// The reader gets a command for each turn and one for the end, and handles them at once.
const COMMANDS_MAX: usize = 8;

/// The name of the task in an error message.
const READER: &str = "reader of the agent's output";

/// A process of the agent.
#[derive(Debug)]
pub(crate) struct LiveLaunch {
    pub generation: Generation,
    /// How the process ended; `None` while it runs.
    pub exit: Option<(Exit, Vec<Leftover>)>,
    /// The text of the last result of this turn.
    pub final_text: Option<String>,
    /// The sums of earlier results of this turn: cost in millionths of a dollar, and tokens.
    pub carried: (u64, u64),
    /// How many tasks of the agent run in the background. While there are any, a result is not the end of the turn.
    pub background_tasks: usize,
    events: mpsc::Receiver<ReaderEvent>,
    commands: mpsc::Sender<ReaderCommand>,
    stdin: Option<AgentStdin>,
    task: Task,
}

impl LiveLaunch {
    /// Starts to read the output of a launch.
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

    /// Returns whether the agent reads lines, and its stdin is open.
    pub fn has_stdin(&self) -> bool {
        self.stdin.is_some()
    }

    /// Writes one line to the agent.
    ///
    /// # Errors
    /// The agent does not read it.
    pub fn write_line(&self, line: String) -> Result<(), StdinError> {
        let stdin = self.stdin.as_ref().ok_or(StdinError::Closed)?;
        stdin.write_line(line)
    }

    /// Closes the agent's stdin. An agent that waits for the next prompt ends by that.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// A turn begins in a process that runs already.
    pub fn begin_turn(&mut self, transcript: Transcript) {
        self.final_text = None;
        self.carried = (0, 0);
        self.command(ReaderCommand::BeginTurn(transcript));
    }

    /// The agent is asked for its hand-off: the reader reports its text until the next turn.
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

    /// The process has ended: the reader reads the rest of its output, for a limited time.
    pub fn drain(&mut self) {
        self.stdin = None;
        self.command(ReaderCommand::Drain);
    }

    fn command(&self, command: ReaderCommand) {
        // A reader that has ended, or is that far behind, does not need the command.
        let _ = self.commands.try_send(command);
    }

    /// Waits for the end of the reader. Returns how it panicked, if it did.
    pub async fn join(mut self) -> Option<String> {
        self.drain();
        self.events.close();
        self.task.ended().await
    }
}

#[cfg(test)]
impl LiveLaunch {
    /// Returns a launch with another task in the place of its reader.
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
