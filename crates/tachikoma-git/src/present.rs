//! The work tree as it is now, as a tree that git can compare: made in an index of our own, so that the user's index stays as it is.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tachikoma_fs::{atomic_file, private, safe_read};

use super::index::ended_by_nul;
use super::keeper::INDEX;
use super::own::Own;
use super::path::{is_ours, parts};
use super::program::{CallOff, GitError, Order};
use super::repository::Repository;
use super::seen::Room;
use tachikoma_config::Settings;
use tachikoma_config::{Protected, ProtectedError};

/// Lists files that are not, or may not be, what the index says.
const CHANGED: [&str; 5] = [
    "diff-files",
    "-z",
    "--name-only",
    "--no-renames",
    "--ignore-submodules=dirty",
];

/// What is left alone.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Files that are neither kept nor replaced.
    pub protected: Protected,
    /// New files above this size are not kept. 0 = no limit.
    pub max_file_bytes: u64,
    /// What else the loop writes.
    pub own: Own,
}

/// What is left alone, in the words of the settings: patterns take their time to be built, and few need them.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    protected: Vec<String>,
    max_file_bytes: u64,
    /// What the loop itself writes.
    pub own: Own,
}

impl Bounds {
    /// Returns what the settings of a working directory leave alone.
    #[must_use]
    pub fn of(settings: &Settings, working_dir: &Path) -> Self {
        let (git, state) = (&settings.git, &settings.state);
        Self {
            protected: git.protected.clone(),
            max_file_bytes: git.max_file_bytes,
            own: Own::new(
                &working_dir.join(&state.state_path),
                &working_dir.join(&settings.session.state_dir),
                &working_dir.join(&state.backup_dir),
            ),
        }
    }

    /// Builds the rules.
    ///
    /// # Errors
    /// A pattern cannot be used.
    pub fn rules(&self) -> Result<Rules, ProtectedError> {
        Ok(Rules {
            protected: Protected::new(&self.protected)?,
            max_file_bytes: self.max_file_bytes,
            own: self.own.clone(),
        })
    }
}

impl Rules {
    /// Returns whether a path, from the top, is never looked at nor touched.
    pub fn is_off_limits(&self, top: &Path, path: &[u8]) -> bool {
        is_ours(path) || self.protected.has(path) || self.own.has(top, path)
    }

    pub(crate) fn is_huge(&self, path: &Path) -> bool {
        self.max_file_bytes > 0 && size_of(path) > self.max_file_bytes
    }
}

fn size_of(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).map_or(0, |there| there.len())
}

/// The work tree as it is, with the index that it was made in.
#[derive(Debug)]
pub struct Present {
    /// The tree.
    pub tree: String,
    /// New files that it does not have, because there is no room for so much.
    pub crowded: Vec<Vec<u8>>,
    pub(crate) repository: Repository,
    pub(crate) index: TemporaryIndex,
}

impl Present {
    /// Begins an order on the index that the tree was made in.
    pub fn order<'a>(&'a self, words: &[&'a str]) -> Order<'a> {
        self.repository.git.order(words).index(&self.index.0)
    }

    /// Names the files that are not what the index says.
    pub fn differing(&self, call_off: &CallOff) -> Result<BTreeSet<Vec<u8>>, GitError> {
        // It fails where there is something to say, which is asked next.
        let refresh = self.order(&["update-index", "-q", "--refresh"]);
        refresh.run(call_off)?;
        let answer = self.order(&CHANGED).ask(call_off)?;
        Ok(parts(&answer).map(<[u8]>::to_vec).collect())
    }
}

/// An index that goes when nobody needs it any more.
#[derive(Debug)]
pub struct TemporaryIndex(pub PathBuf);

impl TemporaryIndex {
    /// Copies an index into the directory of a loop; without one it begins empty.
    pub fn of(base: Option<&PathBuf>, loop_dir: &Path) -> Result<Self, GitError> {
        let index = Self(atomic_file::temporary(loop_dir));
        if let Some(base) = base {
            copy_index(base, &index.0)?;
        }
        Ok(index)
    }
}

/// Copies an index to where nothing is, so that git trusts it as much: git looks into files that are as young as the index, and trusts
/// its note of older ones. What is copied is one file, whoever replaces that meanwhile.
pub fn copy_index(base: &Path, to: &Path) -> Result<(), GitError> {
    let copy = || -> io::Result<()> {
        let mut from = safe_read::open(base)?;
        let mut copy = private().write(true).create_new(true).open(to)?;
        io::copy(&mut from, &mut copy)?;
        copy.set_modified(from.metadata()?.modified()?)
    };
    copy().map_err(GitError::io("copy", base))
}

impl Drop for TemporaryIndex {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A directory outside of the work tree that goes with all that is in it.
#[derive(Debug)]
pub struct TemporaryDir(pub PathBuf);

impl TemporaryDir {
    pub(crate) fn new() -> Result<Self, GitError> {
        let path = atomic_file::temporary(&std::env::temp_dir());
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(GitError::io("make directory", &path))?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Looks at the work tree of a repository. `before` is what it will be compared with: what that has is not new, whatever its
/// size. Nothing that the user sees changes; the contents of changed files go to git's store. Blocks.
///
/// # Errors
/// Git fails, or the index cannot be copied.
pub fn present(
    repository: Repository,
    loop_dir: &Path,
    rules: &Rules,
    before: &str,
    call_off: &CallOff,
) -> Result<Present, GitError> {
    let surveyed = loop_dir.join(INDEX);
    let base = if surveyed.is_file() {
        &surveyed
    } else {
        &repository.index
    };
    let index = TemporaryIndex::of(base.is_file().then_some(base), loop_dir)?;
    let ask = |words: &[&str], stdin: &[u8]| {
        let order = repository.git.order(words).index(&index.0);
        order.stdin(stdin).ask(call_off)
    };
    let changed = ask(&CHANGED, &[])?;
    let new = ask(&["ls-files", "-z", "--others", "--exclude-standard"], &[])?;
    let known = ask(&["ls-tree", "-r", "-z", "--name-only", before], &[])?;
    let known: BTreeSet<&[u8]> = parts(&known).collect();
    let top = &repository.top;
    let changed = parts(&changed).filter(|path| !rules.is_off_limits(top, path));
    let (there, gone): (Vec<_>, Vec<_>) = changed.partition(|path| is_there(top, path));
    let new = parts(&new).filter(|path| {
        // A repository of its own ends with a slash.
        !path.ends_with(b"/")
            && !rules.is_off_limits(top, path)
            && (known.contains(path) || !rules.is_huge(&at(top, path)))
    });
    let mut room = Room::new(rules.max_file_bytes);
    let own = ask(&["ls-files", "-z"], &[])?;
    let users = repository.git.order(&["ls-files", "-z"]).ask(call_off)?;
    let users: BTreeSet<&[u8]> = parts(&users).collect();
    for path in parts(&own).filter(|path| !users.contains(path)) {
        room.take(size_of(&at(top, path)));
    }
    let (new, crowded): (Vec<_>, Vec<_>) =
        new.partition(|path| known.contains(path) || room.take(size_of(&at(top, path))));
    let there = there.into_iter().filter(|path| can_be_kept(top, path));
    let words = ["update-index", "-z", "--force-remove", "--stdin"];
    ask(&words, &ended_by_nul(gone.into_iter()))?;
    let words = [
        "update-index",
        "-z",
        "--add",
        "--remove",
        "--replace",
        "--stdin",
    ];
    ask(&words, &ended_by_nul(there.chain(new)))?;
    let tree = repository.git.order(&["write-tree"]).index(&index.0);
    Ok(Present {
        tree: tree.ask_line(call_off)?,
        crowded: crowded.into_iter().map(<[u8]>::to_vec).collect(),
        repository,
        index,
    })
}

/// What lies behind a link is somewhere else.
pub fn is_there(top: &Path, path: &[u8]) -> bool {
    let is_dir = |above: &[u8]| {
        let there = std::fs::symlink_metadata(at(top, above));
        there.is_ok_and(|there| there.is_dir())
    };
    ancestors(path).all(is_dir) && std::fs::symlink_metadata(at(top, path)).is_ok()
}

/// Returns the directories above a path, from the top.
pub fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| &path[..at])
}

/// Git keeps files, links and submodules; a pipe in the place of one is passed over.
fn can_be_kept(top: &Path, path: &[u8]) -> bool {
    std::fs::symlink_metadata(at(top, path)).map_or(true, |there| {
        there.is_file() || there.is_symlink() || there.is_dir()
    })
}

pub(crate) fn at(top: &Path, path: &[u8]) -> PathBuf {
    top.join(OsStr::from_bytes(path))
}
