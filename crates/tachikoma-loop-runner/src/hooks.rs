//! Hooks: commands of the configuration, and whatever a program that embeds the runner registers.
//!
//! They run in a task of their own, so that the loop hears commands meanwhile. A command runs under a guard of its own: what
//! holds an agent's processes together holds those of a hook together, beside the agent.

mod run;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tachikoma_core::{
    ContextSummary, HookKind, HookPoint, LoopId, Question, RebootReason, SessionSummary, State,
    Status, TestsReport,
};

use crate::settings::{Hook, Settings};

pub(crate) use run::{HookPlan, HookRun, variables};
pub(crate) use words::Past;

/// How long a registered hook usually may take: as long as a `[[hook]]` without a `timeout`.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// Hooks that may be registered for one point. One that registers another at every reboot must not fill the memory.
pub const HOOKS_MAX: usize = 64;

/// What a hook may take beyond its own limit before the core gives it up: to be ended, and to say so.
const SLACK: Duration = Duration::from_secs(10);

/// A hook without a limit holds the loop up for so long at most: whoever comes back after a week wants to find it going on.
const WITHOUT_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// A name is to be recognised by; commands can be long.
const NAME_BYTES_MAX: usize = 80;

/// What a hook is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HookEvent {
    /// When it runs.
    pub point: HookPoint,
    /// Why the session is rebooted, with the figures, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<RebootReason>,
    /// What happens, in words.
    pub reason_text: String,
    /// The loop.
    pub loop_id: LoopId,
    /// The iteration last started.
    pub iteration: u32,
    /// How it ended: the iteration behind it, the loop at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// The session: the old one before a reboot and at its end, the fresh one after it.
    pub session: SessionSummary,
    /// How full its context is, where that is known.
    pub context: Option<ContextSummary>,
    /// What the tests came to when they last ran, where that is what happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tests: Option<TestsReport>,
    /// What the operator is asked, where that is what happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<Question>,
    /// Whether nothing of it happened: it is only tried whether a message arrives.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub test: bool,
    /// Where the loop works.
    #[serde(serialize_with = "as_text")]
    pub working_dir: PathBuf,
}

impl HookEvent {
    pub(crate) fn new(
        point: HookPoint,
        reason: Option<RebootReason>,
        state: &State,
        working_dir: &Path,
    ) -> Self {
        let status = Status::of(state, true);
        let past = state.history.last();
        let session = match past.filter(|_| point == HookPoint::SessionEnd) {
            Some(past) => SessionSummary {
                number: past.number,
                agent_id: past.agent_id.clone(),
            },
            None => status.session,
        };
        Self {
            point,
            reason_text: match &reason {
                Some(reason) => reason.to_string(),
                None => words::of(point, state),
            },
            reason,
            loop_id: status.loop_id,
            iteration: words::iteration(point, state),
            outcome: words::outcome(point, state),
            session,
            tests: (state.progress.tests.clone()).filter(|_| point == HookPoint::TestsChanged),
            context: status.context,
            question: status.question.filter(|_| point == HookPoint::Question),
            test: false,
            working_dir: working_dir.to_owned(),
        }
    }

    /// Tells of an iteration that may not be the last any more: what has begun meanwhile is not what is told.
    pub(crate) fn of_iteration(mut self, iteration: u32, past: &Past, state: &State) -> Self {
        self.iteration = iteration;
        self.outcome = Some(past.outcome());
        self.reason_text = past.words(iteration, state);
        self
    }
}

/// JSON has no bytes: a path that is no text is told as well as it can be. The environment has it as it is.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Why a hook failed.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// A hook at work: a text that is recorded, if it has one, or why it failed.
pub type HookFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<String>, HookError>> + Send + 'a>>;

/// Something that is done at a point of the loop, by a program that embeds the runner.
///
/// It runs in a task of its own, with no lock held: it may ask and command the loop, and register other hooks, which run from
/// the next reboot on. A panic is a failure of the hook and of nothing else. When its time is over, or the loop ends, its future
/// is dropped; one that blocks its thread cannot be stopped, and on a runtime with one thread holds up the loop.
pub trait RebootHook: Send + Sync {
    /// Returns what it is called in records.
    fn name(&self) -> &str;

    /// Does it. Before a reboot an error calls the reboot off.
    fn run(&self, event: HookEvent) -> HookFuture<'_>;
}

/// A hook is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// There are as many as there may be.
    #[error("{HOOKS_MAX} hooks are registered for `{0}` already, no more may be")]
    TooMany(HookPoint),
    /// Nobody would run it.
    #[error("the runner is gone")]
    Gone,
}

/// A hook and what is to be known before it runs.
#[derive(Clone)]
pub(crate) struct PlannedHook {
    name: String,
    /// Zero = none.
    timeout: Duration,
    action: Action,
}

#[derive(Clone)]
enum Action {
    /// A command line for the shell.
    Command(String),
    Registered(Arc<dyn RebootHook>),
}

impl PlannedHook {
    pub fn registered(hook: Arc<dyn RebootHook>, timeout: Duration) -> Self {
        Self {
            name: shortened(hook.name()),
            timeout,
            action: Action::Registered(hook),
        }
    }

    fn command(hook: &Hook) -> Self {
        Self {
            name: shortened(hook.command.lines().next().unwrap_or_default()),
            timeout: hook.timeout.get(),
            action: Action::Command(hook.command.clone()),
        }
    }
}

impl fmt::Debug for PlannedHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlannedHook({:?}, {:?})", self.name, self.timeout)
    }
}

fn shortened(name: &str) -> String {
    let name = name.trim();
    match name.get(..name.floor_char_boundary(NAME_BYTES_MAX)) {
        Some(start) if start.len() < name.len() => format!("{start}..."),
        Some(_) | None => name.to_owned(),
    }
}

/// Hooks that were registered while the program runs. The runner owns it; others ask the runner.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    registered: BTreeMap<HookPoint, Vec<PlannedHook>>,
}

impl Registry {
    pub fn register(&mut self, point: HookPoint, hook: PlannedHook) -> Result<(), RegisterError> {
        let hooks = self.registered.entry(point).or_default();
        if hooks.len() >= HOOKS_MAX {
            return Err(RegisterError::TooMany(point));
        }
        hooks.push(hook);
        Ok(())
    }

    /// Returns the hooks of a point in the order in which they run: those of the configuration, then the registered ones in the
    /// order of their registration. None where the configuration switches the point off.
    pub fn planned(&self, point: HookPoint, settings: &Settings) -> Vec<PlannedHook> {
        let off = (point == HookPoint::BeforeReboot && !settings.reboot.enable_pre_hooks)
            || (point == HookPoint::AfterReboot && !settings.reboot.enable_post_hooks);
        if off {
            return Vec::new();
        }
        let configured = settings.hook.iter().filter(|hook| point == hook.on.into());
        let configured = configured.map(PlannedHook::command);
        let registered = self.registered.get(&point).into_iter().flatten();
        configured.chain(registered.cloned()).collect()
    }

    /// Returns how long the hooks of each point may take, for the points that have any. Those of a reboot are with its rules.
    pub fn limits(&self, settings: &Settings) -> BTreeMap<HookPoint, Duration> {
        let points = HookPoint::ALL.into_iter();
        let points = points.filter(|point| point.kind() != HookKind::Reboot);
        let limits = points.filter_map(|point| Some((point, self.limit(point, settings)?)));
        limits.collect()
    }

    /// Returns how long the hooks of a point may take together; nothing if there are none.
    pub fn limit(&self, point: HookPoint, settings: &Settings) -> Option<Duration> {
        let hooks = self.planned(point, settings);
        let each = hooks.iter().map(|hook| {
            let limit = Some(hook.timeout).filter(|limit| !limit.is_zero());
            limit.unwrap_or(WITHOUT_LIMIT).saturating_add(SLACK)
        });
        each.reduce(Duration::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{HumanDuration, Moment};

    fn settings(timeouts: &[u64]) -> Settings {
        let hook = |seconds: &u64| Hook {
            on: Moment::BeforeReboot,
            command: format!("./hook.sh {seconds}\nexit 0"),
            timeout: HumanDuration::from_secs(*seconds),
        };
        Settings {
            hook: timeouts.iter().map(hook).collect(),
            ..Settings::default()
        }
    }

    struct Named(&'static str);

    impl RebootHook for Named {
        fn name(&self) -> &str {
            self.0
        }

        fn run(&self, _event: HookEvent) -> HookFuture<'_> {
            Box::pin(async { Ok(None) })
        }
    }

    fn named(name: &'static str) -> PlannedHook {
        PlannedHook::registered(Arc::new(Named(name)), HOOK_TIMEOUT)
    }

    #[test]
    fn together_they_have_what_each_has_and_the_time_to_be_ended() {
        let limit = |timeouts: &[u64]| {
            Registry::default().limit(HookPoint::BeforeReboot, &settings(timeouts))
        };
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[1, 30]), Some(Duration::from_secs(31) + 2 * SLACK));
        // 0 is no limit, which is not the same as no hook.
        assert_eq!(limit(&[0]), Some(WITHOUT_LIMIT + SLACK));
        assert_eq!(limit(&[u64::MAX, u64::MAX]), Some(Duration::MAX));
        let after = Registry::default().limit(HookPoint::AfterReboot, &settings(&[1]));
        assert_eq!(after, None);
    }

    #[test]
    fn configured_hooks_come_first_and_registered_ones_in_order() {
        let mut registry = Registry::default();
        let point = HookPoint::BeforeReboot;
        for name in ["one", "two"] {
            registry.register(point, named(name)).unwrap();
        }
        let mut settings = settings(&[5]);
        let names = |settings: &Settings| -> Vec<String> {
            let planned = registry.planned(point, settings);
            planned.into_iter().map(|hook| hook.name).collect()
        };
        assert_eq!(names(&settings), ["./hook.sh 5", "one", "two"]);
        settings.reboot.enable_pre_hooks = false;
        assert_eq!(names(&settings), [""; 0]);
        assert_eq!(registry.limit(point, &settings), None);
    }

    #[test]
    fn there_are_only_so_many_of_a_point() {
        let mut registry = Registry::default();
        let point = HookPoint::AfterReboot;
        for _ in 0..HOOKS_MAX {
            registry.register(point, named("again")).unwrap();
        }
        let refused = registry.register(point, named("again"));
        assert_eq!(refused, Err(RegisterError::TooMany(point)));
        assert!(
            registry
                .register(HookPoint::BeforeReboot, named("first"))
                .is_ok()
        );
    }

    #[test]
    fn a_long_command_has_a_short_name() {
        let name = shortened(&"ä".repeat(100));
        assert_eq!(name, "ä".repeat(40) + "...");
        assert_eq!(shortened(" ./hook.sh "), "./hook.sh");
    }
}
