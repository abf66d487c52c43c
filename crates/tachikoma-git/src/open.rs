//! Opens the tracker of a loop's work: reads what the last runner remembered, and surveys the work tree.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use tachikoma_config::Protected;
use tachikoma_core::LoopId;

use super::change_owner::ChangeOwner;
use super::differences::Dirty;
use super::index::LoopIndex;
use super::intent::take_back_intended;
use super::loop_files::{INDEX, WORK};
use super::program::{CancelToken, GitError};
use super::repository::{Found, Repository};
use super::runtime_files::RuntimeFiles;
use super::work_record::{Remembered, WorkRecord};
use super::work_tracker::{Survey, Watched, WorkTracker};

/// What a keeper is told before it begins.
#[derive(Clone, Debug)]
pub struct TrackerOptions {
    /// The working directory of the loop.
    pub working_dir: PathBuf,
    /// The directory of the loop's own files, absolute.
    pub loop_dir: PathBuf,
    /// The loop.
    pub loop_id: LoopId,
    /// The `PATH` in which git is looked for.
    pub search_path: Option<OsString>,
    /// Variables that git does not get.
    pub hidden: Vec<OsString>,
    /// What is never kept.
    pub protected: Protected,
    /// New files above this are left out; 0 is for no limit.
    pub max_file_bytes: u64,
    /// What else the loop writes.
    pub runtime_files: RuntimeFiles,
}

/// How a keeper began.
#[derive(Debug)]
pub enum Opened {
    /// It is ready, and this is what it found.
    Ready {
        /// The keeper.
        tracker: Box<WorkTracker>,
        /// The opening survey.
        survey: Survey,
    },
    /// There is no repository.
    NoRepository,
    /// There is one that cannot be used, or no `git`.
    Unusable {
        /// Why, in one line.
        reason: String,
    },
}

/// Begins, with a survey of all that changed since the last one of this loop. Blocks.
#[must_use]
pub fn open(options: TrackerOptions, owner: ChangeOwner, cancel: &CancelToken) -> Opened {
    let found = Repository::find(&options.working_dir, options.search_path.as_deref(), cancel);
    let repository = match found {
        Found::Repository(repository) => {
            repository.of_loop(options.loop_id, options.hidden.clone())
        }
        Found::NoRepository => return Opened::NoRepository,
        Found::Unusable { reason } => return Opened::Unusable { reason },
    };
    match begin(repository, options, owner, cancel) {
        Ok((tracker, survey)) => Opened::Ready { tracker, survey },
        Err(error) => Opened::Unusable {
            reason: tachikoma_core::error_chain(&error),
        },
    }
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
        Remembered::Nothing if index.exists() => Some("it is gone"),
        Remembered::Work(_) | Remembered::Nothing => None,
        Remembered::Damaged(why) => Some(why.as_str()),
    };
    if let Some(why) = why {
        warnings.push(format!(
            "what is known of uncommitted work cannot be read ({}: {why}); none of it is committed by the loop until it changes after a commit of yours",
            work_path.display()
        ));
    }
    let (work, fresh) = match remembered {
        Remembered::Work(work) => (*work, false),
        Remembered::Nothing | Remembered::Damaged(_) => (WorkRecord::default(), true),
    };
    let watched = Watched::new(&repository, cancel)?;
    let mut tracker = Box::new(WorkTracker {
        loop_id: options.loop_id,
        loop_index: LoopIndex {
            runtime_files: options.runtime_files.below(&repository.top),
            repository,
            index,
            protected: options.protected,
            max_file_bytes: options.max_file_bytes,
        },
        work_path,
        work,
        fresh,
        surveyed: None,
        judged: false,
        known: None,
        index_mark: None,
        watched,
        head: None,
        equals_head: None,
        dirty: Dirty::new(),
        dirty_follows: false,
        protected_changed: Vec::new(),
        said: BTreeSet::new(),
        unsaid: Vec::new(),
        owed: BTreeSet::new(),
        snapshot_checked: false,
        referenced: None,
        refs_are_files: false,
    });
    // Another git may hold the lock; then the next runner, or the next commit that fails, does it.
    let _ = take_back_intended(&mut tracker, cancel);
    let mut survey = tracker.survey(owner, cancel)?;
    survey.warnings.splice(0..0, warnings);
    Ok((tracker, survey))
}
