//! `tachikoma run --agent claude` with a budget, which is enforced during a turn with the costs that the agent reports.

use serde_json::Value;
use tachikoma_testkit::{Scenario, ScriptedModel, Turn, Usage};

use super::ground::{Ground, usages};
use super::looping::{Looping, event_names, only, outcomes};

/// Exit code of a loop that reached its budget.
const STOPPED: i32 = 4;

/// Prices in dollars of a million tokens: written to the cache, read from it, output.
const PRICES: [f64; 3] = [3.75, 0.3, 15.0];

/// Returns the cost of an answer in dollars.
#[expect(clippy::cast_precision_loss, reason = "some thousand tokens")]
fn price(usage: &Usage) -> f64 {
    let [write, read, answer] = PRICES;
    let dollars = usage.cache_creation as f64 * write
        + usage.cache_read as f64 * read
        + usage.output as f64 * answer;
    dollars / 1e6
}

/// Tolerance in dollars. During a turn the agent reports whole cents, and reports are never reduced.
const ROUNDING: f64 = 0.005;

/// Usage of an answer that costs about $0.30 and is far below the redline.
const DEAR: Usage = Usage {
    input: 0,
    cache_read: 0,
    cache_creation: 80_000,
    output: 100,
    per_tool_result: 0,
};

/// An endless turn ends when a dollar is spent. A second process ends when the rest of the budget is spent.
pub fn kept(ground: &Ground) -> String {
    let turn = Turn::bash("echo x >> calls").using(DEAR);
    let model = ScriptedModel::start(Scenario::of([turn]).for_ever());
    let dollar = [("STOP_CONDITIONS__MAX_COST_USD", "1.00")];
    let events = Looping::start(ground, &model, &dollar, 9).ended(STOPPED);
    let first = expect_kept(&events, &model, 1.0, ROUNDING);
    assert_eq!(
        outcomes(&events),
        ["interrupted"],
        "{}",
        event_names(&events)
    );
    let more = [("STOP_CONDITIONS__MAX_COST_USD", "2.00")];
    let events = Looping::start(ground, &model, &more, 9).ended(STOPPED);
    let second = expect_kept(&events, &model, 2.0, 2.0 * ROUNDING);
    format!("${first:.2} of $1.00, then ${second:.2} of $2.00")
}

/// Checks that the model gave at most one answer beyond the budget, and that the loop knows all costs.
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
        event_names(events)
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
