//! The index of the loop's own: it holds the work tree as it was last surveyed, the user's index never does.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tachikoma_fs::safe_read;

use super::index_file::copy_index;
use super::path::{RepoPath, ended_by_nul, is_ours, parts};
use super::program::{CancelToken, GitError, Order};
use super::repository::{Repository, with_suffix};
use super::runtime_files::RuntimeFiles;
use super::walk_result::WalkResult;
use tachikoma_config::Protected;

/// Files that can be opened and that git cannot take in all the same, because a filter fails, are left out one by one; each
/// costs a process, and that many are no accident.
const UNREADABLE_MAX: usize = 64;

/// Git's words around the name of a file that it cannot take in.
const FATAL: &str = "fatal: ";
const UNABLE: &str = "Unable to process path ";
const FILTER: &str = ": clean filter '";

/// Names that fit onto one command line with certainty.
const NAMES_PER_ORDER: usize = 100;

/// Before a path it changes nothing but how git reads it.
const HERE: &[u8] = b"./";

/// How many lines git says about an entry, and the flag of one that is intended only.
const DEBUG_LINES: usize = 5;
const INTENDED: u32 = 0x2000_0000;

/// What is needed to look at a work tree and to keep it as a tree.
#[derive(Debug)]
pub struct LoopIndex {
    pub repository: Repository,
    /// The index of the loop's own.
    pub index: PathBuf,
    pub protected: Protected,
    /// New files above this are left out; 0 is for no limit.
    pub max_file_bytes: u64,
    /// What else the loop writes here, if anything.
    pub runtime_files: Option<RuntimeFiles>,
}

/// The kind of an entry that is a submodule.
pub const SUBMODULE: &[u8] = b"160000";

/// The same of a directory in a tree.
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
    /// Reads `H 100644 <object> 0<TAB>path`.
    fn parse(part: &'a [u8]) -> Option<Self> {
        let tab = part.iter().position(|byte| *byte == b'\t')?;
        let mut words = part[..tab].split(|byte| *byte == b' ');
        Some(Self {
            tag: *words.next()?.first()?,
            mode: words.next()?,
            object: words.next()?,
            path: &part[tab + 1..],
        })
    }

    /// Whether it has no file because the work tree is to be sparse.
    pub fn is_sparse(&self) -> bool {
        self.tag.eq_ignore_ascii_case(&b'S')
    }

    /// Whether the user told git to take it for unchanged.
    pub fn is_assumed(&self) -> bool {
        self.tag.is_ascii_lowercase()
    }
}

pub fn entries(answer: &[u8]) -> impl Iterator<Item = IndexEntry<'_>> {
    parts(answer).filter_map(IndexEntry::parse)
}

impl LoopIndex {
    /// Whether a path is never kept.
    pub fn leaves_out(&self, path: &[u8]) -> bool {
        let is_own = |own: &RuntimeFiles| own.has(&self.repository.top, path);
        is_ours(path) || self.protected.has(path) || self.runtime_files.as_ref().is_some_and(is_own)
    }

    fn order<'a>(&'a self, words: &[&'a str]) -> Order<'a> {
        self.repository.git.order(words).index(&self.index)
    }

    /// Makes the index from the user's, if there is none yet. A lock that a dead runner's git has left is taken away: the
    /// caller is the only one who works with it.
    pub fn ensure_index(&self) -> Result<(), GitError> {
        remove(&with_suffix(&self.index, ".lock"))?;
        match fs::symlink_metadata(&self.index) {
            Ok(there) if there.is_file() => return Ok(()),
            Ok(_) | Err(_) => self.drop_index()?,
        }
        // Without one the user has staged nothing yet, nor committed.
        if safe_read::open(&self.repository.index).is_err() {
            return Ok(());
        }
        let temporary = with_suffix(&self.index, ".new");
        remove(&temporary)?;
        copy_index(&self.repository.index, &temporary)?;
        fs::rename(&temporary, &self.index).map_err(GitError::io("replace", &self.index))
    }

    /// Git makes the file anew each time, as readable as the user's files are. Where it stays so, its directory is for the owner alone.
    pub fn keep_index_private(&self) {
        let _ = fs::set_permissions(&self.index, fs::Permissions::from_mode(0o600));
    }

    /// Forgets the index.
    pub fn drop_index(&self) -> Result<(), GitError> {
        remove(&self.index)
    }

    /// The entries of the loop's own index.
    pub fn own_entries(&self, cancel: &CancelToken) -> Result<Vec<u8>, GitError> {
        self.order(&["ls-files", "-s", "-v", "-z"]).ask(cancel)
    }

    /// The entries of the user's index.
    pub fn users_entries(&self, cancel: &CancelToken) -> Result<Vec<u8>, GitError> {
        let git = &self.repository.git;
        let order = git.order(&["ls-files", "-s", "-v", "-z"]);
        order.config("index.sparse=false").ask(cancel)
    }

    /// Which of the paths are ignored. With `tracked` also those that are in the loop's own index.
    pub fn ignored<'a>(
        &self,
        paths: impl Iterator<Item = &'a [u8]>,
        tracked: bool,
        cancel: &CancelToken,
    ) -> Result<BTreeSet<RepoPath>, GitError> {
        let mut words = vec!["check-ignore", "-z", "--stdin"];
        if tracked {
            words.push("--no-index");
        }
        ignored(&self.order(&words), paths, cancel)
    }

    /// Takes paths out of the index.
    pub fn take_out<'a>(
        &self,
        paths: impl Iterator<Item = &'a [u8]>,
        cancel: &CancelToken,
    ) -> Result<(), GitError> {
        let paths = ended_by_nul(paths);
        if paths.is_empty() {
            return Ok(());
        }
        let order = self.order(&["update-index", "--force-remove", "-z", "--stdin"]);
        order.stdin(&paths).ask(cancel)?;
        Ok(())
    }

    /// Puts entries of the user's index back that have no file because the work tree is to be sparse.
    pub fn put_back(
        &self,
        sparse: &[IndexEntry<'_>],
        cancel: &CancelToken,
    ) -> Result<(), GitError> {
        if sparse.is_empty() {
            return Ok(());
        }
        let mut info = Vec::new();
        for entry in sparse {
            info.extend_from_slice(entry.mode);
            info.push(b' ');
            info.extend_from_slice(entry.object);
            info.push(b'\t');
            info.extend_from_slice(entry.path);
            info.push(0);
        }
        let order = self.order(&["update-index", "-z", "--index-info"]);
        order.stdin(&info).ask(cancel)?;
        let paths = ended_by_nul(sparse.iter().map(|entry| entry.path));
        let order = self.order(&["update-index", "--skip-worktree", "-z", "--stdin"]);
        order.stdin(&paths).ask(cancel)?;
        Ok(())
    }

    /// Takes marks off entries that keep git from looking at their files.
    pub fn lift(&self, mark: &str, paths: &[&[u8]], cancel: &CancelToken) -> Result<(), GitError> {
        let paths = ended_by_nul(paths.iter().copied());
        if paths.is_empty() {
            return Ok(());
        }
        let order = self.order(&["update-index", mark, "-z", "--stdin"]);
        order.stdin(&paths).ask(cancel).map(drop)
    }

    /// Takes what a walk saw into the index; returns what somebody should know.
    pub fn take_in(
        &self,
        seen: &WalkResult,
        cancel: &CancelToken,
    ) -> Result<Vec<LeftOut>, GitError> {
        let large: Vec<&RepoPath> = seen
            .changed
            .iter()
            .filter(|changed| self.max_file_bytes > 0 && changed.size > self.max_file_bytes)
            .map(|changed| &changed.path)
            .collect();
        let committed = self.committed(&large, cancel)?;
        let mut left_out: Vec<LeftOut> = large
            .into_iter()
            .filter(|path| !committed.contains(*path))
            .map(|path| LeftOut::Large(path.clone()))
            .collect();
        let crowded = seen.crowded.iter().cloned().map(LeftOut::Crowded);
        let outside: BTreeSet<RepoPath> = left_out.iter().map(LeftOut::path).cloned().collect();
        let gone = seen.gone.iter().chain(&outside).map(RepoPath::bytes);
        self.take_out(gone, cancel)?;
        let mut paths: Vec<&RepoPath> = seen
            .changed
            .iter()
            .map(|changed| &changed.path)
            .filter(|path| !outside.contains(*path))
            .collect();
        left_out.extend(crowded);
        let mut unreadable = 0;
        while !paths.is_empty() {
            let Some(unable) = self.add(&paths, cancel)? else {
                break;
            };
            if unreadable == 0 {
                // One is seldom alone: those that nobody can open need not be tried one by one.
                let top = &self.repository.top;
                paths.retain(|path| {
                    let can = *path != &unable && can_be_opened(&top.join(path.as_path()));
                    if !can && *path != &unable {
                        left_out.push(LeftOut::Unreadable((*path).clone()));
                    }
                    can
                });
            } else {
                paths.retain(|path| *path != &unable);
            }
            unreadable += 1;
            if unreadable > UNREADABLE_MAX {
                return Err(GitError::Odd {
                    what: "update-index",
                    answer: format!("it cannot take in {unable} and {UNREADABLE_MAX} more"),
                });
            }
            left_out.push(LeftOut::Unreadable(unable));
        }
        Ok(left_out)
    }

    /// Adds or removes paths as they are in the work tree now; returns one that git cannot take in, in which case it took none.
    fn add(&self, paths: &[&RepoPath], cancel: &CancelToken) -> Result<Option<RepoPath>, GitError> {
        let names = ended_by_nul(paths.iter().map(|path| path.bytes()));
        let words = [
            "update-index",
            "--add",
            "--remove",
            "--replace",
            "--ignore-skip-worktree-entries",
            "-z",
            "--stdin",
        ];
        let order = self.order(&words).stdin(&names);
        let answer = order.run(cancel)?;
        if answer.code == Some(0) {
            return Ok(None);
        }
        let named = answer
            .words
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
            .ok_or_else(|| order.failed(&answer))
    }

    /// Which of the paths are in the user's index without content, for `git add --intent-to-add` only.
    pub fn only_intended<'a>(
        &self,
        paths: &[&'a RepoPath],
        cancel: &CancelToken,
    ) -> Result<Vec<&'a RepoPath>, GitError> {
        let mut found = Vec::new();
        for some in paths.chunks(NAMES_PER_ORDER) {
            let words = ["--literal-pathspecs", "ls-files", "--debug", "-z", "--"];
            let mut order = self.repository.git.order(&words);
            for path in some {
                order = order.word(path.as_path());
            }
            let answer = order.ask(cancel)?;
            let intended = intended(&answer);
            found.extend(some.iter().filter(|path| intended.contains(path.bytes())));
        }
        Ok(found)
    }

    /// Which of the paths are in the commit that the work tree stands on.
    pub fn committed(
        &self,
        paths: &[&RepoPath],
        cancel: &CancelToken,
    ) -> Result<BTreeSet<RepoPath>, GitError> {
        let mut found = BTreeSet::new();
        for some in paths.chunks(NAMES_PER_ORDER) {
            let words = ["--literal-pathspecs", "ls-tree", "-z", "HEAD", "--"];
            let mut order = self.order(&words);
            for path in some {
                order = order.word(path.as_path());
            }
            let answer = order.run(cancel)?;
            // On a branch without commits there is none to look into.
            if answer.code == Some(0) {
                // `100644 blob <object><TAB>path`; a directory of that name is something else.
                let listed = parts(&answer.bytes).filter(|part| !part.starts_with(DIRECTORY));
                let tab = |part: &&[u8]| part.iter().position(|byte| *byte == b'\t');
                let paths = listed.filter_map(|part| Some(&part[tab(&part)? + 1..]));
                found.extend(paths.map(RepoPath::new));
            }
        }
        Ok(found)
    }

    /// Writes the index as a tree and returns its name.
    pub fn write_tree(&self, cancel: &CancelToken) -> Result<String, GitError> {
        let tree = self.order(&["write-tree"]).ask_line(cancel)?;
        if super::head::is_object_name(tree.as_bytes()) {
            Ok(tree)
        } else {
            Err(GitError::Odd {
                what: "write-tree",
                answer: tree,
            })
        }
    }
}

/// Reads `path`, NUL, and five lines of which the last ends with the flags of the entry.
fn intended(answer: &[u8]) -> BTreeSet<&[u8]> {
    let mut parts = parts(answer);
    let mut path = parts.next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for part in parts {
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

/// Asks `git check-ignore` which of the paths are ignored.
pub fn ignored<'a>(
    check: &Order<'_>,
    paths: impl Iterator<Item = &'a [u8]>,
    cancel: &CancelToken,
) -> Result<BTreeSet<RepoPath>, GitError> {
    let mut asked = Vec::new();
    for path in paths {
        // It cannot be told to take names literally; behind a dot nothing has another meaning.
        asked.extend_from_slice(HERE);
        asked.extend_from_slice(path);
        asked.push(0);
    }
    if asked.is_empty() {
        return Ok(BTreeSet::new());
    }
    let order = check.clone().stdin(&asked);
    let answer = order.run(cancel)?;
    match answer.code {
        // 1: none of them.
        Some(0 | 1) => {
            let paths = parts(&answer.bytes).filter_map(|path| path.strip_prefix(HERE));
            Ok(paths.map(RepoPath::new).collect())
        }
        Some(_) | None => Err(order.failed(&answer)),
    }
}

/// A file that changed and is not kept.
#[derive(Debug)]
pub enum LeftOut {
    Large(RepoPath),
    Unreadable(RepoPath),
    /// There were too many new ones before it.
    Crowded(RepoPath),
}

impl LeftOut {
    pub fn path(&self) -> &RepoPath {
        match self {
            Self::Large(path) | Self::Unreadable(path) | Self::Crowded(path) => path,
        }
    }
}

/// Whether the content of a file can be read. What is gone or no plain file is git's to judge.
fn can_be_opened(path: &Path) -> bool {
    let is_file = fs::symlink_metadata(path).is_ok_and(|there| there.is_file());
    let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    !is_file || !safe_read::open(path).is_err_and(denied)
}

/// Removes a file of ours that need not be there.
fn remove(path: &Path) -> Result<(), GitError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(GitError::io("remove", path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
