//! The keeper of a loop's work: what it remembers, and how it begins.

use std::ffi::OsString;
use std::path::PathBuf;

use tachikoma_core::LoopId;

use super::program::CallOff;
use super::protected::Protected;
use super::repository::{Found, Repository};
use super::survey::{Survey, Whose};

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
    /// What is never kept.
    pub protected: Protected,
    /// New files above this are left out; 0 is for no limit.
    pub max_file_bytes: u64,
}

/// Keeps the work of a loop in its repository.
#[derive(Debug)]
pub struct Keeper {
    pub(super) repository: Repository,
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

impl Keeper {
    /// Begins, with a survey of all that changed since the last one of this loop. Blocks.
    #[must_use]
    pub fn open(options: KeeperOptions, whose: Whose, call_off: &CallOff) -> Opened {
        let found = Repository::find(
            &options.working_dir,
            options.search_path.as_deref(),
            call_off,
        );
        let repository = match found {
            Found::Repository(repository) => repository.of_loop(options.loop_id),
            Found::NoRepository => return Opened::NoRepository,
            Found::Unusable { reason } => return Opened::Unusable { reason },
        };
        let mut keeper = Box::new(Self { repository });
        match keeper.survey(whose, call_off) {
            Ok(survey) => Opened::Ready { keeper, survey },
            Err(error) => Opened::Unusable {
                reason: crate::chain(&error),
            },
        }
    }
}

/// Returns the work tree as it is now, as a tree: what a snapshot would have. `index` is made for it, and is the caller's to
/// remove. Blocks.
///
/// # Errors
/// Git fails or is called off.
pub fn present(
    repository: &Repository,
    _protected: &Protected,
    _max_file_bytes: u64,
    index: &std::path::Path,
    call_off: &CallOff,
) -> Result<String, super::program::GitError> {
    let order = repository.git.order(&["write-tree"]);
    order.index(index).ask_line(call_off)
}
