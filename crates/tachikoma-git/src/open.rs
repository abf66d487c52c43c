//! Opens the tracker of a loop's work: reads what the last runner remembered, and surveys the work tree.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use tachikoma_config::Protected;
use tachikoma_core::LoopId;

use super::differences::Dirty;
use super::index::Ground;
use super::intent::take_back_intended;
use super::loop_files::{INDEX, WORK};
use super::own::Own;
use super::program::{CallOff, GitError};
use super::repository::{Found, Repository};
use super::whose::Whose;
use super::work::{Remembered, Work};
use super::work_tracker::{Keeper, Survey, Watched};

/// What a keeper is told before it begins.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
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
    pub own: Own,
}

/// How a keeper began.
#[derive(Debug)]
pub enum Opened {
    /// It is ready, and this is what it found.
    Ready {
        /// The keeper.
        keeper: Box<Keeper>,
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
pub fn open(options: KeeperOptions, whose: Whose, call_off: &CallOff) -> Opened {
    let found = Repository::find(
        &options.working_dir,
        options.search_path.as_deref(),
        call_off,
    );
    let repository = match found {
        Found::Repository(repository) => {
            repository.of_loop(options.loop_id, options.hidden.clone())
        }
        Found::NoRepository => return Opened::NoRepository,
        Found::Unusable { reason } => return Opened::Unusable { reason },
    };
    match begin(repository, options, whose, call_off) {
        Ok((keeper, survey)) => Opened::Ready { keeper, survey },
        Err(error) => Opened::Unusable {
            reason: tachikoma_core::error_chain(&error),
        },
    }
}

pub fn begin(
    repository: Repository,
    options: KeeperOptions,
    whose: Whose,
    call_off: &CallOff,
) -> Result<(Box<Keeper>, Survey), GitError> {
    let work_path = options.loop_dir.join(WORK);
    let index = options.loop_dir.join(INDEX);
    let mut warnings = Vec::new();
    let remembered = Work::read(&work_path);
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
        Remembered::Nothing | Remembered::Damaged(_) => (Work::default(), true),
    };
    let watched = Watched::new(&repository, call_off)?;
    let mut keeper = Box::new(Keeper {
        loop_id: options.loop_id,
        ground: Ground {
            own: options.own.below(&repository.top),
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
    let _ = take_back_intended(&mut keeper, call_off);
    let mut survey = keeper.survey(whose, call_off)?;
    survey.warnings.splice(0..0, warnings);
    Ok((keeper, survey))
}
