//! Thousands of loops in a seeded world with virtual time, faults and crashes.

mod agent;
mod attendance;
mod audit;
mod books;
pub mod dice;
mod forward;
mod proof;
mod replayed;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use world::World;

/// Number of simulated loops in a test run. `cargo xtask soak` simulates more.
const LOOPS: u64 = 10_000;
const LOOPS_VARIABLE: &str = "TACHIKOMA_SIM_LOOPS";
/// In every eighth loop, each record is written as JSON and read again, as after a crash.
const THROUGH_TEXT_EVERY: u64 = 8;
/// How often each phase, event and end must occur, so that an idle simulation fails the test.
const SEEN_MIN: u64 = 100;

/// How often each phase, event and end was seen.
type Coverage = BTreeMap<&'static str, u64>;

#[test]
fn simulated_loops_survive_faults_and_crashes_and_equal_their_replay() {
    let mut coverage = Coverage::new();
    for seed in 0..loops() {
        live_through(seed, &mut coverage);
    }
    for thing in EXPECTED {
        let seen = coverage.get(thing).copied().unwrap_or_default();
        assert!(
            seen >= SEEN_MIN,
            "`{thing}` occurred {seen} times: {coverage:#?}"
        );
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the number of loops is a setting of the test, not of the core"
)]
fn loops() -> u64 {
    match std::env::var(LOOPS_VARIABLE) {
        Ok(number) => number.parse().expect("a number of loops"),
        Err(_) => LOOPS,
    }
}

fn live_through(seed: u64, coverage: &mut Coverage) {
    let mut world = World::new(seed);
    let lived = catch_unwind(AssertUnwindSafe(|| {
        world.run(coverage);
        replayed::check_replay(&world);
    }));
    if lived.is_err() {
        let skipped = world.journal.len().saturating_sub(25);
        let last: Vec<String> = world
            .journal
            .iter()
            .skip(skipped)
            .map(|record| format!("{} {} {:?}", record.seq, record.time, record.event))
            .collect();
        panic!("seed {seed} fails after\n{}", last.join("\n"));
    }
}

/// All phases, events and ends that the simulation has to reach.
const EXPECTED: &[&str] = &[
    "delay",
    "backoff",
    "launching",
    "ending-launch",
    "working",
    "tool",
    "resulted",
    "boundary",
    "interrupt",
    "terminate",
    "kill",
    "window",
    "limit",
    "operator",
    "reboot:hand-off",
    "reboot:before",
    "reboot:after",
    "reboot:keeping",
    "keeping",
    "keeping the end",
    "asking",
    "hooks",
    "hooks at the start",
    "hooks at the end",
    "gates",
    "reboot:closing",
    "reboot:opening",
    "paused",
    "ended:done",
    "ended:limit",
    "ended:condition",
    "ended:budget",
    "ended:operator",
    "ended:condition",
    "ended:signal",
    "ended:error",
    "crash",
    "stale event",
    "SegmentOpened",
    "Asked",
    "Answered",
    "RolledBack",
    "Attended",
    "Told",
    "PassedOn",
    "Reloaded",
    "Started",
    "ConfigChanged",
    "PauseRequested",
    "PauseWithdrawn",
    "Paused",
    "Resumed",
    "StopRequested",
    "WaitStarted",
    "SessionStarted",
    "SessionEnded",
    "IterationStarted",
    "AgentLaunched",
    "AgentExited",
    "SessionNamed",
    "OutputSeen",
    "WrapUpAdvised",
    "ToolDenied",
    "FileTouched",
    "Noted",
    "HandOffRequested",
    "HandOffWritten",
    "HooksStarted",
    "HooksRan",
    "ClosingStarted",
    "SessionOpening",
    "RebootVerified",
    "ContextMeasured",
    "ToolStarted",
    "ToolEnded",
    "TurnResulted",
    "CallEnded",
    "CostReported",
    "QuotaReported",
    "StopPatternMatched",
    "StopConditionTriggered",
    "EndingRequested",
    "AgentSignaled",
    "LeftoversEnded",
    "IterationCompleted",
    "IterationFailed",
    "IterationLimited",
    "SilenceChecked",
    "AgentBusy",
    "StreamEnded",
    "AttemptCut",
    "SnapshotTaken",
    "AutocommitStarted",
    "AutocommitCanceled",
    "AutocommitFinished",
    "AutocommitGivenUp",
    "Claimed",
    "CheckStarted",
    "ConditionsAnswered",
    "GatesRan",
    "CheckGivenUp",
    "ClaimRefused",
    "RebootRequested",
    "RebootStarted",
    "RebootCompleted",
    "RebootFailed",
    "CustomSet",
    "Warned",
    "DiskWasFull",
    "Repaired",
    "Incident",
    "Completed",
    "Stopped",
    "Error",
];
