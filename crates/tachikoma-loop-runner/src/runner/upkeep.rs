//! What can be done beside the loop: compressing what is closed, backups, and clearing away what is old. One thread does it, one
//! task after the other, so that no iteration waits for it. A task that is not done is done at the end of a later run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tachikoma_core::{Input, LoopId};
use tokio::sync::{mpsc, oneshot};

use super::LoopRunner;
use super::open::{failed_backup, taken_with};
use crate::error::chain;
use crate::session::transcripts;
use crate::store::backup::{self, Backups, Moment};
use crate::store::journal::segment;
use crate::store::vault::Vault;
use crate::store::{gates_dir, loops, retention};
use crate::task::panicked;

/// Tasks that may wait. When the disk is that far behind, more of them are left to the end of the run.
const TASKS_MAX: usize = 64;

/// What the thread may have to say before somebody listens.
const TROUBLES_MAX: usize = 16;

/// The largest files take a second; whoever has ended the loop should not have to wait for a slow disk.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A task that is called off looks up within milliseconds, unless the disk hangs.
const CALL_OFF_TIMEOUT: Duration = Duration::from_secs(1);

/// Transcripts are pruned once in so many iterations: listing a directory costs more than a few files too many.
const PRUNE_EVERY: u32 = 16;

/// What is said of a backup for which there was no time.
const CALLED_OFF: &str = "no backup was taken: the run ended before it was done";

/// Something to be done.
#[derive(Debug)]
pub(super) enum Task {
    /// The journal has closed segments.
    CompressSegments(segment::Closed),
    /// A transcript was closed.
    CompressTranscript { path: PathBuf, vault: Vault },
    /// No transcript of the loop is being written.
    CompressTranscripts { directory: PathBuf, vault: Vault },
    /// Transcripts of old iterations go.
    PruneTranscripts { directory: PathBuf, keep: usize },
    /// Old loops go.
    PruneLoops {
        working_dir: PathBuf,
        state_dir: PathBuf,
        backups: PathBuf,
        current: LoopId,
        vault: Vault,
    },
    /// The loop is to be backed up as it stood at a moment.
    Backup { backups: Backups, moment: Moment },
}

impl Task {
    /// Files too many or too large are no reason to trouble anyone: errors are left to the next time. A loop that should be
    /// gone and is not is one: it has work of its user in it. Returns what a person should know.
    fn perform(self, called_off: &AtomicBool) -> Vec<String> {
        match self {
            Self::CompressSegments(closed) => {
                let _ = closed.compress(called_off);
            }
            Self::CompressTranscript { path, vault } => {
                let _ = transcripts::compress(&path, &vault, called_off);
            }
            Self::CompressTranscripts { directory, vault } => {
                let _ = transcripts::compress_closed(&directory, &vault, called_off);
            }
            Self::PruneTranscripts { directory, keep } => {
                let _ = transcripts::prune(&directory, keep);
            }
            Self::PruneLoops {
                working_dir,
                state_dir,
                backups,
                current,
                vault,
            } => {
                return retention::prune(
                    &working_dir,
                    &state_dir,
                    &backups,
                    current,
                    &vault,
                    called_off,
                )
                .unwrap_or_else(|error| vec![chain(&error)]);
            }
            Self::Backup { backups, moment } => {
                let said = match backup::take(&backups, &moment, called_off) {
                    Ok(taken) => taken_with(&taken.troubles),
                    Err(_) if called_off.load(Ordering::Relaxed) => Some(CALLED_OFF.to_owned()),
                    Err(error) => Some(failed_backup(&error)),
                };
                return said.into_iter().collect();
            }
        }
        Vec::new()
    }
}

impl Task {
    /// Returns what is to be said of a task that is not done any more: the end of a run, or the next one, does the others.
    fn called_off(self) -> Vec<String> {
        match self {
            Self::Backup { .. } => vec![CALLED_OFF.to_owned()],
            Self::CompressSegments(_)
            | Self::CompressTranscript { .. }
            | Self::CompressTranscripts { .. }
            | Self::PruneTranscripts { .. }
            | Self::PruneLoops { .. } => Vec::new(),
        }
    }
}

/// The thread beside the loop, while there is one.
#[derive(Debug)]
pub(super) struct Upkeep {
    worker: Option<Worker>,
    say: mpsc::Sender<String>,
    said: mpsc::Receiver<String>,
}

impl Default for Upkeep {
    fn default() -> Self {
        let (say, said) = mpsc::channel(TROUBLES_MAX);
        Self {
            worker: None,
            say,
            said,
        }
    }
}

#[derive(Debug)]
struct Worker {
    tasks: SyncSender<Task>,
    called_off: Arc<AtomicBool>,
    ended: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
}

impl Upkeep {
    /// Leaves a task to the thread, without waiting for anything. Returns whether it is done one day: there may be too many at a
    /// time.
    pub fn leave(&mut self, task: Task) -> bool {
        if self.worker.is_none() {
            self.worker = Worker::start(self.say.clone());
        }
        let worker = self.worker.as_ref();
        worker.is_some_and(|worker| worker.tasks.try_send(task).is_ok())
    }

    /// Returns what the thread has to say, or how it panicked; does not return if there is neither. Cancel-safe.
    pub async fn next(&mut self) -> Input {
        tokio::select! {
            Some(warning) = self.said.recv() => Input::Trouble { warning },
            reason = broken(&mut self.worker) => Input::Broken { reason },
        }
    }

    /// Returns what it had to say when nobody listened any more.
    fn unsaid(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.said.try_recv().ok()).collect()
    }

    /// Waits until everything is done, but not for long.
    pub async fn finish(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.finish().await;
        }
    }
}

/// Returns how a thread panicked; does not return if it does not. Cancel-safe.
async fn broken(thread: &mut Option<Worker>) -> String {
    if let Some(worker) = thread
        && (&mut worker.ended).await.is_err()
        && let Some(worker) = thread.take()
        && let Err(payload) = worker.thread.join()
    {
        return panicked("upkeep", payload.as_ref());
    }
    std::future::pending().await
}

/// A runner that is dropped in the middle calls off what is under way: the next one does it again.
impl Drop for Upkeep {
    fn drop(&mut self) {
        if let Some(worker) = &self.worker {
            worker.called_off.store(true, Ordering::Relaxed);
        }
    }
}

impl Worker {
    fn start(say: mpsc::Sender<String>) -> Option<Self> {
        let (tasks, waiting) = sync_channel::<Task>(TASKS_MAX);
        let (end, ended) = oneshot::channel();
        let called_off = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&called_off);
        let work = move || {
            // Ends when nobody can send a task any more.
            for task in waiting {
                let troubles = if stop.load(Ordering::Relaxed) {
                    task.called_off()
                } else {
                    task.perform(&stop)
                };
                for trouble in troubles {
                    // More of them say nothing new.
                    let _ = say.try_send(trouble);
                }
            }
            // Nobody may be waiting for the end.
            let _ = end.send(());
        };
        // Without a thread everything stays plain, and old.
        let thread = std::thread::Builder::new()
            .name("upkeep".to_owned())
            .spawn(work)
            .ok()?;
        Some(Self {
            tasks,
            called_off,
            ended,
            thread,
        })
    }

    async fn finish(mut self) {
        drop(self.tasks);
        if tokio::time::timeout(FINISH_TIMEOUT, &mut self.ended)
            .await
            .is_err()
        {
            self.called_off.store(true, Ordering::Relaxed);
            if tokio::time::timeout(CALL_OFF_TIMEOUT, &mut self.ended)
                .await
                .is_err()
            {
                // The disk hangs, and whoever waits for that thread hangs too.
                return;
            }
        }
        let _ = self.thread.join();
    }
}

impl LoopRunner {
    /// Returns what went wrong beside the loop and is not in its journal, because the loop had ended by then.
    #[must_use]
    pub fn unsaid(&mut self) -> Vec<String> {
        self.upkeep.unsaid()
    }

    /// Leaves the transcripts of old iterations to be pruned, once in a while.
    pub(super) fn prune_transcripts(&mut self) {
        if self.state.stats.iterations.is_multiple_of(PRUNE_EVERY) {
            for directory in self.transcript_dirs() {
                let task = self.transcripts_to_prune(directory);
                self.upkeep.leave(task);
            }
        }
    }

    /// Returns where what agents and gates wrote is kept.
    fn transcript_dirs(&self) -> [PathBuf; 2] {
        let loop_id = self.state.loop_id;
        let loop_dir = loops::dir(&self.config.store_root(loop_id), loop_id);
        [self.config.transcripts_dir(loop_id), gates_dir(&loop_dir)]
    }

    /// Leaves the loops before this one to be pruned.
    pub(super) fn prune_loops(&mut self) {
        if !self.config.settings.state.enabled || !retention::is_due(&self.config.working_dir) {
            return;
        }
        self.upkeep.leave(Task::PruneLoops {
            working_dir: self.config.working_dir.clone(),
            vault: self.config.vault.clone(),
            state_dir: self.config.resolve(&self.config.settings.session.state_dir),
            backups: self.config.backups().dir,
            current: self.state.loop_id,
        });
    }

    /// Does what is left to be done at the end of a run, when no agent writes any more.
    pub(super) async fn tidy_up(&mut self) {
        // What is not kept need not be small.
        if !self.config.settings.state.enabled {
            return self.upkeep.finish().await;
        }
        for directory in self.transcript_dirs() {
            // An agent that said nothing leaves nothing to do.
            if directory.is_dir() {
                let prune = self.transcripts_to_prune(directory.clone());
                self.upkeep.leave(prune);
                self.upkeep.leave(Task::CompressTranscripts {
                    directory,
                    vault: self.config.vault.clone(),
                });
            }
        }
        if self.journal.has_closed() {
            self.upkeep
                .leave(Task::CompressSegments(self.journal.closed()));
        }
        self.upkeep.finish().await;
    }

    fn transcripts_to_prune(&self, directory: PathBuf) -> Task {
        let keep = self.config.settings.session.transcripts_kept;
        Task::PruneTranscripts {
            directory,
            keep: usize::try_from(keep).unwrap_or(usize::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use tachikoma_core::{State, Timestamp};

    use super::*;
    use crate::store::snapshot::{Packing, Snapshot};

    fn backup(dir: &std::path::Path) -> Task {
        let state = State::new(LoopId::from_u128(1));
        let now = Timestamp::from_millis(1);
        Task::Backup {
            backups: Backups {
                dir: dir.to_owned(),
                max: 0,
                packing: Packing::Plain,
                vault: Vault::plain(),
            },
            moment: Moment {
                snapshot: Box::new(Snapshot::of(&state, dir, now)),
                original: None,
                journal: None,
                loop_dir: dir.to_owned(),
                before_restore: false,
            },
        }
    }

    #[tokio::test]
    async fn a_backup_for_which_there_is_no_room_or_time_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut upkeep = Upkeep::default();
        let (tasks, _waiting) = sync_channel(1);
        let worker = Worker::start(upkeep.say.clone()).unwrap();
        upkeep.worker = Some(Worker { tasks, ..worker });
        assert!(upkeep.leave(backup(dir.path())));
        assert!(!upkeep.leave(backup(dir.path())), "nobody takes it");

        let worker = Worker::start(upkeep.say.clone()).unwrap();
        worker.called_off.store(true, Ordering::Relaxed);
        upkeep.worker = Some(worker);
        assert!(upkeep.leave(backup(dir.path())));
        upkeep.finish().await;
        assert_eq!(upkeep.unsaid(), [CALLED_OFF]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
