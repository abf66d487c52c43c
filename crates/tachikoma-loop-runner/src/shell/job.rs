//! Runs commands one after another under their own guard, which ends all processes that a command leaves.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;

use super::cancellable_task::TaskCommand;
use super::limit::Limit;
use super::output::CommandOutput;
use crate::process::{
    Adoption, Exit, Family, Guard, GuardOptions, GuardReport, Hooks, Leftover, Spawn, StopSignal,
    input, names_of, output,
};
use crate::task::await_some;
use tachikoma_core::error_chain as chain;

/// Time between SIGTERM and SIGKILL, in which a command can clean up.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Time after SIGKILL. The guard reports processes that hang in the kernel as unkillable after at most five seconds.
const REAP_TIMEOUT: Duration = Duration::from_secs(6);

/// How long to read output after all processes have ended. Only a process outside the guard can hold the pipe open longer.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Size of one read in bytes.
const CHUNK_BYTES: usize = 8 * 1024;

/// A command to run.
#[derive(Debug)]
pub(crate) struct Job {
    /// The program to run. It is searched in `PATH` unless it contains a slash.
    pub program: OsString,
    pub args: Vec<OsString>,
    /// Environment variables in addition to those of the runner.
    pub env: Vec<(OsString, OsString)>,
    pub working_dir: PathBuf,
    /// Bytes that are written to the command's stdin.
    pub input: Vec<u8>,
    pub limit: Limit,
    /// Collects the output of the command.
    pub output: CommandOutput,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub output: CommandOutput,
    /// The last line of the command's output, which usually says why it failed; `None` without output.
    pub last_words: Option<String>,
    /// How the process of the command ended; `None` if its end was not reported.
    pub exit: Option<Exit>,
    pub failure: Option<Failure>,
    /// Whether the command was canceled.
    pub canceled: bool,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    TimedOut,
    Canceled,
    Failed(String),
}

impl Failure {
    /// Returns the error message. `limit` is the timeout of the command.
    pub fn describe(self, limit: Duration) -> String {
        match self {
            Self::TimedOut => {
                let limit = humantime::format_duration(limit);
                format!("it did not end within {limit}")
            }
            Self::Canceled => "the loop ended".to_owned(),
            Self::Failed(error) => error,
        }
    }
}

impl Job {
    /// Returns the program and the arguments that run a command line in the shell.
    pub fn line(command: &str) -> (OsString, Vec<OsString>) {
        ("sh".into(), vec!["-c".into(), command.into()])
    }
}

/// Runs commands one at a time. The guard is started with the first command.
#[derive(Debug)]
pub(crate) struct Shell {
    options: GuardOptions,
    guard: Option<Guard>,
    /// Number of commands that were started. The guard identifies a command by this number.
    number: u64,
    /// Where a running guard is registered, so that the guard's commands may control the loop; `None` if they may not.
    commands: Option<(Arc<Family>, Hooks)>,
}

impl Shell {
    pub fn new(options: GuardOptions) -> Self {
        Self {
            options: GuardOptions {
                // Only marked processes are ended, because the guard of the agent is also a child of this process.
                adoption: Adoption::Marked,
                ..options
            },
            guard: None,
            number: 0,
            commands: None,
        }
    }

    /// Allows the commands to control the loop, because they are the operator's hooks.
    pub fn of_hooks(mut self, family: Arc<Family>, hooks: Hooks) -> Self {
        self.options.commands = true;
        self.commands = Some((family, hooks));
        self
    }

    fn end_of(&self, guard: i32) {
        if let Some((family, hooks)) = &self.commands {
            family.hooks_are_gone(*hooks, guard);
        }
    }

    /// Runs a command until it and all processes that it started have ended.
    pub async fn run(&mut self, job: Job, orders: &mut mpsc::Receiver<TaskCommand>) -> Ended {
        let Job {
            program,
            args,
            env,
            working_dir,
            input,
            limit,
            output,
        } = job;
        let mut child = Child::new(output, limit);
        match self.start(program, args, env, working_dir, &input) {
            Ok(pipe) => child.pipe = Some(pipe),
            Err(reason) => return child.ended(format!("it cannot be started: {reason}"), false),
        }
        child.live(self, orders).await
    }

    fn start(
        &mut self,
        program: OsString,
        args: Vec<OsString>,
        env: Vec<(OsString, OsString)>,
        cwd: PathBuf,
        text_in: &[u8],
    ) -> Result<Receiver, String> {
        let text = |error: io::Error| error.to_string();
        let stdin = input(text_in).map_err(text)?;
        let (reader, stdout) = output().map_err(text)?;
        let stderr = stdout.try_clone().map_err(text)?;
        self.number += 1;
        let spawn = Spawn {
            generation: self.number,
            program,
            args,
            env,
            env_remove: Vec::new(),
            cwd: cwd.into(),
            streams: Some([stdin, stdout, stderr]),
        };
        if self.guard.is_none() {
            let guard = Guard::start(&self.options).map_err(|error| chain(&error))?;
            if let Some((family, hooks)) = &self.commands {
                family.hooks_are_below(*hooks, guard.pid());
            }
            self.guard = Some(guard);
        }
        let guard = self
            .guard
            .as_mut()
            .ok_or("the guard process of this command has ended")?;
        guard.spawn(spawn).map_err(text)?;
        Ok(reader)
    }

    /// Ends the guard and all processes that commands left.
    pub async fn close(mut self) {
        if let Some(guard) = self.guard.take() {
            let pid = guard.pid();
            guard.finish().await;
            self.end_of(pid);
        }
    }
}

/// When a shell is dropped, its guard ends all processes.
impl Drop for Shell {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.end_of(guard.pid());
            guard.abandon();
        }
    }
}

/// A running command.
struct Child {
    /// The pipe with the command's output; `None` after the output has ended.
    pipe: Option<Receiver>,
    output: CommandOutput,
    /// The last line of the command's output; `None` until the command has ended.
    last_words: Option<String>,
    limit: Limit,
    failure: Option<Failure>,
    /// The last signal that was sent to the command, and the time until the next one; `None` before the first signal.
    signal: Option<(StopSignal, Limit)>,
}

impl Child {
    fn new(output: CommandOutput, limit: Limit) -> Self {
        Self {
            pipe: None,
            output,
            last_words: None,
            limit,
            failure: None,
            signal: None,
        }
    }

    async fn live(mut self, shell: &mut Shell, orders: &mut mpsc::Receiver<TaskCommand>) -> Ended {
        let number = shell.number;
        let mut canceled = false;
        loop {
            let Some(guard) = &mut shell.guard else {
                return self.ended(
                    "the guard process of this command has ended".to_owned(),
                    canceled,
                );
            };
            tokio::select! {
                biased;
                order = orders.recv(), if !canceled => match order {
                    Some(TaskCommand::Suspend(done)) => {
                        self.limit.stop();
                        guard.suspend();
                        // Sending fails if the caller no longer waits, which does not matter.
                        let _ = done.send(());
                    }
                    Some(TaskCommand::Resume) => {
                        self.limit.resume();
                        guard.resume();
                    }
                    Some(TaskCommand::Cancel) | None => {
                        canceled = true;
                        self.failure.get_or_insert(Failure::Canceled);
                        if self.signal.is_none() {
                            self.climb(guard, number);
                        }
                    }
                },
                news = guard.next() => match news {
                    GuardReport::Exited { generation, exit, leftovers, leftovers_unnamed } if generation == number => {
                        self.drain().await;
                        self.last_words = self.output.tail.last_line();
                        self.note(&leftovers, leftovers_unnamed);
                        return self.exited(exit, canceled);
                    }
                    GuardReport::SpawnFailed { generation, message, .. } if generation == number => {
                        return self.ended(format!("it cannot be started: {message}"), canceled);
                    }
                    GuardReport::Lost { .. } => {
                        shell.guard = None;
                        return self.ended("its guard was killed, and it with the guard".to_owned(), canceled);
                    }
                    GuardReport::Spawned { .. } | GuardReport::Exited { .. } | GuardReport::SpawnFailed { .. } => {}
                },
                () = read_output(&mut self.pipe, &mut self.output) => {}
                () = self.limit.over(), if self.signal.is_none() => {
                    self.failure.get_or_insert(Failure::TimedOut);
                    self.climb(guard, number);
                }
                () = await_some(self.signal.as_mut().map(|(_, limit)| limit.over())) => match self.signal {
                    Some((StopSignal::Kill, _)) => {
                        // The runner no longer waits. The guard keeps trying to end the process.
                        if let Some(guard) = shell.guard.take() {
                            guard.abandon();
                        }
                        return self.ended("it cannot be killed".to_owned(), canceled);
                    }
                    Some((StopSignal::Interrupt | StopSignal::Terminate, _)) | None => self.climb(guard, number),
                },
            }
        }
    }

    /// Sends the next signal. The first one is SIGTERM, because commands have no other way to be interrupted.
    fn climb(&mut self, guard: &mut Guard, number: u64) {
        let (signal, limit) = match self.signal {
            None => (StopSignal::Terminate, GRACE),
            Some(_) => (StopSignal::Kill, REAP_TIMEOUT),
        };
        guard.signal(number, signal);
        self.signal = Some((signal, Limit::new(limit)));
    }

    async fn drain(&mut self) {
        let drained = async {
            while self.pipe.is_some() {
                read_output(&mut self.pipe, &mut self.output).await;
            }
        };
        // A process outside the guard may hold the pipe open, so the wait is limited.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
    }

    fn note(&mut self, leftovers: &[Leftover], unnamed: usize) {
        if leftovers.is_empty() {
            return;
        }
        let mut names = names_of(leftovers);
        if unnamed > 0 {
            names += &format!(", {unnamed} more");
        }
        let note = format!("[what it left running was ended: {names}]\n");
        self.output.push(note.as_bytes());
    }

    fn exited(self, exit: Exit, canceled: bool) -> Ended {
        let failed = exit != Exit::Code(0);
        let why = || match &self.last_words {
            Some(line) => format!("{exit}: {line}"),
            None => exit.to_string(),
        };
        let failure = self
            .failure
            .or_else(|| failed.then(|| Failure::Failed(why())));
        Ended {
            output: self.output,
            last_words: self.last_words,
            exit: Some(exit),
            failure,
            canceled,
        }
    }

    fn ended(self, error: String, canceled: bool) -> Ended {
        Ended {
            output: self.output,
            last_words: self.last_words,
            exit: None,
            failure: Some(Failure::Failed(error)),
            canceled,
        }
    }
}

/// Reads a part of the output. Cancel-safe.
async fn read_output(from: &mut Option<Receiver>, output: &mut CommandOutput) {
    let Some(pipe) = from else {
        return std::future::pending().await;
    };
    let ready = pipe.readable().await;
    let mut chunk = [0; CHUNK_BYTES];
    match ready.and_then(|()| pipe.try_read(&mut chunk)) {
        Ok(0) => *from = None,
        Ok(read) => output.push(chunk.get(..read).unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(_) => *from = None,
    }
}
