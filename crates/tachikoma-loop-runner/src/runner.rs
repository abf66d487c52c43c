//! The runner of a loop. [`LoopRunner`] is the public interface of an actor that gives inputs to the core, journals and publishes its records, and
//! only then performs its effects. The actor owns the features, and the features own the tasks and threads.

mod actor;
mod autocommit;
mod backup_schedule;
mod backup_upload;
mod builder;
mod checks;
mod context;
mod control;
mod disk_full;
mod error;
mod event;
mod features;
mod hook_runner;
mod maintenance;
mod open;
mod opencode_server;
mod operator;
mod program;
mod reload;
mod session;
mod snapshots;
mod storage;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tachikoma_agents::Agent;
use tachikoma_core::{
    HookPoint, Input, Leftover, LoopId, Outcome, PromptSource, Runner, Seq, State,
};
use tachikoma_fs::quarantine;
use tokio::time::Instant;

use crate::clock;
use crate::config::{LoopConfig, set_autocommit_rules};
use crate::handle::{LoopHandle, SettingsReader};
use crate::hooks::{PlannedHook, RebootHook, RegisterError};
use crate::process::names_of;
use crate::prompt;
use crate::store::temporary::TemporaryStore;
use crate::task::until;
use crate::worktree;

use actor::Actor;
use context::warning_input;
use error::Abort;
use event::Event;
use features::Features;
use open::Opening;

pub use builder::{LoopBuilder, run_guard};
pub use error::RunError;
pub use open::{FoundLoop, OpenError, StateOrigin};

/// Runs a loop in a working directory. It holds the lock of the directory until it is dropped.
///
/// The future of [`LoopRunner::run`] blocks its thread while it writes and syncs small files. If the runtime also serves other tasks,
/// run it on a separate thread.
#[derive(Debug)]
pub struct LoopRunner {
    actor: Actor,
    opening: Opening,
}

impl LoopRunner {
    /// Returns a builder for a loop in a working directory. A string is the prompt itself. [`PromptSource::File`] names a prompt file, which is read
    /// again at every iteration.
    pub fn builder(
        working_dir: impl Into<PathBuf>,
        prompt: impl Into<PromptSource>,
    ) -> LoopBuilder {
        LoopBuilder::new(working_dir.into(), prompt.into())
    }

    /// Checks everything that can be checked before a file is changed.
    ///
    /// # Errors
    /// A run would fail.
    pub fn check(config: &LoopConfig) -> Result<(), OpenError> {
        open::preflight(config, &config.agent()?)
    }

    /// Opens the loop of a working directory, or begins a new one, without running it.
    ///
    /// # Errors
    /// A run would fail. Everything that can be checked without the lock is checked before a file is changed.
    pub async fn open(config: LoopConfig) -> Result<Self, OpenError> {
        let (actor, opening) = open::open(config).await?;
        Ok(Self { actor, opening })
    }

    /// Returns a handle on the loop.
    #[must_use]
    pub fn handle(&self) -> LoopHandle {
        self.actor.handle.clone()
    }

    /// Returns which loop was found in the working directory.
    #[must_use]
    pub fn found(&self) -> &FoundLoop {
        &self.opening.found
    }

    /// Returns the earlier loop, which was complete, so that this new loop was started; `None` if there was none.
    #[must_use]
    pub fn follows(&self) -> Option<LoopId> {
        self.opening.follows
    }

    /// Returns from which file the state of the loop was read.
    #[must_use]
    pub fn origin(&self) -> &StateOrigin {
        &self.opening.origin
    }

    /// Returns the temporary files of a loop that is not stored. They are deleted when the runner and all other holders have dropped this value.
    #[must_use]
    pub fn temporary(&self) -> Option<Arc<TemporaryStore>> {
        self.opening.temporary.clone()
    }

    /// Returns the agent of the loop.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.actor.agent
    }

    /// Returns the state of the loop. Use [`LoopHandle::status`] while [`LoopRunner::run`] borrows the runner.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.actor.state
    }

    /// Returns the number of the last record that was written before this runner. The run publishes all later records.
    #[must_use]
    pub fn found_up_to(&self) -> Seq {
        let first = self.opening.recorded.first();
        first.map_or(self.actor.state.seq, |first| {
            Seq(first.seq.0.saturating_sub(1))
        })
    }

    /// Returns whether the state in memory is newer than the journal, because the journal could not be written. The last decision is then lost.
    /// It had
    /// no effect.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.actor.storage.failed
    }

    /// Returns maintenance warnings that are not in the journal, because the loop had already ended.
    #[must_use]
    pub fn unreported(&mut self) -> Vec<String> {
        self.actor.features.maintenance.unreported()
    }

    /// Sets the function that reads the settings again. Without it, `reload` is refused.
    pub fn reads_settings_with(&mut self, reader: SettingsReader) {
        self.actor.features.reload.reader = Some(reader);
    }

    /// Registers a hook for a point. It runs after the hooks of the configuration and after hooks that were registered earlier.
    /// A `timeout` of zero means no timeout. `enable_pre_hooks` and `enable_post_hooks` of `[reboot]` apply to it too.
    ///
    /// # Errors
    /// Too many hooks are registered for this point.
    pub fn register_hook(
        &mut self,
        point: HookPoint,
        hook: Arc<dyn RebootHook>,
        timeout: Duration,
    ) -> Result<(), RegisterError> {
        let hook = PlannedHook::registered(hook, timeout);
        self.actor.register_hook(point, hook)
    }

    /// Runs the loop until it ends. Can be called again after the loop has ended with an outcome.
    ///
    /// # Errors
    /// The loop cannot be started or its journal cannot be written. No process of the agent is left in either case.
    pub async fn run(&mut self) -> Result<Outcome, RunError> {
        if self.actor.storage.failed {
            return Err(RunError::Unwritten);
        }
        self.actor.state.startable()?;
        tracing::info!(loop_id = %self.actor.state.loop_id, agent = self.actor.agent.name(), "run started");
        // The future of an earlier run may have been dropped. Its agent must end before the next one starts.
        self.actor.shutdown().await;
        self.probe_cloud();
        let running = self.actor.channels.begin_run();
        let result = self.run_to_end().await;
        drop(running);
        if let Ok(outcome) = &result {
            self.drain(drain_time(outcome)).await;
        }
        self.actor.shutdown().await;
        self.finish_run(result.as_ref().ok()).await;
        tracing::info!(state = %self.actor.state.public(), "run ended");
        match result {
            Ok(outcome) | Err(Abort::Unrecorded(outcome)) => Ok(outcome),
            Err(Abort::Failed(error)) => Err(error),
        }
    }

    /// Ends all tasks and processes and releases the lock of the working directory.
    pub async fn close(mut self) {
        let actor = &mut self.actor;
        actor.shutdown().await;
        let never = std::future::pending();
        let uploads = actor.features.backups.waits_for_upload();
        actor.features.maintenance.shutdown(uploads, never).await;
        actor.features.control.shutdown().await;
        actor.storage.lock.release();
    }

    /// Runs the loop to its end.
    async fn run_to_end(&mut self) -> Result<Outcome, Abort> {
        // A shutdown may be requested before the run starts.
        if let Ok((signal, _)) = self.actor.channels.shutdowns.try_recv() {
            if self.actor.state.outcome().is_some() {
                // The loop had already ended, so its state does not change.
                return Ok(Outcome::Signal { signal });
            }
            self.actor.take(Input::Decline { signal }).await?;
        } else {
            self.start().await?;
            if self.opening.found == FoundLoop::Nothing {
                let (context, features, ..) = self.actor.parts();
                features.maintenance.prune_loops(context);
            }
        }
        loop {
            if let Some(outcome) = self.actor.state.outcome() {
                return Ok(outcome.clone());
            }
            let input = self.actor.next_input().await?;
            self.actor.take(input).await?;
        }
    }

    async fn start(&mut self) -> Result<(), Abort> {
        let Self { actor, opening } = self;
        let working_dir = actor.config.working_dir.clone();
        let repository = worktree::may_be_in_a_repository(&working_dir);
        // The first commit is read while the guard starts. A loop that continues already knows its first commit.
        let reads_head = actor.state.started_at.is_none() && repository;
        let start_commit =
            reads_head.then(|| tokio::task::spawn_blocking(move || worktree::head(&working_dir)));
        let (context, features, ..) = actor.parts();
        features.server.start(context).await?;
        let (context, features, ..) = actor.parts();
        let session = &mut features.session;
        session.start_guard(context).map_err(RunError::Guard)?;
        let containment = session
            .guard()
            .map_or("none".to_owned(), |guard| guard.containment().to_string());
        set_autocommit_rules(
            &mut actor.policy,
            Some(actor.config.autocommit_rules(repository)),
        );
        let (context, features, queue, _) = actor.parts();
        if !features.autocommit.start(context, queue) {
            actor.policy.autocommit = None;
        }
        let runner = Runner {
            pid: std::process::id(),
            since: actor.clock.now(),
            containment,
            follows_until: actor.storage.lock.was_alive.map(clock::timestamp_of),
            repository: actor.policy.autocommit.map(|rules| rules.repository),
        };
        for record in std::mem::take(&mut opening.recorded) {
            actor.publish(record);
        }
        for warning in self.start_warnings() {
            self.actor.take(warning).await?;
        }
        let Self { actor, opening } = self;
        if opening.found != FoundLoop::Nothing {
            actor.back_up()?;
        }
        let mut launch = actor.config.launch.clone();
        if let Some(head) = start_commit {
            launch.start_commit = head.await.unwrap_or_default();
        }
        launch.prompt_hash = prompt::hash(&launch.prompt, &actor.config.working_dir);
        actor.take(Input::Start { launch, runner }).await
    }

    /// Returns the warnings that are recorded before the loop starts.
    fn start_warnings(&mut self) -> Vec<Input> {
        let Self { actor, opening } = self;
        let mut warnings = Vec::new();
        warnings.extend(quarantine::bound(&actor.config.working_dir).map(warning_input));
        warnings.extend(leftovers_warning(&std::mem::take(&mut opening.leftovers)));
        warnings.extend(opening.reencrypted.take());
        if opening.found == FoundLoop::Nothing {
            warnings.extend(opening.origin.warnings.iter().map(warning_input));
        }
        let (context, features, ..) = actor.parts();
        warnings.extend(features.checks.script_warnings(context.config));
        warnings.extend(opencode_server::attach_warning(context));
        warnings
    }

    /// Waits at the end of the loop for background hooks and notifications, at most for `time`, and not after a signal. After half of the time,
    /// the message about the end of the loop takes precedence over deliveries that hang.
    async fn drain(&mut self, time: Duration) {
        let actor = &mut self.actor;
        let now = clock::monotonic();
        let over = Instant::from_std(now + time);
        let mut half = Some(Instant::from_std(now + time / 2));
        loop {
            let (hooks, notifier) = (&mut actor.features.hooks, &mut actor.features.notifier);
            if !hooks.has_background() && notifier.is_idle() {
                break;
            }
            let event = tokio::select! {
                () = until(Some(over)) => break,
                Some(_) = actor.channels.shutdowns.recv() => break,
                () = until(half) => Event::Deadline,
                ended = hooks.next_event() => Event::Hooks(ended),
                ended = notifier.next_event() => Event::Delivery(ended),
            };
            match event {
                Event::Deadline => {
                    half = None;
                    actor.features.notifier.prefer_loop_end();
                }
                Event::Delivery(_) => {
                    if let Some(failed) = actor.feature_event(event).await {
                        // An error is ignored: the loop has ended, even if this failure cannot be recorded.
                        let _ = actor.take(failed).await;
                    }
                }
                // Results of hooks are not recorded after the end of the loop.
                event => _ = actor.feature_event(event).await,
            }
        }
        for failed in actor.features.notifier.shutdown().await {
            let _ = actor.take(Input::Incident(failed)).await;
        }
    }

    /// Checks the object store if backups are uploaded.
    fn probe_cloud(&mut self) {
        let (context, features, ..) = self.actor.parts();
        let backups = &mut features.backups;
        backups.probe_cloud(context, &features.maintenance);
    }

    /// Does the work that is left after the end of a run: the last backup and its upload, compression, and deletion of old files.
    async fn finish_run(&mut self, outcome: Option<&Outcome>) {
        let actor = &mut self.actor;
        actor.features.backups.run_ends(outcome);
        if actor.config.cloud().is_some() && !actor.storage.failed {
            // An error is ignored: the loop has ended, even without a last backup.
            let _ = actor.back_up();
        }
        let journal = &actor.storage.journal;
        let closed = journal.has_closed().then(|| journal.closed());
        let (context, features, ..) = actor.parts();
        features.maintenance.finish_run(context, closed);
        let Features {
            maintenance,
            backups,
            ..
        } = &mut actor.features;
        let shutdowns = &mut actor.channels.shutdowns;
        let has_uploader = backups.has_uploader();
        let hurry = async {
            match has_uploader {
                true => _ = shutdowns.recv().await,
                // The wait is not cut short by a signal: it is short, and the signal may be meant for the next run.
                false => std::future::pending().await,
            }
        };
        maintenance
            .shutdown(backups.waits_for_upload(), hurry)
            .await;
        let (context, features, ..) = actor.parts();
        let Some(mut drain) = features.backups.drain(context) else {
            return;
        };
        loop {
            let input = tokio::select! {
                Some(_) = actor.channels.shutdowns.recv() => break,
                input = drain.next_event() => input,
            };
            let Some(input) = input else { break };
            // An error is ignored: the loop has ended, even if this input cannot be recorded.
            let _ = actor.take(input).await;
        }
        if let Some(incident) = drain.finish() {
            let _ = actor.take(Input::Incident(incident)).await;
        }
    }
}

/// Returns the warning about processes that an earlier runner left; `None` if there were none.
fn leftovers_warning(leftovers: &[Leftover]) -> Option<Input> {
    (!leftovers.is_empty()).then(|| {
        warning_input(format!(
            "ended processes that an earlier runner had left: {}",
            names_of(leftovers)
        ))
    })
}

/// Returns how long the end of a loop waits for hooks and notifications. The time is short after a signal, which may be a machine shutdown.
fn drain_time(outcome: &Outcome) -> Duration {
    match outcome {
        Outcome::Signal { .. } => Duration::from_secs(2),
        _ => Duration::from_secs(10),
    }
}
