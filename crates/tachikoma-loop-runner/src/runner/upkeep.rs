//! What can be done beside the loop: compressing what is closed, backups, and clearing away what is old. One thread does it, one
//! task after the other, so that no iteration waits for it. A task that is not done is done at the end of a later run.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tachikoma_core::{Input, LoopId};
use tokio::sync::{mpsc, oneshot};

use super::LoopRunner;
use super::arrived::Arrived;
use super::backing::{failed_backup, taken_with};
use super::courier::{self, Counter, Courier, Look};
use crate::cloud::Cloud;
use crate::error::chain;
use crate::git::bundle::{Bundled, Work};
use crate::git::{CallOff, Whose};
use crate::session::transcripts;
use crate::store::backup::{self, Backups, Moment};
use crate::store::journal::segment;
use crate::store::vault::Vault;
use crate::store::{StoreError, gates_dir, loops, retention};
use crate::task::panicked;

/// Tasks that may wait. When the disk is that far behind, more of them are left to the end of the run.
const TASKS_MAX: usize = 64;

/// What the thread may have to say before somebody listens.
const TROUBLES_MAX: usize = 16;

/// The largest files take a second; whoever has ended the loop should not have to wait for a slow disk.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// The same where a backup of the end goes elsewhere: it has the repository in it, and somebody may count on it.
const COPY_TIMEOUT: Duration = Duration::from_secs(30);

/// A task that is called off looks up within milliseconds, unless the disk hangs.
const CALL_OFF_TIMEOUT: Duration = Duration::from_secs(1);

/// Transcripts are pruned once in so many iterations: listing a directory costs more than a few files too many.
const PRUNE_EVERY: u32 = 16;

/// What is said of a backup for which there was no time.
const CALLED_OFF: &str =
    "no backup was taken: the run ended before it was done; `tachikoma state backup` takes one";

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
    /// The loop is to be backed up as it stood at a moment, and copied where there is a counter for it.
    Backup {
        backups: Backups,
        moment: Box<Moment>,
        copy: Option<Box<(Elsewhere, Option<Counter>)>>,
    },
}

/// What a backup needs that is to go on elsewhere.
#[derive(Debug)]
pub(super) struct Elsewhere {
    pub cloud: Cloud,
    pub work: Work,
    /// Whose the changes are that nobody has looked at, at any moment.
    pub whose: Arc<Mutex<Whose>>,
}

/// What the thread has to say.
#[derive(Debug)]
enum Said {
    /// What a person should know.
    Trouble(String),
    /// No backup was taken, because the segment that it was to have is damaged.
    Damaged { segment: PathBuf, why: String },
}

impl Said {
    /// Says why there is no backup.
    fn of(error: StoreError) -> Self {
        let why = chain(&error);
        match error {
            StoreError::Damaged { path, .. } => Self::Damaged { segment: path, why },
            _ => Self::Trouble(failed_backup(&why)),
        }
    }

    fn arrived(self) -> Arrived {
        match self {
            Self::Trouble(warning) => Arrived::Input(Input::Warning { warning }),
            Self::Damaged { segment, why } => Arrived::Damaged { segment, why },
        }
    }

    fn words(self) -> String {
        match self {
            Self::Trouble(words) => words,
            Self::Damaged { why, .. } => failed_backup(&why),
        }
    }
}

/// What the thread remembers from one task to the next.
#[derive(Debug, Default)]
struct Memory {
    /// Why the work is no part of backups, as it was said.
    without_work: Option<String>,
}

impl Task {
    /// Files too many or too large are no reason to trouble anyone: errors are left to the next time. A loop that should be
    /// gone and is not is one: it has work of its user in it. Returns what a person should know.
    fn perform(self, called_off: &Arc<AtomicBool>, memory: &mut Memory) -> Vec<Said> {
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
                let pruned = retention::prune(
                    &working_dir,
                    &state_dir,
                    &backups,
                    current,
                    &vault,
                    called_off,
                );
                let troubles = pruned.unwrap_or_else(|error| vec![chain(&error)]);
                return troubles.into_iter().map(Said::Trouble).collect();
            }
            Self::Backup {
                backups,
                mut moment,
                copy,
            } => {
                let mut said = Vec::new();
                if let Some((elsewhere, _)) = copy.as_deref() {
                    let call_off = CallOff::with(Arc::clone(called_off));
                    let bundled =
                        elsewhere
                            .work
                            .bundle(&moment.loop_dir, &elsewhere.whose, &call_off);
                    said.extend(memory.note(&bundled).map(Said::Trouble));
                    moment.work = bundled.path();
                }
                match backup::take(&backups, &moment, called_off) {
                    Ok(taken) => {
                        said.extend(taken_with(&taken.troubles).map(Said::Trouble));
                        if let Some((elsewhere, Some(counter))) = copy.map(|copy| *copy) {
                            courier::hand_in(&counter, elsewhere.cloud, taken);
                        }
                    }
                    Err(_) if called_off.load(Ordering::Relaxed) => {
                        said.push(Said::Trouble(CALLED_OFF.to_owned()));
                    }
                    Err(error) => said.push(Said::of(error)),
                }
                return said;
            }
        }
        Vec::new()
    }
}

impl Task {
    /// Returns what is to be said of a task that is not done any more: the end of a run, or the next one, does the others.
    fn called_off(self) -> Vec<Said> {
        match self {
            Self::Backup { .. } => vec![Said::Trouble(CALLED_OFF.to_owned())],
            Self::CompressSegments(_)
            | Self::CompressTranscript { .. }
            | Self::CompressTranscripts { .. }
            | Self::PruneTranscripts { .. }
            | Self::PruneLoops { .. } => Vec::new(),
        }
    }
}

impl Memory {
    /// Returns why the work is no part of a backup, unless that was said.
    fn note(&mut self, bundled: &Bundled) -> Option<String> {
        let said = bundled.lacks().map(|what| format!("backups go {what}"));
        if self.without_work == said {
            return None;
        }
        self.without_work.clone_from(&said);
        said
    }
}

/// The thread beside the loop, while there is one.
#[derive(Debug)]
pub(super) struct Upkeep {
    worker: Option<Worker>,
    say: mpsc::Sender<Said>,
    said: mpsc::Receiver<Said>,
    /// Who takes backups elsewhere, once one was to go there.
    pub(super) courier: Option<Courier>,
    /// Whether the end is wanted soon: a signal may be the shutdown of the machine.
    pub(super) hurried: bool,
}

impl Default for Upkeep {
    fn default() -> Self {
        let (say, said) = mpsc::channel(TROUBLES_MAX);
        Self {
            worker: None,
            say,
            said,
            courier: None,
            hurried: false,
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

    /// Leaves a backup to the thread, unless that has too much to do.
    pub fn back_up(
        &mut self,
        backups: Backups,
        moment: Moment,
        elsewhere: Option<Elsewhere>,
    ) -> bool {
        let copy = elsewhere.map(|elsewhere| Box::new((elsewhere, self.counter())));
        let moment = Box::new(moment);
        self.leave(Task::Backup {
            backups,
            moment,
            copy,
        })
    }

    /// Starts who takes backups elsewhere, with a look at where that is.
    pub fn look(&mut self, look: Look) {
        self.start_courier(Some(look));
    }

    fn start_courier(&mut self, look: Option<Look>) {
        if self.courier.is_none() {
            match Courier::start(look) {
                Ok(courier) => self.courier = Some(courier),
                // More of them say nothing new.
                Err(trouble) => drop(self.say.try_send(Said::Trouble(trouble))),
            }
        }
    }

    fn counter(&mut self) -> Option<Counter> {
        self.start_courier(None);
        self.courier.as_ref().map(Courier::counter)
    }

    /// Returns what the thread has to say, or how it panicked; does not return if there is neither. Cancel-safe.
    pub async fn next(&mut self) -> Arrived {
        tokio::select! {
            input = Courier::next(&mut self.courier) => Arrived::Input(input),
            Some(said) = self.said.recv() => said.arrived(),
            reason = broken(&mut self.worker) => Arrived::Input(Input::Broken { reason }),
        }
    }

    /// Returns what it had to say when nobody listened any more.
    fn unsaid(&mut self) -> Vec<String> {
        let said = std::iter::from_fn(|| self.said.try_recv().ok());
        said.map(Said::words).collect()
    }

    /// Waits until everything is done, but not for long, and not when somebody is in a hurry.
    pub async fn finish(&mut self, hurry: impl Future<Output = ()>) {
        if let Some(worker) = self.worker.take() {
            let copies = self.courier.is_some() && !self.hurried;
            let time = if copies { COPY_TIMEOUT } else { FINISH_TIMEOUT };
            worker.finish(time, hurry).await;
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
    fn start(say: mpsc::Sender<Said>) -> Option<Self> {
        let (tasks, waiting) = sync_channel::<Task>(TASKS_MAX);
        let (end, ended) = oneshot::channel();
        let called_off = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&called_off);
        let work = move || {
            // Ends when nobody can send a task any more.
            let mut memory = Memory::default();
            for task in waiting {
                let said = if stop.load(Ordering::Relaxed) {
                    task.called_off()
                } else {
                    task.perform(&stop, &mut memory)
                };
                for said in said {
                    // More of them say nothing new.
                    let _ = say.try_send(said);
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

    async fn finish(mut self, time: Duration, hurry: impl Future<Output = ()>) {
        drop(self.tasks);
        let is_done = tokio::select! {
            _ = &mut self.ended => true,
            () = tokio::time::sleep(time) => false,
            () = hurry => false,
        };
        if !is_done {
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
            return self.finish_upkeep().await;
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
        self.finish_upkeep().await;
    }

    async fn finish_upkeep(&mut self) {
        let copies = self.upkeep.courier.is_some();
        let shutdowns = &mut self.ends.shutdowns;
        let hurry = async {
            match copies {
                true => _ = shutdowns.recv().await,
                // It is over soon enough, and the signal may be for the next run.
                false => std::future::pending().await,
            }
        };
        self.upkeep.finish(hurry).await;
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
mod tests;
