//! The rules of a loop, and functions that decide by these rules. Each decision has a reason for the user.

mod backoff;
pub mod budget;
pub mod busy;
pub mod completion;
pub mod context;
pub mod custom;
pub mod degradation;
pub mod reboot;
pub mod stop;
pub mod timeout;

use std::collections::BTreeMap;
use std::time::Duration;

pub use backoff::Backoff;
use budget::Budgets;
use completion::CompletionRules;

use crate::time::millis;
use crate::{HookPoint, Limits, Operator, Permitted};

/// The rules of a loop. The default is what an empty configuration file means.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// How many iterations the loop may run over its whole life; 0 = no limit.
    pub max_iterations: u32,
    /// The wait after an iteration that did not fail.
    pub iteration_delay: Duration,
    /// Failed iterations in a row that end the loop; 0 = no limit.
    pub max_consecutive_failures: u32,
    /// Failing runs of gates in a row that end the loop; 0 = no limit.
    pub max_test_failure_streak: u32,
    /// Iterations in a row without progress that end the loop; 0 = no limit.
    pub max_no_progress_iterations: u32,
    /// Number of patterns in `stop_on_patterns`.
    pub stop_patterns: u32,
    /// What the configuration permits the agent, to suggest more after a denied call.
    pub permitted: Permitted,
    /// Limits of cost, tokens, time and quota.
    pub budgets: Budgets,
    /// When a claim of completion is accepted.
    pub completion: CompletionRules,
    /// Capabilities of the agent.
    pub agent: AgentTraits,
    /// Timeouts of the agent and of its turns.
    pub timeouts: Timeouts,
    /// How long an agent gets to end after each signal.
    pub stop_timeouts: StopTimeouts,
    /// The wait after failures.
    pub backoff: Backoff,
    /// The wait after a usage limit whose reset time is unknown.
    pub limit_backoff: Backoff,
    /// The margin after the announced reset of a usage limit. It grows with each refusal in a row.
    pub reset_margin: Backoff,
    /// The wait for a service that cannot be reached. Short, because agents retry for minutes by themselves.
    pub outage_backoff: Backoff,
    /// How long the service may be unreachable before the loop ends; zero = no limit.
    pub max_outage: Duration,
    /// When sessions are replaced.
    pub reboot: RebootRules,
    /// Timeout of all hooks of a point together. Points without hooks are missing. Hooks of reboots are in `reboot`.
    pub hooks: BTreeMap<HookPoint, Duration>,
    /// How changes are committed or surveyed; `None` if neither is possible.
    pub autocommit: Option<AutocommitRules>,
    /// Whether a later runner continues the conversation of an earlier one.
    pub persist_sessions: bool,
    /// Whether every iteration has a conversation of its own.
    pub fresh_each_iteration: bool,
    /// Attended mode: the operator is asked before and after each iteration.
    pub attended: bool,
    /// Timeout of a question to the operator; zero = no limit.
    pub question_timeout: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_iterations: 0,
            iteration_delay: Duration::from_secs(5),
            max_consecutive_failures: 10,
            max_test_failure_streak: 3,
            max_no_progress_iterations: 5,
            stop_patterns: 0,
            permitted: Permitted::default(),
            budgets: Budgets::default(),
            completion: CompletionRules::default(),
            agent: AgentTraits::default(),
            timeouts: Timeouts::default(),
            stop_timeouts: StopTimeouts::default(),
            backoff: Backoff::default(),
            limit_backoff: Backoff {
                base: Duration::from_secs(30),
                cap: Duration::from_secs(1800),
            },
            reset_margin: Backoff {
                base: Duration::from_secs(5),
                cap: Duration::from_secs(1800),
            },
            outage_backoff: Backoff {
                base: Duration::from_secs(5),
                cap: Duration::from_secs(300),
            },
            max_outage: Duration::ZERO,
            reboot: RebootRules::default(),
            hooks: BTreeMap::new(),
            autocommit: None,
            persist_sessions: true,
            fresh_each_iteration: false,
            attended: false,
            question_timeout: Duration::from_secs(600),
        }
    }
}

impl Policy {
    /// Returns the limits that the rules set.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let budgets = &self.budgets;
        Limits {
            iterations: self.max_iterations,
            failures: self.max_consecutive_failures,
            // Without gates, no test failures are counted.
            test_failures: match self.completion.gates.is_empty() {
                true => 0,
                false => self.max_test_failure_streak,
            },
            // Without surveys of the work tree, progress is not measured.
            no_progress: match self.autocommit {
                Some(_) => self.max_no_progress_iterations,
                None => 0,
            },
            patterns: self.stop_patterns,
            cost_microusd: budgets.cost_microusd,
            tokens: budgets.tokens,
            duration_ms: millis(budgets.duration),
            quota_percent: budgets.quota_percent,
        }
    }

    /// Returns whether attended mode is on: the operator is asked before and after each iteration.
    #[must_use]
    pub fn is_attended(&self, operator: &Operator) -> bool {
        operator.attended.unwrap_or(self.attended)
    }
}

/// Capabilities of an agent that decisions depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentTraits {
    /// The agent prints events during a turn. Otherwise only `session_timeout` applies, and an interrupt does not wait for a tool call.
    pub event_stream: bool,
    /// The agent's process serves many turns: a turn ends with its result, not with its process.
    pub persistent: bool,
    /// The agent accepts messages during a turn.
    pub steerable: bool,
    /// The agent reports the cost of its conversation on request.
    pub tells_cost: bool,
    /// The agent refuses prompts if fewer tokens than this are left in its window; `None` = it never refuses.
    pub refuses_before: Option<u64>,
}

/// Timeouts of an agent; zero = no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout of the launch of the agent's process.
    pub launch: Duration,
    /// Timeout of a whole iteration (`session_timeout`).
    pub session: Duration,
    /// Timeout from the launch to the first output (`first_output_timeout`).
    pub first_output: Duration,
    /// Time without output while no tool call runs (`silence_timeout`).
    pub silence: Duration,
    /// Timeout of one tool call (`tool_timeout`).
    pub tool: Duration,
    /// Timeout from the final result of a turn to the end of the process (`result_grace`).
    pub result_grace: Duration,
    /// How long a running tool call may continue when the iteration has to end (`graceful_timeout`).
    pub graceful: Duration,
    /// Timeout of the start of a new session.
    pub renew: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            launch: Duration::from_secs(30),
            session: Duration::from_secs(3600),
            first_output: Duration::from_secs(120),
            silence: Duration::from_secs(600),
            tool: Duration::from_secs(3600),
            result_grace: Duration::from_secs(30),
            graceful: Duration::from_secs(30),
            renew: Duration::from_secs(60),
        }
    }
}

/// How long an agent gets to end after each signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopTimeouts {
    /// Time after the interrupt, in which agents save their session.
    pub interrupt: Duration,
    /// Time from SIGTERM to SIGKILL.
    pub terminate: Duration,
    /// Time after SIGKILL. A process that has not ended by then is stuck in the kernel, or its guard is stopped again and again.
    pub reap: Duration,
}

impl Default for StopTimeouts {
    fn default() -> Self {
        Self {
            interrupt: Duration::from_secs(10),
            terminate: Duration::from_secs(5),
            reap: Duration::from_secs(15),
        }
    }
}

/// How changes of the loop are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutocommitRules {
    /// Whether the working directory is in a git repository. Without one, changed files are only counted.
    pub repository: bool,
    /// Whether the changes of the loop are committed.
    pub commit: bool,
    /// Whether the changes of failed iterations are committed, too.
    pub on_failure: bool,
    /// Timeout of one commit with its git hooks; zero = no limit.
    pub timeout: Duration,
}

/// When sessions are replaced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RebootRules {
    /// Whether the loop reboots sessions by itself.
    pub enabled: bool,
    /// Whether a full context leads to a reboot.
    pub on_redline: bool,
    /// The fill from which the context is too full, in percent. 100 turns both redlines off, this one and `redline_tokens`.
    pub redline_percent: f64,
    /// The fill from which the context is too full, in tokens; 0 = off. The lower of the two redlines applies.
    pub redline_tokens: u64,
    /// The fill at which the agent is asked to finish, in percent.
    pub warning_percent: f64,
    /// The fill from which no prompt is sent, in percent.
    pub hard_limit_percent: f64,
    /// Number of tool calls that leads to a reboot while the context is unknown; 0 = off.
    pub tool_call_threshold: u32,
    /// Whether falling quality leads to a reboot.
    pub on_degradation: bool,
    /// Number of iterations in one session that leads to a reboot; `None` = no limit.
    pub after_iterations: Option<u32>,
    /// Age of a session that leads to a reboot; `None` = no limit.
    pub after_duration: Option<Duration>,
    /// Maximum number of reboots; `None` = no limit, 0 = no reboots.
    pub max_reboots: Option<u32>,
    /// Whether a reboot interrupts a running tool call.
    pub immediate: bool,
    /// Minimum time between a successful reboot and the next one.
    pub min_interval: Duration,
    /// Maximum number of successful reboots in one hour; 0 = no limit.
    pub max_per_hour: u32,
    /// Wait after a failed reboot, multiplied by the failures in a row.
    pub failure_cooldown: Duration,
    /// Number of failed reboots in a row that ends the loop; 0 = no limit.
    pub max_failures: u32,
    /// How long the loop waits for late output of a turn that was ended for a reboot.
    pub graceful_delay: Duration,
    /// Whether the old session is asked for its hand-off.
    pub ask_hand_off: bool,
    /// How long the old session may take for its hand-off.
    pub hand_off_timeout: Duration,
    /// Timeout of the operator's confirmation of a reboot; zero = no limit, `None` = the operator is not asked.
    pub confirm: Option<Duration>,
    /// Timeout of all hooks before a reboot together; `None` without hooks.
    pub hooks_before: Option<Duration>,
    /// Timeout of all hooks after a reboot together; `None` without hooks.
    pub hooks_after: Option<Duration>,
}

impl Default for RebootRules {
    fn default() -> Self {
        Self {
            enabled: true,
            on_redline: true,
            redline_percent: 85.0,
            redline_tokens: 200_000,
            warning_percent: 70.0,
            hard_limit_percent: 95.0,
            tool_call_threshold: 100,
            on_degradation: true,
            after_iterations: None,
            after_duration: None,
            max_reboots: None,
            immediate: false,
            min_interval: Duration::from_secs(300),
            max_per_hour: 10,
            failure_cooldown: Duration::from_secs(60),
            max_failures: 3,
            graceful_delay: Duration::from_secs(5),
            ask_hand_off: true,
            hand_off_timeout: Duration::from_secs(120),
            confirm: None,
            hooks_before: None,
            hooks_after: None,
        }
    }
}

impl RebootRules {
    /// Returns whether Tachikoma reboots sessions with a full context. Otherwise the agent compacts the context itself.
    #[must_use]
    pub fn manages_context(&self) -> bool {
        let possible = self.enabled && self.max_reboots != Some(0);
        possible && self.on_redline && self.redline_percent < 100.0
    }
}
