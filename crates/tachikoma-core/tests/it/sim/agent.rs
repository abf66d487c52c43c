//! Simulated agents: their output, the signals that end them, and random policies.

use std::collections::BTreeMap;
use std::time::Duration;

use tachikoma_core::policy::budget::Budgets;
use tachikoma_core::policy::completion::{CompletionRules, GateRule};
use tachikoma_core::policy::{
    AgentTraits, AutocommitRules, Backoff, RebootRules, StopTimeouts, Timeouts,
};
use tachikoma_core::{
    Activity, AgentInput, Context, Exit, Generation, HookKind, HookPoint, Leftover, Policy,
    Problem, QuotaWindow, Spent, StopSignal, Timestamp, TurnEnd,
};

use super::dice::Dice;

const WINDOW_TOKENS: u64 = 200_000;

/// One launch of a simulated agent.
pub struct Agent {
    pub generation: Generation,
    /// The mildest signal that ends the agent. `None`: no signal ends it, because it is stuck in the kernel.
    pub obeys: Option<StopSignal>,
    /// Whether the process is alive and may still change the work tree.
    pub alive: bool,
}

/// How a launch and its first turn go.
#[derive(Clone, Copy)]
enum Character {
    Works,
    Fails,
    Hangs,
    HangsInTool,
    Floods,
    DiesEarly,
    CannotBeLaunched,
    NeverAnswers,
    Lingers,
    LosesGuard,
    WorksLong,
}

/// Returns the events with which a running agent answers its next prompt, each with its delay in milliseconds.
pub fn turn(dice: &mut Dice, fill: &mut u64) -> Vec<(i64, AgentInput)> {
    let mut lines = Vec::new();
    if dice.one_in(12) {
        return lines;
    }
    let pace = dice.pick(&[1, 500, 30_000]);
    chatter(dice, &mut lines, 6, pace, fill);
    if dice.one_in(10) {
        let event = exited(dice, Exit::Signal(9));
        lines.push((last(&lines), event));
    } else {
        let success = !dice.one_in(5);
        lines.push((last(&lines) + 5, resulted(dice, success)));
    }
    lines
}

/// Returns the events with which an agent answers the request for a hand-off.
pub fn hand_off(dice: &mut Dice) -> Vec<(i64, AgentInput)> {
    let after = dice.pick(&[5, 5, 5, 5, 20_000, 200_000]);
    let text = "half of it".to_owned();
    let said = (1, AgentInput::HandOffText { text });
    match dice.below(12) {
        0 => Vec::new(),
        1 => vec![(after, exited(dice, Exit::Code(1)))],
        2 => vec![(after, resulted(dice, false))],
        3 => vec![said, (after, resulted(dice, false))],
        4 => vec![said, (after, exited(dice, Exit::Code(1)))],
        5 => vec![said],
        _ => vec![(after, resulted(dice, true))],
    }
}

/// Returns the answer to a sample of the agent's processes. The list is empty if there is no answer.
pub fn look(dice: &mut Dice) -> Vec<(i64, AgentInput)> {
    let after = dice.pick(&[0, 2_000, 2_000, 30_000]);
    let activity = (!dice.one_in(8)).then(|| Activity {
        over_ms: 2_000,
        cpu_ms: dice.pick(&[0, 2_000]),
        ..Activity::default()
    });
    match dice.below(8) {
        0 => Vec::new(),
        _ => vec![(after, AgentInput::ProcessesSampled { activity })],
    }
}

/// Returns the events of the start of a new session.
pub fn opening(dice: &mut Dice) -> Vec<(i64, AgentInput)> {
    let after = dice.pick(&[0, 200, 5_000, 100_000]);
    let up = (0, AgentInput::Launched { pid: 77 });
    match dice.below(8) {
        0 => {
            let reason = "no such program".to_owned();
            vec![(after, AgentInput::NotLaunched { reason })]
        }
        1 => vec![up, (after, exited(dice, Exit::Code(1)))],
        2 => vec![up],
        _ => vec![up, (after, AgentInput::Opened)],
    }
}

/// Returns the events of an agent that gets no signal, in milliseconds after its launch.
pub fn script(
    dice: &mut Dice,
    stream: bool,
    persistent: bool,
    fill: &mut u64,
) -> Vec<(i64, AgentInput)> {
    let mut lines = launch(dice, stream, fill);
    let named = dice.below(4);
    if stream && let Some(up) = lines.iter().position(|(_, event)| is_launched(event)) {
        let at = lines[up].0;
        let agent_id = format!("conversation-{named}");
        lines.insert(up + 1, (at, AgentInput::SessionNamed { agent_id }));
    }
    if persistent {
        // A persistent agent waits for the next prompt instead of exiting.
        let resulted = |(_, event): &(i64, AgentInput)| matches!(event, AgentInput::TurnEnded(_));
        if let Some(at) = lines.iter().position(resulted) {
            lines.truncate(at + 1);
        }
    }
    lines
}

fn is_launched(event: &AgentInput) -> bool {
    matches!(event, AgentInput::Launched { .. })
}

fn launch(dice: &mut Dice, stream: bool, fill: &mut u64) -> Vec<(i64, AgentInput)> {
    use Character as C;
    let character = dice.pick(&[
        C::Works,
        C::Works,
        C::Works,
        C::WorksLong,
        C::Fails,
        C::Hangs,
        C::HangsInTool,
        C::Floods,
        C::DiesEarly,
        C::CannotBeLaunched,
        C::NeverAnswers,
        C::Lingers,
        C::LosesGuard,
    ]);
    let up = dice.pick(&[0, 1, 40, 2_000]);
    let mut lines = vec![(up, AgentInput::Launched { pid: 77 })];
    let pace = dice.pick(&[1, 500, 30_000]);
    match character {
        C::Works => {
            chatter(dice, &mut lines, 3, pace, fill);
            result(dice, &mut lines, stream, true);
        }
        C::WorksLong => {
            chatter(dice, &mut lines, 6, 300_000, fill);
            result(dice, &mut lines, stream, true);
        }
        C::Floods => {
            chatter(dice, &mut lines, 25, 1, fill);
            result(dice, &mut lines, stream, true);
        }
        C::Fails => {
            chatter(dice, &mut lines, 2, pace, fill);
            result(dice, &mut lines, stream, false);
        }
        C::Hangs => chatter(dice, &mut lines, 2, pace, fill),
        C::HangsInTool => {
            let since = last(&lines) + pace;
            lines.push((since, AgentInput::Output));
            lines.push((since, tool(dice)));
        }
        C::Lingers => {
            let success = dice.one_in(2);
            chatter(dice, &mut lines, 1, pace, fill);
            let end = resulted(dice, success);
            lines.push((last(&lines) + 5, end));
        }
        C::LosesGuard => lines.push((last(&lines) + pace, AgentInput::GuardLost)),
        C::CannotBeLaunched => {
            let reason = "no such program".to_owned();
            lines = vec![(up, AgentInput::NotLaunched { reason })];
        }
        C::NeverAnswers => lines.clear(),
        // The exit arrives before the launch event, which comes late or never.
        C::DiesEarly => {
            lines.clear();
            lines.push((up, exited(dice, Exit::Code(1))));
            if dice.one_in(2) {
                lines.push((up, AgentInput::Launched { pid: 77 }));
            }
        }
    }
    lines
}

/// Draws the mildest signal that ends the agent.
pub fn obedience(dice: &mut Dice) -> Option<StopSignal> {
    let signal = dice.pick(&[
        StopSignal::Interrupt,
        StopSignal::Interrupt,
        StopSignal::Terminate,
        StopSignal::Kill,
    ]);
    (!dice.one_in(12)).then_some(signal)
}

/// Returns the events of an agent that a signal ends.
pub fn last_words(dice: &mut Dice, signal: StopSignal) -> Vec<AgentInput> {
    let number = match signal {
        StopSignal::Interrupt => 2,
        StopSignal::Terminate => 15,
        StopSignal::Kill => 9,
    };
    let mut words = Vec::new();
    if signal == StopSignal::Interrupt && dice.one_in(6) {
        let success = dice.one_in(2);
        words.push(resulted(dice, success));
    }
    words.push(match dice.below(8) {
        0 => AgentInput::NotLaunched {
            reason: "killed before it was up".to_owned(),
        },
        1 => exited(dice, Exit::Code(0)),
        2 => exited(dice, Exit::Unknown),
        _ => exited(dice, Exit::Signal(number)),
    });
    words
}

fn chatter(
    dice: &mut Dice,
    lines: &mut Vec<(i64, AgentInput)>,
    most: u64,
    pace: i64,
    fill: &mut u64,
) {
    for _ in 0..=dice.below(most) {
        let time = last(lines) + dice.between(0, pace);
        let event = match dice.below(5) {
            0 | 1 => AgentInput::Output,
            2 => {
                let step = dice.pick(&[40_000, 40_000, 150_000]);
                *fill += dice.below(step);
                AgentInput::ContextMeasured {
                    context: Context {
                        tokens: *fill,
                        window: WINDOW_TOKENS,
                        estimated: dice.one_in(9),
                    },
                    answering: dice.one_in(3),
                }
            }
            3 => tool(dice),
            _ if dice.one_in(2) => AgentInput::CallEnded {
                tokens: dice.below(30_000),
            },
            _ if dice.one_in(10) => AgentInput::StreamEnded,
            _ if dice.one_in(8) => AgentInput::Quota(QuotaWindow {
                window: dice.pick(&["five_hour", "seven_day"]).to_owned(),
                percent: dice.pick(&[0.5, 79.9, 80.0, 100.0]),
                resets_at: dice.pick(&[None, Some(Timestamp::from_millis(1_700_000_100_000))]),
            }),
            _ if dice.one_in(8) => AgentInput::ToolDenied {
                tool: "Bash".to_owned(),
                id: format!("t{}", dice.below(3)),
            },
            _ if dice.one_in(6) => AgentInput::FileTouched {
                path: format!("src/{}.rs", dice.below(5)),
            },
            _ => AgentInput::ToolEnded {
                id: format!("t{}", dice.below(3)),
                error: dice.one_in(4).then(|| "exit 1".to_owned()),
            },
        };
        lines.push((time, event));
    }
}

fn tool(dice: &mut Dice) -> AgentInput {
    AgentInput::ToolStarted {
        id: format!("t{}", dice.below(3)),
        name: "Bash".to_owned(),
        summary: format!("step {}", dice.below(4)),
    }
}

/// Draws the problem of a failed turn. One in `of` failures has one.
fn problem(dice: &mut Dice, of: u64) -> Option<Problem> {
    if !dice.one_in(of) {
        return None;
    }
    Some(match dice.below(6) {
        0 => Problem::Poisoned,
        4 => Problem::Cut,
        5 => Problem::Unreachable,
        1 => Problem::Permanent {
            advice: "log in".to_owned(),
        },
        2 => Problem::Limited { until: None },
        _ => Problem::Limited {
            until: Some(Timestamp::from_millis(1_700_000_100_000)),
        },
    })
}

fn resulted(dice: &mut Dice, success: bool) -> AgentInput {
    AgentInput::TurnEnded(TurnEnd {
        success,
        reason: (!success).then(|| "overloaded".to_owned()),
        problem: if success { None } else { problem(dice, 3) },
        text: dice.pick(&["", "a", "b", "c", "d", "all of it"]).to_owned(),
        claimed: dice.one_in(12),
        pattern: dice.one_in(20).then(|| "start over".to_owned()),
        more: dice.one_in(40),
        stop_pattern: dice.one_in(30).then(|| "stuck".to_owned()),
        cost_microusd: dice.below(1000),
        tokens: dice.pick(&[0, 900, 40_000]),
        spent: (!success && dice.one_in(6)).then(|| dice.pick(&[Spent::Full, Spent::Lost])),
    })
}

fn result(dice: &mut Dice, lines: &mut Vec<(i64, AgentInput)>, stream: bool, success: bool) {
    // An agent with an event stream usually reports a result before it exits. An exit without a result is a failure.
    if stream && !dice.one_in(8) {
        let end = resulted(dice, success);
        lines.push((last(lines), end));
    }
    let exit = if success {
        Exit::Code(0)
    } else {
        Exit::Code(3)
    };
    lines.push((last(lines) + dice.between(0, 9), exited(dice, exit)));
}

fn exited(dice: &mut Dice, exit: Exit) -> AgentInput {
    let leftovers = if dice.one_in(8) {
        vec![Leftover {
            pid: 99,
            name: "sleep".to_owned(),
            command: "sleep 1000".to_owned(),
            unkillable: false,
        }]
    } else {
        Vec::new()
    };
    AgentInput::Exited {
        exit,
        claimed: dice.one_in(12),
        stop_pattern: dice.one_in(30).then(|| "stuck".to_owned()),
        leftovers,
        last_words: dice.one_in(4).then(|| "no such option".to_owned()),
        problem: problem(dice, 20),
    }
}

fn last(lines: &[(i64, AgentInput)]) -> i64 {
    lines.last().map_or(0, |(time, _)| *time)
}

/// Draws the rules for claims of completion.
fn completion(dice: &mut Dice) -> CompletionRules {
    let seconds = Duration::from_secs;
    let timeout = dice.pick(&[seconds(600), seconds(5), Duration::ZERO]);
    let gate = |name: &str, each_iteration| GateRule {
        name: name.to_owned(),
        timeout,
        each_iteration,
    };
    let gates = match dice.below(5) {
        0 => vec![gate("tests", true)],
        1 => vec![gate("tests", false), gate("lint", true)],
        2 => vec![gate("tests", false)],
        _ => Vec::new(),
    };
    let objectives = dice.one_in(5);
    CompletionRules {
        gates,
        objectives,
        asking: (objectives || dice.one_in(6)).then(|| seconds(30)),
        confirmations: dice.pick(&[1, 1, 1, 2]),
        // The baseline is only on in some loops, because gates that hang take time from the iterations.
        baseline: objectives,
    }
}

fn budgets(dice: &mut Dice) -> Budgets {
    if !dice.one_in(7) {
        return Budgets::default();
    }
    Budgets {
        cost_microusd: dice.pick(&[0, 0, 900, 3_000]),
        tokens: dice.pick(&[0, 20_000, 90_000]),
        duration: Duration::from_secs(dice.pick(&[0, 0, 10, 60, 600])),
        quota_percent: dice.pick(&[0.0, 0.0, 80.0]),
    }
}

/// Draws the policy of a loop.
pub fn policy(dice: &mut Dice) -> Policy {
    let seconds = Duration::from_secs;
    let usual = Policy::default();
    let event_stream = !dice.one_in(3);
    let fresh_each_iteration = dice.one_in(10);
    let persistent = event_stream && !fresh_each_iteration && !dice.one_in(4);
    Policy {
        max_iterations: dice.pick(&[0, 0, 1, 2, 3, 5]),
        iteration_delay: dice.pick(&[Duration::ZERO, seconds(5)]),
        max_consecutive_failures: dice.pick(&[0, 1, 3, 10]),
        max_test_failure_streak: dice.pick(&[0, 1, 3]),
        max_no_progress_iterations: dice.pick(&[0, 0, 1, 2, 5]),
        stop_patterns: dice.pick(&[0, 0, 0, 2]),
        permitted: usual.permitted,
        budgets: budgets(dice),
        completion: completion(dice),
        agent: AgentTraits {
            event_stream,
            persistent,
            steerable: persistent,
            tells_cost: persistent,
            refuses_before: dice.pick(&[None, Some(23_000)]),
        },
        autocommit: dice.one_in(2).then(|| AutocommitRules {
            repository: !dice.one_in(4),
            commit: !dice.one_in(4),
            on_failure: dice.one_in(2),
            timeout: dice.pick(&[seconds(300), seconds(10), Duration::ZERO]),
        }),
        limit_backoff: usual.limit_backoff,
        reset_margin: usual.reset_margin,
        outage_backoff: usual.outage_backoff,
        max_outage: dice.pick(&[Duration::ZERO, seconds(60)]),
        persist_sessions: !dice.one_in(6),
        fresh_each_iteration,
        attended: dice.one_in(8),
        question_timeout: dice.pick(&[seconds(600), seconds(20), Duration::ZERO]),
        timeouts: Timeouts {
            launch: dice.pick(&[seconds(30), seconds(30), seconds(1), Duration::ZERO]),
            session: dice.pick(&[usual.timeouts.session, seconds(40), Duration::ZERO]),
            first_output: dice.pick(&[usual.timeouts.first_output, Duration::ZERO]),
            silence: dice.pick(&[usual.timeouts.silence, seconds(3), Duration::ZERO]),
            tool: dice.pick(&[usual.timeouts.tool, seconds(20), Duration::ZERO]),
            result_grace: dice.pick(&[usual.timeouts.result_grace, Duration::ZERO]),
            graceful: dice.pick(&[usual.timeouts.graceful, seconds(1), Duration::ZERO]),
            renew: dice.pick(&[usual.timeouts.renew, seconds(1), Duration::ZERO]),
        },
        stop_timeouts: StopTimeouts {
            interrupt: dice.pick(&[usual.stop_timeouts.interrupt, seconds(1), Duration::ZERO]),
            terminate: dice.pick(&[usual.stop_timeouts.terminate, Duration::ZERO]),
            reap: dice.pick(&[usual.stop_timeouts.reap, seconds(1)]),
        },
        backoff: dice.pick(&[
            usual.backoff,
            Backoff {
                base: Duration::ZERO,
                ..usual.backoff
            },
        ]),
        hooks: hooks(dice),
        reboot: RebootRules {
            enabled: !dice.one_in(8),
            on_redline: !dice.one_in(8),
            redline_percent: dice.pick(&[85.0, 20.0, 33.3, 100.0]),
            redline_tokens: if persistent { 50_000 } else { 0 },
            warning_percent: dice.pick(&[70.0, 2.0, 2.0, 2.0]),
            hard_limit_percent: dice.pick(&[95.0, 40.0]),
            tool_call_threshold: dice.pick(&[100, 3, 0]),
            on_degradation: dice.one_in(2),
            after_iterations: dice.pick(&[None, Some(1), Some(2)]),
            after_duration: dice.pick(&[None, None, Some(seconds(90))]),
            max_reboots: dice.pick(&[None, None, Some(0), Some(1), Some(2)]),
            immediate: dice.one_in(5),
            min_interval: dice.pick(&[Duration::ZERO, seconds(20), seconds(300)]),
            max_per_hour: dice.pick(&[0, 1, 10]),
            failure_cooldown: dice.pick(&[Duration::ZERO, seconds(60)]),
            max_failures: dice.pick(&[0, 1, 3]),
            graceful_delay: dice.pick(&[Duration::ZERO, seconds(5)]),
            ask_hand_off: !dice.one_in(5),
            hand_off_timeout: seconds(120),
            confirm: dice
                .one_in(9)
                .then(|| dice.pick(&[seconds(600), seconds(20), Duration::ZERO])),
            hooks_before: dice.one_in(5).then(|| seconds(30)),
            hooks_after: dice.one_in(5).then(|| seconds(30)),
        },
    }
}

/// Draws the hook points that have hooks, with their timeouts.
fn hooks(dice: &mut Dice) -> BTreeMap<HookPoint, Duration> {
    let mut hooks = BTreeMap::new();
    if !dice.one_in(5) {
        return hooks;
    }
    for point in HookPoint::ALL {
        if point.kind() != HookKind::Reboot && dice.one_in(3) {
            hooks.insert(point, Duration::from_secs(30));
        }
    }
    hooks
}
