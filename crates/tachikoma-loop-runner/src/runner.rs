//! The shell around the core: one actor that tells it the time, journals its facts, publishes them, and only then
//! carries out its wishes.

mod arrived;
mod backing;
mod check;
mod courier;
mod desk;
mod effects;
mod failure;
mod guard;
mod handoff;
mod heal;
mod hooks;
mod keep;
mod look;
mod news;
mod notify;
mod open;
mod operator;
mod patterns;
mod put_away;
mod requests;
mod reread;
mod room;
mod save;
mod server;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use regex::Regex;
use tachikoma_agents::Agent;
use tachikoma_core::{
    Answer, Input, Leftover, LoopEvent, LoopId, Outcome, Policy, Record, Runner, Seq, State,
    Status, Ticket, Timestamp, next_deadline, step,
};
use tokio::sync::oneshot;

use crate::clock::{self, Clock};
use crate::config::LoopConfig;
use crate::control::Server;
use crate::gates::CheckRun;
use crate::handle::{Ends, LoopHandle, Notice};
use crate::hooks::{HookRun, Registry};
use crate::notify::Notices;
use crate::opencode::supervisor::SupervisorHandle;
use crate::process::Guard;
use crate::prompt;
use crate::session::process::LiveLaunch;
use crate::settings::Settings;
use crate::store::journal::Journal;
use crate::store::lock::WorkLock;
use crate::store::temporary::TemporaryStore;
use crate::worktree;
use tachikoma_fs::quarantine;

use arrived::{Arrived, beside, ended, launch_news, until};
use guard::guard_news;
use news::left_behind;
use upkeep::Upkeep;

pub use failure::RunError;
pub use open::{Basis, Found, OpenError};
pub(crate) use operator::Asked;
pub use operator::{Reader, Reread};

use failure::Cut;

/// Runs a loop in a working directory, which it holds locked as long as it lives.
///
/// The future of [`LoopRunner::run`] writes small files and syncs them in place: on a runtime that serves others too,
/// give it a thread of its own.
#[derive(Debug)]
pub struct LoopRunner {
    config: LoopConfig,
    agent: Agent,
    policy: Policy,
    /// Words of the agent that call for a reboot.
    patterns: Vec<Regex>,
    /// Words of the agent that end the loop.
    stop_patterns: Vec<Regex>,
    /// Whether the agent has shown that it cannot say what a turn costs while it runs.
    cost_unsaid: bool,
    /// Why a promise of the last turn is no claim; told with the next prompt.
    unmeant: Option<String>,
    /// The version that the agent told last.
    agent_version: Option<String>,
    state: State,
    clock: Clock,
    journal: Journal,
    lock: WorkLock,
    found: Found,
    /// The time of the last record before this run.
    ran_until: Timestamp,
    /// The loop before this one, which is done.
    follows: Option<LoopId>,
    basis: Basis,
    /// Where the loop is stored if it is not to be kept.
    temporary: Option<Arc<TemporaryStore>>,
    handle: LoopHandle,
    ends: Ends,
    control: Option<Server>,
    guard: Option<Guard>,
    /// The server of the loop's own that the agent works in.
    server: Option<SupervisorHandle>,
    launch: Option<LiveLaunch>,
    /// Hooks that run, or are on their way out.
    hooks: Option<HookRun>,
    /// Hooks that nobody waits for.
    beside: hooks::Beside,
    /// Messages to people.
    notices: Notices,
    /// A look at the agent that is under way.
    looking: Option<look::Looking>,
    registry: Registry,
    /// What is being found out behind an iteration, or is on its way out.
    check: Option<CheckRun>,
    /// What is known of the tests in it.
    checks: check::ChecksKnown,
    /// How the work is kept.
    keeping: keep::Keeping,
    /// What is to be said of files that were brought into another form.
    resealed: Option<Input>,
    /// AgentEvent that the shell itself made, before any other.
    queue: VecDeque<Input>,
    tickets: HashMap<Ticket, oneshot::Sender<Answer>>,
    last_ticket: Ticket,
    /// Whether the journal has failed: then the state is ahead of it, and must not be written from.
    unwritten: bool,
    /// What is known of the snapshot on disk.
    saving: save::Saving,
    /// What was recorded of what was wrong with what was found, to be published before anything else.
    warned: Vec<Record>,
    /// What an earlier runner left behind and was ended, to be recorded before anything else.
    leftovers: Vec<Leftover>,
    /// Whether it was said that the control socket cannot be made anew.
    deaf: bool,
    /// When the whole process was about to be stopped.
    suspended: Option<std::time::Instant>,
    /// How the settings are read again.
    reader: Option<Reader>,
    rereads: reread::Rereads,
    /// Settings that were read again and hold once that is recorded.
    reread: Option<Settings>,
    /// What is done beside the loop.
    upkeep: Upkeep,
    /// When it was last backed up.
    backing: backing::Backing,
    /// The prompt that was given last, to tell its own words from the agent's.
    asked: String,
    /// The hand-off of the session, once it was given.
    given: Option<handoff::Given>,
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

    /// Returns the loop that was found done, so that this one is another.
    #[must_use]
    pub fn follows(&self) -> Option<LoopId> {
        self.follows
    }

    /// Returns what the state was made from.
    #[must_use]
    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// Returns the store of a loop that is not to be kept: it is there until the runner and everyone who asked for it has
    /// dropped it.
    #[must_use]
    pub fn temporary(&self) -> Option<Arc<TemporaryStore>> {
        self.temporary.clone()
    }

    /// Returns the agent that is driven.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns the state of the loop.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the last record that was there before this runner. What follows it is published with the run.
    #[must_use]
    pub fn found_up_to(&self) -> Seq {
        let first = self.warned.first();
        first.map_or(self.state.seq, |first| Seq(first.seq.0.saturating_sub(1)))
    }

    /// Returns whether the loop knows more than its journal, because the journal could not be written. What was decided
    /// last is then forgotten: nothing was done because of it.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.unwritten
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
        self.look_at_copies();
        let duty = self.ends.on_duty();
        let result = self.run_to_end().await;
        drop(duty);
        if let Ok(outcome) = &result {
            self.drain(put_away::drain_time(outcome)).await;
        }
        self.put_away().await;
        self.back_up_at_the_end(result.as_ref().ok());
        self.tidy_up().await;
        self.drain_copies(courier::over(result.as_ref().ok())).await;
        match result {
            Ok(outcome) | Err(Cut::Left(outcome)) => Ok(outcome),
            Err(Cut::Failed(error)) => Err(error),
        }
    }

    /// Gives the working directory back in good order.
    pub async fn close(mut self) {
        self.put_away().await;
        self.upkeep.finish(std::future::pending()).await;
        if let Some(control) = self.control.take() {
            control.close().await;
        }
        self.lock.release();
    }

    async fn run_to_end(&mut self) -> Result<Outcome, Cut> {
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

    async fn start(&mut self) -> Result<(), Cut> {
        // Asked while the guard starts; of a loop that goes on it is known.
        let asks = self.state.started_at.is_none()
            && worktree::may_be_in_a_repository(&self.config.working_dir);
        let start_commit = asks.then(|| {
            let dir = self.config.working_dir.clone();
            tokio::task::spawn_blocking(move || worktree::head(&dir))
        });
        self.start_server().await?;
        self.start_guard().map_err(RunError::Guard)?;
        let since = self.clock.now();
        let containment = self
            .guard
            .as_ref()
            .map_or("none".to_owned(), |guard| guard.containment().to_string());
        self.open_desk();
        let runner = Runner {
            pid: std::process::id(),
            since,
            containment,
            follows_until: self.lock.was_alive().map(clock::timestamp_of),
            repository: self.policy.autocommit.map(|rules| rules.repository),
        };
        for record in std::mem::take(&mut self.warned) {
            self.publish(record);
        }
        if let Some(warning) = quarantine::bound(&self.config.working_dir) {
            self.take(Input::Warning { warning }).await?;
        }
        if let Some(warning) = left_behind(&std::mem::take(&mut self.leftovers)) {
            self.take(Input::Warning { warning }).await?;
        }
        let mut troubles: Vec<Input> = self.resealed.take().into_iter().collect();
        if self.found == Found::Nothing {
            let known = self.basis.troubles.iter().cloned();
            troubles.extend(known.map(|warning| Input::Warning { warning }));
        }
        troubles.extend(self.problems_of_scripts());
        troubles.extend(self.problem_of_server());
        for trouble in troubles {
            self.take(trouble).await?;
        }
        if self.found != Found::Nothing {
            self.back_up()?;
        }
        let mut launch = self.config.launch.clone();
        if let Some(asked) = start_commit {
            launch.start_commit = asked.await.unwrap_or_default();
        }
        launch.prompt_hash = prompt::hash(&launch.prompt, &self.config.working_dir);
        self.take(Input::Start { launch, runner }).await
    }

    /// Takes one input through the core, after the time that passed unnoticed, if any did.
    async fn take(&mut self, input: Input) -> Result<(), Cut> {
        let taken = self.take_whole(input).await;
        self.unwritten |= taken.is_err();
        taken
    }

    async fn take_whole(&mut self, input: Input) -> Result<(), Cut> {
        let now = self.clock.now();
        if let Some(duration) = self.clock.jumped() {
            self.pass(now, Input::Suspended { duration }).await?;
        }
        if heal::is_turning_point(&input) {
            self.heal(now).await?;
        }
        self.pass(now, input).await
    }

    /// Decide, journal, publish, act.
    async fn pass(&mut self, now: Timestamp, input: Input) -> Result<(), Cut> {
        let decided = step(&self.policy, &mut self.state, now, input);
        self.with_room(|runner| runner.journal.append(&decided.records))
            .await?;
        if self.acts(&decided.effects) || self.tells(&decided.records) {
            self.journal.sync().map_err(RunError::Journal)?;
        }
        let wanted = decided
            .records
            .iter()
            .filter_map(|record| save::wanted(&record.event))
            .max();
        self.note_unsaved(&decided.records);
        let backs_up = backing::is_wanted(&decided.records);
        self.backing.note(&decided.records);
        self.note_whose();
        self.apply_reread(&decided.records);
        for record in decided.records {
            self.publish(record);
        }
        if self.journal.is_full() {
            self.turn_segment(now).await?;
        }
        for effect in decided.effects {
            self.perform(effect).await;
        }
        self.call_off_hooks();
        self.call_off_check();
        self.hurry_deferred();
        self.hurry_rollback();
        // Behind the effects: a snapshot is a convenience, and nobody waits for it.
        if let Some(durability) = wanted {
            self.save(durability)?;
        }
        if backs_up {
            self.back_up()?;
        }
        Ok(())
    }

    fn publish(&mut self, record: Record) {
        let ends_something = matches!(
            record.event,
            LoopEvent::IterationCompleted { .. } | LoopEvent::IterationFailed { .. }
        );
        if matches!(record.event, LoopEvent::TestsRan(_)) {
            self.write_tests_book();
        }
        self.notify(&record);
        // Nobody may be listening.
        let _ = self.ends.notices.send(Notice::Recorded(Arc::new(record)));
        self.ends.status.send_replace(Status::of(&self.state, true));
        if ends_something {
            self.server_is_idle();
            self.prune_transcripts();
        }
    }

    /// Waits for the next input. What ends the program goes first, then what the operator wants, then time; the
    /// agent, which may talk without pause, comes last.
    async fn next_input(&mut self) -> Result<Input, Cut> {
        loop {
            if let Some(input) = self.queue.pop_front() {
                return Ok(input);
            }
            let deadline = next_deadline(&self.policy, &self.state)
                .map(|deadline| self.clock.instant_of(deadline));
            let asleep = clock::monotonic();
            let save_due = self.save_due();
            let snapshot_due = self.keeping.due();
            let Self {
                ends,
                guard,
                launch,
                control,
                upkeep,
                hooks,
                beside: besides,
                notices,
                check,
                keeping,
                looking,
                ..
            } = self;
            let arrived = tokio::select! {
                biased;
                Some((signal, urgency)) = ends.shutdowns.recv() => Arrived::Input(Input::Shutdown { signal, urgency }),
                arrived = beside(control.as_mut(), upkeep) => arrived,
                Some(request) = ends.requests.recv() => Arrived::Request(request),
                () = until(deadline) => Arrived::Input(Input::Wake),
                () = until(save_due) => Arrived::SaveDue,
                news = guard_news(guard.as_mut()) => Arrived::Guard(news),
                told = keeping.next() => Arrived::Desk(told),
                () = until(snapshot_due) => Arrived::SnapshotLate,
                seen = look::looked(looking) => Arrived::Input(seen),
                ran = ended(hooks.as_mut().map(|hooks| &mut hooks.errand)) => Arrived::Hooks(ran),
                ran = besides.ended() => Arrived::Beside(ran),
                (index, ran) = notices.next() => Arrived::Notice(index, ran),
                ran = ended(check.as_mut().map(|check| &mut check.errand)) => Arrived::Check(ran),
                news = launch_news(launch.as_mut()) => Arrived::Launch(news),
            };
            // Whoever was about to be stopped measures that better.
            let overslept = deadline
                .filter(|_| self.suspended.is_none())
                .and_then(|meant| clock::overslept(asleep, meant));
            let input = match arrived {
                Arrived::Input(input) => Some(input),
                Arrived::Damaged { segment, why } => {
                    self.leave_segment(&segment, &why).await?;
                    None
                }
                Arrived::SaveDue => {
                    self.look_after().await?;
                    None
                }
                Arrived::Request(request) => self.request(request),
                Arrived::Guard(news) => self.guard_news(news),
                Arrived::Desk(told) => self.desk_told(told).await?,
                Arrived::SnapshotLate => Some(self.snapshot_late().await),
                Arrived::Hooks(ran) => self.hooks_ended(ran),
                Arrived::Beside(ran) => self.beside_ended(ran),
                Arrived::Notice(index, ran) => self.notice_ended(index, ran),
                Arrived::Check(ran) => self.check_ended(ran),
                Arrived::Launch(news) => self.launch_news(news).await,
            };
            if let Some(duration) = overslept {
                self.queue.extend(input);
                return Ok(Input::Suspended { duration });
            }
            if let Some(input) = input {
                return Ok(input);
            }
        }
    }
}

/// A runner that is dropped in the middle leaves its guard to itself.
impl Drop for LoopRunner {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.abandon();
        }
    }
}
