//! The keeper of a loop's work: what it remembers, and how it begins.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use tachikoma_core::LoopId;

use super::bundle;
use super::differences::Dirty;
use super::index::Ground;
use super::own::Own;
use super::path::RepoPath;
use super::program::{CallOff, GitError};
use super::repository::{Found, Repository};
use super::scan::Known;
use super::survey::{Survey, Watched};
use super::whose::Whose;
use super::work::{Remembered, Work};
use tachikoma_config::Protected;

/// The index of the loop's own, in the directory of the loop.
pub const INDEX: &str = "git-index";

/// What is remembered from one runner to the next.
pub const WORK: &str = "git-work.json";

/// Returns whether a file of that name in the directory of a loop is a keeper's.
pub fn is_ours_in_loop(name: &str) -> bool {
    // Git's lock on the index, and the index before it is whole.
    let index = name.strip_prefix(INDEX);
    name == WORK
        || bundle::is_ours_in_loop(name)
        || index.is_some_and(|rest| matches!(rest, "" | ".lock" | ".new"))
}

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

/// Keeps the work of a loop in its repository.
#[derive(Debug)]
pub struct Keeper {
    pub(crate) loop_id: LoopId,
    pub(crate) ground: Ground,
    pub(crate) work_path: PathBuf,
    pub(crate) work: Work,
    /// Whether nothing is remembered, and all that is uncommitted is somebody else's.
    pub fresh: bool,
    /// When the last survey of this runner began, by the clock that stamps files.
    pub surveyed: Option<i64>,
    /// Whether what is uncommitted is known.
    pub judged: bool,
    /// What is known of the work tree; none if it has to be found out anew.
    pub known: Option<Known>,
    /// What the index of the loop's own looked like when it was last written; none before.
    pub index_mark: Option<u64>,
    pub(crate) watched: Watched,
    /// The commit that the work tree stands on; none on a branch without commits.
    pub head: Option<String>,
    /// A tree that is that of this commit.
    pub equals_head: Option<String>,
    /// What differs from that commit.
    pub dirty: Dirty,
    /// Whether that is known since the work tree stands on that commit.
    pub dirty_follows: bool,
    /// Protected files that changed since that was last looked into.
    pub protected_changed: Vec<RepoPath>,
    /// What was said already.
    pub said: BTreeSet<RepoPath>,
    /// What the next survey is to say.
    pub unsaid: Vec<String>,
    /// Snapshots that have no reference yet: that of the last commit.
    pub owed: BTreeSet<u32>,
    /// Whether the commit of the last snapshot is known to be there.
    pub snapshot_checked: bool,
    /// Iterations whose snapshots have references; none before they were asked for.
    pub referenced: Option<BTreeSet<u32>>,
    /// Whether git was seen to keep the loop's references as files.
    pub refs_are_files: bool,
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
    /// Returns how many files the loop changed and has not committed.
    #[must_use]
    pub fn left(&self) -> usize {
        self.uncommitted().count()
    }

    /// Returns how many files the loop changed and does not commit, because somebody else had changed them before.
    #[must_use]
    pub fn withheld(&self) -> usize {
        self.work.withheld.len()
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
        match Self::begin(repository, options, whose, call_off) {
            Ok((keeper, survey)) => Opened::Ready { keeper, survey },
            Err(error) => Opened::Unusable {
                reason: tachikoma_core::error_chain(&error),
            },
        }
    }

    pub(crate) fn begin(
        repository: Repository,
        options: KeeperOptions,
        whose: Whose,
        call_off: &CallOff,
    ) -> Result<(Box<Self>, Survey), GitError> {
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
        let mut keeper = Box::new(Self {
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
        let _ = keeper.take_back_intended(call_off);
        let mut survey = keeper.survey(whose, call_off)?;
        survey.warnings.splice(0..0, warnings);
        Ok((keeper, survey))
    }
}
