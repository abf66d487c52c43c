//! Runs blocking hooks, for which the loop waits, and background hooks.

use std::collections::VecDeque;

use tachikoma_core::{
    HookKind, HookPoint, HookResult, Input, Phase, RebootReason, RebootStage, State,
};
use tokio::sync::oneshot;

use super::context::{Context, InputQueue};
use crate::hooks::{HookEvent, HookRun, Registry};
use crate::process::Hooks;
use crate::task::await_some;

/// Maximum number of hook points that wait for background hooks. If the hooks are slower than the loop, further points are dropped.
const BACKGROUND_MAX: usize = 32;

/// Hooks of the configuration and registered hooks, and their runs.
#[derive(Debug, Default)]
pub(super) struct HookRunner {
    pub registry: Registry,
    /// Blocking hooks that are running or being canceled.
    blocking: Option<HookRun>,
    /// The hooks that run in the background, for one point at a time.
    background: Option<HookRun>,
    waiting: VecDeque<HookEvent>,
    /// Number of dropped points since the queue was last empty.
    dropped: u64,
}

/// Hooks that have ended.
#[derive(Debug)]
pub(super) enum HooksEnded {
    Blocking(Result<Vec<HookResult>, String>),
    Background(Result<Vec<HookResult>, String>),
}

impl HookRunner {
    /// Starts the hooks of one point. Background hooks start after the earlier background hooks have ended.
    pub fn run(
        &mut self,
        context: Context<'_>,
        point: HookPoint,
        reason: Option<RebootReason>,
        queue: &mut InputQueue,
    ) {
        let event = HookEvent::new(point, reason, context.state, &context.config.working_dir);
        if point.kind() != HookKind::Background {
            let before = self.blocking.take();
            self.blocking = Some(self.begin(context, event, before));
            return;
        }
        if self.waiting.len() < BACKGROUND_MAX {
            self.waiting.push_back(event);
            return self.start_background(context);
        }
        self.dropped += 1;
        // Only the first dropped point causes a warning.
        if self.dropped == 1 {
            queue.warn(format!(
                "the hooks of `{point}` are not run: {BACKGROUND_MAX} hook events are already queued; make the hooks faster, or set a shorter `timeout`"
            ));
        }
    }

    fn begin(&self, context: Context<'_>, event: HookEvent, before: Option<HookRun>) -> HookRun {
        let kind = match event.point.kind() {
            HookKind::Blocking | HookKind::Reboot => Hooks::Blocking,
            HookKind::Background => Hooks::Background,
        };
        let hooks = self.registry.planned(event.point, &context.config.settings);
        let shell = context.shell().of_hooks(context.handle.family(), kind);
        HookRun::begin(hooks, event, shell, before)
    }

    fn start_background(&mut self, context: Context<'_>) {
        if self.background.is_some() {
            return;
        }
        if let Some(event) = self.waiting.pop_front() {
            self.background = Some(self.begin(context, event, None));
        } else {
            self.dropped = 0;
        }
    }

    /// Waits until hooks have ended. Cancel-safe.
    pub async fn next_event(&mut self) -> HooksEnded {
        tokio::select! {
            biased;
            result = ended(&mut self.blocking) => HooksEnded::Blocking(result),
            result = ended(&mut self.background) => HooksEnded::Background(result),
        }
    }

    /// Returns the input that reports ended hooks to the core, and starts the next background hooks.
    pub fn ended(&mut self, context: Context<'_>, event: HooksEnded) -> Option<Input> {
        let (point, result) = match event {
            HooksEnded::Blocking(result) => (self.blocking.take()?.point, result),
            HooksEnded::Background(result) => {
                let point = self.background.take()?.point;
                self.start_background(context);
                (point, result)
            }
        };
        Some(match result {
            Ok(results) => Input::HooksRan { point, results },
            Err(reason) => Input::Broken { reason },
        })
    }

    /// Returns whether background hooks are running.
    pub fn has_background(&self) -> bool {
        self.background.is_some()
    }

    /// Cancels hooks that the loop no longer waits for, because of their timeout or the end of the loop.
    pub fn cancel_outdated(&self, state: &State) {
        if let Some(run) = &self.blocking
            && awaited_point(state) != Some(run.point)
        {
            run.task.cancel();
        }
    }

    /// Cancels all hooks.
    pub fn cancel(&self) {
        for run in self.blocking.iter().chain(&self.background) {
            run.task.cancel();
        }
    }

    /// Suspends all hooks, as Ctrl-Z does. Returns `done` if there are no blocking hooks. Otherwise sends `done` when they are suspended.
    pub fn suspend(&self, done: oneshot::Sender<()>) -> Option<oneshot::Sender<()>> {
        if let Some(run) = &self.background {
            // The caller waits only for the blocking hooks, which are suspended last.
            let (stopped, _) = oneshot::channel();
            run.task.suspend(stopped);
        }
        match &self.blocking {
            Some(run) => {
                run.task.suspend(done);
                None
            }
            None => Some(done),
        }
    }

    /// Continues suspended hooks.
    pub fn resume(&self) {
        for run in self.blocking.iter().chain(&self.background) {
            run.task.resume();
        }
    }

    /// Cancels all hooks and drops the waiting points.
    pub async fn shutdown(&mut self) {
        self.waiting.clear();
        let runs = self
            .blocking
            .take()
            .into_iter()
            .chain(self.background.take());
        for run in runs {
            run.task.cancel_and_wait().await;
        }
    }
}

async fn ended(run: &mut Option<HookRun>) -> Result<Vec<HookResult>, String> {
    await_some(run.as_mut().map(|run| run.task.ended())).await
}

/// Returns the hook point that the loop waits for.
fn awaited_point(state: &State) -> Option<HookPoint> {
    match &state.phase {
        Phase::Rebooting { reboot } => match &reboot.stage {
            RebootStage::Hooks { point, .. } => Some(*point),
            _ => None,
        },
        Phase::Hooking { hooking } => Some(hooking.point),
        _ => None,
    }
}
