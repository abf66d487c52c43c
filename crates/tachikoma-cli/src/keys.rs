//! Answers questions of the loop with single keys, in the terminal in which the loop runs. Without a terminal, stdin is not read.

mod draft;
mod foreground_program;
pub mod raw;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tachikoma_core::{
    Answer, Choice, LoopCommand, LoopState, PromptSource, Question, QuestionKind, Status, Urgency,
};
use tachikoma_loop_runner::{LoopConfig, LoopHandle};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use self::draft::Draft;
use crate::out;
use crate::sanitize::sanitize;

/// Interval between checks whether a question was answered elsewhere, or the terminal is free again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of bytes that a key sends. Longer input was pasted and is not an answer.
const KEY_BYTES_MAX: usize = 64;

/// Returns the key of an answer.
fn key(choice: Choice) -> u8 {
    match choice {
        Choice::Continue => b'c',
        Choice::Skip => b's',
        Choice::Reboot => b'r',
        Choice::Rollback => b'b',
        Choice::Edit => b'e',
        Choice::Yes => b'y',
        Choice::No => b'n',
        Choice::Pause => b'p',
        Choice::Stop => b'q',
    }
}

/// Key that shows the changes of the iteration and then asks again.
const DIFF: u8 = b'd';

/// Answers that keys can give while the loop is paused.
const IN_A_PAUSE: [Choice; 2] = [Choice::Continue, Choice::Stop];

/// Returns whether questions can be asked in this terminal.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Lists the keys that answer a question.
pub fn offers(question: &Question) -> String {
    let word = |choice: &Choice| format!("{} {choice}", char::from(key(*choice)));
    let mut words: Vec<String> = question.choices.iter().map(word).collect();
    if has_diff(question) {
        words.insert(1, format!("{} diff", char::from(DIFF)));
    }
    words.join(" · ")
}

/// Lists the keys that can be used while the loop is paused.
pub fn offers_in_a_pause() -> String {
    let word = |choice| format!("{} {choice}", char::from(key(choice)));
    IN_A_PAUSE.map(word).join(" · ")
}

fn has_diff(question: &Question) -> bool {
    question.kind == QuestionKind::AfterIteration && question.choices.contains(&Choice::Rollback)
}

/// What the next key answers: a question, or a pause of the loop.
#[derive(Clone, Debug)]
enum Open {
    Question(Question),
    /// The loop is paused.
    Pause,
}

impl Open {
    fn of(status: Status) -> Option<Self> {
        match status.question {
            Some(question) => Some(Self::Question(question)),
            None => (status.state == LoopState::Paused).then_some(Self::Pause),
        }
    }

    /// Returns the number of the question; `None` for a pause.
    fn id(&self) -> Option<u32> {
        match self {
            Self::Question(question) => Some(question.id),
            Self::Pause => None,
        }
    }

    fn offers(&self) -> String {
        match self {
            Self::Question(question) => offers(question),
            Self::Pause => offers_in_a_pause(),
        }
    }

    fn choice(&self, pressed: u8) -> Option<Choice> {
        let choices = match self {
            Self::Question(question) => question.choices.as_slice(),
            Self::Pause => &IN_A_PAUSE,
        };
        let mut choices = choices.iter().copied();
        choices.find(|choice| key(*choice) == pressed)
    }
}

/// The command that a key means.
enum KeyCommand {
    Answer {
        id: u32,
        choice: Choice,
        prompt_file: Option<PathBuf>,
        /// Channel that reports whether the answer was accepted.
        counted: Sender<bool>,
    },
    /// The operator has started or stopped writing an answer.
    Hold { id: u32, writing: bool },
    /// A command for a paused loop.
    Command(LoopCommand),
}

/// Asks questions in the terminal.
#[derive(Debug)]
pub struct Keys {
    task: JoinHandle<()>,
    draft: PathBuf,
}

impl Keys {
    /// Starts to ask questions until the loop ends. Returns `None` if there is no terminal.
    pub fn watch(handle: LoopHandle, config: &LoopConfig, prints_questions: bool) -> Option<Self> {
        if !can_ask() {
            return None;
        }
        raw::restore_on_panic();
        let (ask, asked) = channel();
        let (command, mut commands) = unbounded_channel();
        let draft = config
            .runtime_dir
            .join(format!("prompt-{}.md", std::process::id()));
        let mut handler = KeyHandler {
            working_dir: config.working_dir.clone(),
            prompt: config.launch.prompt.clone(),
            draft: Draft::new(draft.clone()),
            prints_questions,
            command,
        };
        // The thread ends when the task drops its end of the channel, or with the program.
        std::thread::spawn(move || handler.serve(&asked));
        let task = tokio::spawn(async move {
            let mut notices = handle.subscribe();
            let mut open = None;
            loop {
                let found = Open::of(handle.status());
                let id = found.as_ref().map(Open::id);
                if id != open {
                    open = id;
                    if ask.send(found).is_err() {
                        return;
                    }
                }
                tokio::select! {
                    notice = notices.recv() => if let Err(RecvError::Closed) = notice {
                        return;
                    },
                    Some(command) = commands.recv() => {
                        let answered = perform(&handle, command).await;
                        // After a rejected answer the question is still open, so it is asked again, unless another question was asked since.
                        open = open.filter(|open| answered != Some(*open));
                    }
                }
            }
        });
        Some(Self { task, draft })
    }

    /// Stops asking questions, and restores the terminal.
    pub fn finish(self) {
        self.task.abort();
        raw::release();
        if foreground_program::end() && self.draft.exists() {
            let draft = self.draft.display();
            out::note(&format!("note: your unfinished text is in {draft}"));
        }
    }
}

/// Sends the command of a key to the loop. Returns the question that it answered, or `Some(None)` for a pause; `None` otherwise.
async fn perform(handle: &LoopHandle, command: KeyCommand) -> Option<Option<u32>> {
    let answered;
    let (answer, counted) = match command {
        KeyCommand::Hold { id, writing } => {
            // The result is ignored: if the question is no longer open, the answer is refused later with a message.
            let _ = handle.hold(id, writing).await;
            return None;
        }
        KeyCommand::Command(command) => {
            answered = None;
            (handle.command(command).await, None)
        }
        KeyCommand::Answer {
            id,
            choice,
            prompt_file,
            counted,
        } => {
            answered = Some(id);
            let answer = handle.answer(answered, choice, prompt_file).await;
            (answer, Some(counted))
        }
    };
    if let Ok(Answer::Refused { reason, .. }) = &answer {
        out::note(&format!("note: {}", sanitize(reason)));
    }
    if let Some(counted) = counted {
        let accepted = matches!(answer, Ok(Answer::Accepted { .. }));
        // Sending fails if no prompt editor waits for the result, which does not matter.
        let _ = counted.send(accepted);
    }
    Some(answered)
}

/// Reads keys in a separate thread, because reading from a terminal blocks.
struct KeyHandler {
    working_dir: PathBuf,
    prompt: PromptSource,
    draft: Draft,
    prints_questions: bool,
    command: UnboundedSender<KeyCommand>,
}

impl KeyHandler {
    fn serve(&mut self, asked: &Receiver<Option<Open>>) {
        let mut open: Option<Open> = None;
        loop {
            let next = match &open {
                None => asked.recv().map_err(|_| TryRecvError::Disconnected),
                Some(_) => asked.try_recv(),
            };
            match next {
                Ok(next) => {
                    raw::restore();
                    open = next;
                    if let Some(open) = open.as_ref().filter(|_| self.prints_questions) {
                        let what = match open {
                            Open::Question(question) => {
                                let about = sanitize(&question.about);
                                format!("question {}: {about}", question.id)
                            }
                            Open::Pause => "paused".to_owned(),
                        };
                        out::note(&what);
                        out::note(&format!("  {}", open.offers()));
                    }
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return raw::restore(),
            }
            let Some(asked) = &open else { continue };
            if !raw::enter() {
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
            match pressed() {
                Pressed::Nothing => {}
                Pressed::Gone => {
                    // The terminal was closed. The question stays open, because another client may answer it.
                    raw::restore();
                    open = None;
                }
                Pressed::Key(pressed) => {
                    if self.handle_key(asked, pressed) {
                        open = None;
                    }
                }
                Pressed::Other => remind(asked),
            }
        }
    }

    /// Handles a pressed key. Returns whether it was an answer.
    fn handle_key(&mut self, open: &Open, pressed: u8) -> bool {
        if let Open::Question(question) = open
            && pressed == DIFF
            && has_diff(question)
        {
            self.show_diff(question.iteration);
            out::note(&format!("  {}", open.offers()));
            return false;
        }
        let Some(choice) = open.choice(pressed) else {
            remind(open);
            return false;
        };
        // The terminal is restored before the answer is sent, so that no key for the next question is lost.
        raw::restore();
        match (open.id(), choice) {
            (Some(id), Choice::Edit) => return self.edit(id, open),
            (Some(id), choice) => {
                let (counted, _) = channel();
                self.send(KeyCommand::Answer {
                    id,
                    choice,
                    prompt_file: None,
                    counted,
                });
            }
            (None, Choice::Stop) => {
                self.send(KeyCommand::Command(LoopCommand::Stop(Urgency::Graceful)));
            }
            (None, _) => self.send(KeyCommand::Command(LoopCommand::Resume)),
        }
        true
    }

    /// Lets the operator edit the prompt while the question stays open. Returns whether the result was an answer.
    fn edit(&mut self, id: u32, open: &Open) -> bool {
        let writing = true;
        self.send(KeyCommand::Hold { id, writing });
        if let Err(why) = self.draft.edit(&self.prompt, &self.working_dir) {
            let writing = false;
            self.send(KeyCommand::Hold { id, writing });
            out::note(&format!("note: {}", sanitize(&why)));
            out::note(&format!("  {}", open.offers()));
            return false;
        }
        let (counted, is_counted) = channel();
        self.send(KeyCommand::Answer {
            id,
            choice: Choice::Edit,
            prompt_file: Some(self.draft.path().to_owned()),
            counted,
        });
        // If no result arrives, the run has ended.
        if is_counted.recv().unwrap_or(false) {
            self.draft.used();
        } else {
            out::note(&format!(
                "note: your text is saved in {}; `e` at the next question opens it again",
                self.draft.path().display()
            ));
        }
        true
    }

    /// Sends a command to the task. Sending fails if the run has ended, which does not matter.
    fn send(&self, command: KeyCommand) {
        let _ = self.command.send(command);
    }

    fn show_diff(&self, iteration: u32) {
        let shown = std::env::current_exe().and_then(|ourselves| {
            let mut diff = Command::new(ourselves);
            diff.args(["diff", &iteration.to_string()]);
            diff.current_dir(&self.working_dir);
            foreground_program::run(&mut diff, foreground_program::Control::Refused)
        });
        if let Err(error) = shown {
            out::note(&format!("note: no diff: {error}"));
        }
    }
}

fn remind(open: &Open) {
    out::note(&format!("not a valid key; {}", open.offers()));
}

enum Pressed {
    Nothing,
    Key(u8),
    /// A key that sends more than one byte, or pasted text.
    Other,
    /// The terminal was closed.
    Gone,
}

/// Waits for a key, for a short time.
fn pressed() -> Pressed {
    let stdin = rustix::stdio::stdin();
    let mut waited = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(POLL_INTERVAL.subsec_nanos()),
    };
    match poll(&mut waited, Some(&limit)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Pressed::Nothing,
        Ok(_) => {}
        Err(_) => return Pressed::Gone,
    }
    let mut bytes = [0; KEY_BYTES_MAX];
    match rustix::io::read(stdin, &mut bytes) {
        Ok(0) => Pressed::Gone,
        Ok(1) => Pressed::Key(bytes[0]),
        Ok(_) => Pressed::Other,
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Pressed::Nothing,
        Err(_) => Pressed::Gone,
    }
}
