//! Hooks: commands of the configuration, and hooks that a program that embeds the runner registers.
//!
//! Hooks run in a separate task, so that the loop can handle commands meanwhile. Each command runs under its own guard, which ends all
//! processes that the command leaves.

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

pub(crate) use run::{HookRun, variables};
pub(crate) use words::Past;

/// Default timeout of a registered hook. It equals the default `timeout` of a `[[hook]]`.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of hooks that can be registered for one point. A hook that registers another one at every reboot must not fill the memory.
pub const HOOKS_MAX: usize = 64;

/// Additional time until the core cancels a hook. In this time the hook is ended and its result reported.
const SLACK: Duration = Duration::from_secs(10);

/// Maximum time that the loop waits for a hook without a timeout.
const WITHOUT_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum length of a hook's name in records. It can be a long command.
const NAME_BYTES_MAX: usize = 80;

/// Facts about the event that a hook gets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HookEvent {
    /// The point at which the hook runs.
    pub point: HookPoint,
    /// Why the session is rebooted, with the figures; `None` at other points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<RebootReason>,
    /// Description of the event for people.
    pub reason_text: String,
    /// Id of the loop.
    pub loop_id: LoopId,
    /// Number of the last iteration that was started.
    pub iteration: u32,
    /// The outcome of the last iteration, or of the loop at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Summary of the session: the old one before a reboot and at the end of a session, the new one after a reboot.
    pub session: SessionSummary,
    /// How full the context of the session is; `None` if unknown.
    pub context: Option<ContextSummary>,
    /// The last test results; only set at the point `tests_changed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tests: Option<TestsReport>,
    /// The question for the operator; only set at the point `question`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<Question>,
    /// Whether this event only tests the delivery of notifications.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub test: bool,
    /// The working directory of the loop.
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

    /// Describes an iteration that has ended. The next iteration may have begun already.
    pub(crate) fn of_iteration(mut self, iteration: u32, past: &Past, state: &State) -> Self {
        self.iteration = iteration;
        self.outcome = Some(past.outcome());
        self.reason_text = past.words(iteration, state);
        self
    }
}

/// Serializes a path as text, because JSON strings cannot contain all bytes. The variable `TACHIKOMA_DIR` has the exact path.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Why a hook failed.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// The future of a running hook. It returns a text to record, or the error.
pub type HookFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<String>, HookError>> + Send + 'a>>;

/// A hook that an embedding program registers.
///
/// A hook runs in a separate task. It may send commands to the loop and register other hooks, which run from the next reboot on. A panic
/// only fails the hook. The future of the hook is dropped at its timeout and at the end of the loop. A hook that blocks its thread cannot be
/// stopped. On a runtime with one thread it blocks the loop.
pub trait RebootHook: Send + Sync {
    /// Returns the name of the hook in records.
    fn name(&self) -> &str;

    /// Runs the hook. Before a reboot an error cancels the reboot.
    fn run(&self, event: HookEvent) -> HookFuture<'_>;
}

/// Why a hook was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The point has too many hooks.
    #[error("{HOOKS_MAX} hooks are registered for `{0}` already, no more may be")]
    TooMany(HookPoint),
    /// The runner was dropped, or the run is over.
    #[error("the runner is gone")]
    Gone,
}

/// A hook to run, with its name and timeout.
#[derive(Clone)]
pub(crate) struct PlannedHook {
    name: String,
    /// Timeout of the hook; zero = no timeout.
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

/// The hooks that the embedding program registered.
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
    /// order of their registration. Empty if the configuration disables the point.
    pub fn planned(&self, point: HookPoint, settings: &Settings) -> Vec<PlannedHook> {
        let off = (point == HookPoint::BeforeReboot && !settings.reboot.enable_pre_hooks)
            || (point == HookPoint::AfterReboot && !settings.reboot.enable_post_hooks);
        if off {
            return Vec::new();
        }
        let configured = settings.hook.iter().filter(|hook| point == hook.on);
        let configured = configured.map(PlannedHook::command);
        let registered = self.registered.get(&point).into_iter().flatten();
        configured.chain(registered.cloned()).collect()
    }

    /// Returns how long the hooks of each point may take together, for all points with hooks. The limits of reboot hooks are part of the reboot
    /// rules.
    pub fn limits(&self, settings: &Settings) -> BTreeMap<HookPoint, Duration> {
        let points = HookPoint::ALL.into_iter();
        let points = points.filter(|point| point.kind() != HookKind::Reboot);
        let limits = points.filter_map(|point| Some((point, self.limit(point, settings)?)));
        limits.collect()
    }

    /// Returns how long the hooks of a point may take together; `None` if there are none.
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
    use crate::settings::HumanDuration;

    fn settings(timeouts: &[u64]) -> Settings {
        let hook = |seconds: &u64| Hook {
            on: HookPoint::BeforeReboot,
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
    fn limit_of_a_point_is_the_sum_of_its_hooks_with_slack() {
        let limit = |timeouts: &[u64]| {
            Registry::default().limit(HookPoint::BeforeReboot, &settings(timeouts))
        };
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[1, 30]), Some(Duration::from_secs(31) + 2 * SLACK));
        // A timeout of 0 means that the hook has no limit of its own.
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
    fn hooks_of_a_point_are_limited() {
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
    fn long_command_has_a_short_name() {
        let name = shortened(&"ä".repeat(100));
        assert_eq!(name, "ä".repeat(40) + "...");
        assert_eq!(shortened(" ./hook.sh "), "./hook.sh");
    }
}
