//! Whether a claim of completion is believed, and what has to be found out before that is known.

use std::time::Duration;

use super::Policy;
use crate::completion::{AttemptEnd, CheckStage, Claim, ObjectivesSeen, Owed};
use crate::state::State;

/// What a gate may take beyond its own limit before it is given up: to be ended, and to say so.
const GATE_SLACK: Duration = Duration::from_secs(10);

/// Open objectives that a reason names; the rest is counted.
const OPEN_NAMED_MAX: usize = 3;

/// When a claim of completion is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionRules {
    /// What has to pass, in order.
    pub gates: Vec<GateRule>,
    /// Whether there are objectives, all of which have to be ticked.
    pub objectives: bool,
    /// For the objectives and all stop scripts together; none = there is nothing to ask.
    pub asking: Option<Duration>,
    /// How many claims in a row are needed.
    pub confirmations: u32,
}

impl Default for CompletionRules {
    fn default() -> Self {
        Self {
            gates: Vec::new(),
            objectives: false,
            asking: None,
            confirmations: 1,
        }
    }
}

/// One gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateRule {
    /// Its name.
    pub name: String,
    /// For it alone; zero = no limit.
    pub timeout: Duration,
    /// Whether it runs behind every iteration that went well, and not only when completion is claimed.
    pub each_iteration: bool,
}

impl CompletionRules {
    /// Returns how long gates may take together; none = for ever.
    #[must_use]
    pub fn limit(&self, names: &[String]) -> Option<Duration> {
        let gates = self.gates.iter().filter(|gate| names.contains(&gate.name));
        gates.fold(Some(Duration::ZERO), |sum, gate| {
            let limit = Some(gate.timeout).filter(|limit| !limit.is_zero())?;
            Some(sum?.saturating_add(limit).saturating_add(GATE_SLACK))
        })
    }

    fn due(&self, claimed: bool) -> Vec<String> {
        let due = self.gates.iter();
        let due = due.filter(|gate| claimed || gate.each_iteration);
        due.map(|gate| gate.name.clone()).collect()
    }
}

/// What comes next on the way to a judgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the loop goes on with whatever is due.
    Nothing,
    /// Something has to be found out.
    Check(CheckStage),
    /// A claim is not believed.
    Refuse {
        /// Why.
        reasons: Vec<String>,
        /// Claims in a row against which nothing spoke, this one included.
        confirmed: u32,
    },
    /// The work is complete.
    Believe,
}

/// Decides, behind an iteration, what comes next on the way to a judgement.
#[must_use]
pub fn next(policy: &Policy, state: &State) -> Next {
    let rules = &policy.completion;
    let known = &state.completion;
    let claimed = !known.claims.is_empty();
    let asks = known.owed == Owed::Answers && rules.asking.is_some();
    let runs = match known.owed {
        Owed::Answers | Owed::Gates => gates_due(policy, state),
        Owed::Nothing | Owed::Judgement => Vec::new(),
    };
    if known.owed == Owed::Nothing {
        return Next::Nothing;
    }
    if asks || !runs.is_empty() {
        // Who is to stop does not wait for it; the next run finds it out.
        return match (state.stop.is_some(), asks) {
            (true, _) => Next::Nothing,
            (false, true) => Next::Check(CheckStage::Asking),
            (false, false) => Next::Check(CheckStage::Gates {
                names: runs,
                claimed,
            }),
        };
    }
    if !claimed {
        return Next::Nothing;
    }
    let reasons = doubts(policy, state);
    if !reasons.is_empty() {
        let confirmed = 0;
        return Next::Refuse { reasons, confirmed };
    }
    let in_a_row = state.stats.successful <= known.confirmed_at.saturating_add(1);
    let confirmed = if in_a_row { known.confirmed + 1 } else { 1 };
    let needed = rules.confirmations;
    if confirmed >= needed {
        return Next::Believe;
    }
    let reason = format!(
        "this is claim {confirmed} of {needed} in a row; look at the work anew, and claim it again if it is complete"
    );
    Next::Refuse {
        reasons: vec![reason],
        confirmed,
    }
}

fn gates_due(policy: &Policy, state: &State) -> Vec<String> {
    let known = &state.completion;
    match known.ended {
        AttemptEnd::Succeeded => policy.completion.due(!known.claims.is_empty()),
        AttemptEnd::HandedOver | AttemptEnd::Failed if stands(state) => policy.completion.due(true),
        AttemptEnd::HandedOver | AttemptEnd::Failed | AttemptEnd::Cut => Vec::new(),
    }
}

/// Returns whether there is a claim that the end of its attempt has not made void.
fn stands(state: &State) -> bool {
    let known = &state.completion;
    let of_the_turn = |claim: &Claim| match claim {
        Claim::Promise | Claim::Done { .. } => true,
        Claim::Script { .. } | Claim::Objectives => false,
    };
    match known.ended {
        AttemptEnd::Succeeded | AttemptEnd::HandedOver => !known.claims.is_empty(),
        AttemptEnd::Failed => !known.claims.iter().all(of_the_turn),
        AttemptEnd::Cut => false,
    }
}

/// Returns everything that speaks against a claim.
fn doubts(policy: &Policy, state: &State) -> Vec<String> {
    let known = &state.completion;
    let iteration = state.iteration;
    if !stands(state) {
        return vec![match known.ended {
            AttemptEnd::Failed => format!("iteration {iteration}, which made it, failed"),
            AttemptEnd::Succeeded | AttemptEnd::HandedOver | AttemptEnd::Cut => {
                format!("iteration {iteration}, which made it, was not seen through")
            }
        }];
    }
    let mut doubts = Vec::new();
    if nothing_was_done(policy, state) {
        doubts.push(
            "nothing was done yet: no file was changed, no commit made and no tool called"
                .to_owned(),
        );
    }
    if policy.completion.objectives {
        doubts.extend(open_objectives(known.objectives.as_ref()));
    }
    if let Some(reason) = &known.given_up {
        doubts.push(reason.clone());
    } else {
        let gates = policy.completion.gates.iter();
        doubts.extend(gates.filter_map(|gate| {
            let name = &gate.name;
            let result = known.gates.iter().find(|result| result.name == *name);
            match result.map(|result| &result.error) {
                Some(None) => None,
                Some(Some(error)) => Some(format!("the gate `{name}` failed: {error}")),
                None => Some(format!("the gate `{name}` has not run")),
            }
        }));
    }
    doubts
}

/// Returns whether it is known that nothing came of the loop so far. Without a look at the work tree and without news of tool
/// calls it is not.
fn nothing_was_done(policy: &Policy, state: &State) -> bool {
    let known = match policy.keep {
        Some(_) => state.kept.files_changed.is_some(),
        None => policy.agent.event_stream,
    };
    known && state.completion.idle
}

fn open_objectives(seen: Option<&ObjectivesSeen>) -> Option<String> {
    let objectives = match seen {
        Some(ObjectivesSeen::Read { objectives }) => objectives,
        Some(ObjectivesSeen::Unknown { reason }) => {
            return Some(format!("the objectives are not known: {reason}"));
        }
        None => return Some("the objectives were not read".to_owned()),
    };
    if objectives.all_ticked() {
        return None;
    }
    if objectives.total == 0 {
        return Some("there is no check box in the objectives".to_owned());
    }
    let open = objectives.total - objectives.ticked;
    let named: Vec<&str> = objectives.open.iter().map(String::as_str).collect();
    let named = named.get(..OPEN_NAMED_MAX.min(named.len())).unwrap_or(&[]);
    let more = (open as usize).saturating_sub(named.len());
    let more = if more > 0 {
        format!("; and {more} more")
    } else {
        String::new()
    };
    Some(format!(
        "{open} of {} objectives are open: {}{more}",
        objectives.total,
        named.join("; ")
    ))
}
