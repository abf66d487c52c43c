//! Hooks: registered, started, heard of and called off.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tachikoma_core::{
    HookKind, HookPoint, HookResult, Input, Phase, RebootReason, RebootStage, State,
};

use super::LoopRunner;
use crate::hooks::{HookEvent, HookRun, Plan, Planned, RebootHook, RegisterError};
use crate::process::Hooks;
use crate::shell::{Ran, Shell};

/// Points that may wait for the hooks beside the loop. Hooks that are slower than what they hear of are told the rest in time to be
/// of use, or not at all.
const BESIDE_MAX: usize = 32;

/// Hooks that nobody waits for: the points of one after another.
#[derive(Debug, Default)]
pub(super) struct Beside {
    running: Option<HookRun>,
    waiting: VecDeque<HookEvent>,
    dropped: u64,
}

impl Beside {
    pub fn running(&self) -> Option<&HookRun> {
        self.running.as_ref()
    }

    /// Returns how the hooks of a point went, once they have. Cancel-safe.
    pub async fn ended(&mut self) -> Ran<Vec<HookResult>> {
        match &mut self.running {
            Some(run) => run.errand.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Ends what is under way and forgets the rest.
    pub async fn end(&mut self) {
        self.waiting.clear();
        if let Some(run) = self.running.take() {
            run.errand.end().await;
        }
    }
}

impl LoopRunner {
    /// Registers a hook that runs at a point from now on, after those of the configuration and those that were registered
    /// before. `timeout` ends it, zero does not. `enable_pre_hooks` and `enable_post_hooks` of `[reboot]` hold for it too.
    ///
    /// # Errors
    /// There are too many.
    pub fn register_hook(
        &mut self,
        point: HookPoint,
        hook: Arc<dyn RebootHook>,
        timeout: Duration,
    ) -> Result<(), RegisterError> {
        self.register(point, Planned::registered(hook, timeout))
    }

    pub(super) fn register(
        &mut self,
        point: HookPoint,
        hook: Planned,
    ) -> Result<(), RegisterError> {
        self.registry.register(point, hook)?;
        let limit = self.registry.limit(point, &self.config.settings);
        match (point, limit) {
            (HookPoint::BeforeReboot, limit) => self.policy.reboot.hooks_before = limit,
            (HookPoint::AfterReboot, limit) => self.policy.reboot.hooks_after = limit,
            (_, Some(limit)) => _ = self.policy.hooks.insert(point, limit),
            (_, None) => {}
        }
        Ok(())
    }

    /// Starts the hooks of one point, all that there are now; those beside the loop as soon as their turn has come.
    pub(super) fn run_hooks(&mut self, point: HookPoint, reason: Option<RebootReason>) {
        let event = HookEvent::new(point, reason, &self.state, &self.config.working_dir);
        if point.kind() != HookKind::Beside {
            let plan = self.plan(event);
            self.hooks = Some(HookRun::begin(plan, self.hooks.take()));
            return;
        }
        if self.beside.waiting.len() < BESIDE_MAX {
            self.beside.waiting.push_back(event);
            return self.next_beside();
        }
        self.beside.dropped += 1;
        // Once, and not for each of them.
        if self.beside.dropped == 1 {
            let warning = format!(
                "the hooks of `{point}` are not run: {BESIDE_MAX} points wait for hooks that are slower than the loop; give them less to do, or a `timeout`"
            );
            self.queue.push_back(Input::Warning { warning });
        }
    }

    fn plan(&self, event: HookEvent) -> Plan {
        let hooks = match event.point.kind() {
            HookKind::Framing | HookKind::Reboot => Hooks::Framing,
            HookKind::Beside => Hooks::Beside,
        };
        Plan {
            hooks: self.registry.planned(event.point, &self.config.settings),
            event,
            shell: Shell::new(self.guard_options()).of_hooks(self.handle.family(), hooks),
        }
    }

    fn next_beside(&mut self) {
        if self.beside.running.is_some() {
            return;
        }
        if let Some(event) = self.beside.waiting.pop_front() {
            self.beside.running = Some(HookRun::begin(self.plan(event), None));
        } else {
            self.beside.dropped = 0;
        }
    }

    pub(super) fn beside_ended(&mut self, ran: Ran<Vec<HookResult>>) -> Option<Input> {
        let point = self.beside.running.take()?.point;
        self.next_beside();
        Some(input(point, ran))
    }

    pub(super) fn hooks_ended(&mut self, ran: Ran<Vec<HookResult>>) -> Option<Input> {
        let point = self.hooks.take()?.point;
        Some(input(point, ran))
    }

    /// Hooks beside the loop have ended behind its end: the next are begun.
    pub(super) fn ended_behind_the_end(&mut self) {
        self.beside.running = None;
        self.next_beside();
    }

    /// Calls hooks off that nobody waits for any more: their time is over, or the loop ended. Never waits.
    pub(super) fn call_off_hooks(&self) {
        if let Some(hooks) = &self.hooks
            && awaited(&self.state) != Some(hooks.point)
        {
            hooks.errand.call_off();
        }
    }
}

fn input(point: HookPoint, ran: Ran<Vec<HookResult>>) -> Input {
    match ran {
        Ran::With(results) => Input::HooksRan { point, results },
        Ran::Broken(reason) => Input::Broken { reason },
    }
}

fn awaited(state: &State) -> Option<HookPoint> {
    match &state.phase {
        Phase::Rebooting { reboot } => match &reboot.stage {
            RebootStage::Hooks { point, .. } => Some(*point),
            RebootStage::Begun
            | RebootStage::HandOff { .. }
            | RebootStage::Autocommitting { .. }
            | RebootStage::Closing { .. }
            | RebootStage::Opening { .. } => None,
        },
        Phase::Hooking { hooking } => Some(hooking.point),
        Phase::Idle
        | Phase::Waiting { .. }
        | Phase::Working { .. }
        | Phase::Autocommitting { .. }
        | Phase::Checking { .. }
        | Phase::Paused { .. }
        | Phase::Ended { .. } => None,
    }
}
