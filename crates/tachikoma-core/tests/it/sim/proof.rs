//! A second opinion on whether a claim of completion may be believed.

use tachikoma_core::{Answers, GateResult, ObjectivesSeen, Policy, ScriptResult, ScriptVerdict};

/// What speaks for a claim of completion.
#[derive(Default)]
pub struct Proof {
    pub claimed: bool,
    pub worked: bool,
    pub gates: Vec<GateResult>,
    pub objectives: Option<bool>,
    /// Whether the latest attempt went well; none where nothing is owed to it.
    pub ended: Option<bool>,
    /// How many objectives were ticked at first.
    ticked_at_first: Option<u32>,
}

impl Proof {
    /// An attempt begins, with nothing known of it.
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
        assert!(self.claimed, "only what is claimed is done");
        for gate in &policy.completion.gates {
            let passed = |result: &GateResult| result.name == gate.name && result.passed();
            assert!(self.gates.iter().any(passed), "a claim passes every gate");
        }
        assert!(
            !policy.completion.objectives || self.objectives == Some(true),
            "a claim needs all objectives ticked"
        );
        let blind = policy.autocommit.is_none() && !policy.agent.event_stream;
        assert!(
            self.worked || blind || policy.autocommit.is_some(),
            "something was done"
        );
    }
}
