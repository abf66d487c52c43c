//! Uploads backups to the object store. A separate thread uploads one backup at a time. Only the newest waiting backup is kept. The loop
//! never waits for the thread, and records its incidents.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use tachikoma_core::{Incident, Input, LoopId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::context::warning_input;
use crate::clock;
use crate::cloud::{Cloud, Error, SendError, UploadedBackup};
use crate::task::panicked;
use tachikoma_core::error_chain as chain;

/// Maximum number of attempts to upload one backup. The next backup is uploaded even if this one failed.
const ATTEMPTS_MAX: u32 = 5;

/// Wait before the second attempt. Each later wait is twice as long. The four waits take 15 s in total, enough for a server restart.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Timeout of one attempt. It is enough for 300 MiB at 500 KiB per second.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(600);

/// Timeout for listing backups and deleting old ones, so that the next backup does not wait longer. The next upload deletes the rest.
const PRUNE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long the end of a loop waits for the deletion of old backups after its last backup is uploaded.
const LAST_PRUNE_TIMEOUT: Duration = Duration::from_secs(5);

/// Size of the queue of inputs for the actor.
const EVENTS_MAX: usize = 16;

/// Error message for a backup that was not uploaded before the loop ended.
const TOO_LATE: &str =
    "the loop ended before it was sent; `tachikoma state backup` sends another one";

/// A backup that waits for its upload.
#[derive(Clone, Debug)]
pub(super) struct PendingUpload {
    pub path: PathBuf,
    /// Whether the backup contains the repository.
    pub has_work: bool,
    pub cloud: Cloud,
}

impl PendingUpload {
    fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// Channel with the newest backup that waits for its upload.
pub(super) type UploadQueue = watch::Sender<Option<PendingUpload>>;

/// The upload thread.
#[derive(Debug)]
pub(super) struct Uploader {
    queue: UploadQueue,
    events: mpsc::Receiver<Input>,
    /// Dropping the sender cancels the running upload.
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Uploader {
    /// Starts the thread. It first runs `probe` if one is given.
    ///
    /// # Errors
    /// The thread cannot be started. Backups are then not uploaded.
    pub fn start(probe: Option<CloudProbe>) -> Result<Self, String> {
        let (queue, waiting) = watch::channel(None);
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("backups are not copied: {error}"))?;
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(probe, waiting, sender) => {}
                    _ = stopped => {}
                }
            });
            // The thread does not wait for file operations, which would hang on a broken disk.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name("upload".to_owned())
            .spawn(work)
            .map_err(|error| format!("backups are not copied: {error}"))?;
        Ok(Self {
            queue,
            events,
            stop,
            thread,
        })
    }

    pub fn queue(&self) -> UploadQueue {
        self.queue.clone()
    }

    /// Waits for the next incident or warning, or for a panic of the thread. Cancel-safe.
    pub async fn next_event(uploader: &mut Option<Self>) -> Input {
        if let Some(running) = uploader {
            if let Some(input) = running.events.recv().await {
                return input;
            }
            if let Some(Self { thread, .. }) = uploader.take()
                && let Err(payload) = thread.join()
            {
                let reason = panicked("backup upload", payload.as_ref());
                return Input::Broken { reason };
            }
        }
        std::future::pending().await
    }

    /// After the end of the loop: no further backup is queued, and the last one is uploaded until `deadline`.
    pub fn drain(self, last_recorded: Option<String>, deadline: Instant) -> Drain {
        let last = self.queue.borrow().as_ref().map(PendingUpload::name);
        let mut drain = Drain {
            recorded: last_recorded,
            last,
            deadline,
            until: deadline,
            events: self.events,
            stop: self.stop,
            thread: self.thread,
        };
        drain.limit_prune();
        drain
    }
}

/// Waits for the last upload of a run.
#[derive(Debug)]
pub(super) struct Drain {
    /// Name of the last backup for which a result was recorded.
    recorded: Option<String>,
    /// Name of the last backup that was queued.
    last: Option<String>,
    deadline: Instant,
    until: Instant,
    events: mpsc::Receiver<Input>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Drain {
    /// Waits for the next input to record. Returns `None` when the uploader is done or the deadline has passed. Cancel-safe.
    pub async fn next_event(&mut self) -> Option<Input> {
        let input = tokio::select! {
            () = sleep_until(self.until) => None,
            input = self.events.recv() => input,
        }?;
        if let Input::Incident(
            Incident::CloudCopied { name, .. } | Incident::CloudFailed { name, .. },
        ) = &input
        {
            self.recorded = Some(name.clone());
            self.limit_prune();
        }
        Some(input)
    }

    /// Shortens the deadline after the last upload, because only the deletion of old backups is left.
    fn limit_prune(&mut self) {
        if self.recorded == self.last {
            let soon = Instant::from_std(clock::monotonic() + LAST_PRUNE_TIMEOUT);
            self.until = self.deadline.min(soon);
        }
    }

    /// Stops the thread. Returns an incident if the last backup was not uploaded.
    pub fn finish(self) -> Option<Incident> {
        drop(self.stop);
        let name = self
            .last
            .filter(|last| self.recorded.as_ref() != Some(last));
        let name = name.filter(|_| !self.thread.is_finished())?;
        Some(Incident::CloudFailed {
            name,
            error: TOO_LATE.to_owned(),
            // The number of attempts is unknown, because the thread has not reported it.
            attempts: 0,
        })
    }
}

/// A check of the object store before the first upload.
#[derive(Debug)]
pub(super) struct CloudProbe {
    pub cloud: Cloud,
    pub loop_id: LoopId,
    /// Whether backups are encrypted.
    pub encrypted: bool,
}

impl CloudProbe {
    /// Returns a warning if the object store cannot be used.
    async fn warning(self) -> Option<String> {
        let Self {
            cloud,
            loop_id,
            encrypted,
        } = self;
        let url = &cloud.url;
        let listed = match timeout(PRUNE_TIMEOUT, cloud.list(Some(loop_id))).await {
            Ok(Ok(listed)) => listed,
            // Without a maximum number of backups nothing is deleted, so it does not matter that listing is refused.
            Ok(Err(Error::Refused { .. })) if cloud.max == 0 => return None,
            Ok(Err(error)) => {
                let why = chain(&error);
                return Some(format!(
                    "backups cannot be uploaded now: {why}; the loop continues and tries each of them"
                ));
            }
            Err(_) => return None,
        };
        let clear = listed
            .iter()
            .filter(|copied| !copied.is_encrypted())
            .count();
        (encrypted && clear > 0).then(|| {
            format!(
                "copies of this loop in {url} that are not encrypted: {clear}; delete them by hand, or they go when newer ones take their place"
            )
        })
    }
}

/// Checks the object store, and at the same time uploads queued backups.
async fn serve(
    probe: Option<CloudProbe>,
    waiting: watch::Receiver<Option<PendingUpload>>,
    events: mpsc::Sender<Input>,
) {
    let probed = async {
        if let Some(probe) = probe
            && let Some(warning) = probe.warning().await
        {
            // Sending fails if the loop was dropped, which does not matter.
            let _ = events.send(warning_input(warning)).await;
        }
    };
    let uploads = upload_all(waiting, events.clone());
    tokio::pin!(uploads);
    tokio::select! {
        // When all backups are uploaded, the check of the object store is canceled.
        () = &mut uploads => return,
        () = probed => {}
    }
    uploads.await;
}

/// Uploads queued backups until all senders are dropped.
async fn upload_all(
    mut waiting: watch::Receiver<Option<PendingUpload>>,
    events: mpsc::Sender<Input>,
) {
    while waiting.changed().await.is_ok() {
        let taken = waiting.borrow_and_update().clone();
        let Some(pending) = taken else { continue };
        // Sending fails if the loop was dropped. Then no more backups are uploaded.
        let report = async |incident| events.send(Input::Incident(incident)).await.is_ok();
        let reported = match upload(pending, &mut waiting).await {
            UploadResult::Uploaded(pending, sent) => {
                // The upload is reported before old backups are deleted, which may take long.
                let (name, bytes) = (pending.name(), sent.bytes);
                let reported = report(Incident::CloudCopied { name, bytes }).await;
                let failed = tokio::select! {
                    failed = prune(&pending, &sent) => failed,
                    // If the next backup is queued, old backups are deleted after its upload instead.
                    () = another(waiting.clone()) => None,
                };
                match failed {
                    Some(failed) if reported => report(failed).await,
                    Some(_) | None => reported,
                }
            }
            UploadResult::Failed(failed) => report(failed).await,
            UploadResult::FileGone => true,
        };
        if !reported {
            return;
        }
    }
}

/// The result of an upload.
enum UploadResult {
    Uploaded(PendingUpload, UploadedBackup),
    Failed(Incident),
    /// The file was deleted, and no newer backup is queued.
    FileGone,
}

/// Waits until the next backup is queued. Never returns if there will be none.
async fn another(mut waiting: watch::Receiver<Option<PendingUpload>>) {
    if waiting.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Deletes old backups in the object store. Returns an incident if that fails.
async fn prune(pending: &PendingUpload, sent: &UploadedBackup) -> Option<Incident> {
    let error = match timeout(PRUNE_TIMEOUT, pending.cloud.prune(sent)).await {
        Ok(Ok(())) => return None,
        Ok(Err(error)) => chain(&error),
        Err(_) => took_longer_than(PRUNE_TIMEOUT),
    };
    Some(Incident::CloudFailed {
        name: pending.name(),
        error: format!("it is there, but older copies stay: {error}"),
        attempts: 1,
    })
}

fn took_longer_than(limit: Duration) -> String {
    format!("it took longer than {}", humantime::format_duration(limit))
}

/// Uploads one backup. If a newer one is queued during a retry, uploads that one instead.
async fn upload(
    mut pending: PendingUpload,
    waiting: &mut watch::Receiver<Option<PendingUpload>>,
) -> UploadResult {
    let mut attempts = 0;
    let mut wait = FIRST_WAIT;
    loop {
        attempts += 1;
        let sent = timeout(
            ATTEMPT_TIMEOUT,
            pending.cloud.send(&pending.path, pending.has_work),
        )
        .await;
        let failed = |error: String| Incident::CloudFailed {
            name: pending.name(),
            error,
            attempts,
        };
        let (error, may_pass) = match sent {
            Ok(Ok(sent)) => return UploadResult::Uploaded(pending, sent),
            Ok(Err(SendError::Gone)) => match newest(waiting) {
                Some(newer) => {
                    pending = newer;
                    continue;
                }
                None => return UploadResult::FileGone,
            },
            Ok(Err(SendError::Cloud(error))) => (chain(&error), error.may_pass()),
            Err(_) => (took_longer_than(ATTEMPT_TIMEOUT), true),
        };
        if !may_pass || attempts >= ATTEMPTS_MAX {
            return UploadResult::Failed(failed(error));
        }
        sleep(wait).await;
        wait *= 2;
        if let Some(newer) = newest(waiting) {
            pending = newer;
        }
    }
}

fn newest(waiting: &mut watch::Receiver<Option<PendingUpload>>) -> Option<PendingUpload> {
    match waiting.has_changed() {
        Ok(true) => waiting.borrow_and_update().clone(),
        Ok(false) | Err(_) => None,
    }
}
