//! Maintenance: compression of closed files, backups, and deletion of old files. One thread runs one task after another, so that no
//! iteration waits. Tasks that are not done now are done at the end of a later run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::backup_upload::{PendingUpload, UploadQueue};
use super::context::Context;
use crate::admin::retention;
use crate::cloud::Cloud;
use crate::git::bundle::{BundleSource, Bundled};
use crate::git::{CancelToken, ChangeOwner};
use crate::session::transcripts;
use crate::store::StoreError;
use crate::store::backup::{self, Backups, Moment};
use crate::store::encryption::Encryption;
use crate::store::journal::segment;
use crate::store::layout::gates_dir;
use crate::task::panicked;
use tachikoma_core::error_chain as chain;

/// Size of the task queue. If the disk is too slow, further tasks are left to the end of the run.
const TASKS_MAX: usize = 64;

/// Size of the queue of events for the actor.
const EVENTS_MAX: usize = 16;

/// How long the end of a run waits for maintenance. The largest files take a second.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the end of a run waits for maintenance if the last backup is uploaded. It contains the repository, and the user may depend on it.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait for a canceled task. It checks for cancellation every few milliseconds, unless the disk hangs.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// Transcripts are pruned once per this number of iterations. Listing the directory costs more than keeping a few extra files.
const PRUNE_EVERY: u32 = 16;

/// Warning about a canceled backup.
const BACKUP_CANCELED: &str =
    "no backup was taken: the run ended before it was done; `tachikoma state backup` takes one";

/// A function that compresses or deletes files and returns warnings. It ends early when the flag is set.
type Cleanup = Box<dyn FnOnce(&AtomicBool) -> Vec<String> + Send>;

/// A task for the maintenance thread.
pub(super) enum MaintenanceTask {
    /// Compress or delete files. Returns warnings. A later run repeats a task that fails or is canceled.
    Cleanup(Cleanup),
    /// Back up the loop in its state at the time of the order, and queue the backup for upload.
    Backup {
        backups: Backups,
        moment: Box<Moment>,
        upload: Option<Box<UploadPlan>>,
    },
}

/// How a backup is prepared and queued for upload.
#[derive(Debug)]
pub(super) struct UploadPlan {
    pub cloud: Cloud,
    pub work: BundleSource,
    /// Who made the changes that no survey has covered yet. The actor updates it.
    pub owner: watch::Receiver<ChangeOwner>,
    /// The queue of the uploader; `None` if the uploader could not be started.
    pub queue: Option<UploadQueue>,
}

/// An event of the maintenance thread.
#[derive(Debug)]
pub(super) enum MaintenanceEvent {
    /// A warning for the user.
    Warning(String),
    /// No backup was made, because a journal segment is damaged.
    DamagedSegment { segment: PathBuf, why: String },
    /// The thread panicked, with the message of the panic.
    Panicked(String),
}

impl MaintenanceEvent {
    fn backup_failed(error: StoreError) -> Self {
        let why = chain(&error);
        match error {
            StoreError::Damaged { path, .. } => Self::DamagedSegment { segment: path, why },
            _ => Self::Warning(backup_failed(&why)),
        }
    }

    fn into_text(self) -> String {
        match self {
            Self::Warning(text) | Self::Panicked(text) => text,
            Self::DamagedSegment { why, .. } => backup_failed(&why),
        }
    }
}

/// Returns the warning about a backup that was made although a later step failed, such as deleting old ones; `None` if no step failed.
pub(super) fn backup_warning(troubles: &[String]) -> Option<String> {
    let troubles = troubles.join("; ");
    (!troubles.is_empty()).then(|| format!("a backup was written, but {troubles}"))
}

/// Returns the warning about a backup that was not made.
pub(super) fn backup_failed(why: &str) -> String {
    format!("no backup was taken: {why}")
}

impl MaintenanceTask {
    /// Runs the task. `without_work` is the last reported reason why backups lack the repository.
    fn perform(
        self,
        canceled: &Arc<AtomicBool>,
        without_work: &mut Option<String>,
    ) -> Vec<MaintenanceEvent> {
        match self {
            Self::Cleanup(clean) => {
                let warnings = clean(canceled).into_iter();
                warnings.map(MaintenanceEvent::Warning).collect()
            }
            Self::Backup {
                backups,
                moment,
                upload,
            } => back_up(&backups, *moment, upload, canceled, without_work),
        }
    }

    /// Returns the events of a task that was canceled before it started.
    fn cancel(self) -> Vec<MaintenanceEvent> {
        match self {
            Self::Backup { .. } => vec![MaintenanceEvent::Warning(BACKUP_CANCELED.to_owned())],
            Self::Cleanup(_) => Vec::new(),
        }
    }
}

fn back_up(
    backups: &Backups,
    mut moment: Moment,
    upload: Option<Box<UploadPlan>>,
    canceled: &Arc<AtomicBool>,
    without_work: &mut Option<String>,
) -> Vec<MaintenanceEvent> {
    let mut events = Vec::new();
    if let Some(plan) = &upload {
        let cancel = CancelToken::with(Arc::clone(canceled));
        let owner = || *plan.owner.borrow();
        let bundled = plan.work.bundle(&moment.loop_dir, &owner, &cancel);
        events.extend(work_warning(&bundled, without_work).map(MaintenanceEvent::Warning));
        moment.work = bundled.path();
    }
    match backup::take(backups, &moment, canceled) {
        Ok(taken) => {
            events.extend(backup_warning(&taken.troubles).map(MaintenanceEvent::Warning));
            if let Some(UploadPlan {
                cloud,
                queue: Some(queue),
                ..
            }) = upload.map(|plan| *plan)
            {
                queue.send_replace(Some(PendingUpload {
                    path: taken.path,
                    has_work: taken.has_work,
                    cloud,
                }));
            }
        }
        Err(_) if canceled.load(Ordering::Relaxed) => {
            events.push(MaintenanceEvent::Warning(BACKUP_CANCELED.to_owned()));
        }
        Err(error) => events.push(MaintenanceEvent::backup_failed(error)),
    }
    events
}

/// Returns why a backup lacks the repository; `None` if the same reason was reported before.
fn work_warning(bundled: &Bundled, reported: &mut Option<String>) -> Option<String> {
    let warning = bundled
        .lacks()
        .map(|what| format!("backups do not contain {what}"));
    if *reported == warning {
        return None;
    }
    reported.clone_from(&warning);
    warning
}

/// The maintenance thread. It starts with the first task.
#[derive(Debug)]
pub(super) struct Maintenance {
    worker: Option<MaintenanceThread>,
    sender: mpsc::Sender<MaintenanceEvent>,
    events: mpsc::Receiver<MaintenanceEvent>,
}

impl Default for Maintenance {
    fn default() -> Self {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        Self {
            worker: None,
            sender,
            events,
        }
    }
}

impl Maintenance {
    /// Queues a task. Returns whether there was space for it.
    pub fn submit(&mut self, task: MaintenanceTask) -> bool {
        if self.worker.is_none() {
            self.worker = MaintenanceThread::start(self.sender.clone());
        }
        let worker = self.worker.as_ref();
        worker.is_some_and(|worker| worker.tasks.try_send(task).is_ok())
    }

    /// Queues a warning together with the warnings of the thread. If the queue is full, the warning is dropped.
    pub fn warn(&self, warning: String) {
        let _ = self.sender.try_send(MaintenanceEvent::Warning(warning));
    }

    /// Queues a task that compresses or deletes files. Its errors are ignored, because a later run repeats it.
    fn submit_cleanup<T>(&mut self, clean: impl FnOnce(&AtomicBool) -> T + Send + 'static) {
        self.submit(MaintenanceTask::Cleanup(Box::new(|canceled| {
            clean(canceled);
            Vec::new()
        })));
    }

    /// Compresses closed segments of the journal.
    pub fn compress_segments(&mut self, closed: segment::Closed) {
        self.submit_cleanup(move |canceled| closed.compress(canceled));
    }

    /// Compresses a closed file with the output of an agent or a gate.
    pub fn compress_transcript(&mut self, path: PathBuf, encryption: &Encryption) {
        let encryption = encryption.clone();
        self.submit_cleanup(move |canceled| transcripts::compress(&path, &encryption, canceled));
    }

    /// Deletes old transcripts, once per [`PRUNE_EVERY`] iterations.
    pub fn prune_transcripts(&mut self, context: Context<'_>) {
        if context.state.stats.iterations.is_multiple_of(PRUNE_EVERY) {
            for directory in transcript_dirs(context) {
                let keep = transcripts_kept(context);
                self.submit_cleanup(move |_| transcripts::prune(&directory, keep));
            }
        }
    }

    /// Deletes old loops of the working directory.
    pub fn prune_loops(&mut self, context: Context<'_>) {
        let config = context.config;
        if !config.settings.state.enabled || !retention::is_due(&config.working_dir) {
            return;
        }
        let current = context.state.loop_id;
        let state_dir = config.resolve(&config.settings.session.state_dir);
        let (working_dir, backups) = (config.working_dir.clone(), config.backups());
        // A loop that cannot be deleted is reported, because it contains work of the user.
        self.submit(MaintenanceTask::Cleanup(Box::new(move |canceled| {
            let pruned = retention::prune(&working_dir, &state_dir, &backups, current, canceled);
            pruned.unwrap_or_else(|error| vec![chain(&error)])
        })));
    }

    /// Queues the maintenance at the end of a run, when no agent writes. `closed` are the closed segments of the journal.
    pub fn finish_run(&mut self, context: Context<'_>, closed: Option<segment::Closed>) {
        // A loop that is not stored needs no maintenance.
        if !context.config.settings.state.enabled {
            return;
        }
        for directory in transcript_dirs(context) {
            // There is no directory if no agent wrote output.
            if directory.is_dir() {
                let keep = transcripts_kept(context);
                let encryption = context.config.encryption.clone();
                self.submit_cleanup(move |canceled| {
                    let pruned = transcripts::prune(&directory, keep);
                    pruned.and(transcripts::compress_closed(
                        &directory,
                        &encryption,
                        canceled,
                    ))
                });
            }
        }
        if let Some(closed) = closed {
            self.compress_segments(closed);
        }
    }

    /// Waits for the next event of the thread. Cancel-safe.
    pub async fn next_event(&mut self) -> MaintenanceEvent {
        tokio::select! {
            biased;
            Some(event) = self.events.recv() => event,
            reason = panic_of(&mut self.worker) => MaintenanceEvent::Panicked(reason),
        }
    }

    /// Returns the warnings that arrived after the last record of the loop.
    pub fn unreported(&mut self) -> Vec<String> {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        events.map(MaintenanceEvent::into_text).collect()
    }

    /// Waits until all tasks are done, for a limited time and only until `hurry` completes. `uploads` says whether the last backup is
    /// uploaded.
    pub async fn shutdown(&mut self, uploads: bool, hurry: impl Future<Output = ()>) {
        if let Some(worker) = self.worker.take() {
            let time = match uploads {
                true => UPLOAD_TIMEOUT,
                false => SHUTDOWN_TIMEOUT,
            };
            worker.shutdown(time, hurry).await;
        }
    }
}

/// Dropping the runner during a run cancels the tasks. The next run repeats them.
impl Drop for Maintenance {
    fn drop(&mut self) {
        if let Some(worker) = &self.worker {
            worker.canceled.store(true, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct MaintenanceThread {
    tasks: SyncSender<MaintenanceTask>,
    canceled: Arc<AtomicBool>,
    ended: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
}

impl MaintenanceThread {
    /// Starts the thread. If that fails, files are not compressed and old files are not deleted.
    fn start(events: mpsc::Sender<MaintenanceEvent>) -> Option<Self> {
        let (tasks, waiting) = sync_channel::<MaintenanceTask>(TASKS_MAX);
        let (end, ended) = oneshot::channel();
        let canceled = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&canceled);
        let work = move || {
            let mut without_work = None;
            // The loop ends when all senders of tasks are dropped.
            for task in waiting {
                let reported = match stop.load(Ordering::Relaxed) {
                    true => task.cancel(),
                    false => task.perform(&stop, &mut without_work),
                };
                for event in reported {
                    // If the queue is full, the event is dropped.
                    let _ = events.try_send(event);
                }
            }
            // Sending fails if the actor does not wait for the end of the thread.
            let _ = end.send(());
        };
        let thread = std::thread::Builder::new()
            .name("maintenance".to_owned())
            .spawn(work)
            .ok()?;
        Some(Self {
            tasks,
            canceled,
            ended,
            thread,
        })
    }

    async fn shutdown(mut self, time: Duration, hurry: impl Future<Output = ()>) {
        drop(self.tasks);
        let is_done = tokio::select! {
            _ = &mut self.ended => true,
            () = tokio::time::sleep(time) => false,
            () = hurry => false,
        };
        if !is_done {
            self.canceled.store(true, Ordering::Relaxed);
            let ended = tokio::time::timeout(CANCEL_TIMEOUT, &mut self.ended).await;
            if ended.is_err() {
                // The thread is not joined, because joining would hang like the disk.
                return;
            }
        }
        let _ = self.thread.join();
    }
}

/// Waits until the thread panics, and returns the message of the panic. Cancel-safe.
async fn panic_of(thread: &mut Option<MaintenanceThread>) -> String {
    if let Some(worker) = thread
        && (&mut worker.ended).await.is_err()
        && let Some(worker) = thread.take()
        && let Err(payload) = worker.thread.join()
    {
        return panicked("maintenance", payload.as_ref());
    }
    std::future::pending().await
}

/// Returns the directories with the output of agents and of gates.
fn transcript_dirs(context: Context<'_>) -> [PathBuf; 2] {
    [
        context.config.transcripts_dir(context.state.loop_id),
        gates_dir(&context.loop_dir()),
    ]
}

fn transcripts_kept(context: Context<'_>) -> usize {
    let keep = context.config.settings.session.transcripts_kept;
    usize::try_from(keep).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
