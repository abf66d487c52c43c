//! Autocommits: surveys of the work tree, commits of the loop's changes, and snapshots before iterations.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Context, Escalation, Outcome, SessionNo, Timestamp, Wait, is_zero};

/// A commit in progress, or a survey of the work tree without a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autocommit {
    /// At which point of the loop the commit is made.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub purpose: AutocommitPurpose,
    /// The status in the commit message; `None` = only survey the work tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitStatus>,
    /// Deadline of the commit; `None` = no deadline.
    pub until: Option<Timestamp>,
    /// How the agent's process is being ended. The work tree is surveyed after that; `None` = the process has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closing: Option<Escalation>,
    /// When the agent's process was asked to exit. Only later changes are the agent's. `None` if no process had to be ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Whether the commit was canceled, so that it ends soon.
    #[serde(
        rename = "called_off",
        default,
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub canceled: bool,
    /// The wait that is due after the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Wait>,
    /// How the loop ends after the commit; `None` = the loop continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

impl Autocommit {
    pub(crate) fn postpone(&mut self, duration: Duration) {
        self.until = self.until.map(|until| until.after(duration));
        if let Some(escalation) = &mut self.closing {
            escalation.until = escalation.until.after(duration);
        }
    }
}

/// Which changes since the last survey belong to the loop, unless a survey is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopChanges {
    /// All changes belong to the loop.
    All,
    /// No change belongs to the loop, because nothing of it ran.
    None,
    /// Changes after this time belong to the loop.
    Since(Timestamp),
}

/// When work is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutocommitPurpose {
    /// An attempt at an iteration is over.
    #[default]
    Iteration,
    /// The session is about to be replaced.
    Checkpoint,
    /// The commit is made because the loop ends.
    End,
}

impl fmt::Display for AutocommitPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Status of the work, for the commit message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitStatus {
    /// The iteration of the commit succeeded.
    Succeeded,
    /// The iteration of the commit failed.
    Failed,
    /// The session of the commit is about to be replaced.
    Checkpoint,
    /// The loop ends with the commit.
    End,
}

impl fmt::Display for CommitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Content of a commit message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitOrder {
    /// Number of the iteration that was started last.
    pub iteration: u32,
    /// Status of the work.
    pub status: CommitStatus,
    /// Number of the session.
    pub session: SessionNo,
    /// Fill of the context; `None` if it is unknown.
    pub context: Option<Context>,
}

/// The result of an autocommit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AutocommitResult {
    /// Files that changed since the last survey.
    pub changed: u32,
    /// Names of the first changed files, relative to the working directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Number of added and removed lines; 0 if it is unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub lines: u32,
    /// Whether the agent or the user committed since the last survey.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub head_moved: bool,
    /// Files that the loop changed and that are not committed.
    pub uncommitted: u32,
    /// Files that the loop changed and does not commit, because the user had changed them before.
    #[serde(skip_serializing_if = "is_zero")]
    pub withheld: u32,
    /// The commit that was made; `None` if none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<Committed>,
    /// Why the commit failed; `None` if it succeeded or was not needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl TrackedWork {
    /// Returns the result of an autocommit that finds nothing new.
    #[must_use]
    pub fn as_before(&self) -> AutocommitResult {
        AutocommitResult {
            uncommitted: self.uncommitted,
            withheld: self.withheld,
            ..AutocommitResult::default()
        }
    }
}

/// A commit that the loop made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Full hash of the commit.
    pub id: String,
    /// Number of files in the commit.
    pub files: u32,
}

impl Committed {
    /// Returns the short hash.
    #[must_use]
    pub fn short(&self) -> &str {
        short_commit(&self.id)
    }
}

/// Returns the first digits of a commit hash.
#[must_use]
pub fn short_commit(id: &str) -> &str {
    /// Number of digits that git shows in a small repository.
    const SHORT: usize = 7;
    id.get(..SHORT).unwrap_or(id)
}

/// State of the work tree and its commits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrackedWork {
    /// Number of the latest autocommit. Answers carry the number of their order.
    pub number: u64,
    /// The latest snapshot of the work tree; `None` before the first.
    pub snapshot: Option<Snapshot>,
    /// The latest commit of the loop; `None` before the first.
    pub last_commit: Option<PastCommit>,
    /// Number of commits that the loop made.
    pub commits: u32,
    /// Files that the loop changed and that are not committed.
    pub uncommitted: u32,
    /// Files that the loop changed and does not commit, because the user had changed them before.
    #[serde(skip_serializing_if = "is_zero")]
    pub withheld: u32,
    /// Number of files that the latest attempt changed; `None` if it is unknown.
    pub files_changed: Option<u32>,
    /// Whether an attempt began or ended after the last survey of the work tree.
    #[serde(rename = "unseen")]
    pub unsurveyed: bool,
    /// Whether gates, scripts or the agent may have changed files since the last survey, outside of an iteration. Such changes belong to
    /// the loop.
    pub checked: bool,
    /// Whether the agent worked outside of an iteration since the last survey.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside: bool,
    /// Why the latest commit failed; `None` after a survey without such a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Text for the next prompt: how the operator changed the work tree. `None` once a successful iteration had it in its prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "untold")]
    pub work_tree_note: Option<String>,
}

/// The work tree before an iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The first iteration that began with this content of the work tree.
    pub iteration: u32,
    /// Hash of the snapshot commit, which is on no branch.
    pub commit: String,
}

/// A commit that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastCommit {
    /// When the commit was made.
    pub time: Timestamp,
    /// The iteration that was started last when the commit was made.
    pub iteration: u32,
    /// The commit and its number of files.
    pub commit: Committed,
}
