//! Notifications: queues messages for each `[[notify]]` and delivers them without ever blocking the loop.
//!
//! Each target has a queue and one background task, which delivers one message after another: over HTTP, by mail, or with a program
//! that runs under a guard as a hook does (`notify-send` for the desktop, or the operator's command).

mod deliver;
mod format;
mod http;
mod mail;
mod points;
mod send;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tachikoma_cloud::Proxies;
use tachikoma_core::{HookPoint, Incident, LoopEvent, Record, State, TestsReport, Timestamp};
use tokio::sync::oneshot;

use crate::clock;
use crate::hooks::HookEvent;
use crate::settings::{Notify, Secret};
use crate::shell::{CancellableTask, Shell};

pub use send::{TestDelivery, test};

/// Maximum number of messages that wait for one target. A service that was down for hours should not get all of them later. A message about
/// the end of the loop replaces another message if the queue is full.
const WAITING_MAX: usize = 64;

/// The time window of `max_per_hour`.
const HOUR: Duration = Duration::from_secs(3600);

/// Name of the background task in messages about a panic.
const DELIVERY: &str = "delivery of a message";

/// A message about one event.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The event that the message reports. Hooks get the same data.
    pub event: HookEvent,
    /// When the event happened.
    pub time: Timestamp,
    /// How many earlier messages to the same target were dropped.
    pub left_out: u32,
}

impl Message {
    /// Returns whether the message is sent even if `max_per_hour` is exceeded.
    fn is_critical(&self) -> bool {
        matches!(
            self.event.point,
            HookPoint::LoopEnd | HookPoint::Error | HookPoint::Question
        )
    }

    /// Returns the message as one line of text for a person.
    fn text(&self) -> String {
        let dir = &self.event.working_dir;
        let name = dir.file_name().unwrap_or(dir.as_os_str());
        let what = &self.event.reason_text;
        let what = match self.event.point {
            HookPoint::BeforeReboot => format!("the session is rebooted: {what}"),
            HookPoint::AfterReboot => {
                format!("session {} took over: {what}", self.event.session.number)
            }
            _ => what.clone(),
        };
        let text = format!("{}: {what}", name.to_string_lossy());
        match self.left_out {
            0 => text,
            1 => format!("{text} (1 message before it was left out)"),
            many => format!("{text} ({many} messages before it were left out)"),
        }
    }
}

/// One target of notifications: its settings and secrets.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub settings: Notify,
    /// Position of the target in the configuration, from 1.
    pub number: usize,
    pub url: Option<Secret>,
    pub secret: Option<Secret>,
    pub proxies: Proxies,
}

impl Address {
    /// Returns all configured targets. `secrets` has the values of the variables that the settings name.
    pub fn all(
        settings: &[Notify],
        secrets: &BTreeMap<String, Secret>,
        proxies: &Proxies,
    ) -> Vec<Self> {
        let variable =
            |name: &Option<String>| name.as_ref().and_then(|name| secrets.get(name).cloned());
        let addresses = settings.iter().zip(1..).map(|(notify, number)| Self {
            url: notify.url.clone().or_else(|| variable(&notify.url_env)),
            secret: variable(&notify.secret_env),
            settings: notify.clone(),
            number,
            proxies: proxies.clone(),
        });
        addresses.collect()
    }

    /// Returns the name of the target in records. It does not contain the address, which can be a secret.
    pub fn name(&self) -> String {
        format!("{} (notify {})", self.settings.to.word(), self.number)
    }

    fn hears(&self, point: HookPoint) -> bool {
        self.settings.on.contains(&point)
    }
}

/// The messages for one target.
#[derive(Debug)]
struct Queue {
    address: Address,
    waiting: VecDeque<Message>,
    running: Option<Running>,
    /// The times at which messages were queued during the last hour.
    taken: VecDeque<Instant>,
    left_out: u32,
}

/// A message that is being delivered.
#[derive(Debug)]
struct Running {
    point: HookPoint,
    task: CancellableTask<Delivered>,
    /// Number of delivery attempts so far.
    tried: Arc<AtomicU32>,
}

/// The result of one attempt to deliver a message. The reasons never contain an address, nor text of a service or a program.
#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    Delivered,
    /// The attempt failed, and a retry may help. Contains the reason.
    Retry(String),
    /// The attempt failed, and a retry cannot help. Contains the reason.
    Failed(String),
}

/// The result of delivering a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub attempts: u32,
    /// Why it failed; `None` if the message was delivered.
    pub error: Option<String>,
}

/// A delivery that has ended: the index of its target, and its result or the message of a panic.
pub(crate) type DeliveryEnded = (usize, Result<Delivered, String>);

/// All targets with their queues.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    queues: Vec<Queue>,
    /// The results of the last test run.
    tests: Option<TestsReport>,
}

impl Notifier {
    pub fn new(addresses: Vec<Address>, tests: Option<TestsReport>) -> Self {
        let queue = |address| Queue {
            address,
            waiting: VecDeque::new(),
            running: None,
            taken: VecDeque::new(),
            left_out: 0,
        };
        Self {
            queues: addresses.into_iter().map(queue).collect(),
            tests,
        }
    }

    /// Returns whether these records cause a message. They must be synced before the message is sent.
    pub fn is_notified_of(&self, records: &[Record]) -> bool {
        let hears = |point| self.queues.iter().any(|queue| queue.address.hears(point));
        let mut events = records.iter().map(|record| &record.event);
        !self.queues.is_empty()
            && events.any(|event| {
                let points = points::points(event, self.tests.as_ref());
                points.into_iter().any(hears)
            })
    }

    /// Queues a message about a record for each target. Each target gets the first point of the record that it subscribes to. `synced` says
    /// whether the
    /// record is on disk. Returns the critical messages that were dropped to make room.
    pub fn notify(
        &mut self,
        state: &State,
        working_dir: &Path,
        record: &Record,
        synced: bool,
        shell: impl Fn() -> Shell,
    ) -> Vec<Incident> {
        let mut dropped = Vec::new();
        if self.queues.is_empty() {
            return dropped;
        }
        debug_assert!(
            synced || !self.is_notified_of(std::slice::from_ref(record)),
            "a record must be synced before a message about it is sent"
        );
        let points = points::points(&record.event, self.tests.as_ref()).into_iter();
        let messages = points.map(|point| Message {
            event: points::facts(state, working_dir, point, &record.event),
            time: record.time,
            left_out: 0,
        });
        let messages: Vec<Message> = messages.collect();
        if let LoopEvent::TestsRan(report) = &record.event {
            self.tests = Some((*report).clone());
        }
        for queue in &mut self.queues {
            let heard = messages
                .iter()
                .find(|message| queue.address.hears(message.event.point));
            if let Some(message) = heard {
                let gone = queue.take(message.clone(), clock::monotonic());
                dropped.extend(gone.map(|point| Incident::NotifyFailed {
                    target: queue.address.name(),
                    point,
                    error: format!("{WAITING_MAX} messages wait for this target, and this was the oldest that could be dropped"),
                    attempts: 0,
                }));
                queue.go_on(&shell);
            }
        }
        dropped
    }

    /// Returns the next delivery that ends, with the index of its target. Cancel-safe.
    pub async fn next_event(&mut self) -> DeliveryEnded {
        std::future::poll_fn(|context| {
            for (index, queue) in self.queues.iter_mut().enumerate() {
                if let Some(running) = &mut queue.running {
                    let ended = std::pin::pin!(running.task.ended());
                    if let std::task::Poll::Ready(ran) = ended.poll(context) {
                        return std::task::Poll::Ready((index, ran));
                    }
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Starts the next delivery to a target after one has ended. Returns the incident to record if the ended one failed.
    pub fn ended(
        &mut self,
        (index, result): DeliveryEnded,
        shell: impl Fn() -> Shell,
    ) -> Option<Incident> {
        let queue = self.queues.get_mut(index)?;
        let Running { point, tried, .. } = queue.running.take()?;
        queue.go_on(&shell);
        let delivered = result.unwrap_or_else(|reason| Delivered {
            attempts: tried.load(Ordering::Relaxed),
            error: Some(reason),
        });
        delivered.error.map(|error| Incident::NotifyFailed {
            target: queue.address.name(),
            point,
            error,
            attempts: delivered.attempts,
        })
    }

    /// After the end of the loop, cancels a delivery that hangs if the message about the end is queued after it.
    pub fn prefer_loop_end(&mut self) {
        for queue in &mut self.queues {
            let mut waiting = queue.waiting.iter();
            let end = waiting.position(|message| message.event.point == HookPoint::LoopEnd);
            let (Some(end), Some(running)) = (end, &queue.running) else {
                continue;
            };
            queue.waiting.rotate_left(end);
            running.task.cancel();
        }
    }

    pub fn is_idle(&self) -> bool {
        self.queues.iter().all(|queue| queue.running.is_none())
    }

    /// Cancels all deliveries. Returns an incident for each message that was not delivered.
    pub async fn shutdown(&mut self) -> Vec<Incident> {
        let mut undelivered = Vec::new();
        // All deliveries are canceled before the first one is waited for, because each can take some seconds.
        for task in self.running() {
            task.cancel();
        }
        for queue in &mut self.queues {
            let points = queue.waiting.drain(..).map(|message| message.event.point);
            let mut points: Vec<(HookPoint, u32)> = points.map(|point| (point, 0)).collect();
            if let Some(running) = queue.running.take() {
                running.task.cancel_and_wait().await;
                points.insert(0, (running.point, running.tried.load(Ordering::Relaxed)));
            }
            undelivered.extend(points.into_iter().map(|(point, attempts)| {
                Incident::NotifyFailed {
                    target: queue.address.name(),
                    point,
                    error: "the loop ended before the message was delivered".to_owned(),
                    attempts,
                }
            }));
        }
        undelivered
    }

    /// Suspends all deliveries, as Ctrl-Z does.
    pub fn suspend(&self) {
        for task in self.running() {
            let (stopped, _) = oneshot::channel();
            task.suspend(stopped);
        }
    }

    /// Continues suspended deliveries.
    pub fn resume(&self) {
        for task in self.running() {
            task.resume();
        }
    }

    fn running(&self) -> impl Iterator<Item = &CancellableTask<Delivered>> {
        let running = self
            .queues
            .iter()
            .filter_map(|queue| queue.running.as_ref());
        running.map(|running| &running.task)
    }
}

impl Queue {
    /// Queues a message. Returns the point of a critical message that was dropped to make room.
    fn take(&mut self, mut message: Message, now: Instant) -> Option<HookPoint> {
        while self
            .taken
            .front()
            .is_some_and(|then| now.saturating_duration_since(*then) >= HOUR)
        {
            self.taken.pop_front();
        }
        let limit = self.address.settings.max_per_hour as usize;
        let often = limit > 0 && self.taken.len() >= limit;
        let full = self.waiting.len() >= WAITING_MAX;
        if (often || full) && !message.is_critical() {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        let mut gone = None;
        if full {
            // The oldest message that is not critical is dropped first, then the oldest error, then the oldest question, which has probably been
            // answered by now. The message about the end of the loop is never dropped.
            let oldest = |spare: fn(&Message) -> bool| self.waiting.iter().position(spare);
            let index = oldest(|waiting| !waiting.is_critical())
                .or_else(|| oldest(|waiting| waiting.event.point == HookPoint::Error))
                .or_else(|| oldest(|waiting| waiting.event.point != HookPoint::LoopEnd));
            if let Some(went) = index.and_then(|index| self.waiting.remove(index)) {
                self.left_out = self.left_out.saturating_add(1);
                gone = Some(went).filter(Message::is_critical);
            }
        }
        if self.taken.len() < WAITING_MAX.max(limit) {
            self.taken.push_back(now);
        }
        message.left_out = std::mem::take(&mut self.left_out);
        self.waiting.push_back(message);
        gone.map(|gone| gone.event.point)
    }

    fn go_on(&mut self, shell: &impl Fn() -> Shell) {
        if self.running.is_some() {
            return;
        }
        if let Some(message) = self.waiting.pop_front() {
            let (point, address, shell) = (message.event.point, self.address.clone(), shell());
            let tried = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&tried);
            let task = CancellableTask::start(DELIVERY, None, move |orders| {
                let attempts_max = deliver::ATTEMPTS_MAX;
                deliver::deliver(address, message, shell, orders, counted, attempts_max)
            });
            self.running = Some(Running { point, task, tried });
        }
    }
}

#[cfg(test)]
mod tests;
