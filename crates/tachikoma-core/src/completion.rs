//! Whether the work is complete: who claims it, what is checked after an iteration, and the results.

mod own_calls;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{AutocommitResult, IterationOutcome, Objectives, Timestamp, Wait};

pub(crate) use own_calls::only_talks_to_the_loop;

/// Maximum number of different claims that are recorded in one iteration.
const CLAIMS_MAX: usize = 8;

/// A claim that the whole work is complete, with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Claim {
    /// The completion promise, in the agent's final text.
    Promise,
    /// `tachikoma done`, of the agent or the operator.
    Done {
        /// The reason that the caller gave.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A stop script says that the work is complete.
    Script {
        /// Name of the stop script.
        name: String,
    },
    /// The objectives, all of which are ticked.
    Objectives,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Promise => f.write_str("the agent's promise"),
            Self::Done { reason: None } => f.write_str("`tachikoma done`"),
            Self::Done {
                reason: Some(reason),
            } => write!(f, "`tachikoma done` ({reason})"),
            Self::Script { name } => write!(f, "the stop script `{name}`"),
            Self::Objectives => f.write_str("the objectives, all of which are ticked"),
        }
    }
}

/// Why a claim of completion is not believed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The claims that are refused.
    pub claims: Vec<Claim>,
    /// Everything that speaks against it.
    pub reasons: Vec<String>,
    /// Claims in a row against which nothing else spoke, this one included.
    pub confirmed: u32,
}

/// A check in progress, after an iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The check that runs.
    pub stage: CheckStage,
    /// When it is given up; none = never.
    pub until: Option<Timestamp>,
    /// The wait that follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Wait>,
}

/// A check after an iteration, in this order: gates have to prove what a script claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CheckStage {
    /// The objectives are read, and the stop scripts are asked.
    Asking,
    /// The gates run.
    Gates {
        /// Names of the gates, in the order in which they run.
        names: Vec<String>,
        /// Whether the gates run because completion is claimed.
        claimed: bool,
    },
}

/// How one gate went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateResult {
    /// Name of the gate.
    pub name: String,
    /// How long the gate took, in milliseconds.
    pub duration_ms: u64,
    /// Why it failed; none where it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The end of what it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The file that has all of it, in the loop's own directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl GateResult {
    /// Returns whether it passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.error.is_none()
    }
}

/// What was found out by reading and asking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// What the objectives say, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objectives: Option<ObjectivesSeen>,
    /// What each stop script said, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scripts: Vec<ScriptResult>,
}

/// What one stop script said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptResult {
    /// Name of the stop script.
    pub name: String,
    /// How long the stop script took, in milliseconds.
    pub duration_ms: u64,
    /// The answer of the stop script, read from its exit code.
    pub verdict: ScriptVerdict,
    /// Last line of the script's output; `None` without output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
}

impl ScriptResult {
    /// Says what is wrong with the script, where something is.
    pub(crate) fn unclear(&self) -> Option<String> {
        match &self.verdict {
            ScriptVerdict::Unclear { problem } => Some(format!(
                "the stop script `{}` is no help: {problem}",
                self.name
            )),
            ScriptVerdict::GoOn | ScriptVerdict::Claim | ScriptVerdict::Stop => None,
        }
    }
}

impl Answers {
    /// Says what is wrong with stop scripts.
    pub(crate) fn unclear(&self) -> Vec<String> {
        self.scripts
            .iter()
            .filter_map(ScriptResult::unclear)
            .collect()
    }
}

/// What a stop script wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ScriptVerdict {
    /// The script lets the loop continue.
    GoOn,
    /// The script claims that the work is complete. Gates have to prove it.
    Claim,
    /// The script ends the loop.
    Stop,
    /// The script failed or gave an unknown answer.
    Unclear {
        /// Why the answer of the script cannot be used.
        problem: String,
    },
}

/// What the file with the objectives says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ObjectivesSeen {
    /// The file with the objectives was read.
    Read {
        /// The check boxes in the file.
        objectives: Objectives,
    },
    /// The file with the objectives could not be read.
    Unknown {
        /// Why the file could not be read.
        reason: String,
    },
}

/// How the latest attempt at an iteration ended, as far as its claims care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    /// The attempt succeeded.
    #[default]
    Succeeded,
    /// The attempt was ended for a reboot. Its changes count.
    HandedOver,
    /// The attempt failed.
    Failed,
    /// The operator or a limit of the model's service ended it.
    Cut,
}

/// What has to be found out before the next iteration, and was not yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owed {
    /// No check is due.
    #[default]
    Nothing,
    /// The objectives, the stop scripts and everything after them are due.
    Answers,
    /// The gates and the judgement of a claim are due.
    Gates,
    /// The judgement of a claim is due.
    Judgement,
}

/// What is known of whether the work is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Completion {
    /// How often something was asked: an answer carries the number of the question.
    pub number: u64,
    /// Whether nothing was seen to be done since the loop began.
    pub idle: bool,
    /// How the latest attempt ended.
    pub ended: AttemptEnd,
    /// What has to be found out about it.
    pub owed: Owed,
    /// Who claims, in the iteration last started, that the work is complete.
    pub claims: Vec<Claim>,
    /// Claims in a row against which nothing spoke.
    pub confirmed: u32,
    /// How many iterations had succeeded when the last of them was made.
    pub confirmed_at: u32,
    /// Why the latest claim was not believed.
    pub refused: Vec<String>,
    /// Whether the next prompt has to report failed gates or the refused claim.
    #[serde(rename = "to_be_told")]
    pub feedback_due: bool,
    /// The iteration that the report is about.
    #[serde(rename = "told_of")]
    pub feedback_iteration: u32,
    /// Why the checks were given up; `None` if they finished.
    pub given_up: Option<String>,
    /// The iteration after which gates last ran.
    pub gates_at: u32,
    /// Results of the gates when they last ran.
    pub gates: Vec<GateResult>,
    /// Whether gates have run before the first iteration, or were given up there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub baseline: bool,
    /// What the objectives were when they were last read.
    pub objectives: Option<ObjectivesSeen>,
    /// How many of them were ticked when they were first read.
    pub ticked_before: Option<u32>,
    /// The most that there ever were.
    pub most_objectives: u32,
    /// What was wrong with stop scripts when they were last asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unclear: Vec<String>,
}

impl Completion {
    /// Returns what is known of a loop that has not begun.
    pub(crate) fn of_a_new_loop() -> Self {
        Self {
            idle: true,
            ..Self::default()
        }
    }

    pub(crate) fn attempt_started(&mut self) {
        self.owed = Owed::Nothing;
        self.claims.clear();
        self.given_up = None;
    }

    pub(crate) fn attempt_ended(&mut self, end: AttemptEnd) {
        self.ended = end;
        self.owed = match end {
            AttemptEnd::Succeeded | AttemptEnd::HandedOver | AttemptEnd::Failed => Owed::Answers,
            AttemptEnd::Cut => Owed::Judgement,
        };
        if end == AttemptEnd::Succeeded {
            // The prompt of this attempt reported it.
            self.feedback_due = false;
            self.refused.clear();
        }
    }

    /// Returns whether all gates passed that ran after an iteration; `None` if none ran.
    pub(crate) fn gates_passed_after(&self, iteration: u32) -> Option<bool> {
        let ran = !self.gates.is_empty() && self.gates_at == iteration;
        ran.then(|| self.gates.iter().all(GateResult::passed))
    }

    /// Returns whether a claim is new in this iteration.
    pub(crate) fn is_news(&self, claim: &Claim) -> bool {
        self.claims.len() < CLAIMS_MAX && !self.claims.contains(claim)
    }

    /// Takes in what the objectives are. Returns whether that is a claim: all are ticked behind an attempt that went well, and
    /// not all of them were before.
    pub(crate) fn objectives_read(&mut self, objectives: &Objectives) -> bool {
        let ticked = objectives.ticked;
        let before = *self.ticked_before.get_or_insert(ticked);
        self.most_objectives = self.most_objectives.max(objectives.total);
        let went_well = self.owed != Owed::Nothing && self.ended == AttemptEnd::Succeeded;
        went_well && objectives.all_ticked() && ticked > before
    }

    pub(crate) fn seen_in_the_tree(&mut self, kept: &AutocommitResult) {
        // A commit without new changes contains files from before the attempt, such as files that gates wrote.
        if kept.changed > 0 || kept.head_moved {
            self.idle = false;
        }
    }
}

impl From<IterationOutcome> for AttemptEnd {
    fn from(outcome: IterationOutcome) -> Self {
        match outcome {
            IterationOutcome::Succeeded => Self::Succeeded,
            IterationOutcome::HandedOver => Self::HandedOver,
            IterationOutcome::Failed => Self::Failed,
            IterationOutcome::Skipped | IterationOutcome::Interrupted => Self::Cut,
        }
    }
}

/// The end of an output says how it went.
pub(crate) fn end_of(text: &str, max_bytes: usize) -> &str {
    let text = text.trim_end();
    let start = text.ceil_char_boundary(text.len().saturating_sub(max_bytes));
    text.get(start..).unwrap_or_default()
}
