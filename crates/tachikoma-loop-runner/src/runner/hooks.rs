//! Hooks of a reboot: registered, started, heard of and called off.

use std::sync::Arc;
use std::time::Duration;

use tachikoma_core::{HookPoint, HookResult, Input, Phase, RebootReason, RebootStage};

use super::LoopRunner;
use crate::hooks::{HookEvent, HookRun, Plan, Planned, RebootHook, RegisterError};
use crate::shell::{Ran, Shell};

impl LoopRunner {
    /// Registers a hook that runs at every reboot from now on, after those of the configuration and those that were registered
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
        match point {
            HookPoint::BeforeReboot => self.policy.reboot.hooks_before = limit,
            HookPoint::AfterReboot => self.policy.reboot.hooks_after = limit,
        }
        Ok(())
    }

    /// Starts the hooks of one point, all that there are now.
    pub(super) fn run_hooks(&mut self, point: HookPoint, reason: RebootReason) {
        let plan = Plan {
            hooks: self.registry.planned(point, &self.config.settings),
            event: HookEvent::new(point, reason, &self.state, &self.config.working_dir),
            shell: Shell::new(self.guard_options()),
        };
        self.hooks = Some(HookRun::begin(plan, self.hooks.take()));
    }

    pub(super) fn hooks_ended(&mut self, ran: Ran<Vec<HookResult>>) -> Option<Input> {
        let point = self.hooks.take()?.point;
        Some(match ran {
            Ran::With(results) => Input::HooksRan { point, results },
            Ran::Broken(reason) => Input::Broken { reason },
        })
    }

    /// Calls hooks off that nobody waits for any more: their time is over, or the loop ended. Never waits.
    pub(super) fn call_off_hooks(&self) {
        let awaited = match &self.state.phase {
            Phase::Rebooting { reboot } => match &reboot.stage {
                RebootStage::Hooks { point, .. } => Some(*point),
                RebootStage::Begun
                | RebootStage::HandOff { .. }
                | RebootStage::Keeping { .. }
                | RebootStage::Closing { .. }
                | RebootStage::Opening { .. } => None,
            },
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Keeping { .. }
            | Phase::Checking { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => None,
        };
        if let Some(hooks) = &self.hooks
            && awaited != Some(hooks.point)
        {
            hooks.errand.call_off();
        }
    }
}
