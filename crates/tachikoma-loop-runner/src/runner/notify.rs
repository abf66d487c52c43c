//! Messages to people: what of a record is told, and what becomes of it.

use std::ffi::OsString;
use std::time::Duration;

use tachikoma_core::{HookPoint, Input, LoopEvent, OperatorEvent, Record};

use tokio::time::Instant;

use super::LoopRunner;
use crate::clock;
use crate::hooks::{HookEvent, Past};
use crate::notify::{Delivered, Message};
use crate::shell::{Ran, Shell};

impl LoopRunner {
    /// Returns whether somebody is told because of what was decided: then it must not be forgotten.
    pub(super) fn tells(&self, records: &[Record]) -> bool {
        !self.notices.is_empty()
            && records.iter().any(|record| {
                let mut points = self.points(&record.event).into_iter();
                points.any(|point| self.notices.hear(point))
            })
    }

    /// Tells of a record whoever wants to hear of it. Never waits.
    pub(super) fn notify(&mut self, record: &Record) {
        if self.notices.is_empty() {
            return;
        }
        let messages = self.messages(record);
        if let LoopEvent::TestsRan(report) = &record.event {
            self.notices.tests = Some((*report).clone());
        }
        if messages.is_empty() {
            return;
        }
        debug_assert!(
            self.journal.is_synced()
                || !(messages.iter()).any(|message| self.notices.hear(message.event.point)),
            "nobody is told of what may be forgotten"
        );
        let mut notices = std::mem::take(&mut self.notices);
        let dropped = notices.take(&messages, || Shell::new(self.guard_options()));
        self.notices = notices;
        self.queue.extend(dropped.into_iter().map(Input::Incident));
    }

    /// Returns what a record is told as; of several the first that somebody hears of counts.
    fn points(&self, event: &LoopEvent) -> Vec<HookPoint> {
        if matches!(event, LoopEvent::IterationFailed { .. }) {
            return vec![HookPoint::Error, HookPoint::IterationEnd];
        }
        if matches!(event, LoopEvent::IterationLimited(_)) {
            return vec![HookPoint::LimitWait, HookPoint::IterationEnd];
        }
        let point = if matches!(event, LoopEvent::IterationCompleted { .. }) {
            HookPoint::IterationEnd
        } else if matches!(event, LoopEvent::IterationStarted { .. }) {
            HookPoint::IterationStart
        } else if matches!(event, LoopEvent::RebootStarted { .. }) {
            HookPoint::BeforeReboot
        } else if matches!(event, LoopEvent::RebootCompleted { .. }) {
            HookPoint::AfterReboot
        } else if matches!(event, LoopEvent::ProgressMeasured(measured) if measured.score == 0) {
            HookPoint::NoProgress
        } else if let LoopEvent::TestsRan(report) = event
            && report.is_news(self.notices.tests.as_ref())
        {
            HookPoint::TestsChanged
        } else if matches!(event, LoopEvent::Operator(OperatorEvent::Asked(_))) {
            HookPoint::Question
        } else if matches!(event, LoopEvent::Started { .. }) {
            HookPoint::LoopStart
        } else if matches!(event, LoopEvent::SessionStarted { .. }) {
            HookPoint::SessionStart
        } else if matches!(event, LoopEvent::SessionEnded { .. }) {
            HookPoint::SessionEnd
        } else if matches!(event, LoopEvent::Error { .. }) {
            return vec![HookPoint::LoopEnd, HookPoint::Error];
        } else if event.is_terminal() {
            HookPoint::LoopEnd
        } else {
            return Vec::new();
        };
        vec![point]
    }

    /// Returns the messages about a record, with what a hook would be told.
    fn messages(&self, record: &Record) -> Vec<Message> {
        let points = self.points(&record.event).into_iter();
        let messages = points.map(|point| Message {
            event: self.facts(point, &record.event),
            time: record.time,
            left_out: 0,
        });
        messages.collect()
    }

    fn facts(&self, point: HookPoint, event: &LoopEvent) -> HookEvent {
        let (state, dir) = (&self.state, &self.config.working_dir);
        let facts = |point, reason| HookEvent::new(point, reason, state, dir);
        if let LoopEvent::IterationFailed {
            iteration, failure, ..
        } = event
        {
            let past = Past::Failed(Some(failure.to_string()));
            facts(point, None).of_iteration(*iteration, &past, state)
        } else if let LoopEvent::IterationCompleted { report, .. } = event {
            let past = Past::Over(report.outcome);
            facts(point, None).of_iteration(report.iteration, &past, state)
        } else if let LoopEvent::IterationLimited(limited) = event {
            facts(point, None).of_iteration(limited.iteration, &Past::Limited, state)
        } else if let LoopEvent::IterationStarted { iteration, .. } = event {
            HookEvent {
                iteration: *iteration,
                reason_text: format!("iteration {iteration} begins"),
                ..facts(point, None)
            }
        } else if let LoopEvent::RebootStarted { reason, .. }
        | LoopEvent::RebootCompleted { reason, .. } = event
        {
            facts(point, Some(reason.clone()))
        } else if event.is_terminal() {
            HookEvent {
                point,
                ..facts(HookPoint::LoopEnd, None)
            }
        } else {
            facts(point, None)
        }
    }

    pub(super) fn notice_ended(&mut self, index: usize, ran: Ran<Delivered>) -> Option<Input> {
        let mut notices = std::mem::take(&mut self.notices);
        let failed = notices.ended(index, ran, || Shell::new(self.guard_options()));
        self.notices = notices;
        failed.map(Input::Incident)
    }

    /// Returns the variables that are for messages alone: neither the agent nor what it may have written gets them.
    pub(super) fn secret_names(&self) -> Vec<OsString> {
        self.config.secrets.keys().map(Into::into).collect()
    }

    /// The loop has ended: what is to be told of it is told, by hooks beside the loop and by messages, unless that takes longer than
    /// `time` or somebody wants the end at once. Half of the time is for what came before the end.
    pub(super) async fn drain(&mut self, time: Duration) {
        let now = clock::monotonic();
        let over = tokio::time::sleep_until(Instant::from_std(now + time));
        let half = tokio::time::sleep_until(Instant::from_std(now + time / 2));
        tokio::pin!(over, half);
        let mut made_way = false;
        while self.beside.running().is_some() || !self.notices.is_idle() {
            tokio::select! {
                () = &mut over => break,
                () = &mut half, if !made_way => {
                    made_way = true;
                    self.notices.make_way_for_the_end();
                }
                Some(_) = self.ends.shutdowns.recv() => break,
                _ = self.beside.ended() => self.ended_behind_the_end(),
                (index, ran) = self.notices.next() => {
                    if let Some(failed) = self.notice_ended(index, ran) {
                        // The loop has ended all the same.
                        let _ = self.take(failed).await;
                    }
                }
            }
        }
        for failed in self.notices.end().await {
            let _ = self.take(Input::Incident(failed)).await;
        }
    }
}
