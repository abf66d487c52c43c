//! Checks, without the code under test, that the simulated loop accepted a claim of completion only with enough evidence.

use tachikoma_core::{Answers, GateResult, ObjectivesSeen, Policy, ScriptResult, ScriptVerdict};

/// Evidence for a claim of completion.
#[derive(Default)]
pub struct Proof {
    pub claimed: bool,
    pub worked: bool,
    pub gates: Vec<GateResult>,
    pub objectives: Option<bool>,
    /// Whether the latest attempt succeeded; `None` before its end and after a claim was refused.
    pub ended: Option<bool>,
    /// Number of objectives that were ticked at the first reading.
    ticked_at_first: Option<u32>,
}

impl Proof {
    /// Resets the evidence at the start of an attempt.
    pub fn began(&mut self) {
        self.refused();
        self.gates.clear();
        self.objectives = None;
    }

    pub fn refused(&mut self) {
        self.claimed = false;
        self.ended = None;
    }

    pub fn answered(&mut self, answers: &Answers) {
        if let Some(seen) = &answers.objectives {
            self.objectives = Some(false);
            if let ObjectivesSeen::Read { objectives } = seen {
                let first = *self.ticked_at_first.get_or_insert(objectives.ticked);
                let all = objectives.all_ticked();
                self.objectives = Some(all);
                self.claimed |= all && objectives.ticked > first && self.ended == Some(true);
            }
        }
        let claims = |script: &ScriptResult| script.verdict == ScriptVerdict::Claim;
        self.claimed |= self.ended.is_some() && answers.scripts.iter().any(claims);
    }

    pub fn suffices(&self, policy: &Policy) {
        assert!(self.claimed, "a loop is done only after a claim");
        for gate in &policy.completion.gates {
            let passed = |result: &GateResult| result.name == gate.name && result.passed();
            assert!(
                self.gates.iter().any(passed),
                "every gate has passed for the claim"
            );
        }
        assert!(
            !policy.completion.objectives || self.objectives == Some(true),
            "all objectives are ticked"
        );
        let blind = policy.autocommit.is_none() && !policy.agent.event_stream;
        assert!(
            self.worked || blind || policy.autocommit.is_some(),
            "some work was done"
        );
    }
}
