//! Questions of the loop at the terminal it runs in: one key is an answer. Without a terminal nobody reads from standard input.

mod lent;
pub mod raw;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tachikoma_core::{Answer, Choice, PromptSource, Question, QuestionKind};
use tachikoma_loop_runner::store::vault::PASSPHRASE_VARIABLE;
use tachikoma_loop_runner::{LoopConfig, LoopHandle, prompt};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::out;
use crate::sanitise::sanitise;

/// How soon it is noticed that a question is over, or that the terminal is ours again.
const LOOK: Duration = Duration::from_millis(50);

/// A key sends at most this much; what is longer was pasted, and is no answer.
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

/// What shows the changes of the iteration, and asks again.
const DIFF: u8 = b'd';

/// Returns whether questions can be asked here.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Says which keys there are for a question.
pub fn offers(question: &Question) -> String {
    let word = |choice: &Choice| format!("{} {choice}", char::from(key(*choice)));
    let mut words: Vec<String> = question.choices.iter().map(word).collect();
    if has_diff(question) {
        words.insert(1, format!("{} diff", char::from(DIFF)));
    }
    words.join(" · ")
}

fn has_diff(question: &Question) -> bool {
    question.kind == QuestionKind::AfterIteration && question.choices.contains(&Choice::Rollback)
}

/// Whoever asks at the terminal.
#[derive(Debug)]
pub struct Keys(JoinHandle<()>);

impl Keys {
    /// Begins to ask for as long as the loop runs; none where nobody can be asked.
    pub fn watch(handle: LoopHandle, config: &LoopConfig, says_questions: bool) -> Option<Self> {
        if !can_ask() {
            return None;
        }
        raw::restore_on_panic();
        let (ask, asked) = channel();
        let (answer, mut answers) = unbounded_channel();
        let desk = Desk {
            working_dir: config.working_dir.clone(),
            prompt: config.launch.prompt.clone(),
            draft: config
                .runtime_dir
                .join(format!("prompt-{}.md", std::process::id())),
            says_questions,
            answer,
        };
        // Ends with the task, which drops its end of the channel, or with the program.
        std::thread::spawn(move || desk.serve(&asked));
        Some(Self(tokio::spawn(async move {
            let mut notices = handle.subscribe();
            let mut open = None;
            loop {
                let question = handle.status().question;
                let id = question.as_ref().map(|question| question.id);
                if id != open {
                    open = id;
                    if ask.send(question).is_err() {
                        return;
                    }
                }
                tokio::select! {
                    notice = notices.recv() => if let Err(RecvError::Closed) = notice {
                        return;
                    },
                    Some((id, choice, prompt_file)) = answers.recv() => {
                        answered(&handle, id, choice, prompt_file).await;
                        // A refusal leaves the question open: it is asked again.
                        open = None;
                    }
                }
            }
        })))
    }

    /// Asks nothing more, and leaves the terminal as it was.
    pub fn finish(self) {
        self.0.abort();
        raw::lend();
        lent::call_back();
    }
}

async fn answered(handle: &LoopHandle, id: u32, choice: Choice, prompt_file: Option<PathBuf>) {
    if let Ok(Answer::Refused { reason, .. }) = handle.answer(Some(id), choice, prompt_file).await {
        out::note(&format!("note: {}", sanitise(&reason)));
    }
}

type Answers = UnboundedSender<(u32, Choice, Option<PathBuf>)>;

/// Who reads the keys: a thread, because a terminal makes its readers wait.
struct Desk {
    working_dir: PathBuf,
    prompt: PromptSource,
    /// Where a prompt is edited: in a directory of the user's own.
    draft: PathBuf,
    says_questions: bool,
    answer: Answers,
}

impl Desk {
    fn serve(&self, asked: &Receiver<Option<Question>>) {
        let mut open: Option<Question> = None;
        loop {
            let next = match &open {
                None => asked.recv().map_err(|_| TryRecvError::Disconnected),
                Some(_) => asked.try_recv(),
            };
            match next {
                Ok(next) => {
                    raw::restore();
                    open = next;
                    if let Some(question) = open.as_ref().filter(|_| self.says_questions) {
                        let about = sanitise(&question.about);
                        out::note(&format!("question {}: {about}", question.id));
                        out::note(&format!("  {}", offers(question)));
                    }
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return raw::restore(),
            }
            let Some(question) = &open else { continue };
            if !raw::enter() {
                std::thread::sleep(LOOK);
                continue;
            }
            match pressed() {
                Pressed::Nothing => {}
                Pressed::Gone => {
                    // Others may still answer it.
                    raw::restore();
                    open = None;
                }
                Pressed::Key(pressed) => {
                    if self.act(question, pressed) {
                        raw::restore();
                        open = None;
                    }
                }
                Pressed::Other => self.remind(question),
            }
        }
    }

    fn remind(&self, question: &Question) {
        out::note(&format!("that is no answer; {}", offers(question)));
    }

    /// Does what a key says. Returns whether that was an answer.
    fn act(&self, question: &Question, pressed: u8) -> bool {
        if pressed == DIFF && has_diff(question) {
            self.show_diff(question.iteration);
            out::note(&format!("  {}", offers(question)));
            return false;
        }
        let mut choices = question.choices.iter();
        let Some(choice) = choices.find(|choice| key(**choice) == pressed) else {
            self.remind(question);
            return false;
        };
        let prompt_file = match choice {
            Choice::Edit => match self.edit() {
                Ok(path) => Some(path),
                Err(why) => {
                    out::note(&format!("note: {}", sanitise(&why)));
                    out::note(&format!("  {}", offers(question)));
                    return false;
                }
            },
            Choice::Continue
            | Choice::Skip
            | Choice::Reboot
            | Choice::Rollback
            | Choice::Yes
            | Choice::No
            | Choice::Pause
            | Choice::Stop => None,
        };
        // Without a reader the run is over.
        let _ = self.answer.send((question.id, *choice, prompt_file));
        true
    }

    fn show_diff(&self, iteration: u32) {
        let shown = std::env::current_exe().and_then(|ourselves| {
            let mut diff = Command::new(ourselves);
            diff.args(["diff", &iteration.to_string()]);
            diff.current_dir(&self.working_dir);
            lent::run(&mut diff, lent::Whose::Nobodys)
        });
        if let Err(error) = shown {
            out::note(&format!("note: no diff: {error}"));
        }
    }

    /// Has the prompt edited. Returns the file that has it then.
    fn edit(&self) -> Result<PathBuf, String> {
        let before = prompt::read(&self.prompt, &self.working_dir).unwrap_or_default();
        let editor = ["VISUAL", "EDITOR"].into_iter().find_map(std::env::var_os);
        let editor = editor.unwrap_or_else(|| "vi".into());
        let no = |error: std::io::Error| format!("no draft {}: {error}", self.draft.display());
        write_draft(&self.draft, &before).map_err(no)?;
        let mut command = Command::new("sh");
        command.env_remove(PASSPHRASE_VARIABLE);
        command
            .args(["-c", "exec $0 \"$1\""])
            .arg(&editor)
            .arg(&self.draft);
        command.current_dir(&self.working_dir);
        let shown = editor.to_string_lossy();
        let status = lent::run(&mut command, lent::Whose::Operators)
            .map_err(|error| format!("`{shown}`: {error}"))?;
        if !status.success() {
            return Err(format!(
                "`{shown}` failed: {status}; the prompt is as it was"
            ));
        }
        let after = std::fs::read_to_string(&self.draft).map_err(no)?;
        if after == before || after.trim().is_empty() {
            return Err("the prompt is as it was".to_owned());
        }
        Ok(self.draft.clone())
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.draft);
    }
}

/// Writes a file that nobody else reads, and never over or through one that is there: only an earlier draft is ours to remove.
fn write_draft(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

enum Pressed {
    Nothing,
    Key(u8),
    /// A key that sends more than one byte, or pasted text.
    Other,
    /// There is no terminal any more.
    Gone,
}

/// Waits a moment for a key.
fn pressed() -> Pressed {
    let stdin = rustix::stdio::stdin();
    let mut waited = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(LOOK.subsec_nanos()),
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_draft_is_written_for_its_user_alone_and_through_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let (draft, theirs) = (dir.path().join("draft"), dir.path().join("theirs"));
        std::fs::write(&theirs, "theirs").unwrap();
        symlink(&theirs, &draft).unwrap();
        for text in ["first", "second"] {
            write_draft(&draft, text).unwrap();
            assert_eq!(std::fs::read_to_string(&draft).unwrap(), text);
        }
        let is = std::fs::symlink_metadata(&draft).unwrap();
        assert!(is.is_file());
        assert_eq!(is.permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "theirs");
    }
}
