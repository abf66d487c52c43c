//! The way back: the work tree becomes what a snapshot has. HEAD, the user's index, stashes, protected, ignored and huge files and
//! submodules stay as they are, and what cannot be done whole is undone.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tachikoma_core::LoopId;

use super::index::{self, IndexEntry};
use super::index_file::{TemporaryDir, TemporaryIndex};
use super::path::{RepoPath, ancestors, at, ended_by_nul, is_there, parts};
use super::program::{CancelToken, GitError};
use super::repository::Repository;
use super::rollback_backup::RollbackBackup;
use super::snapshots::{self, Kept, Moment};
use super::walk::is_rules;
use super::worktree_tree::{self, Rules, WorktreeTree};

/// Names in one message: the rest is counted.
pub const NAMED_MAX: usize = 10;

/// Writing a large work tree to a slow disk takes minutes.
const TURN_TIMEOUT: Duration = Duration::from_secs(600);

/// The mode of a submodule in a tree.
const GITLINK: &[u8] = b"160000";

/// Who makes commits that are on no branch.
const IDENTITY: [(&str, &str); 4] = [
    ("GIT_AUTHOR_NAME", "tachikoma"),
    ("GIT_AUTHOR_EMAIL", "tachikoma@localhost"),
    ("GIT_COMMITTER_NAME", "tachikoma"),
    ("GIT_COMMITTER_EMAIL", "tachikoma@localhost"),
];

/// Why the work tree cannot be brought back. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    /// Git cannot do it.
    #[error(transparent)]
    Git(#[from] GitError),
    /// Something would have to be overwritten that is not kept anywhere.
    #[error("in the way, and not kept by git: {}", some(.0))]
    InTheWay(Vec<String>),
}

/// Why the work tree was not brought back.
#[derive(Debug, thiserror::Error)]
pub enum PerformError {
    /// What it is could not be set aside. It is as it was.
    #[error(transparent)]
    NotBegun(GitError),
    /// It failed in the middle. It is as it was again.
    #[error("{0}; the work tree is as it was")]
    Undone(Halt),
    /// It failed in the middle, and could not be undone.
    #[error(
        "{why}, and it could not be undone ({}): files of the work tree are of both",
        tachikoma_core::error_chain(back)
    )]
    Half {
        /// Why it failed.
        why: Halt,
        /// Why it was not undone.
        back: Box<GitError>,
    },
}

/// What a rollback failed over.
#[derive(Debug, thiserror::Error)]
pub enum Halt {
    /// Git could not do it: a filter or the disk failed, or something has changed since it was planned.
    #[error("{}", tachikoma_core::error_chain(.0))]
    Git(#[from] GitError),
    /// Git says that it is done, and the files are others.
    #[error("not as they should be: {}", some(.0))]
    Differs(Vec<String>),
}

/// Names the first of many.
#[must_use]
pub fn some(names: &[String]) -> String {
    let shown = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>();
    let shown = shown.join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A rollback that is worked out and can be done.
#[derive(Debug)]
pub struct Rollback {
    present: WorktreeTree,
    loop_dir: PathBuf,
    target: String,
    /// All that is to change.
    paths: Vec<Vec<u8>>,
    /// What differed from its entry in the index before anything was done: nobody could take it in.
    odd: BTreeSet<Vec<u8>>,
    /// What is to go.
    gone: Vec<Vec<u8>>,
    /// What differs and stays as it is: protected, huge and formerly ignored files, submodules, and new ones that nobody has
    /// room to keep.
    pub left: Vec<String>,
}

/// One difference between the work tree and the snapshot.
struct Difference<'a> {
    modes: [&'a [u8]; 2],
    wanted: &'a [u8],
    status: u8,
    path: &'a [u8],
}

impl Rollback {
    /// Works out the way from the work tree as it is to the one that a snapshot has. Nothing that the user sees changes.
    ///
    /// # Errors
    /// Git cannot be asked, or something is in the way.
    pub fn plan(
        repository: Repository,
        loop_dir: &Path,
        rules: &Rules,
        snapshot: &Kept,
        cancel: &CancelToken,
    ) -> Result<Self, RollbackError> {
        let present =
            worktree_tree::worktree_tree(repository, loop_dir, rules, &snapshot.commit, cancel)?;
        let order = present.order(&[
            "diff-tree",
            "-r",
            "-z",
            "--no-renames",
            "--raw",
            &present.tree,
            &snapshot.commit,
        ]);
        let differences = order.ask(cancel)?;
        let entries = present.order(&["ls-files", "-s", "-v", "-z"]);
        let entries = entries.ask(cancel)?;
        let sparse: BTreeSet<&[u8]> = index::entries(&entries)
            .filter(IndexEntry::is_sparse)
            .map(|entry| entry.path)
            .collect();
        let differences = read(&differences);
        let ignored = ignored_then(&present, loop_dir, &snapshot.commit, &differences, cancel)?;
        let crowded = present.crowded.iter();
        let mut left: Vec<String> = crowded
            .map(|path| RepoPath::new(path).to_string())
            .collect();
        let mut wanted = Vec::new();
        for difference in differences {
            let huge = || {
                difference.status == b'D'
                    && rules.is_huge(&at(&present.repository.top, difference.path))
            };
            if sparse.contains(difference.path) {
                // The user wants no file there.
                continue;
            }
            if rules.is_off_limits(&present.repository.top, difference.path)
                || difference.modes.contains(&GITLINK)
                || ignored.contains(difference.path)
                || huge()
            {
                left.push(RepoPath::new(difference.path).to_string());
            } else {
                wanted.push(difference);
            }
        }
        let in_the_way = in_the_way(&present.repository.top, &wanted);
        if !in_the_way.is_empty() {
            return Err(RollbackError::InTheWay(in_the_way));
        }
        let target = target(&present, loop_dir, &wanted, cancel)?;
        let paths = wanted.iter().map(|wanted| wanted.path.to_vec()).collect();
        let gone = wanted.iter().filter(|wanted| wanted.status == b'D');
        let gone = gone.map(|wanted| wanted.path.to_vec()).collect();
        let odd = present.differing(cancel)?;
        let rollback = Self {
            present,
            loop_dir: loop_dir.to_owned(),
            target,
            paths,
            odd,
            gone,
            left,
        };
        rollback.turn(&["--dry-run"], cancel)?;
        Ok(rollback)
    }

    /// Returns the trees: what the work tree is and what it will be.
    #[must_use]
    pub fn trees(&self) -> (&str, &str) {
        (&self.present.tree, &self.target)
    }

    /// Returns whether the work tree is what it is to become.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.present.tree == self.target
    }

    /// Keeps the work tree as it is under a name of its own, which is returned.
    ///
    /// # Errors
    /// Git cannot keep it.
    pub fn keep(
        &self,
        loop_id: LoopId,
        moment: Moment,
        cancel: &CancelToken,
    ) -> Result<String, GitError> {
        let git = &self.present.repository.git;
        let message = format!("tachikoma: {moment} of {loop_id}");
        let mut words = vec!["commit-tree", &self.present.tree, "-m", &message];
        // Before the first commit there is none.
        let head = git.order(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]);
        let head = head.ask_line(cancel);
        if let Ok(head) = &head {
            words.extend(["-p", head]);
        }
        let order = git.order(&words);
        let order = IDENTITY
            .iter()
            .fold(order, |order, (name, value)| order.env(name, *value));
        let commit = order.ask_line(cancel)?;
        let name = snapshots::name(loop_id, moment);
        // Whatever has that name already is not replaced.
        let none = "0".repeat(commit.len());
        let order = git.order(&["update-ref", &name, &commit, &none]);
        order.ask(cancel)?;
        Ok(name)
    }

    /// Brings the work tree back to a moment, and looks whether it is. What fails or is called off in the middle is undone.
    ///
    /// # Errors
    /// It could not be done.
    pub fn perform(self, to: Moment, cancel: &CancelToken) -> Result<(), PerformError> {
        let top = &self.present.repository.top;
        let paths = self.paths.iter().map(Vec::as_slice);
        let aside =
            RollbackBackup::make(&self.loop_dir, top, to, paths).map_err(PerformError::NotBegun)?;
        let why = match self.bring_back(cancel) {
            Ok(()) => {
                aside.remove();
                return Ok(());
            }
            Err(why) => why,
        };
        match aside.put_back() {
            Ok(()) => {
                aside.remove();
                Err(PerformError::Undone(why))
            }
            Err(back) => Err(PerformError::Half {
                why,
                back: Box::new(back),
            }),
        }
    }

    fn bring_back(&self, cancel: &CancelToken) -> Result<(), Halt> {
        self.turn(&[], cancel)?;
        let mut differs = self.present.differing(cancel)?;
        differs.retain(|path| !self.odd.contains(path));
        let top = &self.present.repository.top;
        let still_there = |path: &&Vec<u8>| {
            // In the place of a directory there may be a file by now, and the other way round.
            let there = std::fs::symlink_metadata(at(top, path));
            is_there(top, path) && there.is_ok_and(|there| !there.is_dir())
        };
        differs.extend(self.gone.iter().filter(still_there).cloned());
        if differs.is_empty() {
            return Ok(());
        }
        let names = differs.iter().map(|path| RepoPath::new(path).to_string());
        Err(Halt::Differs(names.collect()))
    }

    /// A work tree that is to be sparse has files outside of it all the same, which git would take away.
    fn turn(&self, how: &[&str], cancel: &CancelToken) -> Result<(), GitError> {
        let mut words = vec!["read-tree", "-m", "-u", "--no-sparse-checkout"];
        words.extend(how);
        words.extend([self.present.tree.as_str(), &self.target]);
        let order = self.present.order(&words).limit(Some(TURN_TIMEOUT));
        // What is set aside has a second name, which is a change of the file to nobody else.
        let order = order.config("core.trustctime=false").ends_with_us();
        order.ask(cancel).map(drop)
    }
}

/// Finds what is to go only because the rules about what is ignored were others at the time: it may have been there, and nobody
/// looked.
fn ignored_then(
    present: &WorktreeTree,
    loop_dir: &Path,
    then: &str,
    differences: &[Difference<'_>],
    cancel: &CancelToken,
) -> Result<BTreeSet<RepoPath>, GitError> {
    let came = differences.iter().filter(|came| came.status == b'D');
    let came: Vec<&[u8]> = came.map(|came| came.path).collect();
    if came.is_empty() || !differences.iter().any(|changed| is_rules(changed.path)) {
        return Ok(BTreeSet::new());
    }
    let git = &present.repository.git;
    let index = TemporaryIndex::of(None, loop_dir)?;
    let order = git.order(&["read-tree", then]).index(&index.0);
    order.ask(cancel)?;
    let listed = git.order(&["ls-files", "-z"]).index(&index.0);
    let listed = listed.ask(cancel)?;
    let rules = ended_by_nul(parts(&listed).filter(|path| is_rules(path)));
    // A work tree with nothing but the rules of that time.
    let dir = TemporaryDir::new()?;
    if !rules.is_empty() {
        let order = git.order(&["checkout-index", "-z", "--stdin"]);
        let order = order.index(&index.0).env("GIT_WORK_TREE", &dir.0);
        order.stdin(&rules).ask(cancel)?;
    }
    let check = git.order(&["check-ignore", "-z", "--stdin"]);
    let check = check.env("GIT_WORK_TREE", &dir.0);
    index::ignored(&check, came.into_iter(), cancel)
}

/// Makes the tree that is wanted: the present one, but for the differences.
fn target(
    present: &WorktreeTree,
    loop_dir: &Path,
    wanted: &[Difference<'_>],
    cancel: &CancelToken,
) -> Result<String, GitError> {
    let index = TemporaryIndex::of(Some(&present.index.0), loop_dir)?;
    let git = &present.repository.git;
    let mut input = Vec::new();
    // What goes first makes room for what comes.
    let (gone, come): (Vec<_>, Vec<_>) = wanted.iter().partition(|wanted| wanted.status == b'D');
    for difference in gone.into_iter().chain(come) {
        input.extend_from_slice(difference.modes[1]);
        input.push(b' ');
        input.extend_from_slice(difference.wanted);
        input.push(b'\t');
        input.extend_from_slice(difference.path);
        input.push(0);
    }
    let order = git.order(&["update-index", "-z", "--index-info"]);
    order.index(&index.0).stdin(&input).ask(cancel)?;
    let order = git.order(&["write-tree"]).index(&index.0);
    order.ask_line(cancel)
}

/// Reads `:old-mode new-mode old-object new-object status`, NUL, path, NUL.
fn read(answer: &[u8]) -> Vec<Difference<'_>> {
    let mut parts = parts(answer);
    let mut found = Vec::new();
    while let (Some(head), Some(path)) = (parts.next(), parts.next()) {
        let mut words = head.split(|byte| *byte == b' ');
        let mut word = || words.next().unwrap_or_default();
        let (from, to, _, wanted, status) = (word(), word(), word(), word(), word());
        found.push(Difference {
            modes: [from.strip_prefix(b":").unwrap_or(from), to],
            wanted,
            status: status.first().copied().unwrap_or_default(),
            path,
        });
    }
    found
}

/// Finds what would have to make room and is in no tree: git itself thinks nothing of overwriting ignored files.
fn in_the_way(top: &Path, wanted: &[Difference<'_>]) -> Vec<String> {
    let paths = |status: u8| {
        let of_status = move |wanted: &&Difference<'_>| wanted.status == status;
        wanted.iter().filter(of_status).map(|wanted| wanted.path)
    };
    let gone: BTreeSet<&[u8]> = paths(b'D').collect();
    let mut found = BTreeSet::new();
    for path in paths(b'A') {
        for above in ancestors(path) {
            let is_dir = std::fs::symlink_metadata(at(top, above)).map_or(true, |is| is.is_dir());
            if !is_dir && !gone.contains(above) {
                found.insert(above.to_vec());
            }
        }
        if std::fs::symlink_metadata(at(top, path)).is_ok() {
            // What cannot be looked into cannot be removed either.
            if collect(top, path, &gone, &mut found).is_err() {
                found.insert(path.to_vec());
            }
        }
    }
    let names = found.iter().map(|name| RepoPath::new(name));
    names.map(|name| name.to_string()).collect()
}

/// Collects all files at and below a path that do not go by themselves.
fn collect(
    top: &Path,
    path: &[u8],
    gone: &BTreeSet<&[u8]>,
    found: &mut BTreeSet<Vec<u8>>,
) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    // One too many is enough to refuse, and a directory may be large.
    if found.len() > 10 * NAMED_MAX {
        return Ok(());
    }
    let here = at(top, path);
    if !std::fs::symlink_metadata(&here)?.is_dir() {
        if !gone.contains(path) {
            found.insert(path.to_vec());
        }
        return Ok(());
    }
    for entry in std::fs::read_dir(here)? {
        let mut below = path.to_vec();
        below.push(b'/');
        below.extend_from_slice(entry?.file_name().as_bytes());
        collect(top, &below, gone, found)?;
    }
    Ok(())
}
