//! The index of the loop, which contains the work tree of the last survey. The user's index is not used for that.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tachikoma_fs::safe_read;

use super::fingerprint::ChangedFile;
use super::index_file::copy_index;
use super::path::{RepoPath, is_ignore_file, join_nul, split_nul};
use super::program::{CancelToken, GitCommand, GitError};
use super::repository::Repository;
use super::rules::Rules;
use tachikoma_store::layout::with_suffix;

/// Maximum number of files that git cannot add although they can be opened, because a filter fails. Each costs one git process.
const UNREADABLE_MAX: usize = 64;

/// Parts of git's error message for a file that it cannot add.
const FATAL: &str = "fatal: ";
const UNABLE: &str = "Unable to process path ";
const FILTER: &str = ": clean filter '";

/// Number of paths that fit into one command line.
const PATHS_PER_COMMAND: usize = 100;

/// Prefix that keeps git from interpreting a path as a pathspec.
const HERE: &[u8] = b"./";

/// Format of `git ls-files --debug`: lines per entry, and the flag of `git add --intent-to-add`.
const DEBUG_LINES: usize = 5;
const INTENDED: u32 = 0x2000_0000;

/// The repository, the index of the loop, and the rules for files that are left out.
#[derive(Debug)]
pub struct LoopIndex {
    pub repository: Repository,
    /// Path of the loop's index.
    pub index: PathBuf,
    /// Files that are left out of snapshots and commits.
    pub rules: Rules,
}

/// File mode of a submodule in an index.
pub const SUBMODULE: &[u8] = b"160000";

/// Mode of a directory in a git tree.
const DIRECTORY: &[u8] = b"040000";

/// An entry of an index.
#[derive(Debug)]
pub struct IndexEntry<'a> {
    tag: u8,
    pub mode: &'a [u8],
    pub object: &'a [u8],
    pub path: &'a [u8],
}

impl<'a> IndexEntry<'a> {
    /// Parses `H 100644 <object> 0<TAB>path`.
    fn parse(part: &'a [u8]) -> Option<Self> {
        let tab = part.iter().position(|byte| *byte == b'\t')?;
        let mut args = part[..tab].split(|byte| *byte == b' ');
        Some(Self {
            tag: *args.next()?.first()?,
            mode: args.next()?,
            object: args.next()?,
            path: &part[tab + 1..],
        })
    }

    /// Returns whether the file of the entry is absent because of a sparse checkout.
    pub fn is_sparse(&self) -> bool {
        self.tag.eq_ignore_ascii_case(&b'S')
    }
}

pub fn entries(output: &[u8]) -> impl Iterator<Item = IndexEntry<'_>> {
    split_nul(output).filter_map(IndexEntry::parse)
}

impl LoopIndex {
    /// Returns whether a path is never stored in snapshots and commits.
    pub fn is_left_out(&self, path: &[u8]) -> bool {
        self.rules.is_off_limits(&self.repository.top, path)
    }

    fn command(&self, args: &'static str) -> GitCommand<'_> {
        self.repository.git.command(args).index(&self.index)
    }

    /// Replaces the index of the loop with a copy of the user's index. Removes the lock of a dead git process; no other process
    /// uses this index.
    pub fn recreate_index(&self) -> Result<(), GitError> {
        remove(&with_suffix(&self.index, ".lock"))?;
        self.drop_index()?;
        // If the user has no index, nothing is staged or committed.
        if safe_read::open(&self.repository.index).is_err() {
            return Ok(());
        }
        let temporary = with_suffix(&self.index, ".new");
        remove(&temporary)?;
        copy_index(&self.repository.index, &temporary)?;
        fs::rename(&temporary, &self.index).map_err(GitError::io("replace", &self.index))
    }

    /// Makes the index readable only by its owner. Git creates it with the permissions of the user's files. If this fails, the
    /// permissions of its directory still protect it.
    pub fn keep_index_private(&self) {
        let _ = fs::set_permissions(&self.index, fs::Permissions::from_mode(0o600));
    }

    /// Deletes the index of the loop.
    pub fn drop_index(&self) -> Result<(), GitError> {
        remove(&self.index)
    }

    /// Lists the entries of the loop's index.
    pub fn own_entries(&self, cancel: &CancelToken) -> Result<Vec<u8>, GitError> {
        self.command("ls-files -s -v -z").stdout(cancel)
    }

    /// Lists untracked and ignored paths, in the format of `git status --porcelain=v1 -z`.
    pub fn status(&self, cancel: &CancelToken) -> Result<Vec<u8>, GitError> {
        let args = "status --porcelain=v1 -z --untracked-files=all --ignored=matching --no-renames --ignore-submodules=all";
        self.command(args).stdout(cancel)
    }

    /// Lists the entries of the user's index.
    pub fn user_entries(&self, cancel: &CancelToken) -> Result<Vec<u8>, GitError> {
        let git = &self.repository.git;
        let command = git.command("ls-files -s -v -z");
        command.config("index.sparse=false").stdout(cancel)
    }

    /// Returns the paths that are ignored, including those that are in the loop's index.
    pub fn ignored<'a>(
        &self,
        paths: impl Iterator<Item = &'a [u8]>,
        cancel: &CancelToken,
    ) -> Result<BTreeSet<RepoPath>, GitError> {
        ignored(
            &self.command("check-ignore -z --stdin --no-index"),
            paths,
            cancel,
        )
    }

    /// Removes paths from the index of the loop.
    pub fn remove_entries<'a>(
        &self,
        paths: impl Iterator<Item = &'a [u8]>,
        cancel: &CancelToken,
    ) -> Result<(), GitError> {
        let paths = join_nul(paths);
        if paths.is_empty() {
            return Ok(());
        }
        let command = self.command("update-index --force-remove -z --stdin");
        command.stdin(&paths).stdout(cancel)?;
        Ok(())
    }

    /// Updates the index of the loop with changed files. Returns the files that were left out.
    pub fn add_changes(
        &self,
        changes: &Changes,
        cancel: &CancelToken,
    ) -> Result<Vec<LeftOut>, GitError> {
        let large: Vec<&RepoPath> = changes
            .changed
            .iter()
            .filter(|changed| self.rules.is_huge(changed.size))
            .map(|changed| &changed.path)
            .collect();
        let committed = self.committed(&large, cancel)?;
        let mut left_out: Vec<LeftOut> = large
            .into_iter()
            .filter(|path| !committed.contains(*path))
            .map(|path| LeftOut::new(path, LeftOutReason::Large))
            .collect();
        let outside: BTreeSet<RepoPath> = left_out.iter().map(|file| file.path.clone()).collect();
        let gone = changes.gone.iter().chain(&outside).map(RepoPath::bytes);
        self.remove_entries(gone, cancel)?;
        let mut paths: Vec<&RepoPath> = changes
            .changed
            .iter()
            .map(|changed| &changed.path)
            .filter(|path| !outside.contains(*path))
            .collect();
        let over_budget = changes.over_budget.iter();
        left_out.extend(over_budget.map(|path| LeftOut::new(path, LeftOutReason::OverBudget)));
        let mut unreadable = 0;
        while !paths.is_empty() {
            let Some(unable) = self.add(&paths, cancel)? else {
                break;
            };
            if unreadable == 0 {
                // One unreadable file is rarely alone. Others that cannot be opened are found without git.
                let top = &self.repository.top;
                paths.retain(|path| {
                    let can = *path != &unable && can_be_opened(&top.join(path.as_path()));
                    if !can && *path != &unable {
                        left_out.push(LeftOut::new(path, LeftOutReason::Unreadable));
                    }
                    can
                });
            } else {
                paths.retain(|path| *path != &unable);
            }
            unreadable += 1;
            if unreadable > UNREADABLE_MAX {
                let output = format!("it cannot add {unable} and {UNREADABLE_MAX} more");
                return Err(GitError::unexpected("update-index", output));
            }
            left_out.push(LeftOut::new(&unable, LeftOutReason::Unreadable));
        }
        Ok(left_out)
    }

    /// Adds paths to the index, or removes them, as they are in the work tree. If git cannot add a path, the index is unchanged,
    /// and that path is returned.
    fn add(&self, paths: &[&RepoPath], cancel: &CancelToken) -> Result<Option<RepoPath>, GitError> {
        let names = join_nul(paths.iter().map(|path| path.bytes()));
        let args =
            "update-index --add --remove --replace --ignore-skip-worktree-entries -z --stdin";
        let command = self.command(args).stdin(&names);
        let output = command.run(cancel)?;
        if output.code == Some(0) {
            return Ok(None);
        }
        let named = output
            .stderr
            .rsplit_once(FATAL)
            .map_or("", |(_, named)| named);
        let is_it = |path: &&&RepoPath| {
            let name = String::from_utf8_lossy(path.bytes());
            let filtered = named.strip_prefix(&*name);
            named.strip_prefix(UNABLE) == Some(name.trim_end())
                || filtered.is_some_and(|rest| rest.starts_with(FILTER))
        };
        let unable = paths.iter().find(is_it);
        unable
            .map(|path| Some((*path).clone()))
            .ok_or_else(|| command.failure(&output))
    }

    /// Returns the paths that are in the user's index only because of `git add --intent-to-add`.
    pub fn intent_to_add_only<'a>(
        &self,
        paths: &[&'a RepoPath],
        cancel: &CancelToken,
    ) -> Result<Vec<&'a RepoPath>, GitError> {
        let mut found = Vec::new();
        for some in paths.chunks(PATHS_PER_COMMAND) {
            let command = self
                .repository
                .git
                .command("--literal-pathspecs ls-files --debug -z --");
            let output = command
                .args(some.iter().map(|path| path.as_path()))
                .stdout(cancel)?;
            let intended = intended(&output);
            found.extend(some.iter().filter(|path| intended.contains(path.bytes())));
        }
        Ok(found)
    }

    /// Returns the paths that are in HEAD.
    pub fn committed(
        &self,
        paths: &[&RepoPath],
        cancel: &CancelToken,
    ) -> Result<BTreeSet<RepoPath>, GitError> {
        let mut found = BTreeSet::new();
        for some in paths.chunks(PATHS_PER_COMMAND) {
            let command = self.command("--literal-pathspecs ls-tree -z HEAD --");
            let output = command
                .args(some.iter().map(|path| path.as_path()))
                .run(cancel)?;
            // A branch without commits has no tree.
            if output.code == Some(0) {
                // Each part is `100644 blob <object><TAB>path`. Directories are skipped.
                let listed = split_nul(&output.stdout).filter(|part| !part.starts_with(DIRECTORY));
                let tab = |part: &&[u8]| part.iter().position(|byte| *byte == b'\t');
                let paths = listed.filter_map(|part| Some(&part[tab(&part)? + 1..]));
                found.extend(paths.map(RepoPath::new));
            }
        }
        Ok(found)
    }

    /// Writes the index of the loop as a tree and returns its id.
    pub fn write_tree(&self, cancel: &CancelToken) -> Result<String, GitError> {
        let tree = self.command("write-tree").stdout_line(cancel)?;
        match super::head::is_object_name(tree.as_bytes()) {
            true => Ok(tree),
            false => Err(GitError::unexpected("write-tree", tree)),
        }
    }
}

/// Returns the intent-to-add paths. Each entry is a path, NUL, and five lines; the last line ends with the flags.
fn intended(output: &[u8]) -> BTreeSet<&[u8]> {
    let mut split_nul = split_nul(output);
    let mut path = split_nul.next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for part in split_nul {
        let mut lines = part.splitn(DEBUG_LINES + 1, |byte| *byte == b'\n');
        let flags = lines.nth(DEBUG_LINES - 1).unwrap_or_default();
        let flags = String::from_utf8_lossy(flags);
        let flags = flags.rsplit_once("flags: ").map(|(_, flags)| flags);
        let flags = flags.and_then(|flags| u32::from_str_radix(flags, 16).ok());
        if flags.is_some_and(|flags| flags & INTENDED != 0) {
            found.insert(path);
        }
        path = lines.next().unwrap_or_default();
    }
    found
}

/// Runs `git check-ignore` and returns the paths that are ignored.
pub fn ignored<'a>(
    check: &GitCommand<'_>,
    paths: impl Iterator<Item = &'a [u8]>,
    cancel: &CancelToken,
) -> Result<BTreeSet<RepoPath>, GitError> {
    let mut asked = Vec::new();
    for path in paths {
        // This git command has no option for literal paths, but git never treats a path that starts with `./` as a pattern.
        asked.extend_from_slice(HERE);
        asked.extend_from_slice(path);
        asked.push(0);
    }
    if asked.is_empty() {
        return Ok(BTreeSet::new());
    }
    let command = check.clone().stdin(&asked);
    let output = command.run(cancel)?;
    match output.code {
        // Exit code 1 means that no path is ignored.
        Some(0 | 1) => {
            let paths = split_nul(&output.stdout).filter_map(|path| path.strip_prefix(HERE));
            Ok(paths.map(RepoPath::new).collect())
        }
        Some(_) | None => Err(command.failure(&output)),
    }
}

/// Files that changed since the last survey.
#[derive(Debug, Default)]
pub struct Changes {
    /// Files and submodules that exist and may have changed.
    pub changed: Vec<ChangedFile>,
    /// Files and submodules that were removed.
    pub gone: Vec<RepoPath>,
    /// New files that exceed the size limit for all new files together.
    pub over_budget: Vec<RepoPath>,
    /// Protected files that are new or changed.
    pub protected: Vec<RepoPath>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.gone.is_empty()
    }

    pub fn include_ignore_file(&self) -> bool {
        let changed = self.changed.iter().map(|file| &file.path);
        let mut paths = changed.chain(&self.gone);
        paths.any(|path| is_ignore_file(path.bytes()))
    }

    /// Moves the protected files from `changed` to `protected`.
    pub fn separate_protected(&mut self, loop_index: &LoopIndex) {
        let files = std::mem::take(&mut self.changed);
        let (protected, changed): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|file| loop_index.rules.protected.has(file.path.bytes()));
        self.changed = changed;
        self.protected
            .extend(protected.into_iter().map(|file| file.path));
    }
}

/// A changed file that was not added to the index, and why.
#[derive(Debug)]
pub struct LeftOut {
    pub path: RepoPath,
    pub reason: LeftOutReason,
}

/// Why a changed file was not added to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOutReason {
    /// The file is larger than `git.max_file_bytes`.
    Large,
    /// Git cannot read the file.
    Unreadable,
    /// All new files together exceed their size limit.
    OverBudget,
}

impl LeftOut {
    fn new(path: &RepoPath, reason: LeftOutReason) -> Self {
        let path = path.clone();
        Self { path, reason }
    }
}

/// Returns whether a file can be opened. True for other file types, which git handles.
fn can_be_opened(path: &Path) -> bool {
    let is_file = fs::symlink_metadata(path).is_ok_and(|there| there.is_file());
    let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    !is_file || !safe_read::open(path).is_err_and(denied)
}

/// Removes a file, if it exists.
fn remove(path: &Path) -> Result<(), GitError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(GitError::io("remove", path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
