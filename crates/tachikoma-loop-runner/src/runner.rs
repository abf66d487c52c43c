//! The shell around the core: one actor that tells it the time, journals its facts, publishes them, and only then
//! carries out its wishes.

mod effects;
mod news;
mod open;
mod save;
mod upkeep;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rustix::process::WaitOptions;
use tachikoma_agents::Agent;
use tachikoma_core::{
    Answer, Input, InvalidState, Leftover, LoopEvent, Outcome, Policy, Record, Runner, State,
    Status, Ticket, Timestamp, step,
};
use tokio::sync::oneshot;

use crate::clock::{self, Clock};
use crate::config::LoopConfig;
use crate::control::Server;
use crate::handle::{Ends, LoopHandle, Notice, Request};
use crate::process::{Guard, GuardError, GuardNews, GuardOptions};
use crate::session::process::{LaunchNews, LiveLaunch};
use crate::store::StoreError;
use crate::store::journal::Journal;
use crate::store::lock::WorkLock;
use crate::store::snapshot::Durability;

use news::left_behind;
use upkeep::{Task, Upkeep};

pub use open::{Found, OpenError};

/// Runs a loop in a working directory, which it holds locked as long as it lives.
///
/// The future of [`LoopRunner::run`] writes small files and syncs them in place: on a runtime that serves others too,
/// give it a thread of its own.
#[derive(Debug)]
pub struct LoopRunner {
    config: LoopConfig,
    agent: Agent,
    policy: Policy,
    state: State,
    clock: Clock,
    journal: Journal,
    lock: WorkLock,
    found: Found,
    handle: LoopHandle,
    ends: Ends,
    control: Option<Server>,
    guard: Option<Guard>,
    launch: Option<LiveLaunch>,
    /// News that the shell itself made, before any other.
    queue: VecDeque<Input>,
    tickets: HashMap<Ticket, oneshot::Sender<Answer>>,
    last_ticket: Ticket,
    /// Whether the journal has failed: then the state is ahead of it, and must not be written from.
    unwritten: bool,
    /// Whether the snapshot could not be written when it was last tried.
    save_failed: bool,
    /// When the next snapshot is due, if nothing else brings one.
    unsaved: Option<tokio::time::Instant>,
    /// What was wrong with what was found, to be recorded before anything else.
    troubles: Vec<String>,
    /// What an earlier runner left behind and was ended, to be recorded before anything else.
    leftovers: Vec<Leftover>,
    /// When the whole process was about to be stopped.
    suspended: Option<std::time::Instant>,
    /// What is done beside the loop.
    upkeep: Upkeep,
}

/// Why a run ended without an outcome. What was recorded before is safe, and the loop can be taken up again.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The loop cannot be started from where it is.
    #[error(transparent)]
    InvalidState(#[from] InvalidState),
    /// The journal could not be written.
    #[error(
        "the journal cannot be written; the loop has ended, and nothing that was recorded is lost"
    )]
    Journal(#[source] StoreError),
    /// The journal failed in an earlier run of this runner, which knows more than is written down.
    #[error("the journal could not be written before; close this runner and open the loop again")]
    Unwritten,
    /// There is no guard to hold the agent's processes together.
    #[error("the agent's processes cannot be held together")]
    Guard(#[from] GuardError),
}

impl LoopRunner {
    /// Returns a handle on the loop.
    #[must_use]
    pub fn handle(&self) -> LoopHandle {
        self.handle.clone()
    }

    /// Returns what was found in the working directory.
    #[must_use]
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Returns the state of the loop.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Runs the loop to its end. May be called again when it has ended with an outcome.
    ///
    /// # Errors
    /// The loop cannot be started or its journal cannot be written; no process of the agent is left in either case.
    pub async fn run(&mut self) -> Result<Outcome, RunError> {
        if self.unwritten {
            return Err(RunError::Unwritten);
        }
        self.state.startable()?;
        // What a run left whose future was dropped: its agent must not meet the next one.
        self.put_away().await;
        let duty = self.ends.on_duty();
        let result = self.run_to_end().await;
        drop(duty);
        self.put_away().await;
        self.tidy_up().await;
        result
    }

    /// Gives the working directory back in good order.
    pub async fn close(mut self) {
        self.put_away().await;
        self.upkeep.finish().await;
        if let Some(control) = self.control.take() {
            control.close().await;
        }
        self.lock.release();
    }

    async fn run_to_end(&mut self) -> Result<Outcome, RunError> {
        // A shutdown that came before the run is a shutdown all the same.
        if let Ok((signal, _)) = self.ends.shutdowns.try_recv() {
            if self.state.outcome().is_some() {
                // The loop has ended before, and stays as it is.
                return Ok(Outcome::Signal { signal });
            }
            self.take(Input::Decline { signal }).await?;
        } else {
            self.start().await?;
            if self.found == Found::Nothing {
                self.prune_loops();
            }
        }
        loop {
            if let Some(outcome) = self.state.outcome() {
                return Ok(outcome.clone());
            }
            let input = self.next_input().await?;
            self.take(input).await?;
        }
    }

    async fn start(&mut self) -> Result<(), RunError> {
        self.start_guard()?;
        let since = self.clock.now();
        let containment = self
            .guard
            .as_ref()
            .map_or("none".to_owned(), |guard| guard.containment().to_string());
        let runner = Runner {
            pid: std::process::id(),
            since,
            containment,
        };
        for warning in std::mem::take(&mut self.troubles) {
            self.take(Input::Trouble { warning }).await?;
        }
        if let Some(warning) = left_behind(&std::mem::take(&mut self.leftovers)) {
            self.take(Input::Trouble { warning }).await?;
        }
        let launch = self.config.launch.clone();
        self.take(Input::Start { launch, runner }).await
    }

    fn start_guard(&mut self) -> Result<(), GuardError> {
        let mut words = self.config.guard.iter().cloned();
        let program = words.next().unwrap_or_default().into();
        let guard = Guard::start(GuardOptions {
            program,
            args: words.collect(),
            marker: self.state.loop_id.to_string(),
            lock: self.lock.share().ok(),
            cgroup: self.config.cgroup,
            adoption: self.config.adoption,
        })?;
        if let Some(control) = &self.control {
            control.guard_is(guard.pid());
        }
        self.guard = Some(guard);
        Ok(())
    }

    /// Takes one input through the core, after the time that passed unnoticed, if any did.
    async fn take(&mut self, input: Input) -> Result<(), RunError> {
        let now = self.clock.now();
        if let Some(duration) = self.clock.jumped() {
            self.pass(now, Input::StoodStill { duration }).await?;
        }
        let passed = self.pass(now, input).await;
        self.unwritten |= passed.is_err();
        passed
    }

    /// Decide, journal, publish, act.
    async fn pass(&mut self, now: Timestamp, input: Input) -> Result<(), RunError> {
        let decided = step(&self.policy, &mut self.state, now, input);
        let journalled = if decided.effects.is_empty() {
            self.journal.append(&decided.records)
        } else {
            self.journal.append_synced(&decided.records)
        };
        journalled.map_err(RunError::Journal)?;
        let wanted = decided
            .records
            .iter()
            .filter_map(|record| save::wanted(&record.event))
            .max();
        self.note_unsaved(&decided.records);
        for record in decided.records {
            self.publish(record);
        }
        if self.journal.is_full() {
            let opened = self.journal.next_segment(&mut self.state, now);
            self.publish(opened.map_err(RunError::Journal)?);
            self.upkeep
                .leave(Task::CompressSegments(self.journal.closed()));
        }
        for effect in decided.effects {
            self.perform(effect).await;
        }
        // Behind the effects: a snapshot is a convenience, and nobody waits for it.
        if let Some(durability) = wanted {
            self.save(durability)?;
        }
        Ok(())
    }

    fn publish(&mut self, record: Record) {
        let ends_something = matches!(
            record.event,
            LoopEvent::IterationCompleted { .. } | LoopEvent::IterationFailed { .. }
        );
        // Nobody may be listening.
        let _ = self.ends.notices.send(Notice::Recorded(Arc::new(record)));
        self.ends.status.send_replace(Status::of(&self.state, true));
        if ends_something {
            self.prune_transcripts();
        }
    }

    /// Waits for the next input. What ends the program goes first, then what the operator wants, then time; the
    /// agent, which may talk without pause, comes last.
    async fn next_input(&mut self) -> Result<Input, RunError> {
        loop {
            if let Some(input) = self.queue.pop_front() {
                return Ok(input);
            }
            let deadline = self
                .state
                .next_deadline(&self.policy)
                .map(|deadline| self.clock.instant_of(deadline));
            let Self {
                ends,
                guard,
                launch,
                unsaved,
                ..
            } = self;
            let arrived = tokio::select! {
                biased;
                Some((signal, urgency)) = ends.shutdowns.recv() => Arrived::Input(Input::Shutdown { signal, urgency }),
                Some(request) = ends.requests.recv() => Arrived::Request(request),
                () = until(deadline) => Arrived::Input(Input::Wake),
                () = until(*unsaved) => Arrived::SaveDue,
                news = guard_news(guard.as_mut()) => Arrived::Guard(news),
                news = launch_news(launch.as_mut()) => Arrived::Launch(news),
            };
            let input = match arrived {
                Arrived::Input(input) => Some(input),
                Arrived::SaveDue => {
                    self.save(Durability::Synced)?;
                    None
                }
                Arrived::Request(request) => self.request(request),
                Arrived::Guard(news) => self.guard_news(news),
                Arrived::Launch(news) => self.launch_news(news).await,
            };
            if let Some(input) = input {
                return Ok(input);
            }
        }
    }

    fn request(&mut self, request: Request) -> Option<Input> {
        match request {
            // Whoever asked does not wait any more.
            Request::Command { reply, .. } if reply.is_closed() => None,
            Request::Command { command, reply } => {
                self.last_ticket = self.last_ticket.next();
                self.tickets.insert(self.last_ticket, reply);
                Some(Input::Command {
                    ticket: self.last_ticket,
                    command,
                })
            }
            Request::Suspend { done } => {
                if let Some(guard) = &mut self.guard {
                    guard.suspend();
                }
                self.suspended = Some(clock::monotonic());
                // Whoever asked may have gone.
                let _ = done.send(());
                None
            }
            Request::Continue => {
                if let Some(guard) = &mut self.guard {
                    guard.resume();
                }
                let stopped = self.suspended.take()?;
                let duration = clock::monotonic().saturating_duration_since(stopped);
                Some(Input::StoodStill { duration })
            }
        }
    }

    /// Ends whatever is left of the run. The journal stays open for the next one.
    async fn put_away(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.finish().await;
        }
        if let Some(launch) = self.launch.take() {
            launch.join().await;
        }
        // Whoever waits for an answer is told that there is nobody to give it.
        self.tickets.clear();
        self.queue.clear();
        self.suspended = None;
    }
}

/// A runner that is dropped in the middle leaves its guard to itself, which ends everything and exits. What is left is to
/// take note of that exit: a program that embeds the runner must not collect dead guards.
impl Drop for LoopRunner {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else {
            return;
        };
        let pid = rustix::process::Pid::from_raw(guard.pid());
        drop(guard);
        // Ends with the guard, which has a limit of its own.
        std::thread::spawn(move || rustix::process::waitpid(pid, WaitOptions::empty()));
    }
}

enum Arrived {
    Input(Input),
    SaveDue,
    Request(Request),
    Guard(GuardNews),
    Launch(LaunchNews),
}

async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn guard_news(guard: Option<&mut Guard>) -> GuardNews {
    match guard {
        Some(guard) => guard.next().await,
        None => std::future::pending().await,
    }
}

async fn launch_news(launch: Option<&mut LiveLaunch>) -> LaunchNews {
    match launch {
        Some(launch) => launch.next().await,
        None => std::future::pending().await,
    }
}
