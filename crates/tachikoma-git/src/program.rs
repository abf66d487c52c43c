//! Runs of the `git` program: each bounded in time and output, in a process group of its own, and called off at a word.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tachikoma_core::LoopId;

use tachikoma_core::{PASSPHRASE_VARIABLE, TRUST_VARIABLE};
use tachikoma_fs::printable;
use tachikoma_process::{Attended, INSIDE, MARKER, in_a_session_of_its_own, is_executable};
use tachikoma_runtime::clock;

mod live;

/// Keeps git from fetching missing objects of a partial clone: that runs commands which the repository's configuration names.
const NO_LAZY_FETCH: (&str, &str) = ("GIT_NO_LAZY_FETCH", "1");

/// A question to a large repository on a slow disk takes seconds. One that takes longer will not be answered.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(120);

/// What one answer may have: the names of a million files.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Of complaints the end is kept: it says why.
const WORDS_BYTES_MAX: usize = 4096;

/// Variables that would lead to another repository than that of the directory, or give names another meaning.
const LEADS_ELSEWHERE: [&str; 18] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_DIR",
    "GIT_GLOB_PATHSPECS",
    "GIT_GRAFT_FILE",
    "GIT_ICASE_PATHSPECS",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_LITERAL_PATHSPECS",
    "GIT_NAMESPACE",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// Ends the run of git that is under way, and those that would follow. Clones call off the same.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    called_off: Arc<AtomicBool>,
    /// Called off without a word from then on.
    until: Option<Instant>,
}

impl CancelToken {
    /// Makes one that nobody has used yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes one that a word to somebody else calls off too.
    #[must_use]
    pub fn with(called_off: Arc<AtomicBool>) -> Self {
        Self {
            called_off,
            until: None,
        }
    }

    /// Calls off what is under way. Never waits.
    pub fn call_off(&self) {
        self.called_off.store(true, Ordering::Relaxed);
    }

    /// The same, which also calls itself off when a time is over.
    #[must_use]
    pub fn within(&self, time: Duration) -> Self {
        Self {
            called_off: Arc::clone(&self.called_off),
            until: Some(clock::monotonic() + time),
        }
    }

    /// Returns whether the time is over that it had.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.until.is_some_and(|until| clock::monotonic() >= until)
    }

    /// Returns whether it was called off.
    #[must_use]
    pub fn is_canceled(&self) -> bool {
        self.called_off.load(Ordering::Relaxed) || self.is_overdue()
    }
}

/// Git has not done what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// It could not be started.
    #[error("git cannot be started ({program})")]
    NotStarted {
        /// What was to be started.
        program: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Nobody waits for it any more.
    #[error("git {what} was called off")]
    Canceled {
        /// Which of its commands.
        what: String,
    },
    /// It took too long, and was ended.
    #[error("git {what} did not end within {}", humantime::format_duration(*limit))]
    TimedOut {
        /// Which of its commands.
        what: String,
        /// How long it had.
        limit: Duration,
    },
    /// It failed.
    #[error("git {what} failed ({how}): {words}")]
    Failed {
        /// Which of its commands.
        what: String,
        /// How it ended.
        how: String,
        /// Its own words, the end of them.
        words: String,
    },
    /// It said what nobody asked.
    #[error("git {what} answered what cannot be understood: {answer}")]
    Odd {
        /// Which of its commands.
        what: &'static str,
        /// What it said.
        answer: String,
    },
    /// A file that this needs could not be used.
    #[error("{action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

impl GitError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    /// Whether trying again at once would end the same way.
    pub fn is_final(&self) -> bool {
        match self {
            Self::NotStarted { .. } | Self::Canceled { .. } | Self::TimedOut { .. } => true,
            Self::Failed { .. } | Self::Odd { .. } | Self::Io { .. } => false,
        }
    }
}

/// The `git` program in one directory.
#[derive(Clone, Debug)]
pub struct Git {
    program: OsString,
    dir: PathBuf,
    /// By this its processes are known to be the loop's.
    marker: Option<String>,
    /// Variables that it does not get.
    hidden: Vec<OsString>,
}

impl Git {
    /// Names the program that a shell would find in `search_path`; without one, the system looks for it.
    #[must_use]
    pub fn new(dir: &Path, search_path: Option<&OsStr>) -> Self {
        let found = search_path.and_then(|path| {
            std::env::split_paths(path)
                .map(|place| dir.join(place).join("git"))
                .find(|program| is_executable(program).unwrap_or(false))
        });
        Self {
            program: found.map_or_else(|| "git".into(), PathBuf::into_os_string),
            dir: dir.to_owned(),
            marker: None,
            hidden: Vec::new(),
        }
    }

    /// Lets its processes be known as those of a loop, and hides variables from them.
    #[must_use]
    pub fn of_loop(mut self, loop_id: LoopId, hidden: Vec<OsString>) -> Self {
        self.marker = Some(loop_id.to_string());
        self.hidden = hidden;
        self
    }

    /// The same program in another directory.
    #[must_use]
    pub fn in_dir(mut self, dir: &Path) -> Self {
        dir.clone_into(&mut self.dir);
        self
    }

    /// Returns the program for whoever looks at our own output: with the terminal, and with the user's pager and colours.
    #[must_use]
    pub fn on_the_terminal(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.dir);
        for name in LEADS_ELSEWHERE {
            command.env_remove(name);
        }
        command.env_remove(PASSPHRASE_VARIABLE);
        command.env(NO_LAZY_FETCH.0, NO_LAZY_FETCH.1);
        command
    }

    /// Begins an order: one of git's commands, with its words.
    #[must_use]
    pub fn order<'a>(&'a self, words: &[&'a str]) -> Order<'a> {
        Order {
            git: self,
            words: words.iter().map(|word| OsStr::new(*word)).collect(),
            config: Vec::new(),
            env: Vec::new(),
            stdin: &[],
            limit: Some(ASK_TIMEOUT),
            answer_max: ANSWER_BYTES_MAX,
            users: false,
            ends_with_us: false,
        }
    }
}

/// What git is to do.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    git: &'a Git,
    words: Vec<&'a OsStr>,
    config: Vec<&'a str>,
    env: Vec<(&'a str, &'a OsStr)>,
    stdin: &'a [u8],
    limit: Option<Duration>,
    answer_max: usize,
    users: bool,
    ends_with_us: bool,
}

/// How git ended, and what it said.
#[derive(Debug)]
pub struct Answer {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// How it ended, in words.
    pub how: String,
    /// What it answered.
    pub bytes: Vec<u8>,
    /// Whether it had more to say than anyone wants to know, and was not heard out.
    pub cut: bool,
    /// What it complained about, the end of it.
    pub words: String,
}

impl<'a> Order<'a> {
    /// Adds a word that need not be text.
    #[must_use]
    pub fn word(mut self, word: &'a (impl AsRef<OsStr> + ?Sized)) -> Self {
        self.words.push(word.as_ref());
        self
    }

    /// Sets one of git's own settings (`name=value`) for this order.
    #[must_use]
    pub fn config(mut self, setting: &'a str) -> Self {
        self.config.push(setting);
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &'a str, value: &'a (impl AsRef<OsStr> + ?Sized)) -> Self {
        self.env.push((name, value.as_ref()));
        self
    }

    /// Lets it work on an index of the loop's own, which is as plain as it can be.
    #[must_use]
    pub fn index(self, path: &'a Path) -> Self {
        self.env("GIT_INDEX_FILE", path)
            .config("core.splitIndex=false")
            .config("core.untrackedCache=false")
            .config("index.sparse=false")
            // Nobody reads its checksum.
            .config("index.skipHash=true")
            // Line ends are a matter of the user's commits.
            .config("core.safecrlf=false")
    }

    /// Gives it something to read.
    #[must_use]
    pub fn stdin(mut self, bytes: &'a [u8]) -> Self {
        self.stdin = bytes;
        self
    }

    /// Sets how long it may take; none is for as long as it likes.
    #[must_use]
    pub fn limit(mut self, limit: Option<Duration>) -> Self {
        self.limit = limit;
        self
    }

    /// Sets how much of an answer is wanted. Who says more is ended, and what was said so far is the answer.
    #[must_use]
    pub fn answer_max(mut self, bytes: usize) -> Self {
        self.answer_max = bytes;
        self
    }

    /// Makes it an order in the user's name: it locks, and the user's hooks are run, without a terminal to ask on.
    #[must_use]
    pub fn in_the_users_name(mut self) -> Self {
        self.users = true;
        self
    }

    /// Lets it end when the thread that runs it is gone: it must not go on changing what the user sees.
    #[must_use]
    pub fn ends_with_us(mut self) -> Self {
        self.ends_with_us = true;
        self
    }

    /// Runs it to its end, whatever that is. Blocks.
    ///
    /// # Errors
    /// It cannot be started, takes too long or is called off.
    pub fn run(&self, cancel: &CancelToken) -> Result<Answer, GitError> {
        if cancel.is_canceled() {
            return Err(GitError::Canceled { what: self.what() });
        }
        let mut command = self.command();
        let started = Attended::spawn(&mut command).map_err(|source| GitError::NotStarted {
            program: self.git.program.to_string_lossy().into_owned(),
            source,
        })?;
        let begun = clock::monotonic();
        let ended = live::Live::new(started, self.stdin, self.answer_max).end(self.limit, cancel);
        let code = ended.as_ref().ok().and_then(|answer| answer.code);
        tracing::debug!(command = self.what(), code, elapsed = ?begun.elapsed(), "git ended");
        ended.map_err(|cut| match cut {
            live::Cut::Canceled => GitError::Canceled { what: self.what() },
            live::Cut::TimedOut => GitError::TimedOut {
                what: self.what(),
                limit: self.limit.unwrap_or_default(),
            },
            live::Cut::Broken(source) => GitError::Io {
                action: "talk to",
                path: PathBuf::from("git"),
                source,
            },
        })
    }

    /// Runs it, and returns its answer; it must end well. Blocks.
    ///
    /// # Errors
    /// It fails, cannot be started, takes too long or is called off.
    pub fn ask(&self, cancel: &CancelToken) -> Result<Vec<u8>, GitError> {
        let answer = self.run(cancel)?;
        if answer.code == Some(0) || answer.cut {
            return Ok(answer.bytes);
        }
        Err(self.failed(&answer))
    }

    /// Runs it, and returns its answer as one line of text.
    ///
    /// # Errors
    /// As [`Order::ask`].
    pub fn ask_line(&self, cancel: &CancelToken) -> Result<String, GitError> {
        let bytes = self.ask(cancel)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }

    /// An answer as the failure that it is.
    #[must_use]
    pub fn failed(&self, answer: &Answer) -> GitError {
        GitError::Failed {
            what: self.what(),
            how: answer.how.clone(),
            words: if answer.words.is_empty() {
                "it gave no reason".to_owned()
            } else {
                answer.words.clone()
            },
        }
    }

    /// Which of git's commands it is.
    fn what(&self) -> String {
        let word = self
            .words
            .iter()
            .find(|word| !word.as_encoded_bytes().starts_with(b"-"));
        let word = word.map(|word| word.to_string_lossy()).unwrap_or_default();
        printable(&word).into_owned()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.git.program);
        // Nothing goes on in the background, and nothing that the repository's configuration names is run for a look.
        command.args(["-c", "core.fsmonitor=false"]);
        command.args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"]);
        if !self.users {
            command.args(["-c", "core.hooksPath=/dev/null"]);
        }
        for setting in &self.config {
            command.args(["-c", setting]);
        }
        command.args(&self.words).current_dir(&self.git.dir);
        for name in LEADS_ELSEWHERE {
            command.env_remove(name);
        }
        command.env_remove(PASSPHRASE_VARIABLE);
        command.env_remove(TRUST_VARIABLE);
        if let Some(marker) = &self.git.marker {
            command.env(MARKER, marker);
        }
        // What it runs, an agent may have written.
        let inside = self.git.marker.as_deref().unwrap_or("git");
        command.env(INSIDE, inside);
        for name in &self.git.hidden {
            command.env_remove(name);
        }
        command.env("GIT_TERMINAL_PROMPT", "0");
        command.env(NO_LAZY_FETCH.0, NO_LAZY_FETCH.1);
        if self.users {
            // Whoever has `-m` needs no editor; a hook that wants one anyway gets one that does nothing.
            command.env("GIT_EDITOR", ":").env("LANGUAGE", "C");
        } else {
            // The agent may be at work in the same repository.
            command.env("GIT_OPTIONAL_LOCKS", "0").env("LC_ALL", "C");
        }
        if self.users || self.ends_with_us {
            in_a_session_of_its_own(&mut command);
        } else {
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
        }
        command.envs(self.env.iter().copied());
        let stdin = if self.stdin.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        };
        command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// The end of what was complained about, without what was cut in the middle of a line.
fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(WORDS_BYTES_MAX);
    let text = String::from_utf8_lossy(&bytes[start..]);
    let text = match (start, text.split_once('\n')) {
        (0, _) | (_, None) => text.trim(),
        (_, Some((_, rest))) => rest.trim(),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests;
