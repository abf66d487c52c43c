//! The actor: it waits for the next event, gives the core an input, journals its records, publishes them, and only then performs its effects.

use std::path::Path;
use std::sync::Arc;

use tachikoma_agents::Agent;
use tachikoma_core::{
    AgentInput, HookPoint, Input, LoopEvent, Outcome, Policy, Record, Repair, State, Status,
    Timestamp, WaitSummary, next_deadline, step,
};
use tachikoma_fs::FsError;
use tokio::time::Instant;

use super::autocommit::{self, GitReply};
use super::context::{Context, InputQueue, warning_input};
use super::error::{Abort, RunError};
use super::event::Event;
use super::features::{Features, Waits};
use super::maintenance::{MaintenanceEvent, backup_failed};
use super::storage::Storage;
use super::{backup_schedule, disk_full, snapshots};
use crate::clock::{self, Clock};
use crate::config::{LoopConfig, set_autocommit_rules};
use crate::handle::{Channels, LoopHandle, LoopRequest};
use crate::hooks::{PlannedHook, RegisterError};
use crate::notice::Notice;
use crate::process::end_children;
use crate::store::StoreError;
use crate::store::snapshot::Durability;

/// Runs the loop of one working directory. The actor owns the state of the loop, and the features own their tasks.
#[derive(Debug)]
pub(super) struct Actor {
    /// The first field, so that dropping the actor ends the agent before it releases the lock.
    pub features: Features,
    pub config: LoopConfig,
    pub agent: Agent,
    pub policy: Policy,
    pub state: State,
    pub clock: Clock,
    pub storage: Storage,
    pub queue: InputQueue,
    pub channels: Channels,
    pub handle: LoopHandle,
    /// Time at which Ctrl-Z was handled and the process was about to be suspended; `None` while it runs.
    pub suspended: Option<std::time::Instant>,
}

/// References to parts of the actor: data that features may read, and parts that they may change.
type Parts<'a> = (
    Context<'a>,
    &'a mut Features,
    &'a mut InputQueue,
    &'a mut Clock,
);

impl Actor {
    /// Splits the actor, so that a feature can be changed while it reads the data of the loop.
    pub fn parts(&mut self) -> Parts<'_> {
        let context = Context {
            config: &self.config,
            agent: &self.agent,
            policy: &self.policy,
            state: &self.state,
            lock: &self.storage.lock,
            handle: &self.handle,
            own_server: self.features.server.is_running(),
        };
        (
            context,
            &mut self.features,
            &mut self.queue,
            &mut self.clock,
        )
    }

    /// Gives the core one input. If the process was suspended, the core first gets the duration of the suspension.
    pub async fn take(&mut self, input: Input) -> Result<(), Abort> {
        let now = self.clock.now();
        let suspended = self.clock.jumped();
        let suspended = suspended.map(|duration| Input::Suspended { duration });
        for input in suspended.into_iter().chain([input]) {
            let passed = self.pass(now, input).await;
            self.storage.failed |= passed.is_err();
            passed?;
        }
        Ok(())
    }

    /// Handles one input: decide, journal, sync, publish, act, save. No effect happens before its record is on disk. [`step`] decides
    /// which phase of the loop comes next.
    async fn pass(&mut self, now: Timestamp, input: Input) -> Result<(), Abort> {
        // The agent or another program may have damaged the files of the loop.
        if needs_repair_before(&input) {
            self.repair(now).await?;
        }
        tracing::trace!(input = input.kind(), "input taken");
        let decided = step(&self.policy, &mut self.state, now, input);
        self.append(&decided.records).await?;
        if autocommit::change_something(&self.policy, &decided.effects)
            || self.features.notifier.is_notified_of(&decided.records)
        {
            self.storage.sync()?;
        }
        let durabilities = decided.records.iter();
        let durability = durabilities
            .filter_map(|record| snapshots::durability(&record.event))
            .max();
        let backup_wanted = backup_schedule::is_wanted(&decided.records);
        self.features.snapshots.note(&self.config, &decided.records);
        self.features.backups.note(&decided.records);
        self.note_change_owner();
        self.apply_reload(&decided.records);
        for record in decided.records {
            self.publish(record);
        }
        if self.storage.journal.is_full() {
            self.next_segment(now).await?;
        }
        for effect in decided.effects {
            tracing::debug!(effect = effect.name(), "effect performed");
            let (context, features, queue, _) = self.parts();
            features.perform(context, effect, queue).await;
        }
        self.features.hooks.cancel_outdated(&self.state);
        self.features.checks.cancel_outdated(&self.state);
        self.features.autocommit.cancel_outdated(&self.state);
        // Snapshots and backups are written after the effects, because no effect depends on them.
        if let Some(durability) = durability {
            self.save(durability)?;
        }
        if backup_wanted {
            self.back_up()?;
        }
        Ok(())
    }

    /// Appends records to the journal. While the disk is full, waits for space.
    async fn append(&mut self, records: &[Record]) -> Result<(), Abort> {
        self.when_space(|storage, _| storage.journal.append(records))
            .await
    }

    pub fn publish(&mut self, record: Record) {
        let ends_iteration = matches!(
            record.event,
            LoopEvent::IterationCompleted { .. } | LoopEvent::IterationFailed { .. }
        );
        let synced = self.storage.journal.is_synced();
        let (context, features, queue, _) = self.parts();
        if matches!(record.event, LoopEvent::TestsRan(_)) {
            features.checks.write_test_history(context, queue);
        }
        let (state, dir) = (context.state, &context.config.working_dir);
        let notifier = &mut features.notifier;
        let dropped = notifier.notify(state, dir, &record, synced, || context.shell());
        queue.extend(dropped.into_iter().map(Input::Incident));
        if ends_iteration {
            features.server.idle();
            features.maintenance.prune_transcripts(context);
        }
        // Sending fails if there is no subscriber, which does not matter.
        let _ = self
            .channels
            .notices
            .send(Notice::Recorded(Arc::new(record)));
        self.channels.publish(&self.state);
    }

    /// Waits for the next input for the core.
    pub async fn next_input(&mut self) -> Result<Input, Abort> {
        loop {
            if let Some(input) = self.queue.pop() {
                return Ok(input);
            }
            let deadline = next_deadline(&self.policy, &self.state)
                .map(|deadline| self.clock.instant_of(deadline));
            let asleep = clock::monotonic();
            let event = self.next_event(deadline, None).await;
            // After Ctrl-Z the duration of the suspension is measured directly, so it is not derived from the late wakeup.
            let suspended = deadline
                .filter(|_| self.suspended.is_none())
                .and_then(|meant| clock::overslept(asleep, meant));
            let input = self.dispatch(event).await?;
            if let Some(duration) = suspended {
                self.queue.extend(input);
                return Ok(Input::Suspended { duration });
            }
            if let Some(input) = input {
                return Ok(input);
            }
        }
    }

    /// Waits for the next event. `retry` is the time of the next write attempt while the disk is full.
    async fn next_event(&mut self, deadline: Option<Instant>, retry: Option<Instant>) -> Event {
        let waits = Waits {
            deadline,
            files_due: self.files_due().filter(|_| retry.is_none()),
            retry,
            accepts: retry.is_none() || self.queue.len() < disk_full::WAITING_MAX,
        };
        self.features.next_event(&mut self.channels, waits).await
    }

    /// Handles an event. Returns an input for the core if the event causes one.
    async fn dispatch(&mut self, event: Event) -> Result<Option<Input>, Abort> {
        Ok(match event {
            Event::Shutdown { signal, urgency } => Some(Input::Shutdown { signal, urgency }),
            Event::Request(request) => self.request(request),
            Event::Deadline => Some(Input::Wake),
            Event::FilesDue => {
                self.check_files().await?;
                None
            }
            Event::Maintenance(MaintenanceEvent::DamagedSegment { segment, why }) => {
                self.leave_segment(&segment, &why).await?;
                None
            }
            Event::Git(reply) => self.git_reply(reply).await?,
            Event::SnapshotTimedOut => {
                let (context, features, ..) = self.parts();
                let warning = features.autocommit.snapshot_timed_out(context);
                let (context, features, queue, _) = self.parts();
                features.begin_deferred_turn(context, queue).await;
                Some(warning)
            }
            event => self.feature_event(event).await,
        })
    }

    /// Handles an event of a feature. Returns an input for the core if the event causes one.
    pub async fn feature_event(&mut self, event: Event) -> Option<Input> {
        let (context, features, queue, clock) = self.parts();
        let maintenance = &mut features.maintenance;
        match event {
            Event::Input(input) => Some(input),
            Event::Maintenance(MaintenanceEvent::Warning(warning)) => Some(warning_input(warning)),
            // The damage is only reported here. The next backup finds it again.
            Event::Maintenance(MaintenanceEvent::DamagedSegment { why, .. }) => {
                Some(warning_input(backup_failed(&why)))
            }
            Event::Maintenance(MaintenanceEvent::Panicked(reason)) => {
                Some(Input::Broken { reason })
            }
            Event::Hooks(ended) => features.hooks.ended(context, ended),
            Event::Delivery(ended) => {
                let failed = features.notifier.ended(ended, || context.shell());
                failed.map(Input::Incident)
            }
            Event::Check(result) => features.checks.ended(context, result, maintenance, queue),
            Event::Guard(event) => features.session.guard_event(context, event, queue),
            Event::Sampled(result) => features.session.sampled(result),
            Event::Agent(event) => {
                let session = &mut features.session;
                session
                    .reader_event(context, event, clock, maintenance, queue)
                    .await
            }
            _ => None,
        }
    }

    async fn git_reply(&mut self, reply: GitReply) -> Result<Option<Input>, Abort> {
        Ok(match reply {
            GitReply::NoRepository(why) => {
                self.policy.autocommit = Some(self.config.autocommit_rules(false));
                Some(autocommit::no_repository(&why))
            }
            GitReply::NoChangeDetection(why) => {
                self.policy.autocommit = None;
                Some(autocommit::no_change_detection(&why))
            }
            GitReply::Opened => {
                let (context, features, ..) = self.parts();
                features.opened(context);
                None
            }
            GitReply::Snapshot { iteration, result } => {
                let autocommit = &mut self.features.autocommit;
                let input = autocommit.snapshot_ended(&self.state, iteration, result);
                // The git snapshot is recorded before the agent can change the work tree.
                if let Some(input) = input {
                    self.take(input).await?;
                }
                let (context, features, queue, _) = self.parts();
                features.begin_deferred_turn(context, queue).await;
                None
            }
            GitReply::Committed { number, result } => {
                Some(Input::AutocommitFinished { number, result })
            }
            GitReply::RolledBack { iteration, result } => {
                Some(autocommit::rolled_back(iteration, result))
            }
            GitReply::Warning(warning) => Some(warning_input(warning)),
            GitReply::Panicked(reason) => Some(Input::Broken { reason }),
        })
    }

    /// Handles a request of a caller. Returns an input for the core if the request needs a decision.
    fn request(&mut self, request: LoopRequest) -> Option<Input> {
        match request {
            LoopRequest::Incident(incident) => Some(Input::Incident(incident)),
            LoopRequest::Register { point, hook, reply } => {
                // The hook stays registered even if the caller no longer waits.
                let _ = reply.send(self.register_hook(point, hook));
                None
            }
            LoopRequest::Suspend { done } => {
                self.suspended = Some(clock::monotonic());
                self.features.suspend(done);
                None
            }
            LoopRequest::Continue => {
                self.features.resume();
                let stopped = self.suspended.take()?;
                let duration = clock::monotonic().saturating_duration_since(stopped);
                Some(Input::Suspended { duration })
            }
            request => {
                let (context, features, ..) = self.parts();
                features.request(context, request)
            }
        }
    }

    /// Registers a hook, and adds its timeout to the time limit of its point.
    pub fn register_hook(
        &mut self,
        point: HookPoint,
        hook: PlannedHook,
    ) -> Result<(), RegisterError> {
        let registry = &mut self.features.hooks.registry;
        registry.register(point, hook)?;
        let limit = registry.limit(point, &self.config.settings);
        match (point, limit) {
            (HookPoint::BeforeReboot, limit) => self.policy.reboot.hooks_before = limit,
            (HookPoint::AfterReboot, limit) => self.policy.reboot.hooks_after = limit,
            (_, Some(limit)) => _ = self.policy.hooks.insert(point, limit),
            (_, None) => {}
        }
        Ok(())
    }

    /// Applies reloaded settings after their reload was recorded.
    fn apply_reload(&mut self, records: &[Record]) {
        let Some(settings) = self.features.reload.take_recorded(records) else {
            return;
        };
        self.config.settings = settings;
        self.config.launch = self.state.launch.clone();
        // The new settings may change how the agent is started: its next process learns whether the loop manages its context.
        if let Ok(agent) = self.config.agent() {
            self.agent = agent;
        }
        let settings = &self.config.settings;
        let keep = self.policy.autocommit;
        let keep = keep.map(|keep| self.config.autocommit_rules(keep.repository));
        self.policy = self.config.policy(&self.agent);
        set_autocommit_rules(&mut self.policy, keep);
        let hooks = &self.features.hooks.registry;
        self.policy.hooks = hooks.limits(settings);
        self.policy.reboot.hooks_before = hooks.limit(HookPoint::BeforeReboot, settings);
        self.policy.reboot.hooks_after = hooks.limit(HookPoint::AfterReboot, settings);
        self.features.session.set_patterns(settings);
    }

    /// Tells the backup task who makes the changes in the work tree that no survey has covered yet.
    fn note_change_owner(&mut self) {
        let (context, features, ..) = self.parts();
        let owner = features.autocommit.change_owner(context);
        features.backups.set_change_owner(owner);
    }

    /// Returns whether the loop has a time budget, so that its run time must be saved.
    fn has_time_budget(&self) -> bool {
        !self.policy.budgets.duration.is_zero()
    }

    /// Returns when the files of the loop have to be checked, saved or backed up.
    fn files_due(&self) -> Option<Instant> {
        let (snapshots, backups) = (&self.features.snapshots, &self.features.backups);
        let runs = snapshots::is_running(&self.state);
        let alive = (runs && self.has_time_budget()).then(|| snapshots.alive_due());
        let backup = backups.due(&self.config).filter(|_| runs);
        let check = snapshots.check_due(&self.config, &self.state);
        check.into_iter().chain(alive).chain(backup).min()
    }

    /// Repairs and saves the files of the loop during an iteration, which may take hours: the runner could be killed before it ends.
    async fn check_files(&mut self) -> Result<(), Abort> {
        self.features.snapshots.touched();
        if self.has_time_budget() {
            self.storage.lock.touch();
            let status = Status::at(&self.state, true, self.clock.now());
            self.channels.status.send_replace(status);
        }
        if self.features.backups.is_due(&self.config) {
            self.back_up()?;
        }
        let snapshots = &self.features.snapshots;
        if !snapshots.is_check_due(&self.config, &self.state) {
            return Ok(());
        }
        let now = self.clock.now();
        if let Err(abort) = self.repair(now).await {
            self.storage.failed = true;
            return Err(abort);
        }
        if self.features.snapshots.is_unsaved() {
            self.save(Durability::Synced)?;
        }
        Ok(())
    }

    fn save(&mut self, durability: Durability) -> Result<(), RunError> {
        if let Some(how) = self.write_snapshot(durability)? {
            let what = Repair::Snapshot;
            self.queue.push(Input::Repaired { what, how });
        }
        Ok(())
    }

    fn write_snapshot(&mut self, durability: Durability) -> Result<Option<String>, RunError> {
        let now = self.clock.now();
        self.features.snapshots.write(
            &self.config,
            &self.state,
            &mut self.storage,
            durability,
            now,
            &mut self.queue,
        )
    }

    /// Starts a backup in the background.
    pub fn back_up(&mut self) -> Result<(), RunError> {
        self.note_change_owner();
        let now = self.clock.now();
        self.features.backups.back_up(
            &self.config,
            &self.state,
            &mut self.storage,
            &mut self.features.maintenance,
            &mut self.queue,
            now,
        )
    }

    /// Checks all files of the loop once, repairs damaged ones and records the repairs. The lock is checked first: nothing may be written
    /// if another runner has taken over the directory.
    async fn repair(&mut self, now: Timestamp) -> Result<(), Abort> {
        self.features.snapshots.checked();
        let session = &mut self.features.session;
        let lock = match self.storage.repair_lock(&self.config, session).await {
            Err(Abort::Failed(lost @ RunError::Lock(_))) => {
                self.rescue_journal(now).await;
                return Err(lost.into());
            }
            lock => lock?,
        };
        let journal = self.repair_journal(now).await?;
        let control = &mut self.features.control;
        let socket = control.repair_socket(&mut self.queue).await;
        // The key is restored first, because the other files cannot be read without it. If it cannot be written, the next repair tries again.
        let _ = self.config.encryption.put_back_identity();
        let snapshots = &mut self.features.snapshots;
        let snapshot = match snapshots.is_damaged(&self.config, self.state.loop_id) {
            true => self.write_snapshot(Durability::Synced)?,
            false => None,
        };
        let repairs = [
            (Repair::Lock, lock),
            (Repair::Journal, journal),
            (Repair::Socket, socket),
            (Repair::Snapshot, snapshot),
        ];
        for (what, how) in repairs {
            if let Some(how) = how {
                self.record_repair(now, what, how).await?;
            }
        }
        Ok(())
    }

    /// Restores the journal although another runner has the lock: that runner runs another loop and does not use the directory of this one.
    async fn rescue_journal(&mut self, now: Timestamp) {
        // The error is ignored, because the lost lock is reported and is more important.
        if let Ok(Some(how)) = self.storage.journal.rescue() {
            let _ = self.record_repair(now, Repair::Journal, how).await;
            let _ = self.storage.journal.sync();
        }
    }

    async fn repair_journal(&mut self, now: Timestamp) -> Result<Option<String>, Abort> {
        if self.storage.journal.damage().is_none() || !self.config.working_dir.is_dir() {
            return Ok(None);
        }
        let repaired = self
            .when_space(|storage, state| {
                // The damage is checked again, because an earlier attempt may have changed the file.
                let Some(damage) = storage.journal.damage() else {
                    return Ok(None);
                };
                storage.journal.repair(damage, state, now).map(Some)
            })
            .await?;
        let Some(repaired) = repaired else {
            return Ok(None);
        };
        if let Some(opened) = repaired.opened {
            self.publish(opened);
        }
        Ok(Some(repaired.how))
    }

    /// Closes the journal segment and begins the next one. If that fails, repairs the files and tries once more.
    async fn next_segment(&mut self, now: Timestamp) -> Result<(), Abort> {
        let mut next = self.storage.journal.next_segment(&mut self.state, now);
        if let Err(StoreError::File(FsError::Io { .. })) = &next
            && !next.as_ref().is_err_and(StoreError::is_full_disk)
            && self.config.working_dir.is_dir()
        {
            self.repair(now).await?;
            let moved = self.storage.journal.make_way_for_next();
            if let Some(how) = moved.map_err(RunError::Journal)? {
                self.record_repair(now, Repair::Journal, how).await?;
            }
            // The repair may already have begun the next segment.
            if !self.storage.journal.is_full() {
                return Ok(());
            }
            next = self.storage.journal.next_segment(&mut self.state, now);
        }
        match next {
            Ok(opened) => {
                self.publish(opened);
                let closed = self.storage.journal.closed();
                self.features.maintenance.compress_segments(closed);
                Ok(())
            }
            // On a full disk, the current segment grows until there is space for the next one.
            Err(error) if error.is_full_disk() => Ok(()),
            Err(error) => Err(RunError::Journal(error).into()),
        }
    }

    /// Continues in a new segment after a damaged one. The new segment begins with the full state, and can be backed up.
    async fn leave_segment(&mut self, segment: &Path, why: &str) -> Result<(), Abort> {
        let left = self.try_leave_segment(segment, why).await;
        self.storage.failed |= left.is_err();
        left
    }

    async fn try_leave_segment(&mut self, segment: &Path, why: &str) -> Result<(), Abort> {
        let is_current = |actor: &Self| actor.storage.journal.part().path == *segment;
        if !is_current(self) {
            // The runner already left this damaged segment after an earlier backup attempt.
            return Ok(());
        }
        let now = self.clock.now();
        self.next_segment(now).await?;
        if is_current(self) {
            // The new segment cannot be written, for example because the disk is full. The next backup finds the damage again.
            self.queue.warn(backup_failed(why));
            return Ok(());
        }
        let next = self.storage.journal.part().segment;
        let how = format!("{why}; segment {next} continues from the full state");
        self.record_repair(now, Repair::Journal, how).await?;
        Ok(self.back_up()?)
    }

    /// Records a repair. The record has no effects.
    async fn record_repair(
        &mut self,
        now: Timestamp,
        what: Repair,
        how: String,
    ) -> Result<(), Abort> {
        let input = Input::Repaired { what, how };
        let decided = step(&self.policy, &mut self.state, now, input);
        debug_assert!(decided.effects.is_empty(), "a repair is only recorded");
        self.append(&decided.records).await?;
        self.features.snapshots.note(&self.config, &decided.records);
        for record in decided.records {
            self.publish(record);
        }
        Ok(())
    }

    /// Calls `attempt`. While the disk is full, repeats it for a limited time. Ends early on a signal or a stop command. The agent continues
    /// meanwhile.
    async fn when_space<T>(
        &mut self,
        attempt: impl Fn(&mut Storage, &mut State) -> Result<T, StoreError>,
    ) -> Result<T, Abort> {
        let mut full_since: Option<Timestamp> = None;
        loop {
            let source = match attempt(&mut self.storage, &mut self.state) {
                Ok(done) => {
                    if let Some(since) = full_since {
                        self.storage.failed = false;
                        let duration = self.clock.now().since(since);
                        self.queue.push_front(Input::DiskWasFull { duration });
                    }
                    return Ok(done);
                }
                Err(error) if error.is_full_disk() => error,
                Err(error) => return Err(RunError::Journal(error).into()),
            };
            let now = self.clock.now();
            let since = full_since.unwrap_or(now);
            let end = since.after(self.config.disk_full_timeout);
            if now >= end {
                let waited = now.since(since);
                return Err(RunError::NoRoom { waited, source }.into());
            }
            if full_since.replace(since).is_none() {
                self.publish_disk_full(end);
                // If the future of the run is dropped while waiting, the state stays newer than the journal.
                self.storage.failed = true;
            }
            let retry = now.after(disk_full::RETRY_INTERVAL).min(end);
            self.wait_for_space(retry).await?;
        }
    }

    /// Publishes the last status again, with the wait for disk space added.
    fn publish_disk_full(&self, end: Timestamp) {
        self.channels.status.send_modify(|status| {
            status.waiting = Some(WaitSummary {
                reason: "disk_full".to_owned(),
                until: Some(end),
            });
        });
        // Sending fails if there is no subscriber, which does not matter.
        let _ = self.channels.notices.send(Notice::DiskFull { until: end });
    }

    /// Waits until `moment`, when the write to the full disk is retried. Inputs that arrive meanwhile are queued in order.
    async fn wait_for_space(&mut self, moment: Timestamp) -> Result<(), Abort> {
        let retry = Some(self.clock.instant_of(moment));
        loop {
            let input = match self.next_event(None, retry).await {
                Event::RetryDue => return Ok(()),
                Event::Shutdown { signal, .. } => {
                    return Err(Abort::Unrecorded(Outcome::Signal { signal }));
                }
                Event::Request(request) => {
                    let current = self.channels.status.borrow().state;
                    let request = disk_full::filter_request(request, current)?;
                    request.and_then(|request| self.request(request))
                }
                event => self.feature_event(event).await,
            };
            self.queue.extend(input);
        }
    }

    /// Ends all tasks and processes of the run. The journal stays open for the next run.
    pub async fn shutdown(&mut self) {
        self.features
            .shutdown(self.config.settings.state.enabled)
            .await;
        // Children of this process are ended last: they include processes that git left, which no guard ends.
        end_children(self.config.adoption, &self.state.loop_id.to_string()).await;
        self.queue.clear();
        self.suspended = None;
    }
}

/// Returns whether an input may end an iteration or the loop, or start the agent. All files are checked before such an input.
fn needs_repair_before(input: &Input) -> bool {
    match input {
        Input::Start { .. }
        | Input::Wake
        | Input::Command { .. }
        | Input::Shutdown { .. }
        | Input::Decline { .. }
        | Input::Broken { .. }
        | Input::AutocommitFinished { .. }
        | Input::ConditionsAnswered { .. }
        | Input::GatesRan { .. }
        | Input::OperatorRequest { .. }
        | Input::RolledBack { .. }
        | Input::HooksRan { .. } => true,
        Input::Agent { event, .. } => matches!(
            event,
            AgentInput::NotLaunched { .. }
                | AgentInput::Opened
                | AgentInput::TurnEnded(_)
                | AgentInput::Exited { .. }
                | AgentInput::GuardLost
        ),
        Input::Suspended { .. }
        | Input::SnapshotTaken { .. }
        | Input::CustomSet { .. }
        | Input::Note { .. }
        | Input::CompletionClaimed { .. }
        | Input::Warning { .. }
        | Input::DiskWasFull { .. }
        | Input::Incident(_)
        | Input::Repaired { .. } => false,
    }
}
