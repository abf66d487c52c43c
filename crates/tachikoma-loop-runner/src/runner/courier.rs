//! Who takes backups to where copies go: a thread of its own, with one backup in its hands and at most one that waits. A newer one
//! takes the place of that. The loop never waits for it, and hears of it what is to be recorded.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use tachikoma_core::{Incident, Input, LoopId, Outcome};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::LoopRunner;
use crate::chain;
use crate::clock;
use crate::cloud::{Cloud, Error, SendError, Sent};
use crate::store::backup::Taken;
use crate::task::panicked;

/// How often a backup is sent before it is given up; the next one is sent all the same.
const ATTEMPTS_MAX: u32 = 5;

/// The first wait; each is twice the one before. With the others half a minute passes: a server that restarts is back.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// At a slow line's 500 KiB a second, 300 MiB.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(600);

/// To list, and to remove what is too many. The next backup must not wait for longer; what stays goes after that.
const PRUNE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long the end of a loop waits for that, when its last backup is copied.
const LAST_PRUNE: Duration = Duration::from_secs(5);

/// What there may be to say before somebody listens.
const SAID_MAX: usize = 16;

/// What is told when the loop ends first.
const TOO_LATE: &str =
    "the loop ended before it was sent; `tachikoma state backup` sends another one";

/// A backup to be sent.
#[derive(Clone, Debug)]
pub(super) struct Parcel {
    pub path: PathBuf,
    pub has_work: bool,
    pub cloud: Cloud,
}

impl Parcel {
    fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// Where backups are handed in. The newest is kept.
pub(super) type Counter = watch::Sender<Option<Parcel>>;

/// The thread, while there is one.
#[derive(Debug)]
pub(super) struct Courier {
    counter: Counter,
    said: mpsc::Receiver<Input>,
    /// Dropped, it ends what is under way.
    go_on: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Courier {
    /// Starts the thread; without one backups stay here, and that is said. It begins with a look at where they go, if it is told where.
    pub fn start(look: Option<Look>) -> Result<Self, String> {
        let (counter, waiting) = watch::channel(None);
        let (say, said) = mpsc::channel(SAID_MAX);
        let (go_on, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("backups are not copied: {error}"))?;
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(look, waiting, say) => {}
                    _ = stopped => {}
                }
            });
            // A disk that hangs must not keep anyone.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name("courier".to_owned())
            .spawn(work)
            .map_err(|error| format!("backups are not copied: {error}"))?;
        Ok(Self {
            counter,
            said,
            go_on,
            thread,
        })
    }

    pub fn counter(&self) -> Counter {
        self.counter.clone()
    }

    /// Returns what is to be recorded, once something is; how it panicked, if it did. Cancel-safe.
    pub async fn next(courier: &mut Option<Self>) -> Input {
        if let Some(there) = courier {
            if let Some(input) = there.said.recv().await {
                return input;
            }
            if let Some(Self { thread, .. }) = courier.take()
                && let Err(payload) = thread.join()
            {
                let reason = panicked("courier", payload.as_ref());
                return Input::Broken { reason };
            }
        }
        std::future::pending().await
    }
}

/// A first look at where copies go: what is wrong there is known before there is anything to copy.
#[derive(Debug)]
pub(super) struct Look {
    pub cloud: Cloud,
    pub loop_id: LoopId,
    /// Whether backups are encrypted.
    pub sealed: bool,
}

impl Look {
    /// Returns what a person should know.
    async fn warning(self) -> Option<String> {
        let Self {
            cloud,
            loop_id,
            sealed,
        } = self;
        let url = &cloud.url;
        let listed = match timeout(PRUNE_TIMEOUT, cloud.list(Some(loop_id))).await {
            Ok(Ok(listed)) => listed,
            // Whoever removes nothing need not be allowed to look.
            Ok(Err(Error::Refused { .. })) if cloud.max == 0 => return None,
            Ok(Err(error)) => {
                let why = chain(&error);
                return Some(format!(
                    "no backup can be copied as it is: {why}; the loop goes on, and each one is tried"
                ));
            }
            Err(_) => return None,
        };
        let clear = listed.iter().filter(|copied| !copied.is_sealed()).count();
        (sealed && clear > 0).then(|| {
            format!(
                "copies of this loop in {url} that are not encrypted: {clear}; delete them by hand, or they go when newer ones take their place"
            )
        })
    }
}

/// Looks, and sends what is handed in meanwhile.
async fn serve(
    look: Option<Look>,
    waiting: watch::Receiver<Option<Parcel>>,
    say: mpsc::Sender<Input>,
) {
    let looked = async {
        if let Some(look) = look
            && let Some(warning) = look.warning().await
        {
            // When nobody listens any more, the loop is gone.
            let _ = say.send(Input::Warning { warning }).await;
        }
    };
    let delivered = deliver(waiting, say.clone());
    tokio::pin!(delivered);
    tokio::select! {
        // Whoever has sent all does not wait for a look.
        () = &mut delivered => return,
        () = looked => {}
    }
    delivered.await;
}

/// Sends what is handed in until nobody can hand in anything any more.
async fn deliver(mut waiting: watch::Receiver<Option<Parcel>>, say: mpsc::Sender<Input>) {
    while waiting.changed().await.is_ok() {
        let taken = waiting.borrow_and_update().clone();
        let Some(parcel) = taken else { continue };
        // When nobody listens any more, the loop is gone.
        let tell = async |incident| say.send(Input::Incident(incident)).await.is_ok();
        let told = match bring(parcel, &mut waiting).await {
            Brought::Copied(parcel, sent) => {
                // Before anything else can take its time.
                let (name, bytes) = (parcel.name(), sent.bytes);
                let told = tell(Incident::CloudCopied { name, bytes }).await;
                let failed = tokio::select! {
                    failed = clear_away(&parcel, &sent) => failed,
                    // Whatever is too many goes after that.
                    () = another(waiting.clone()) => None,
                };
                match failed {
                    Some(failed) if told => tell(failed).await,
                    Some(_) | None => told,
                }
            }
            Brought::Failed(failed) => tell(failed).await,
            Brought::Nothing => true,
        };
        if !told {
            return;
        }
    }
}

/// What came of a backup that was to be sent.
enum Brought {
    Copied(Parcel, Sent),
    Failed(Incident),
    /// It was gone, and none came after it.
    Nothing,
}

/// Waits for the next backup, if there is to be one.
async fn another(mut waiting: watch::Receiver<Option<Parcel>>) {
    if waiting.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Removes older copies. Returns what is to be recorded.
async fn clear_away(parcel: &Parcel, sent: &Sent) -> Option<Incident> {
    let error = match timeout(PRUNE_TIMEOUT, parcel.cloud.prune(sent)).await {
        Ok(Ok(())) => return None,
        Ok(Err(error)) => chain(&error),
        Err(_) => took_longer_than(PRUNE_TIMEOUT),
    };
    Some(Incident::CloudFailed {
        name: parcel.name(),
        error: format!("it is there, but older copies stay: {error}"),
        attempts: 1,
    })
}

fn took_longer_than(limit: Duration) -> String {
    format!("it took longer than {}", humantime::format_duration(limit))
}

/// Sends one backup, or the newest that came while it could not be sent.
async fn bring(mut parcel: Parcel, waiting: &mut watch::Receiver<Option<Parcel>>) -> Brought {
    let mut attempts = 0;
    let mut wait = FIRST_WAIT;
    loop {
        attempts += 1;
        let sent = timeout(
            ATTEMPT_TIMEOUT,
            parcel.cloud.send(&parcel.path, parcel.has_work),
        )
        .await;
        let failed = |error: String| Incident::CloudFailed {
            name: parcel.name(),
            error,
            attempts,
        };
        let (error, may_pass) = match sent {
            Ok(Ok(sent)) => return Brought::Copied(parcel, sent),
            Ok(Err(SendError::Gone)) => match newest(waiting) {
                Some(newer) => {
                    parcel = newer;
                    continue;
                }
                None => return Brought::Nothing,
            },
            Ok(Err(SendError::Cloud(error))) => (chain(&error), error.may_pass()),
            Err(_) => (took_longer_than(ATTEMPT_TIMEOUT), true),
        };
        if !may_pass || attempts >= ATTEMPTS_MAX {
            return Brought::Failed(failed(error));
        }
        sleep(wait).await;
        wait *= 2;
        if let Some(newer) = newest(waiting) {
            parcel = newer;
        }
    }
}

fn newest(waiting: &mut watch::Receiver<Option<Parcel>>) -> Option<Parcel> {
    match waiting.has_changed() {
        Ok(true) => waiting.borrow_and_update().clone(),
        Ok(false) | Err(_) => None,
    }
}

impl LoopRunner {
    /// The loop has ended: the last copy is sent, unless that takes too long or somebody wants the end at once.
    pub(super) async fn drain_copies(&mut self, over: Instant) {
        let Some(courier) = self.upkeep.courier.take() else {
            return;
        };
        let Courier {
            counter,
            mut said,
            go_on,
            thread,
        } = courier;
        let last = counter.borrow().as_ref().map(Parcel::name);
        // Nobody hands in anything any more: it ends when all is sent.
        drop(counter);
        let mut told = self
            .state
            .copies
            .last
            .as_ref()
            .map(|last| last.name.clone());
        let soon = || over.min(Instant::from_std(clock::monotonic() + LAST_PRUNE));
        let mut until = if told == last { soon() } else { over };
        loop {
            let input = tokio::select! {
                () = sleep_until(until) => break,
                Some(_) = self.ends.shutdowns.recv() => break,
                input = said.recv() => input,
            };
            let Some(input) = input else { break };
            if let Input::Incident(
                Incident::CloudCopied { name, .. } | Incident::CloudFailed { name, .. },
            ) = &input
            {
                told = Some(name.clone());
                if told == last {
                    until = soon();
                }
            }
            // The loop has ended all the same.
            let _ = self.take(input).await;
        }
        drop(go_on);
        if !thread.is_finished()
            && let Some(name) = last.filter(|last| told.as_ref() != Some(last))
        {
            let error = TOO_LATE.to_owned();
            // How many there were, nobody says any more.
            let attempts = 0;
            let incident = Incident::CloudFailed {
                name,
                error,
                attempts,
            };
            let _ = self.take(Input::Incident(incident)).await;
        }
    }

    /// Has somebody look at where copies go, beside the loop.
    pub(super) fn look_at_copies(&mut self) {
        if let Some(cloud) = self.config.cloud()
            && self.config.settings.state.enabled
        {
            self.upkeep.look(Look {
                cloud,
                loop_id: self.state.loop_id,
                sealed: self.config.vault.seals(),
            });
        }
    }

    /// Leaves a backup of the loop as it ended to be taken, where copies go somewhere: somebody may want to go on elsewhere.
    pub(super) fn back_up_at_the_end(&mut self, outcome: Option<&Outcome>) {
        self.upkeep.hurried = matches!(outcome, None | Some(Outcome::Signal { .. }));
        if self.config.cloud().is_some() && !self.unwritten {
            // The loop has ended all the same.
            let _ = self.back_up();
        }
    }
}

/// Returns until when the last copy is waited for. Whoever sends a signal may be the shutdown of the machine.
pub(super) fn over(outcome: Option<&Outcome>) -> Instant {
    let time = match outcome {
        None | Some(Outcome::Signal { .. }) => Duration::from_secs(2),
        Some(
            Outcome::Done
            | Outcome::LimitReached { .. }
            | Outcome::Condition { .. }
            | Outcome::Budget { .. }
            | Outcome::Operator
            | Outcome::Error { .. },
        ) => Duration::from_secs(30),
    };
    Instant::from_std(clock::monotonic() + time)
}

/// Hands a backup in that was taken.
pub(super) fn hand_in(counter: &Counter, cloud: Cloud, taken: Taken) {
    counter.send_replace(Some(Parcel {
        path: taken.path,
        has_work: taken.has_work,
        cloud,
    }));
}
