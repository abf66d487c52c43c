//! Opens the tracker of a loop's work: reads the record of the last runner and surveys the work tree.

use std::ffi::OsString;
use std::path::PathBuf;

use tachikoma_core::LoopId;

use super::change_owner::ChangeOwner;
use super::index::LoopIndex;
use super::intent::undo_intent_to_add;
use super::loop_files::{INDEX, WORK};
use super::program::{CancelToken, GitError};
use super::repository::Repository;
use super::rules::Rules;
use super::work_record::WorkRecord;
use super::work_tracker::{Detector, HeadState, SnapshotRefs, Survey, Warnings, WorkTracker};

/// Options of a tracker.
#[derive(Clone, Debug)]
pub struct TrackerOptions {
    /// The working directory of the loop.
    pub working_dir: PathBuf,
    /// Absolute path of the directory with the loop's files.
    pub loop_dir: PathBuf,
    /// Id of the loop.
    pub loop_id: LoopId,
    /// The `PATH` in which git is searched; `None` = that of this process.
    pub search_path: Option<OsString>,
    /// Environment variables that are removed for git.
    pub hidden: Vec<OsString>,
    /// Files that are left out of snapshots and commits.
    pub rules: Rules,
}

/// Opens a tracker, with a survey of the changes since the last survey of this loop; `None` if there is no repository. Blocks.
///
/// # Errors
/// The repository cannot be used, or `git` is not installed. The error is the cause, in one line.
pub fn open(
    options: TrackerOptions,
    owner: ChangeOwner,
    cancel: &CancelToken,
) -> Result<Option<(Box<WorkTracker>, Survey)>, String> {
    let found = Repository::find(&options.working_dir, options.search_path.as_deref(), cancel)?;
    let Some(repository) = found else {
        return Ok(None);
    };
    let repository = repository.of_loop(options.loop_id, options.hidden.clone());
    let begun = begin(repository, options, owner, cancel);
    begun
        .map(Some)
        .map_err(|error| tachikoma_core::error_chain(&error))
}

pub fn begin(
    repository: Repository,
    options: TrackerOptions,
    owner: ChangeOwner,
    cancel: &CancelToken,
) -> Result<(Box<WorkTracker>, Survey), GitError> {
    let work_path = options.loop_dir.join(WORK);
    let index = options.loop_dir.join(INDEX);
    let mut warnings = Vec::new();
    let remembered = WorkRecord::read(&work_path);
    let why = match &remembered {
        Ok(None) if index.exists() => Some("it is missing"),
        Ok(_) => None,
        Err(why) => Some(why.as_str()),
    };
    if let Some(why) = why {
        warnings.push(format!(
            "the record of which uncommitted changes the loop made cannot be read ({}: {why}); the loop does not commit the changes that exist now, so commit or revert them yourself",
            work_path.display()
        ));
    }
    let remembered = remembered.ok().flatten();
    let fresh = remembered.is_none();
    let detector = Detector::new(&repository, cancel)?;
    let mut tracker = Box::new(WorkTracker {
        loop_id: options.loop_id,
        loop_index: LoopIndex {
            rules: options.rules.within(&repository.top),
            repository,
            index,
        },
        work_path,
        work: remembered.unwrap_or_default(),
        fresh,
        surveyed: None,
        detector,
        head: HeadState::default(),
        warnings: Warnings::default(),
        refs: SnapshotRefs::default(),
    });
    // This fails if another git process holds the lock of the user's index. The next runner or the next failed commit tries again.
    let _ = undo_intent_to_add(&mut tracker, cancel);
    let mut survey = tracker.survey(owner, cancel)?;
    survey.warnings.splice(0..0, warnings);
    Ok((tracker, survey))
}
