//! A second opinion on whether a claim of completion may be believed.

use tachikoma_core::{Answers, GateResult, ObjectivesSeen, Policy, ScriptResult, ScriptVerdict};

/// What speaks for a claim of completion.
#[derive(Default)]
pub struct Proof {
    pub claimed: bool,
    pub worked: bool,
    pub gates: Vec<GateResult>,
    pub objectives: Option<bool>,
}

impl Proof {
    pub fn answered(&mut self, answers: &Answers) {
        if let Some(seen) = &answers.objectives {
            let all =
                matches!(seen, ObjectivesSeen::Read { objectives } if objectives.all_ticked());
            self.objectives = Some(all);
            self.claimed |= all;
        }
        let claims = |script: &ScriptResult| script.verdict == ScriptVerdict::Claim;
        self.claimed |= answers.scripts.iter().any(claims);
    }

    pub fn suffices(&self, policy: &Policy) {
        assert!(self.claimed, "only what is claimed is done");
        for gate in &policy.completion.gates {
            let passed = |result: &GateResult| result.name == gate.name && result.passed();
            assert!(self.gates.iter().any(passed), "a claim passes every gate");
        }
        assert!(
            !policy.completion.objectives || self.objectives == Some(true),
            "a claim needs all objectives ticked"
        );
        let blind = policy.keep.is_none() && !policy.agent.event_stream;
        assert!(
            self.worked || blind || policy.keep.is_some(),
            "something was done"
        );
    }
}
