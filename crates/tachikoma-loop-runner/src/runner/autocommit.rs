//! Autocommit: snapshots of the work tree before iterations, surveys and commits after them, and rollbacks. The git worker runs the git
//! operations. A turn of the agent is deferred here until the snapshot before it is taken.

mod git_worker;

use std::time::Duration;

use tachikoma_core::{
    AutocommitResult, CommitFacts, CommitMessage, CommitOrder, Effect, Generation, Input,
    LoopChanges, Phase, Policy, State, StopSignal, Timestamp,
};
use tokio::time::Instant;

use super::context::{Context, InputQueue, TurnOrder, TurnStart, warning_input};
use crate::clock;
use crate::config::{OPENING_TIMEOUT, SNAPSHOT_TIMEOUT};
use crate::git::worktree_tree::Bounds;
use crate::git::{CancelToken, ChangeOwner, TrackerOptions};
use crate::task::await_some;
use crate::worktree;

use git_worker::{
    Commit, GitOrder, GitWorker, GitWorkerOptions, RollbackFailure, RollbackOrder, SnapshotError,
    SnapshotTaken,
};

pub(super) use git_worker::GitReply;

/// Tolerance for the timestamps of a file system, which may be older than the system time.
const FILE_CLOCK_LAG: Duration = Duration::from_millis(20);

/// The git operations of one run.
#[derive(Debug)]
pub(super) struct Autocommit {
    worker: Option<GitWorker>,
    /// Whether the survey at the start of the run has finished.
    opened: bool,
    /// The turn that waits for its snapshot; `None` if no turn waits.
    deferred: Option<DeferredTurn>,
    /// The iteration that is known to have a snapshot. A later attempt at the same iteration does not replace it.
    has_snapshot: Option<u32>,
    /// The time of the last record before this run.
    ran_until: Timestamp,
}

/// A turn that waits for its snapshot, at most until `due`.
#[derive(Debug)]
struct DeferredTurn {
    turn: TurnOrder,
    due: Instant,
}

impl Autocommit {
    pub fn new(ran_until: Timestamp) -> Self {
        Self {
            worker: None,
            opened: false,
            deferred: None,
            has_snapshot: None,
            ran_until,
        }
    }

    /// Starts the git worker, which first surveys the changes since the last run. Returns whether changes can be tracked.
    pub fn start(&mut self, context: Context<'_>, queue: &mut InputQueue) -> bool {
        let Context { config, state, .. } = context;
        self.has_snapshot = iteration_with_snapshot(state);
        let repository = worktree::may_be_in_a_repository(&config.working_dir);
        let bounds = Bounds::of(&config.settings, &config.working_dir);
        let rules = match repository.then(|| bounds.rules()).transpose() {
            Ok(rules) => rules,
            // If the patterns are not valid, nothing is committed, because protected files could be committed too.
            Err(error) => {
                queue.push(no_change_detection(&error.to_string()));
                return false;
            }
        };
        let tracker = rules.map(|rules| TrackerOptions {
            hidden: context.secret_names(),
            working_dir: config.working_dir.clone(),
            loop_dir: context.loop_dir(),
            loop_id: state.loop_id,
            search_path: config.search_path.clone(),
            rules,
        });
        let options = GitWorkerOptions {
            tracker,
            working_dir: config.working_dir.clone(),
            runtime_files: bounds.runtime_files,
        };
        match GitWorker::start(options, self.change_owner(context)) {
            Ok(worker) => {
                self.worker = Some(worker);
                true
            }
            Err(error) => {
                queue.push(no_change_detection(&format!(
                    "the thread of the git worker cannot be started: {error}"
                )));
                false
            }
        }
    }

    /// Waits for the next reply of the git worker. Cancel-safe.
    pub async fn next_event(&mut self) -> GitReply {
        await_some(self.worker.as_mut().map(GitWorker::next_event)).await
    }

    /// Returns when the deferred turn starts even without its snapshot.
    pub fn snapshot_due(&self) -> Option<Instant> {
        self.deferred.as_ref().map(|deferred| deferred.due)
    }

    /// Returns whether the survey at the start of the run is still running.
    pub fn is_opening(&self) -> bool {
        self.worker.is_some() && !self.opened
    }

    /// Marks the survey at the start of the run as finished.
    pub fn opened(&mut self) {
        self.opened = true;
        if let Some(deferred) = &mut self.deferred {
            deferred.due = due_in(SNAPSHOT_TIMEOUT);
        }
    }

    /// Marks that the loop itself is about to change the work tree outside of an iteration.
    pub fn owe_survey(&self) {
        if let Some(worker) = &self.worker {
            // If the queue is full, it already contains a survey.
            worker.order(GitOrder::OweSurvey);
        }
    }

    /// Returns who made the changes that no survey has covered yet.
    pub fn change_owner(&self, context: Context<'_>) -> ChangeOwner {
        let owed = context.state.needs_survey();
        match owed && self.opened {
            true => ChangeOwner::Loop,
            false => ChangeOwner::since_last_survey(owed, context.lock.died, self.ran_until),
        }
    }

    /// Orders the snapshot before a turn. Returns the turn if it need not wait for the snapshot.
    pub fn defer(&mut self, context: Context<'_>, turn: TurnOrder) -> Option<TurnOrder> {
        let iteration = turn.iteration;
        let only_survey = self.has_snapshot == Some(iteration);
        let worker = self
            .worker
            .as_mut()
            .filter(|_| context.policy.autocommit.is_some());
        let is_ordered = worker.is_some_and(|worker| {
            worker.snapshot = CancelToken::new();
            worker.order(GitOrder::Snapshot {
                iteration,
                only_survey,
                cancel: worker.snapshot.clone(),
            })
        });
        if !is_ordered {
            return Some(turn);
        }
        let due = due_in(self.snapshot_limit());
        self.deferred = Some(DeferredTurn { turn, due });
        None
    }

    fn snapshot_limit(&self) -> Duration {
        match self.opened {
            true => SNAPSHOT_TIMEOUT,
            false => OPENING_TIMEOUT,
        }
    }

    /// Takes out the turn that waits for its snapshot, so that it can start now.
    pub fn take_deferred(&mut self) -> Option<TurnOrder> {
        self.deferred.take().map(|deferred| deferred.turn)
    }

    /// Returns the input that records the result of a snapshot.
    pub fn snapshot_ended(
        &mut self,
        state: &State,
        iteration: u32,
        result: Result<SnapshotTaken, SnapshotError>,
    ) -> Option<Input> {
        match result {
            Ok(SnapshotTaken {
                commit,
                uncommitted,
            }) => {
                self.has_snapshot = Some(iteration);
                let before = state.tracked_work.snapshot.as_ref();
                let commit = commit.or_else(|| before.map(|before| before.commit.clone()))?;
                Some(Input::SnapshotTaken {
                    iteration,
                    commit,
                    uncommitted,
                })
            }
            Err(SnapshotError::Canceled) => None,
            Err(SnapshotError::Failed(why)) => Some(no_snapshot(iteration, &why)),
        }
    }

    /// Cancels the snapshot before a turn, because it took too long. Returns a warning.
    pub fn snapshot_timed_out(&mut self, context: Context<'_>) -> Input {
        if let Some(worker) = &self.worker {
            worker.snapshot.cancel();
            if !self.opened {
                worker.opening.cancel();
            }
        }
        let iteration = context.state.iteration;
        let seconds = self.snapshot_limit().as_secs();
        if !has_repository(context.policy) {
            return warning_input(format!(
                "changes before iteration {iteration} count as its work: the survey of the files took more than {seconds} s"
            ));
        }
        no_snapshot(iteration, &format!("git took more than {seconds} s"))
    }

    /// Cancels a deferred turn. Returns true if nothing else has to be ended.
    pub fn end_deferred(
        &mut self,
        generation: Generation,
        signal: StopSignal,
        queue: &mut InputQueue,
    ) -> bool {
        let waits = |deferred: &mut DeferredTurn| deferred.turn.generation == generation;
        let Some(deferred) = self.deferred.take_if(waits) else {
            return false;
        };
        // Only the snapshot is canceled. The worker keeps running, because it is needed for the survey after the iteration.
        if let Some(worker) = &self.worker {
            worker.snapshot.cancel();
        }
        // The process of a session runs even if its turn has not begun. Signals stronger than an interrupt must still reach it.
        let is_prompt = matches!(deferred.turn.start, TurnStart::Prompt);
        let is_over = !is_prompt || signal == StopSignal::Interrupt;
        if is_over {
            let reason = "it was ended before it began".to_owned();
            queue.push(deferred.turn.not_begun(reason));
        }
        is_over
    }

    /// Orders the survey after an iteration, and a commit if the core ordered one.
    pub fn commit(
        &mut self,
        context: Context<'_>,
        number: u64,
        order: Option<CommitOrder>,
        changes: LoopChanges,
        queue: &mut InputQueue,
    ) {
        let limit = context.config.settings.git.commit_timeout.get();
        let commit = order.map(|order| Commit {
            message: commit_message(context, &order),
            limit: Some(limit).filter(|limit| !limit.is_zero()),
        });
        let result = match &mut self.worker {
            Some(worker) => {
                worker.survey = CancelToken::new();
                worker.commit = CancelToken::new();
                let order = GitOrder::Commit {
                    number,
                    commit,
                    owner: change_owner(changes),
                    survey: worker.survey.clone(),
                    cancel: worker.commit.clone(),
                };
                if worker.order(order) {
                    return;
                }
                Err("git has not finished its earlier work".to_owned())
            }
            // Without a worker there is no result. A warning was recorded at the start of the run.
            None => Ok(AutocommitResult::default()),
        };
        queue.push(Input::AutocommitFinished { number, result });
    }

    pub fn cancel_commit(&self) {
        if let Some(worker) = &self.worker {
            worker.commit.cancel();
        }
    }

    /// Tells the git worker to restore the snapshot before `iteration`. Without a worker, or if its queue is full, the rollback fails at once.
    pub fn roll_back(&mut self, iteration: u32, again: bool, queue: &mut InputQueue) {
        let worker = self.worker.as_mut();
        let rollback = RollbackOrder { iteration, again };
        let is_ordered = worker.is_some_and(|worker| {
            worker.rollback = CancelToken::new();
            let cancel = worker.rollback.clone();
            worker.order(GitOrder::RollBack { rollback, cancel })
        });
        if !is_ordered {
            let result =
                Err("git is not available, or has not finished its earlier work".to_owned());
            queue.push(Input::RolledBack { iteration, result });
        }
    }

    /// Cancels operations that the state of the loop no longer waits for.
    pub fn cancel_outdated(&self, state: &State) {
        let Some(worker) = &self.worker else { return };
        let ending = match &state.phase {
            Phase::Working { work } => work.ending.is_some(),
            _ => true,
        };
        // The snapshot of a turn that is about to be ended is not needed.
        if self.deferred.is_some() && ending {
            worker.snapshot.cancel();
        }
        // The rollback is canceled if the loop is about to end. The worker undoes the changes made so far.
        if state.stop.is_some() && state.rolling_back().is_some() {
            worker.rollback.cancel();
        }
    }

    /// Stops the git worker. The git references of snapshots are created, or removed if the loop is not stored.
    pub async fn shutdown(&mut self, keep: bool) {
        self.deferred = None;
        if let Some(worker) = self.worker.take() {
            worker.shutdown(keep).await;
        }
    }
}

/// Returns whether an effect does more than survey files. The records of such effects must be synced first.
pub(super) fn change_something(policy: &Policy, effects: &[Effect]) -> bool {
    let surveys = |effect: &Effect| matches!(effect, Effect::Autocommit { commit: None, .. });
    (has_repository(policy) && !effects.is_empty()) || !effects.iter().all(surveys)
}

/// Returns the input that reports the result of a rollback to the core.
pub(super) fn rolled_back(iteration: u32, result: Result<String, RollbackFailure>) -> Input {
    let result = match result {
        Ok(note) => Ok(note),
        Err(RollbackFailure::Unchanged(why)) => Err(why),
        // After a partial rollback no iteration may continue from this work tree or commit it, so the loop ends.
        Err(RollbackFailure::Partial(why)) => {
            return Input::Broken {
                reason: format!(
                    "the rollback is incomplete: {why}; repair the work tree before you continue"
                ),
            };
        }
    };
    Input::RolledBack { iteration, result }
}

/// Returns the warning that the loop continues without a repository.
pub(super) fn no_repository(why: &str) -> Input {
    warning_input(format!(
        "the repository cannot be used: nothing is committed, no snapshots are taken, and changes are detected by comparing files: {why}"
    ))
}

/// Returns the warning that the loop continues without change detection.
pub(super) fn no_change_detection(why: &str) -> Input {
    warning_input(format!(
        "changes cannot be tracked here, so no-progress detection is off: {why}"
    ))
}

fn no_snapshot(iteration: u32, why: &str) -> Input {
    warning_input(format!(
        "there is no snapshot before iteration {iteration}, so `tachikoma rollback {iteration}` is not possible: {why}"
    ))
}

fn has_repository(policy: &Policy) -> bool {
    policy.autocommit.is_some_and(|rules| rules.repository)
}

fn change_owner(changes: LoopChanges) -> ChangeOwner {
    match changes {
        LoopChanges::All => ChangeOwner::Loop,
        LoopChanges::None => ChangeOwner::Others,
        LoopChanges::Since(time) => {
            let time = clock::system_time_of(time);
            ChangeOwner::LoopSince(time.checked_sub(FILE_CLOCK_LAG).unwrap_or(time))
        }
    }
}

fn commit_message(context: Context<'_>, order: &CommitOrder) -> String {
    let text = &context.config.settings.git.commit_message;
    let facts = CommitFacts {
        iteration: order.iteration,
        status: &order.status.to_string(),
        context: order.context,
        session: order.session,
        loop_id: context.state.loop_id,
    };
    // The text always parses, because the settings were validated.
    let message = text.parse::<CommitMessage>();
    message.map_or_else(|_| text.clone(), |message| message.fill(&facts))
}

fn due_in(time: Duration) -> Instant {
    Instant::from_std(clock::monotonic() + time)
}

/// Returns the iteration that will be repeated, if its snapshot was taken before its agent started.
fn iteration_with_snapshot(state: &State) -> Option<u32> {
    let begun = match &state.phase {
        Phase::Working { work } => work.launched.is_some(),
        _ => state.cut,
    };
    begun.then_some(state.iteration)
}
