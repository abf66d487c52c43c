//! The usage limit of a subscription: one request before its reset, one after, and no failure.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;
use tachikoma_testkit::{Kind, Scenario, ScriptedModel, Turn, await_until};

use super::ground::Ground;
use super::looping::{
    LIMIT_REACHED, Looping, Settings, all_events, attempts, event_names, names, of_type, only,
    outcomes,
};
use super::{Row, USUAL};

pub const CHECKS: &[Row] = &[
    Row("limit-waited-for", waited_for, USUAL),
    Row("limit-lifted-late", lifted_late, USUAL),
    Row("limit-runner-dies", over_a_death, USUAL),
    Row("limit-warning", warning, USUAL),
];

/// Settings for a subscription instead of a key. The token is a dummy.
const SUBSCRIPTION: Settings<'_> = &[
    ("AGENTS__CLAUDE__ENV__ANTHROPIC_API_KEY", ""),
    ("AGENTS__CLAUDE__ENV__CLAUDE_CODE_OAUTH_TOKEN", "dummy"),
];

/// Maximum time from the reset to the next request. It includes the start of the agent, which takes seconds on a busy machine.
const LATE_MAX: Duration = Duration::from_secs(15);

/// The time from the start of the agent to its first request, on a busy machine.
const AGENT_START: Duration = Duration::from_secs(2);

/// Adds the headers of a usage limit to a turn.
fn marked(turn: Turn, status: &str, reset: u64) -> Turn {
    let name = |name: &str| format!("anthropic-ratelimit-unified-{name}");
    turn.header(&name("status"), status)
        .header(&name("reset"), reset.to_string())
        .header(&name("representative-claim"), "five_hour")
        .header(&name("5h-utilization"), "0.93")
}

/// A model service that rejects requests until some seconds after the first one. It records the times of requests.
struct Limited {
    model: ScriptedModel,
    asked: Arc<Mutex<Vec<Duration>>>,
    seconds: u64,
}

impl Limited {
    fn until(seconds: u64) -> Self {
        Self::lifted_late(seconds, 0)
    }

    /// Returns a service that reports a reset time and still rejects requests for `late` seconds after it.
    fn lifted_late(seconds: u64, late: u64) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let model = ScriptedModel::reacting(Scenario::default(), move |request| {
            if request.kind != Kind::Main {
                return None;
            }
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.expect("after 1970");
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.push(now);
            let reset = lifted(&log, seconds);
            (now.as_secs() < reset + late).then(|| {
                let words = "This request would exceed your limit";
                marked(
                    Turn::status(429, "rate_limit_error", words),
                    "rejected",
                    reset,
                )
            })
        });
        Self {
            model,
            asked,
            seconds,
        }
    }

    /// Checks that one request was rejected, one came in time after the reset, and both belong to the same iteration.
    fn expect_one_probe(&self, events: &[Value], late_max: Duration) -> String {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(asked.len(), 2, "one call before and one after: {asked:?}");
        let late = asked[1].checked_sub(Duration::from_secs(lifted(&asked, self.seconds)));
        let late = late.expect("not before the limit is lifted");
        assert!(late < late_max, "{late:?} after the limit was lifted");
        let limit = only(events, "iteration_limited");
        assert!(limit["until"].is_string(), "{limit}");
        assert!(limit["reason"].to_string().contains("limit"), "{limit}");
        for wait in of_type(events, "wait_started") {
            assert_eq!(
                wait["wait"]["reason"],
                "usage_limit",
                "{}",
                event_names(events)
            );
        }
        assert_eq!(outcomes(events), ["succeeded"], "{}", event_names(events));
        assert_eq!(attempts(events), [(1, 1), (1, 2)]);
        assert_eq!(names(events).len(), 1, "the same conversation");
        format!("asked {} ms after it was lifted", late.as_millis())
    }
}

/// Returns the reset time in seconds since 1970.
fn lifted(asked: &[Duration], seconds: u64) -> u64 {
    asked.first().map_or(0, Duration::as_secs) + seconds
}

// Known fault of other loops: a usage limit was taken for an answer, or requests were sent during it.
fn waited_for(ground: &Ground) -> String {
    let limited = Limited::until(4);
    let looping = Looping::start(ground, &limited.model, SUBSCRIPTION, 1);
    limited.expect_one_probe(&looping.ended(LIMIT_REACHED), LATE_MAX)
}

/// The service rejects one more request after the reported reset time, and the loop asks again soon.
fn lifted_late(ground: &Ground) -> String {
    let limited = Limited::lifted_late(3, 8);
    let looping = Looping::start(ground, &limited.model, SUBSCRIPTION, 1);
    let events = looping.ended(LIMIT_REACHED);
    let refused = of_type(&events, "iteration_limited");
    assert_eq!(refused.len(), 2, "{}", event_names(&events));
    assert_eq!(refused[0]["until"], refused[1]["until"], "the same reset");
    assert_eq!(outcomes(&events), ["succeeded"], "{}", event_names(&events));
    assert_eq!(attempts(&events), [(1, 1), (1, 2), (1, 3)]);
    "refused twice, answered the third time".into()
}

/// The wait continues after the runner was killed. Known fault of other loops: after a restart, the loop no longer waited.
fn over_a_death(ground: &Ground) -> String {
    let limited = Limited::until(6);
    let mut looping = Looping::start(ground, &limited.model, SUBSCRIPTION, 1);
    looping.await_events("wait_started", 1);
    looping.talk().signal(Signal::KILL);
    await_until("the runner's end", ground.patience, || {
        !looping.talk().is_running()
    });
    looping.take_up().ended(LIMIT_REACHED);
    let events = all_events(ground, &limited.model);
    limited.expect_one_probe(&events, LATE_MAX + AGENT_START)
}

/// A warning before the limit is recorded as a reading, not as a failure.
fn warning(ground: &Ground) -> String {
    let turn = marked(Turn::text("well"), "allowed_warning", 4_000_000_000);
    let model = ScriptedModel::start(Scenario::of([turn]).for_ever());
    let events = Looping::start(ground, &model, SUBSCRIPTION, 2).end(LIMIT_REACHED);
    assert_eq!(
        outcomes(&events),
        ["succeeded", "succeeded"],
        "{}",
        event_names(&events)
    );
    assert_eq!(of_type(&events, "wait_started").len(), 0);
    assert_eq!(model.asked_for(Kind::Main).len(), 2);
    "no wait".into()
}
