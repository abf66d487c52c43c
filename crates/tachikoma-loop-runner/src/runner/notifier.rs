//! Notifications: which records cause a message, and what it says.

use tachikoma_core::{HookPoint, Incident, Input, LoopEvent, OperatorEvent, Record};
use tokio::sync::oneshot;

use super::context::Context;
use super::queue::InputQueue;
use crate::hooks::{HookEvent, Past};
use crate::notify::{Delivered, Message, Notices};
use crate::shell::TaskResult;

/// A delivery that has ended: the index of its target, and its result.
pub(super) type DeliveryEnded = (usize, TaskResult<Delivered>);

/// The targets of notifications.
#[derive(Debug)]
pub(super) struct Notifier {
    targets: Notices,
}

impl Notifier {
    pub fn new(targets: Notices) -> Self {
        Self { targets }
    }

    /// Returns whether a message is sent because of these records. They must be synced first.
    pub fn is_notified_of(&self, records: &[Record]) -> bool {
        !self.targets.is_empty()
            && records.iter().any(|record| {
                let mut points = self.points(&record.event).into_iter();
                points.any(|point| self.targets.hear(point))
            })
    }

    /// Queues the messages about a record. `synced` says whether the record is on disk.
    pub fn notify(
        &mut self,
        context: Context<'_>,
        record: &Record,
        synced: bool,
        queue: &mut InputQueue,
    ) {
        if self.targets.is_empty() {
            return;
        }
        let points = self.points(&record.event).into_iter();
        let messages = points.map(|point| Message {
            event: facts(context, point, &record.event),
            time: record.time,
            left_out: 0,
        });
        let messages: Vec<Message> = messages.collect();
        if let LoopEvent::TestsRan(report) = &record.event {
            self.targets.tests = Some((*report).clone());
        }
        if messages.is_empty() {
            return;
        }
        debug_assert!(
            synced || !(messages.iter()).any(|message| self.targets.hear(message.event.point)),
            "a message about a record that may be lost"
        );
        let dropped = self.targets.take(&messages, || context.shell());
        queue.extend(dropped.into_iter().map(Input::Incident));
    }

    /// Returns the points that a record is reported as; each target gets the first one that it subscribes to.
    fn points(&self, event: &LoopEvent) -> Vec<HookPoint> {
        let point = match event {
            LoopEvent::IterationFailed { .. } => {
                return vec![HookPoint::Error, HookPoint::IterationEnd];
            }
            LoopEvent::IterationLimited(_) => {
                return vec![HookPoint::LimitWait, HookPoint::IterationEnd];
            }
            LoopEvent::Error { .. } => return vec![HookPoint::LoopEnd, HookPoint::Error],
            LoopEvent::IterationCompleted { .. } => HookPoint::IterationEnd,
            LoopEvent::IterationStarted { .. } => HookPoint::IterationStart,
            LoopEvent::RebootStarted { .. } => HookPoint::BeforeReboot,
            LoopEvent::RebootCompleted { .. } => HookPoint::AfterReboot,
            LoopEvent::ProgressMeasured(measured) if measured.score == 0 => HookPoint::NoProgress,
            LoopEvent::TestsRan(report) if report.is_news(self.targets.tests.as_ref()) => {
                HookPoint::TestsChanged
            }
            LoopEvent::Operator(OperatorEvent::Asked(_)) => HookPoint::Question,
            LoopEvent::Started { .. } => HookPoint::LoopStart,
            LoopEvent::SessionStarted { .. } => HookPoint::SessionStart,
            LoopEvent::SessionEnded { .. } => HookPoint::SessionEnd,
            event if event.is_terminal() => HookPoint::LoopEnd,
            _ => return Vec::new(),
        };
        vec![point]
    }

    /// Waits until a delivery has ended. Cancel-safe.
    pub async fn next_event(&mut self) -> DeliveryEnded {
        self.targets.next().await
    }

    /// Starts the next delivery of the target. Returns the incident if the one before failed.
    pub fn ended(&mut self, context: Context<'_>, ended: DeliveryEnded) -> Option<Input> {
        let (index, result) = ended;
        let failed = self.targets.ended(index, result, || context.shell());
        failed.map(Input::Incident)
    }

    /// Returns whether no message is being delivered.
    pub fn is_idle(&self) -> bool {
        self.targets.is_idle()
    }

    /// Cancels deliveries that hang before the message about the end of the loop.
    pub fn prefer_loop_end(&mut self) {
        self.targets.make_way_for_the_end();
    }

    /// Stops all deliveries as Ctrl-Z does.
    pub fn suspend(&self) {
        for task in self.targets.running() {
            let (stopped, _) = oneshot::channel();
            task.suspend(stopped);
        }
    }

    /// Continues deliveries that were stopped.
    pub fn resume(&self) {
        for task in self.targets.running() {
            task.resume();
        }
    }

    /// Ends all deliveries. Returns an incident for each message that was not delivered.
    pub async fn shutdown(&mut self) -> Vec<Incident> {
        self.targets.end().await
    }
}

/// Returns the facts of a message, which are those that a hook gets.
fn facts(context: Context<'_>, point: HookPoint, event: &LoopEvent) -> HookEvent {
    let (state, dir) = (context.state, &context.config.working_dir);
    let facts = |point, reason| HookEvent::new(point, reason, state, dir);
    match event {
        LoopEvent::IterationFailed {
            iteration, failure, ..
        } => {
            let past = Past::Failed(Some(failure.to_string()));
            facts(point, None).of_iteration(*iteration, &past, state)
        }
        LoopEvent::IterationCompleted { report, .. } => {
            let past = Past::Over(report.outcome);
            facts(point, None).of_iteration(report.iteration, &past, state)
        }
        LoopEvent::IterationLimited(limited) => {
            facts(point, None).of_iteration(limited.iteration, &Past::Limited, state)
        }
        LoopEvent::IterationStarted { iteration, .. } => HookEvent {
            iteration: *iteration,
            reason_text: format!("iteration {iteration} begins"),
            ..facts(point, None)
        },
        LoopEvent::RebootStarted { reason, .. } | LoopEvent::RebootCompleted { reason, .. } => {
            facts(point, Some(reason.clone()))
        }
        event if event.is_terminal() => HookEvent {
            point,
            ..facts(HookPoint::LoopEnd, None)
        },
        _ => facts(point, None),
    }
}
