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

/// Why a claim of completion is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The claims that are refused.
    pub claims: Vec<Claim>,
    /// All doubts about the claims.
    pub reasons: Vec<String>,
    /// Number of claims in a row that passed all checks, this one included.
    pub confirmed: u32,
}

/// A check in progress, after an iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The check that runs.
    pub stage: CheckStage,
    /// Deadline of the check; `None` = no deadline.
    pub until: Option<Timestamp>,
    /// The wait that is due after the check; `None` without a wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Wait>,
}

/// A check after an iteration. Objectives and scripts come first, because gates have to prove their claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CheckStage {
    /// The objectives are read, and the stop scripts run.
    Asking,
    /// The gates run.
    Gates {
        /// Names of the gates, in the order in which they run.
        names: Vec<String>,
        /// Whether the gates run because completion is claimed.
        claimed: bool,
    },
}

/// Result of one gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateResult {
    /// Name of the gate.
    pub name: String,
    /// How long the gate took, in milliseconds.
    pub duration_ms: u64,
    /// Why the gate failed; `None` if it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// End of the gate's output; `None` without output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Name of the file with the whole output, in the loop's directory; `None` if there is no such file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl GateResult {
    /// Returns whether the gate passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.error.is_none()
    }
}

/// The objectives, and the answers of the stop scripts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// The objectives; `None` if none are configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objectives: Option<ObjectivesSeen>,
    /// Results of the stop scripts, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scripts: Vec<ScriptResult>,
}

/// Result of one stop script.
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
    /// Returns a warning if the answer of the script cannot be used.
    pub(crate) fn unclear(&self) -> Option<String> {
        match &self.verdict {
            ScriptVerdict::Unclear { problem } => Some(format!(
                "the stop script `{}` gave no usable answer: {problem}",
                self.name
            )),
            ScriptVerdict::GoOn | ScriptVerdict::Claim | ScriptVerdict::Stop => None,
        }
    }
}

impl Answers {
    /// Returns warnings about stop scripts.
    pub(crate) fn unclear(&self) -> Vec<String> {
        self.scripts
            .iter()
            .filter_map(ScriptResult::unclear)
            .collect()
    }
}

/// Answer of a stop script.
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

/// Result of reading the objectives.
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

/// How an attempt ended, which decides whether its claims are valid.
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
    /// The operator or a limit of the model's service ended the attempt.
    Cut,
}

/// Checks that are due before the next iteration.
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

/// Claims and checks of completion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Completion {
    /// Number of the latest check. Results carry the number of their check.
    pub number: u64,
    /// Whether the loop has done nothing yet: no changed file, commit or successful tool call.
    pub idle: bool,
    /// How the latest attempt ended.
    pub ended: AttemptEnd,
    /// Checks that are due after the latest attempt.
    pub owed: Owed,
    /// Claims of completion in the current iteration.
    pub claims: Vec<Claim>,
    /// Number of claims of completion in a row that passed all checks.
    pub confirmed: u32,
    /// Number of successful iterations when the last of these claims was made.
    pub confirmed_at: u32,
    /// Reasons why the latest claim of completion was rejected.
    pub refused: Vec<String>,
    /// Whether the next prompt has to report failed gates or the refused claim.
    #[serde(rename = "to_be_told")]
    pub feedback_due: bool,
    /// Number of the iteration that the report in the next prompt is about.
    #[serde(rename = "told_of")]
    pub feedback_iteration: u32,
    /// Why the checks were canceled; `None` if they finished.
    pub given_up: Option<String>,
    /// The iteration after which gates last ran.
    pub gates_at: u32,
    /// Results of the gates when they last ran.
    pub gates: Vec<GateResult>,
    /// Whether the gates before the first iteration have run or were canceled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub baseline: bool,
    /// The objectives when they were last read; `None` before that.
    pub objectives: Option<ObjectivesSeen>,
    /// Number of ticked objectives when they were first read; `None` before that.
    pub ticked_before: Option<u32>,
    /// Largest number of objectives that was ever read. A smaller number later means that objectives were removed.
    pub most_objectives: u32,
    /// Warnings about stop scripts when they last ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unclear: Vec<String>,
}

impl Completion {
    /// Returns the state of a new loop.
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
            // The prompt of this successful attempt contained the feedback.
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

    /// Updates the objectives. Returns whether they claim completion: all are ticked after a successful attempt, and not all were ticked
    /// before.
    pub(crate) fn objectives_read(&mut self, objectives: &Objectives) -> bool {
        let ticked = objectives.ticked;
        let before = *self.ticked_before.get_or_insert(ticked);
        self.most_objectives = self.most_objectives.max(objectives.total);
        let went_well = self.owed != Owed::Nothing && self.ended == AttemptEnd::Succeeded;
        went_well && objectives.all_ticked() && ticked > before
    }

    pub(crate) fn seen_in_the_tree(&mut self, result: &AutocommitResult) {
        // A commit without new changes contains files from before the attempt, such as files that gates wrote.
        if result.changed > 0 || result.head_moved {
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

/// Returns the last `max_bytes` of an output, because the end usually shows the result.
pub(crate) fn end_of(text: &str, max_bytes: usize) -> &str {
    let text = text.trim_end();
    let start = text.ceil_char_boundary(text.len().saturating_sub(max_bytes));
    text.get(start..).unwrap_or_default()
}
