//! The data that `tachikoma status` shows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::policy::stop::{Condition, conditions_for};
use crate::{
    AutocommitPurpose, CheckStage, GateResult, LoopId, LoopState, LoopStats, ObjectivesSeen,
    OperatorMessage, Outcome, Phase, Question, RebootResult, Runner, Score, SessionNo, State,
    TestsReport, Timestamp, Uploads,
};

/// The object that `status --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Id of the loop.
    pub loop_id: LoopId,
    /// Public state of the loop.
    pub state: LoopState,
    /// Number of the iteration that was started last.
    pub iteration: u32,
    /// Number of the attempt at the iteration, from 1.
    pub attempt: u32,
    /// The current session.
    pub session: SessionSummary,
    /// Number of iterations that the session has finished.
    pub session_iterations: u32,
    /// The fill of the session's context; `None` until it is known.
    pub context: Option<ContextSummary>,
    /// What the loop waits for; `None` if it does not wait.
    pub waiting: Option<WaitSummary>,
    /// Whether a pause is requested that has not begun, because the current iteration, reboot or check has to end first.
    #[serde(default)]
    pub pause_requested: bool,
    /// How the loop is about to end, after its agent, commit or hooks; `None` if it continues.
    #[serde(default)]
    pub ending: Option<OutcomeSummary>,
    /// The open question to the operator; `None` without one.
    #[serde(default)]
    pub question: Option<Question>,
    /// The open question of a loop without a runner; the next run asks it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question_left: Option<Question>,
    /// Number of the question that was not answered in time, while the loop is paused because of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<u32>,
    /// Whether attended mode is on; `None` if it is not known.
    #[serde(default)]
    pub attended: Option<bool>,
    /// Messages to the agent that no successful iteration had in its prompt yet.
    #[serde(default)]
    #[serde(rename = "told")]
    pub messages: Vec<OperatorMessage>,
    /// The pending reboot; `None` without one.
    #[serde(default)]
    pub reboot: Option<RebootSummary>,
    /// The last reboot, if it was canceled or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_failed: Option<FailedReboot>,
    /// The stop conditions with their current values.
    #[serde(default)]
    pub stop_conditions: Vec<ConditionSummary>,
    /// Commits and uncommitted files; `None` outside of a repository.
    #[serde(default)]
    pub git: Option<GitSummary>,
    /// Uploads of backups; `None` if none was tried.
    #[serde(rename = "copies", default, skip_serializing_if = "Option::is_none")]
    pub uploads: Option<Uploads>,
    /// Claims and checks of completion; `None` before the first.
    #[serde(default)]
    pub completion: Option<CompletionSummary>,
    /// Progress of the work; `None` before the first measurement.
    #[serde(default)]
    pub progress: Option<ProgressSummary>,
    /// Summary of the last run of the tests; `None` before the first.
    #[serde(default)]
    pub tests: Option<TestsReport>,
    /// Totals of the loop.
    pub stats: LoopStats,
    /// How the loop ended; `None` if it has not.
    pub outcome: Option<OutcomeSummary>,
    /// When the loop was first started.
    pub started_at: Option<Timestamp>,
    /// Time of the last record.
    pub last_activity: Option<Timestamp>,
    /// The process that runs the loop; `None` without one.
    pub runner: Option<Runner>,
}

/// A session, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// Number of the session.
    pub number: SessionNo,
    /// The agent's id of the conversation; `None` until it is known.
    pub agent_id: Option<String>,
}

/// A context reading, as `status` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextSummary {
    /// The fill of the context in percent, to one decimal.
    pub percent: f64,
    /// Tokens in the context.
    pub tokens: u64,
    /// Tokens that fit into the context window.
    pub window: u64,
    /// Whether the numbers are an estimate.
    pub estimated: bool,
    /// Change of the tokens in the context during the current or the last iteration.
    #[serde(default)]
    pub trend_tokens: i64,
    /// Redline in tokens; `None` if sessions are not rebooted.
    #[serde(default)]
    pub redline_tokens: Option<u64>,
}

/// A wait, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitSummary {
    /// What the loop waits for.
    pub reason: String,
    /// When the wait ends; `None` if only the operator can end it.
    pub until: Option<Timestamp>,
}

/// A pending reboot, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootSummary {
    /// Why a reboot is due.
    pub reason: String,
    /// The rate limits do not allow the reboot before this time; `None` = at the next tool boundary.
    pub not_before: Option<Timestamp>,
    /// The last iteration for which the operator postponed the reboot; `None` if it is not postponed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_off: Option<u32>,
}

/// A reboot that failed or was canceled, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedReboot {
    /// Number of the iteration that was started last before the reboot.
    pub iteration: u32,
    /// When the reboot failed.
    pub time: Timestamp,
    /// Whether a hook canceled the reboot. Otherwise the reboot failed.
    #[serde(rename = "called_off")]
    pub canceled: bool,
    /// Error of the hook or of the reboot.
    pub error: String,
    /// Number of failed reboots in a row.
    pub in_a_row: u32,
}

/// A stop condition, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionSummary {
    /// Configuration key of the stop condition.
    pub name: String,
    /// The measured value.
    pub value: String,
    /// The limit.
    pub limit: String,
    /// The value in percent of the limit.
    pub percent: u8,
    /// Whether the limit is reached.
    pub met: bool,
    /// The value and the limit in words.
    pub words: String,
    /// Estimated time at which the limit is reached; `None` if it cannot be estimated.
    #[serde(rename = "gone_at")]
    pub exhausted_at: Option<Timestamp>,
}

/// The work in the repository, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitSummary {
    /// The latest commit of the loop; `None` before the first.
    pub last_commit: Option<CommitSummary>,
    /// Number of commits that the loop made.
    pub commits: u32,
    /// Files that the loop changed and that are not committed.
    pub uncommitted: u32,
    /// Files that the loop changed and does not commit, because the user had changed them before.
    #[serde(default)]
    pub withheld: u32,
    /// Number of files that the latest attempt changed; `None` if it is unknown.
    pub files_changed: Option<u32>,
    /// Hash of the latest snapshot of the work tree; `None` before the first.
    pub snapshot: Option<String>,
    /// At which point of the loop a commit is being made; `None` if none is.
    pub keeping: Option<AutocommitPurpose>,
}

/// Claims and checks of completion, as `status` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletionSummary {
    /// Whether completion is claimed and the claim is not judged yet.
    pub claimed: bool,
    /// Number of claims in a row that passed all checks.
    pub confirmed: u32,
    /// Why the latest claim was refused; empty after the next successful iteration.
    pub refused: Vec<String>,
    /// Results of the gates when they last ran.
    pub gates: Vec<GateSummary>,
    /// The iteration after which the gates last ran; 0 if they never did.
    pub gates_iteration: u32,
    /// The objectives when they were last read; `None` before that.
    pub objectives: Option<ObjectivesSeen>,
    /// The check that runs now; `None` if none does.
    pub checking: Option<CheckStage>,
}

/// Progress of the work, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressSummary {
    /// The last iteration with progress; `None` before the first.
    pub last_iteration: Option<u32>,
    /// Number of iterations in a row without progress.
    pub iterations_without: u32,
    /// The latest scores, from 0 to 100, oldest first.
    pub scores: Vec<Score>,
}

/// A gate, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateSummary {
    /// Name of the gate.
    pub name: String,
    /// Whether the gate passed.
    pub passed: bool,
    /// Why the gate failed; `None` if it passed.
    pub error: Option<String>,
    /// How long the gate took, in milliseconds.
    pub duration_ms: u64,
}

impl From<&GateResult> for GateSummary {
    fn from(result: &GateResult) -> Self {
        Self {
            name: result.name.clone(),
            passed: result.passed(),
            error: result.error.clone(),
            duration_ms: result.duration_ms,
        }
    }
}

/// A commit, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitSummary {
    /// Full hash of the commit.
    pub id: String,
    /// Number of files in the commit.
    pub files: u32,
    /// The iteration that was started last when the commit was made.
    pub iteration: u32,
}

/// An outcome, as `status` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeSummary {
    /// Kind of the outcome, such as `done` or `error`.
    pub kind: String,
    /// The outcome in words.
    pub reason: String,
}

impl Status {
    /// Returns the status of a state. `live` says whether a runner runs the loop. Without one, a loop that has not ended is idle.
    #[must_use]
    pub fn of(state: &State, live: bool) -> Self {
        Self::at(state, live, state.time)
    }

    /// Returns the status at a later time, because running time increases even without new records.
    #[must_use]
    pub fn at(state: &State, live: bool, now: Timestamp) -> Self {
        let ended = state.outcome();
        let public = if live || ended.is_some() {
            state.public()
        } else {
            LoopState::Idle
        };
        Self {
            loop_id: state.loop_id,
            state: public,
            iteration: state.iteration,
            attempt: state.attempt,
            session: SessionSummary {
                number: state.session.number,
                agent_id: state.session.agent_id.clone(),
            },
            session_iterations: state.session.iterations,
            context: context(state),
            waiting: if live { waiting(state) } else { None },
            pause_requested: state.pause_requested && ended.is_none(),
            ending: (state.pending_end())
                .filter(|_| live && ended.is_none())
                .map(|end| outcome(&end)),
            question: state.question().filter(|_| live).cloned(),
            question_left: state.question().filter(|_| !live).cloned(),
            unanswered: (state.operator.unanswered).filter(|_| state.public() == LoopState::Paused),
            attended: attended(state),
            messages: state.operator.messages.clone(),
            reboot: state.pending_reboot().map(|reason| RebootSummary {
                reason: reason.to_string(),
                not_before: state.reboot_not_before,
                put_off: state
                    .operator
                    .put_off
                    .filter(|last| state.next_iteration() <= *last),
            }),
            reboot_failed: reboot_failed(state),
            stop_conditions: conditions(state, if live { now } else { state.time }),
            git: git(state, live),
            uploads: Some(state.uploads.clone()).filter(|uploads| !uploads.is_empty()),
            completion: completion(state, live),
            progress: progress(state),
            tests: state.progress.tests.clone(),
            stats: state.stats,
            outcome: ended.map(outcome),
            started_at: state.started_at,
            last_activity: state.started_at.map(|_| state.time),
            runner: if live { state.runner.clone() } else { None },
        }
    }
}

fn outcome(outcome: &Outcome) -> OutcomeSummary {
    OutcomeSummary {
        kind: outcome.kind().to_owned(),
        reason: outcome.to_string(),
    }
}

/// Returns attended mode as set by a command, or as configured; `None` if it is unknown.
fn attended(state: &State) -> Option<bool> {
    let configured = |settings: &BTreeMap<String, String>| {
        let mode = settings.get("attended_mode");
        mode.is_some_and(|mode| mode == "true")
    };
    let settings = state.launch.settings.as_ref();
    state.operator.attended.or(settings.map(configured))
}

fn reboot_failed(state: &State) -> Option<FailedReboot> {
    let last = state.reboots.history.last()?;
    let (canceled, error) = match &last.result {
        RebootResult::Done | RebootResult::Futile { .. } => return None,
        RebootResult::Aborted { error } => (true, error),
        RebootResult::Failed { error } => (false, error),
    };
    Some(FailedReboot {
        iteration: last.iteration,
        time: last.time,
        canceled,
        error: error.clone(),
        in_a_row: state.reboots.failures,
    })
}

fn conditions(state: &State, now: Timestamp) -> Vec<ConditionSummary> {
    let ended = state.outcome().is_some();
    let conditions = conditions_for(&state.limits, state, now);
    let summary = |condition: Condition| ConditionSummary {
        name: condition.name.to_owned(),
        value: condition.value,
        limit: condition.limit,
        percent: condition.percent,
        met: condition.met,
        words: condition.words,
        // A loop that has ended has no forecast.
        exhausted_at: condition.exhausted_at.filter(|_| !ended),
    };
    conditions.into_iter().map(summary).collect()
}

fn context(state: &State) -> Option<ContextSummary> {
    let context = state.session.context?;
    let before = state.session.context_before.map_or(0, |c| c.tokens);
    Some(ContextSummary {
        percent: (context.percent() * 10.0).round() / 10.0,
        tokens: context.tokens,
        window: context.window,
        estimated: context.estimated,
        trend_tokens: i64::try_from(context.tokens).unwrap_or(i64::MAX)
            - i64::try_from(before).unwrap_or(i64::MAX),
        redline_tokens: state.session.redline_tokens,
    })
}

fn git(state: &State, live: bool) -> Option<GitSummary> {
    let tracked = &state.tracked_work;
    // Outside of a repository the work tree is only surveyed.
    let known =
        tracked.snapshot.is_some() || tracked.last_commit.is_some() || tracked.uncommitted > 0;
    known.then(|| GitSummary {
        last_commit: tracked.last_commit.as_ref().map(|last| CommitSummary {
            id: last.commit.id.clone(),
            files: last.commit.files,
            iteration: last.iteration,
        }),
        commits: tracked.commits,
        uncommitted: tracked.uncommitted,
        withheld: tracked.withheld,
        files_changed: tracked.files_changed,
        snapshot: tracked.snapshot.as_ref().map(|last| last.commit.clone()),
        keeping: state
            .autocommit()
            .filter(|_| live)
            .map(|autocommit| autocommit.purpose),
    })
}

fn progress(state: &State) -> Option<ProgressSummary> {
    let known = &state.progress;
    (!known.recent.is_empty()).then(|| ProgressSummary {
        last_iteration: known.last,
        iterations_without: state.stats.no_progress_count,
        scores: known.recent.clone(),
    })
}

fn completion(state: &State, live: bool) -> Option<CompletionSummary> {
    let known = &state.completion;
    let checking = state.check().filter(|_| live);
    let something = checking.is_some()
        || known.objectives.is_some()
        || !(known.claims.is_empty() && known.refused.is_empty() && known.gates.is_empty());
    something.then(|| CompletionSummary {
        claimed: !known.claims.is_empty() && state.outcome() != Some(&Outcome::Done),
        confirmed: known.confirmed,
        refused: known.refused.clone(),
        gates: known.gates.iter().map(Into::into).collect(),
        gates_iteration: known.gates_at,
        objectives: known.objectives.clone(),
        checking: checking.map(|check| check.stage.clone()),
    })
}

fn waiting(state: &State) -> Option<WaitSummary> {
    match &state.phase {
        Phase::Waiting { wait } => Some(WaitSummary {
            reason: wait.reason.to_string(),
            until: match state.question() {
                Some(question) => question.until,
                None => Some(wait.until),
            },
        }),
        Phase::Paused { .. } => Some(WaitSummary {
            reason: "operator".to_owned(),
            until: None,
        }),
        Phase::Hooking { hooking } => Some(WaitSummary {
            reason: format!("hooks:{}", hooking.point),
            until: Some(hooking.until),
        }),
        _ => None,
    }
}
