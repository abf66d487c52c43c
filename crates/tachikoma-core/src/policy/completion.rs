//! Decides whether a claim of completion is accepted, and which check has to run before that.

use std::time::Duration;

use super::Policy;
use crate::{AttemptEnd, CheckStage, Claim, Completion, ObjectivesSeen, Owed, State};

/// Extra time for ending a gate that exceeded its timeout.
const GATE_SLACK: Duration = Duration::from_secs(10);

/// Maximum number of open objectives that a reason names. Others are counted.
const OPEN_NAMED_MAX: usize = 3;

/// When a claim of completion is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionRules {
    /// The gates, in the order in which they run.
    pub gates: Vec<GateRule>,
    /// Whether there is a file of objectives. All of them have to be ticked.
    pub objectives: bool,
    /// Timeout for reading the objectives and for all stop scripts together; `None` if there are none.
    pub asking: Option<Duration>,
    /// How many claims in a row are needed.
    pub confirmations: u32,
    /// Whether all gates run once before the first iteration, so that the user sees a broken gate at once.
    pub baseline: bool,
}

impl Default for CompletionRules {
    fn default() -> Self {
        Self {
            gates: Vec::new(),
            objectives: false,
            asking: None,
            confirmations: 1,
            baseline: false,
        }
    }
}

/// One gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateRule {
    /// Name of the gate.
    pub name: String,
    /// Timeout of the gate; zero = no limit.
    pub timeout: Duration,
    /// Whether the gate runs after every successful iteration, and not only when completion is claimed.
    pub each_iteration: bool,
}

impl CompletionRules {
    /// Returns the timeout of these gates together; `None` = no limit.
    #[must_use]
    pub fn limit(&self, names: &[String]) -> Option<Duration> {
        let gates = self.gates.iter().filter(|gate| names.contains(&gate.name));
        let mut limits = gates.map(|gate| Some(gate.timeout).filter(|limit| !limit.is_zero()));
        limits.try_fold(Duration::ZERO, |sum, limit| {
            Some(sum.saturating_add(limit?).saturating_add(GATE_SLACK))
        })
    }

    fn due(&self, claimed: bool) -> Vec<String> {
        let due = self.gates.iter();
        let due = due.filter(|gate| claimed || gate.each_iteration);
        due.map(|gate| gate.name.clone()).collect()
    }
}

/// The next step in judging a claim of completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing is left to check.
    Nothing,
    /// A check has to run first.
    Check(CheckStage),
    /// The claim is refused.
    Refuse {
        /// Why the claim is refused.
        reasons: Vec<String>,
        /// Number of claims in a row that passed all checks, this one included.
        confirmed: u32,
    },
    /// The claim is accepted: the work is complete.
    Believe,
}

/// Returns the gates to run before the first iteration. Their results are only shown.
#[must_use]
pub fn baseline(policy: &Policy, state: &State) -> Option<CheckStage> {
    let rules = &policy.completion;
    let due = rules.baseline && state.iteration == 0 && !state.completion.baseline;
    let names = rules.due(true);
    (due && !names.is_empty() && state.stop.is_none()).then_some(CheckStage::Gates {
        names,
        claimed: false,
    })
}

/// Decides, after an iteration, which check runs next or whether a claim is accepted.
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
        // A loop that has to stop does not start checks. They stay due, and the next run starts them.
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
        "this is claim {confirmed} of {needed} in a row; review the work, and claim completion again if it is complete"
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
        AttemptEnd::HandedOver | AttemptEnd::Failed if is_valid_claim_left(state) => {
            policy.completion.due(true)
        }
        AttemptEnd::HandedOver | AttemptEnd::Failed | AttemptEnd::Cut => Vec::new(),
    }
}

/// Returns whether there is a claim that is still valid after the end of its attempt.
fn is_valid_claim_left(state: &State) -> bool {
    let known = &state.completion;
    let of_the_turn = |claim: &Claim| match claim {
        // Objectives that a failed attempt ticked are a claim of that attempt.
        Claim::Promise | Claim::Done { .. } | Claim::Objectives => true,
        Claim::Script { .. } => false,
    };
    match known.ended {
        AttemptEnd::Succeeded | AttemptEnd::HandedOver => !known.claims.is_empty(),
        AttemptEnd::Failed => !known.claims.iter().all(of_the_turn),
        AttemptEnd::Cut => false,
    }
}

/// Returns all doubts about a claim.
fn doubts(policy: &Policy, state: &State) -> Vec<String> {
    let known = &state.completion;
    let iteration = state.iteration;
    if !is_valid_claim_left(state) {
        return vec![match known.ended {
            AttemptEnd::Failed => format!("iteration {iteration}, which claimed it, failed"),
            AttemptEnd::Succeeded | AttemptEnd::HandedOver | AttemptEnd::Cut => {
                format!("iteration {iteration}, which claimed it, was interrupted")
            }
        }];
    }
    let mut doubts = Vec::new();
    if known.ended == AttemptEnd::Failed && policy.completion.gates.is_empty() {
        doubts.push(format!(
            "iteration {iteration} failed, and no gate proves the work"
        ));
    }
    doubts.extend(nothing_was_done(policy, state).map(str::to_owned));
    if policy.completion.objectives {
        doubts.extend(open_objectives(known.objectives.as_ref()));
        doubts.extend(fewer_objectives(known));
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

/// Returns a doubt if the loop has done nothing so far. Without surveys of the work tree and reported tool calls this is unknown.
/// If only the work tree is known, the agent may have found the work complete already. Then gates have to prove it.
fn nothing_was_done(policy: &Policy, state: &State) -> Option<&'static str> {
    let looked = state.tracked_work.files_changed.is_some();
    let said = match (policy.agent.event_stream, policy.autocommit.is_some()) {
        (true, false) => "nothing was done yet: no tool call succeeded",
        (true, true) if looked => {
            "nothing was done yet: no file was changed, no commit made and no tool call succeeded"
        }
        (false, true) if looked && !is_proven(policy, state) => {
            "nothing was done yet: no file was changed and no commit made"
        }
        (true | false, true) | (false, false) => return None,
    };
    state.completion.idle.then_some(said)
}

/// Returns whether there are gates, and all have passed.
fn is_proven(policy: &Policy, state: &State) -> bool {
    let known = &state.completion;
    let gates = &policy.completion.gates;
    let passed = |gate: &GateRule| {
        let mut results = known.gates.iter();
        results.any(|result| result.name == gate.name && result.passed())
    };
    known.given_up.is_none() && !gates.is_empty() && gates.iter().all(passed)
}

/// Returns a doubt if check boxes were removed instead of ticked and only the objectives claim completion.
fn fewer_objectives(known: &Completion) -> Option<String> {
    let Some(ObjectivesSeen::Read { objectives }) = &known.objectives else {
        return None;
    };
    let only = known.claims.iter().all(|claim| *claim == Claim::Objectives);
    let (now, most) = (objectives.total, known.most_objectives);
    (only && now < most).then(|| {
        format!(
            "the objectives had {most} check boxes, and have {now}: removed check boxes do not count as done"
        )
    })
}

fn open_objectives(seen: Option<&ObjectivesSeen>) -> Option<String> {
    let objectives = match seen {
        Some(ObjectivesSeen::Read { objectives }) => objectives,
        Some(ObjectivesSeen::Unknown { reason }) => {
            return Some(format!("the objectives cannot be read: {reason}"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::GateResult;
    use crate::objectives::Objectives;
    use crate::policy::AgentTraits;
    use crate::{LoopId, Stop};

    const BOOLEANS: [bool; 2] = [false, true];

    fn policy(gate: bool, objectives: bool, confirmations: u32) -> Policy {
        let tests = GateRule {
            name: "tests".to_owned(),
            timeout: Duration::ZERO,
            each_iteration: false,
        };
        Policy {
            completion: CompletionRules {
                gates: if gate { vec![tests] } else { Vec::new() },
                objectives,
                asking: None,
                confirmations,
                baseline: false,
            },
            agent: AgentTraits {
                event_stream: true,
                ..AgentTraits::default()
            },
            ..Policy::default()
        }
    }

    fn result(passed: bool) -> GateResult {
        GateResult {
            name: "tests".to_owned(),
            error: (!passed).then(|| "exit 1".to_owned()),
            ..GateResult::default()
        }
    }

    /// A state after an iteration whose checks have all run.
    fn judged(claims: Vec<Claim>, ended: AttemptEnd) -> State {
        let mut state = State::new(LoopId::from_u128(1));
        state.iteration = 1;
        state.stats.successful = 1;
        state.completion.claims = claims;
        state.completion.ended = ended;
        state.completion.owed = Owed::Judgement;
        state.completion.idle = false;
        state
    }

    #[test]
    fn claim_is_accepted_only_if_all_checks_pass() {
        let (mut believed, mut asked) = (0, 0);
        let seen = [None, Some("- [x] a"), Some("- [ ] a"), Some("nothing")];
        let gates = [None, Some(false), Some(true)];
        for claimed in BOOLEANS {
            for idle in BOOLEANS {
                for (seen, gate) in seen.iter().flat_map(|s| gates.map(|g| (*s, g))) {
                    for (needs_gate, needs_objectives) in
                        BOOLEANS.iter().flat_map(|a| BOOLEANS.map(|b| (*a, b)))
                    {
                        for confirmations in [1, 2] {
                            let policy = policy(needs_gate, needs_objectives, confirmations);
                            let claims = claimed.then_some(Claim::Promise);
                            let mut state =
                                judged(claims.into_iter().collect(), AttemptEnd::Succeeded);
                            state.completion.idle = idle;
                            state.completion.gates = gate.map(result).into_iter().collect();
                            state.completion.objectives = seen.map(|text| ObjectivesSeen::Read {
                                objectives: Objectives::read(text),
                            });
                            let expected = claimed
                                && !idle
                                && (!needs_gate || gate == Some(true))
                                && (!needs_objectives || seen == Some("- [x] a"))
                                && confirmations == 1;
                            let next = next(&policy, &state);
                            assert_eq!(next == Next::Believe, expected, "{state:?}");
                            let refused = matches!(next, Next::Refuse { .. });
                            assert_eq!(
                                refused,
                                claimed && !expected,
                                "every claim is accepted or refused"
                            );
                            believed += u32::from(expected);
                            asked += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(
            (believed, asked),
            (20, 384),
            "the table has all combinations"
        );
    }

    #[test]
    fn failed_or_interrupted_attempt_invalidates_claims_of_its_agent_only() {
        let done = || Claim::Done { reason: None };
        let script = || Claim::Script {
            name: "s".to_owned(),
        };
        for (claim, ended, alone, proven) in [
            (Claim::Promise, AttemptEnd::Succeeded, true, true),
            (done(), AttemptEnd::Succeeded, true, true),
            (done(), AttemptEnd::HandedOver, true, true),
            (done(), AttemptEnd::Failed, false, false),
            (done(), AttemptEnd::Cut, false, false),
            (script(), AttemptEnd::Succeeded, true, true),
            // Without a gate, a failed attempt refutes the claim.
            (script(), AttemptEnd::Failed, false, true),
            (Claim::Objectives, AttemptEnd::Failed, false, false),
            (Claim::Objectives, AttemptEnd::HandedOver, true, true),
        ] {
            for (gate, expected) in [(false, alone), (true, proven)] {
                let mut state = judged(vec![claim.clone()], ended);
                state.completion.gates = vec![result(true)];
                let next = next(&policy(gate, false, 1), &state);
                assert_eq!(next == Next::Believe, expected, "{claim}, {ended:?}");
            }
        }
    }

    #[test]
    fn due_checks_run_in_order_and_not_during_a_stop() {
        let mut policy = policy(true, false, 1);
        policy.completion.asking = Some(Duration::from_secs(1));
        let mut state = judged(vec![Claim::Promise], AttemptEnd::Succeeded);
        let gates = CheckStage::Gates {
            names: vec!["tests".to_owned()],
            claimed: true,
        };
        for (owed, expected) in [
            (Owed::Nothing, Next::Nothing),
            (Owed::Answers, Next::Check(CheckStage::Asking)),
            (Owed::Gates, Next::Check(gates)),
        ] {
            state.completion.owed = owed;
            state.stop = None;
            assert_eq!(next(&policy, &state), expected);
            state.stop = Some(Stop::Operator);
            assert_eq!(next(&policy, &state), Next::Nothing);
        }
    }

    #[test]
    fn timeout_of_gates_is_the_sum_of_their_timeouts() {
        let mut rules = policy(true, false, 1).completion;
        let names = vec!["tests".to_owned()];
        assert_eq!(rules.limit(&names), None);
        rules.gates[0].timeout = Duration::from_secs(5);
        assert_eq!(rules.limit(&names), Some(Duration::from_secs(15)));
    }
}
