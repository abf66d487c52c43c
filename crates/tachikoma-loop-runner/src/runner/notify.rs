//! Messages to people: what of a record is told, and what becomes of it.

use std::ffi::OsString;

use tachikoma_core::{HookPoint, Input, LoopEvent, OperatorEvent, Record};

use tokio::time::Instant;

use super::LoopRunner;
use crate::hooks::HookEvent;
use crate::notify::{Delivered, Message};
use crate::shell::{Ran, Shell};

impl LoopRunner {
    /// Tells of a record whoever wants to hear of it. Never waits.
    pub(super) fn notify(&mut self, record: &Record) {
        if self.notices.is_empty() {
            return;
        }
        let messages = self.messages(record);
        if messages.is_empty() {
            return;
        }
        let mut notices = std::mem::take(&mut self.notices);
        notices.take(&messages, || Shell::new(self.guard_options()));
        self.notices = notices;
    }

    fn messages(&self, record: &Record) -> Vec<Message> {
        let message = |point| Message {
            event: HookEvent::new(point, None, &self.state, &self.config.working_dir),
            time: record.time,
            left_out: 0,
        };
        // What has begun meanwhile is not what is told.
        let of_iteration = |point, iteration: u32, outcome: &str, words: String| {
            let mut message = message(point);
            message.event.iteration = iteration;
            message.event.outcome = Some(outcome.to_owned());
            message.event.reason_text = words;
            message
        };
        let event = &record.event;
        if let LoopEvent::IterationFailed {
            iteration, failure, ..
        } = event
        {
            let words = format!("iteration {iteration} failed: {failure}");
            return [HookPoint::Error, HookPoint::IterationEnd]
                .map(|point| of_iteration(point, *iteration, "failed", words.clone()))
                .to_vec();
        }
        if let LoopEvent::IterationCompleted { report, .. } = event {
            let (iteration, outcome) = (report.iteration, report.outcome.to_string());
            let words = format!("iteration {iteration} is over: {outcome}");
            return vec![of_iteration(
                HookPoint::IterationEnd,
                iteration,
                &outcome,
                words,
            )];
        }
        if let LoopEvent::IterationLimited(limited) = event {
            let iteration = limited.iteration;
            let mut words =
                format!("the model's service is limited, and iteration {iteration} waits for it");
            if let Some(until) = limited.until {
                words = format!("{words} until {until}");
            }
            return [HookPoint::LimitWait, HookPoint::IterationEnd]
                .map(|point| of_iteration(point, iteration, "limited", words.clone()))
                .to_vec();
        }
        if let LoopEvent::IterationStarted { iteration, .. } = event {
            let mut message = message(HookPoint::IterationStart);
            message.event.iteration = *iteration;
            message.event.reason_text = format!("iteration {iteration} begins");
            return vec![message];
        }
        if let LoopEvent::RebootStarted { reason, .. } = event {
            let mut message = message(HookPoint::BeforeReboot);
            message.event.reason_text = format!("the session is rebooted: {reason}");
            return vec![message];
        }
        if let LoopEvent::RebootCompleted { reason, to, .. } = event {
            let mut message = message(HookPoint::AfterReboot);
            message.event.reason_text = format!("session {to} took over: {reason}");
            return vec![message];
        }
        let quiet = matches!(event, LoopEvent::ProgressMeasured(measured) if measured.score > 0);
        if matches!(event, LoopEvent::ProgressMeasured(_)) && !quiet {
            return vec![message(HookPoint::NoProgress)];
        }
        if let LoopEvent::TestsRan(report) = event {
            let changed = report.newly_passing > 0 || !report.newly_failing.is_empty();
            return changed
                .then(|| message(HookPoint::TestsChanged))
                .into_iter()
                .collect();
        }
        if matches!(event, LoopEvent::Operator(OperatorEvent::Asked(_))) {
            return vec![message(HookPoint::Question)];
        }
        if matches!(event, LoopEvent::Started { .. }) {
            return vec![message(HookPoint::LoopStart)];
        }
        if matches!(event, LoopEvent::SessionStarted { .. }) {
            return vec![message(HookPoint::SessionStart)];
        }
        if matches!(event, LoopEvent::SessionEnded { .. }) {
            return vec![message(HookPoint::SessionEnd)];
        }
        if event.is_terminal() {
            let failed = matches!(event, LoopEvent::Error { .. });
            let mut end = vec![message(HookPoint::LoopEnd)];
            if failed {
                let mut error = message(HookPoint::Error);
                error
                    .event
                    .reason_text
                    .clone_from(&end[0].event.reason_text);
                end.push(error);
            }
            return end;
        }
        Vec::new()
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

    /// The loop has ended: what is to be told of it is told, unless that takes too long or somebody wants the end at once.
    pub(super) async fn drain_notices(&mut self, over: Instant) {
        let over = tokio::time::sleep_until(over);
        tokio::pin!(over);
        while !self.notices.is_idle() {
            tokio::select! {
                () = &mut over => break,
                Some(_) = self.ends.shutdowns.recv() => break,
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
