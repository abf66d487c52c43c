//! `tachikoma run --agent claude` with a budget: it is enforced during a turn, by the agent's own figures.

use serde_json::Value;
use tachikoma_testkit::{Scenario, ScriptedModel, Turn, Usage};

use super::ground::{Ground, usages};
use super::looping::{Looping, only, outcomes, told};

/// The exit code of a loop that a budget ended.
const STOPPED: i32 = 4;

/// Dollars for a million tokens of the model: written to the cache, read from it, output.
const PRICES: [f64; 3] = [3.75, 0.3, 15.0];

/// The cost of an answer.
#[expect(clippy::cast_precision_loss, reason = "some thousand tokens")]
fn price(usage: &Usage) -> f64 {
    let [write, read, answer] = PRICES;
    let dollars = usage.cache_creation as f64 * write
        + usage.cache_read as f64 * read
        + usage.output as f64 * answer;
    dollars / 1e6
}

/// Half a cent: during a turn the agent reports whole cents, and reports are never reduced.
const ROUNDING: f64 = 0.005;

/// About $0.30, far below the redline.
const DEAR: Usage = Usage {
    input: 0,
    cache_read: 0,
    cache_creation: 80_000,
    output: 100,
    per_tool_result: 0,
};

/// A turn that never ends is ended when a dollar is spent, and so is a second process with the rest of the budget.
pub fn kept(ground: &Ground) -> String {
    let turn = Turn::bash("echo x >> calls").using(DEAR);
    let model = ScriptedModel::start(Scenario::of([turn]).for_ever());
    let dollar = [("STOP_CONDITIONS__MAX_COST_USD", "1.00")];
    let events = Looping::start(ground, &model, &dollar, 9).ended(STOPPED);
    let first = expect_kept(&events, &model, 1.0, ROUNDING);
    assert_eq!(outcomes(&events), ["interrupted"], "{}", told(&events));
    let more = [("STOP_CONDITIONS__MAX_COST_USD", "2.00")];
    let events = Looping::start(ground, &model, &more, 9).ended(STOPPED);
    let second = expect_kept(&events, &model, 2.0, 2.0 * ROUNDING);
    format!("${first:.2} of $1.00, then ${second:.2} of $2.00")
}

/// The model's log shows no more than one answer beyond the budget, and the loop knows all costs.
#[track_caller]
fn expect_kept(events: &[Value], model: &ScriptedModel, budget: f64, rounding: f64) -> f64 {
    let triggered = only(events, "stop_condition_triggered");
    assert_eq!(triggered["condition"], "max_cost_usd", "{triggered}");
    let sent: Vec<f64> = usages(model).iter().map(price).collect();
    let spent: f64 = sent.iter().sum();
    let last = sent.last().copied().unwrap_or_default();
    assert!(
        spent >= budget && spent - last < budget,
        "${spent:.4} in {} answers: {}",
        sent.len(),
        told(events)
    );
    let stats = &only(events, "stopped")["stats"];
    let known = stats["cost_microusd"].as_f64().unwrap_or_default() / 1e6;
    assert!(
        (known - spent).abs() < rounding + 1e-6,
        "${known} of ${spent} is known"
    );
    let sent: u64 = usages(model).iter().map(Usage::context).sum();
    assert_eq!(stats["tokens"], sent, "tokens");
    spent
}
