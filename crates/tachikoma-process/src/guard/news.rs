//! What goes to the guard and what comes from it, in the runner's words.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::protocol::{Order, Report, SpawnOrder, SpawnSubject, Text};
use crate::{Adoption, Exit, INSIDE, Leftover};
use tachikoma_core::{PASSPHRASE_VARIABLE, TRUST_VARIABLE};

/// How to start a guard.
#[derive(Debug)]
pub struct GuardOptions {
    /// The program whose main is [`crate::serve`]; a path, `PATH` is not searched.
    pub program: PathBuf,
    /// What makes it a guard, if it can do other things too.
    pub args: Vec<OsString>,
    /// The loop's id: every agent carries it in its environment as [`crate::MARKER`].
    pub marker: String,
    /// A duplicate of the working directory's locked descriptor. The guard holds it until everything is ended, so that
    /// no other runner starts before. Let go of such a lock by closing it: unlocking would unlock the guard's too.
    pub lock: Option<OwnedFd>,
    /// Whether to try for a control group.
    pub cgroup: bool,
    /// Which of its own children the runner ends if the guard is killed.
    pub adoption: Adoption,
    /// Variables that neither the guard nor anything below it gets.
    pub hidden: Vec<OsString>,
    /// Whether what is below it may command the loop: only hooks of the operator's may.
    pub commands: bool,
}

impl GuardOptions {
    /// Returns the environment of the guard: this process's own but for what is hidden, and what says whose it is.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        let kept = |name: &OsString| {
            let ours = [INSIDE, PASSPHRASE_VARIABLE, TRUST_VARIABLE];
            !ours.iter().any(|ours| name == ours) && !self.hidden.contains(name)
        };
        let own = std::env::vars_os().filter(|(name, _)| kept(name));
        let inside = (!self.commands).then(|| (INSIDE.into(), self.marker.clone().into()));
        own.chain(inside).collect()
    }
}

/// An agent to start.
#[derive(Debug)]
pub struct Spawn {
    /// A number of the caller's that the news about this agent carries.
    pub generation: u64,
    /// The program; looked up in the agent's `PATH` if it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables to set on top of what the runner was started with.
    pub env: Vec<(OsString, OsString)>,
    /// Variables to leave out.
    pub env_remove: Vec<OsString>,
    /// Where it works.
    pub cwd: PathBuf,
    /// Its standard input; see [`crate::input`].
    pub stdin: OwnedFd,
    /// Its standard output; see [`crate::output`].
    pub stdout: OwnedFd,
    /// Its standard error.
    pub stderr: OwnedFd,
}

/// What happened at the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardNews {
    /// The agent runs.
    Spawned {
        /// Which one.
        generation: u64,
        /// Its process, session and group.
        pid: i32,
    },
    /// The agent could not be started.
    SpawnFailed {
        /// Which one.
        generation: u64,
        /// What stood in the way.
        subject: SpawnSubject,
        /// The system's number for the reason; 0 if there is none.
        errno: i32,
        /// The system's words for it.
        message: String,
    },
    /// The agent is gone, and so is everything it started.
    Exited {
        /// Which one.
        generation: u64,
        /// How it ended.
        exit: Exit,
        /// What it left running, and was ended. After [`crate::Rung::Kill`] only what could not be killed.
        leftovers: Vec<Leftover>,
        /// How many more there were than are named.
        leftovers_unnamed: usize,
    },
    /// The guard died. All agents were ended, but for these; start a new guard.
    Lost {
        /// Processes that could not be killed.
        survivors: Vec<Leftover>,
    },
}

/// Why there is no guard.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// Its program could not be started.
    #[error("start guard {}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The runner's side could not be prepared.
    #[error("prepare the guard's socket")]
    Socket(#[source] io::Error),
}

impl Spawn {
    /// Splits the order into what is said and the three streams that go with it.
    pub(super) fn into_order(self) -> (Order, Vec<OwnedFd>) {
        let text =
            |words: Vec<OsString>| words.iter().map(|word| word.as_os_str().into()).collect();
        let pair = |(name, value): &(OsString, OsString)| {
            (Text::from(name.as_os_str()), Text::from(value.as_os_str()))
        };
        let order = Order::Spawn(Box::new(SpawnOrder {
            generation: self.generation,
            program: self.program.as_os_str().into(),
            args: text(self.args),
            env: self.env.iter().map(pair).collect(),
            env_remove: text(self.env_remove),
            cwd: self.cwd.as_os_str().into(),
        }));
        (order, vec![self.stdin, self.stdout, self.stderr])
    }
}

impl From<Report> for GuardNews {
    fn from(report: Report) -> Self {
        match report {
            Report::Spawned { generation, pid } => Self::Spawned { generation, pid },
            Report::SpawnFailed {
                generation,
                subject,
                errno,
                message,
            } => Self::SpawnFailed {
                generation,
                subject,
                errno,
                message,
            },
            Report::Exited {
                generation,
                exit,
                leftovers,
                leftovers_unnamed,
            } => Self::Exited {
                generation,
                exit,
                leftovers,
                leftovers_unnamed,
            },
        }
    }
}
