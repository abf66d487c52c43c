//! Blocking hooks, which the loop waits for, and background hooks, which it does not wait for.

use std::time::Duration;

use super::{HELD, PASSED, Stage, StageResult, Stepper};
use crate::policy::completion::{Next, next};
use crate::policy::custom;
use crate::{
    Effect, HookKind, HookPoint, HookResult, Hooking, HooksEnd, HooksStart, LoopEvent, Outcome,
    Phase, Stop, StopSignal, TestsReport, Urgency, Wait,
};

/// Timeout of the end hooks during an urgent stop. It is long enough for a message, and does not delay a shutdown.
const URGENT_TIMEOUT: Duration = Duration::from_secs(5);

impl Stepper<'_> {
    /// Starts the hooks of a point for which the loop waits, if there are any.
    pub(super) fn run_hooks(
        &mut self,
        point: HookPoint,
        then: Option<Wait>,
        outcome: Option<Outcome>,
    ) -> StageResult {
        let (limit, reason) = if point.kind() == HookKind::Reboot {
            let Some(reboot) = self.state.rebooting() else {
                return PASSED;
            };
            let rules = &self.policy.reboot;
            let limit = match point == HookPoint::BeforeReboot {
                true => rules.hooks_before,
                false => rules.hooks_after,
            };
            (limit, Some(reboot.reason.clone()))
        } else {
            let limit = self.policy.hooks.get(&point).copied();
            let limit = match self.state.stop_urgent {
                true if point == HookPoint::LoopEnd => limit.map(|limit| limit.min(URGENT_TIMEOUT)),
                true => None,
                false => limit,
            };
            (limit, None)
        };
        let Some(limit) = limit else { return PASSED };
        let until = self.now.after(limit);
        self.record(LoopEvent::HooksStarted(HooksStart {
            point,
            until,
            then,
            outcome,
        }));
        self.emit(Effect::RunHooks { point, reason });
        HELD
    }

    /// Runs the hooks of the iteration that ended.
    pub(super) fn run_iteration_end_hooks(&mut self, then: Option<Wait>) -> StageResult {
        match self.state.pending_hooks.iteration_end {
            true => self.run_hooks(HookPoint::IterationEnd, then, None),
            false => PASSED,
        }
    }

    /// Runs the hooks before the next iteration, one point after the other.
    pub(super) fn run_start_hooks(&mut self) -> StageResult {
        let pending = self.state.pending_hooks;
        let points = [
            (HookPoint::SessionEnd, pending.session_end),
            (HookPoint::SessionStart, pending.session_start),
            (HookPoint::IterationStart, !pending.ready),
        ];
        for (point, _) in points.into_iter().filter(|(_, is_due)| *is_due) {
            self.run_hooks(point, None, None)?;
        }
        PASSED
    }

    /// Runs the end hooks, then ends the loop.
    pub(super) fn close(&mut self, outcome: Outcome) {
        let rebooting = matches!(self.state.phase, Phase::Rebooting { .. });
        let agent = self.state.agent.filter(|_| rebooting);
        // A loop that no runner has started does not run end hooks.
        let taken_up = self.state.runner.is_some();
        if !taken_up || self.run_hooks(HookPoint::LoopEnd, None, Some(outcome.clone())) == PASSED {
            return self.end(outcome);
        }
        // An agent in the middle of a reboot is ended, because it has no work to finish.
        if let Some(agent) = agent {
            self.emit(Effect::Signal {
                generation: agent.generation,
                signal: StopSignal::Terminate,
            });
        }
    }

    pub(super) fn hooks_ran(&mut self, point: HookPoint, results: Vec<HookResult>) {
        match point.kind() {
            HookKind::Reboot => self.reboot_hooks_ran(point, results),
            HookKind::Blocking => self.blocking_hooks_ran(point, results),
            HookKind::Background => self.background_hooks_ran(point, results),
        }
    }

    fn blocking_hooks_ran(&mut self, point: HookPoint, results: Vec<HookResult>) {
        let awaited = self
            .state
            .hooking()
            .filter(|hooking| hooking.point == point);
        let Some(hooking) = awaited.cloned() else {
            return;
        };
        let stop = self.take_results(point, results, true);
        if let Some(stop) = stop.filter(|_| hooking.outcome.is_none()) {
            self.request_stop(stop, Urgency::Graceful);
        }
        self.after_hooks(hooking);
    }

    fn background_hooks_ran(&mut self, point: HookPoint, results: Vec<HookResult>) {
        if matches!(self.state.phase, Phase::Idle | Phase::Ended { .. }) {
            return;
        }
        let stop = self.take_results(point, results, true);
        if let Some(stop) = stop.filter(|_| !self.is_ending()) {
            self.stop_after_task(stop);
        }
    }

    /// Records the results of hooks and their custom data, with warnings about failed hooks if `warn`. Returns the stop that a hook
    /// requested.
    pub(super) fn take_results(
        &mut self,
        point: HookPoint,
        results: Vec<HookResult>,
        warn: bool,
    ) -> Option<Stop> {
        let stops = results.iter().find(|result| result.stop).map(|result| {
            let why = result.error.as_deref().unwrap_or("without words");
            let reason = format!("the hook `{}` stopped the loop: {why}", result.name);
            Stop::Hook { reason }
        });
        let custom: Vec<_> = results
            .iter()
            .flat_map(|result| {
                let name = &result.name;
                result
                    .custom
                    .iter()
                    .map(|(key, value)| (name.clone(), key.clone(), value.clone()))
            })
            .collect();
        let unread = results.iter().filter(|result| result.unread);
        let unread: Vec<String> = unread.map(|result| result.name.clone()).collect();
        let failed = results.iter().filter(|result| warn && !result.stop);
        let failed: Vec<String> = failed
            .filter_map(|result| {
                let error = result.error.as_ref()?;
                let name = &result.name;
                Some(format!("the hook `{name}` ({point}) failed: {error}"))
            })
            .collect();
        self.record(LoopEvent::HooksRan(HooksEnd {
            point,
            results,
            given_up: None,
        }));
        for name in unread {
            let warning = format!(
                "the hook `{name}` printed a line that is too long; custom data in it is ignored"
            );
            self.record(LoopEvent::Warned { warning });
        }
        for (name, key, value) in custom {
            match custom::verdict(&self.state.custom, &key, &value) {
                Ok(_)
                    if self
                        .state
                        .custom
                        .get(&key)
                        .unwrap_or(&serde_json::Value::Null)
                        == &value => {}
                Ok(_) => self.record(LoopEvent::CustomSet { key, value }),
                Err(refusal) => {
                    let warning = format!("the hook `{name}` cannot set `{key}`: {refusal}");
                    self.record(LoopEvent::Warned { warning });
                }
            }
        }
        for warning in failed {
            self.record(LoopEvent::Warned { warning });
        }
        stops
    }

    fn after_hooks(&mut self, hooking: Hooking) {
        match (hooking.outcome, hooking.over) {
            (Some(outcome), _) if self.still_applies(&outcome) => self.end(outcome),
            (Some(_), _) => self.advance(Stage::Check, None),
            (None, Some(_)) => match self.state.stop.clone() {
                Some(stop) => self.stop_idle(stop, Urgency::Graceful),
                None => self.resume_phase(),
            },
            (None, None) => self.advance(Stage::IterationEndHooks, hooking.then),
        }
    }

    /// Returns whether the outcome still applies: an accepted claim may have been withdrawn during the last commit or hooks.
    pub(super) fn still_applies(&self, outcome: &Outcome) -> bool {
        *outcome != Outcome::Done || next(self.policy, self.state) == Next::Believe
    }

    /// Continues without the results of the hooks. The runner ends them.
    pub(super) fn give_up_hooks(&mut self, reason: &str) {
        if let Some(hooking) = self.end_hooks_early(reason) {
            self.after_hooks(hooking);
        }
    }

    fn end_hooks_early(&mut self, reason: &str) -> Option<Hooking> {
        let hooking = self.state.hooking().cloned()?;
        self.record(LoopEvent::HooksRan(HooksEnd {
            point: hooking.point,
            results: Vec::new(),
            given_up: Some(reason.to_owned()),
        }));
        Some(hooking)
    }

    /// Resumes after a runner died during blocking hooks: hooks that are due still run, and an end of the loop is decided again.
    pub(super) fn resume_hooks(&mut self, hooking: &Hooking) {
        if hooking.over.is_some() {
            // The new settings have no start hooks.
            return self.give_up_hooks("the settings no longer have start hooks");
        }
        match hooking.outcome {
            Some(_) => self.advance(Stage::Check, None),
            // The earlier runner may have lost a stop request, so the stages from `Settle` on are repeated.
            None => self.advance(Stage::Settle, hooking.then),
        }
    }

    /// A stop is requested while hooks run. The loop does not wait for them.
    pub(super) fn stop_hooking(&mut self, stop: Stop, urgency: Urgency) {
        let Some(hooking) = self.end_hooks_early("the loop is stopping") else {
            return;
        };
        match hooking.outcome {
            Some(outcome) => self.end(outcome),
            None => self.stop_idle(stop, urgency),
        }
    }

    /// Stops the loop between two iterations, or in the phase that an earlier runner left.
    fn stop_idle(&mut self, stop: Stop, urgency: Urgency) {
        self.give_up_rollback();
        let rebooting = matches!(self.state.phase, Phase::Rebooting { .. });
        match urgency {
            Urgency::Graceful if !rebooting => self.finish(stop.into()),
            Urgency::Graceful | Urgency::Now => self.close_soon(stop, urgency),
            Urgency::Kill => self.end(stop.into()),
        }
    }

    /// Runs background hooks, if there are any.
    pub(super) fn run_background_hooks(&mut self, point: HookPoint) {
        if self.policy.hooks.contains_key(&point) {
            let reason = None;
            self.emit(Effect::RunHooks { point, reason });
        }
    }

    /// Runs the hooks for changed test results.
    pub(super) fn run_test_hooks(&mut self, before: Option<&TestsReport>) {
        let now = self.state.progress.tests.as_ref();
        let now = now.filter(|now| now.iteration > 0);
        if now.is_some_and(|now| now.is_news(before)) {
            self.run_background_hooks(HookPoint::TestsChanged);
        }
    }
}
