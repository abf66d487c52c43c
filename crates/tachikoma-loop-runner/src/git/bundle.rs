//! The work of a loop in one file: its branch and its snapshots, as a bundle that git itself reads. A backup that goes elsewhere has it,
//! since there the repository may not be.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tachikoma_core::LoopId;

use super::head::verify;
use super::program::{CallOff, Git, GitError};
use super::repository::{Found, Repository};
use super::snapshots;
use crate::chain;
use crate::store::whole::{self, Durability};

mod unpack;

pub use unpack::{InTheWay, Unpacked};

/// The bundle, in the directory of the loop and in a backup.
pub(crate) const NAME: &str = "git-work.bundle";

/// What was in the repository when it was made.
const REFS: &str = "git-work.refs";

/// Where a fetched bundle's HEAD is kept, below the references of the loop.
const RESTORED: &str = "restored-head";

/// What a bundle may have: each backup that is kept has one.
pub const BYTES_MAX: u64 = 256 << 20;

/// Packing a repository of that size takes half a minute on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Whose work it is, and where.
#[derive(Clone, Debug)]
pub struct Work {
    /// The working directory of the loop.
    pub working_dir: PathBuf,
    /// The loop.
    pub loop_id: LoopId,
    /// Where git is looked for.
    pub search_path: Option<OsString>,
    /// Variables that git does not get.
    pub hidden: Vec<OsString>,
}

/// What came of making a bundle.
#[derive(Debug, PartialEq, Eq)]
pub enum Bundled {
    /// There is no repository, or nothing in it.
    Nothing,
    /// It is there.
    At(PathBuf),
    /// There is a repository, and no bundle of it, for a reason.
    Without(String),
}

impl Bundled {
    /// Returns where the bundle is, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::At(path) => Some(path.clone()),
            Self::Nothing | Self::Without(_) => None,
        }
    }
}

/// Returns whether a file of that name in the directory of a loop is a bundle's.
pub(crate) fn is_ours_in_loop(name: &str) -> bool {
    name == REFS || name == NAME || is_under_way(name)
}

/// Whether a file of that name is a bundle that is being made, or git's lock beside it. Each maker has a name of its own, so that what one
/// left that died is in nobody's way.
fn is_under_way(name: &str) -> bool {
    let Some(rest) = name
        .strip_prefix(NAME)
        .and_then(|rest| rest.strip_prefix('.'))
    else {
        return false;
    };
    // As earlier versions had it.
    let own = rest.strip_suffix(".lock").unwrap_or(rest);
    rest == "lock" || own.len() == 32 && own.chars().all(|c| c.is_ascii_hexdigit())
}

/// Removes what makers left that died: no other is at it for that long.
fn remove_remains(loop_dir: &Path) {
    for entry in std::fs::read_dir(loop_dir).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|there| there.modified());
        let age = modified.ok().and_then(|time| time.elapsed().ok());
        let is_old = age.is_some_and(|age| age > TIMEOUT);
        if is_old && entry.file_name().to_str().is_some_and(is_under_way) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// What a bundle holds.
struct Held {
    /// The branch that HEAD stands on.
    branch: Option<String>,
    head: Option<String>,
    /// All of it, as it is remembered.
    text: String,
}

impl Work {
    /// Makes a bundle of the repository as it is, unless one is there that has all of it. Blocks, for a while that is bounded.
    #[must_use]
    pub fn bundle(&self, loop_dir: &Path, call_off: &CallOff) -> Bundled {
        let call_off = call_off.within(TIMEOUT);
        let found = Repository::find(&self.working_dir, self.search_path.as_deref(), &call_off);
        let repository = match found {
            Found::Repository(repository) => repository.of_loop(self.loop_id, self.hidden.clone()),
            Found::NoRepository => return Bundled::Nothing,
            Found::Unusable { reason } => return Bundled::Without(reason),
        };
        self.pack(&repository, loop_dir, &call_off)
            .unwrap_or_else(|error| Bundled::Without(chain(&error)))
    }

    fn pack(
        &self,
        repository: &Repository,
        loop_dir: &Path,
        call_off: &CallOff,
    ) -> Result<Bundled, GitError> {
        let git = &repository.git;
        let without = |reason: &str| Ok(Bundled::Without(reason.to_owned()));
        let shallow = git.order(&["rev-parse", "--is-shallow-repository"]);
        if shallow.ask_line(call_off)? == "true" {
            return without(
                "the repository is a shallow clone; `git fetch --unshallow` makes it whole",
            );
        }
        let partial = git.order(&["config", "--get", "extensions.partialClone"]);
        if partial.run(call_off)?.code == Some(0) {
            return without(
                "the repository is a partial clone, which does not have all that a bundle needs",
            );
        }
        let same = |one: &Path, other: &Path| one.canonicalize().ok() == other.canonicalize().ok();
        if !same(&repository.top, &self.working_dir) {
            return without("the working directory is not the top of its repository");
        }
        let held = self.held(git, call_off)?;
        if held.text.is_empty() {
            return Ok(Bundled::Nothing);
        }
        let (path, refs) = (loop_dir.join(NAME), loop_dir.join(REFS));
        if path.is_file() && std::fs::read_to_string(&refs).is_ok_and(|text| text == held.text) {
            return Ok(Bundled::At(path));
        }
        let bytes = object_bytes(git, call_off)?;
        if bytes > BYTES_MAX {
            return Ok(too_large(bytes));
        }
        remove_remains(loop_dir);
        let made = loop_dir.join(format!("{NAME}.{}", uuid::Uuid::new_v4().simple()));
        let packed = self.pack_into(&made, git, &held, call_off);
        let packed = packed.and_then(|bytes| {
            if bytes > BYTES_MAX {
                return Ok(too_large(bytes));
            }
            std::fs::rename(&made, &path).map_err(GitError::io("replace", &path))?;
            Ok(Bundled::At(path))
        });
        if !matches!(packed, Ok(Bundled::At(_))) {
            let _ = std::fs::remove_file(&made);
            return packed;
        }
        // Without it the next one is made anew.
        let _ = whole::write_whole(&refs, held.text.as_bytes(), Durability::Lazy);
        packed
    }

    /// Makes a bundle, for the owner alone. Returns its size.
    fn pack_into(
        &self,
        path: &Path,
        git: &Git,
        held: &Held,
        call_off: &CallOff,
    ) -> Result<u64, GitError> {
        let below = snapshots::below(self.loop_id);
        let exclude = format!("--exclude={below}/{RESTORED}");
        let glob = format!("--glob={below}");
        let mut order = git.order(&["bundle", "create", "-q"]).word(path);
        if held.head.is_some() {
            order = order.word("HEAD");
        }
        if let Some(branch) = held.branch.as_ref().filter(|_| held.head.is_some()) {
            order = order.word(branch);
        }
        let order = order.word(&exclude).word(&glob).limit(Some(TIMEOUT));
        let order = order.env("GIT_NO_LAZY_FETCH", "1").ends_with_us();
        order.ask(call_off)?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path, private).map_err(GitError::io("protect", path))?;
        let there = std::fs::metadata(path).map_err(GitError::io("look at", path))?;
        Ok(there.len())
    }

    fn held(&self, git: &Git, call_off: &CallOff) -> Result<Held, GitError> {
        let branch = git.order(&["symbolic-ref", "--quiet", "HEAD"]);
        let branch = branch.run(call_off)?;
        let branch = (branch.code == Some(0)).then(|| {
            let name = String::from_utf8_lossy(&branch.bytes);
            name.trim_end().to_owned()
        });
        let head = verify(git, "HEAD", call_off)?;
        let below = snapshots::below(self.loop_id);
        let listed = git.order(&["for-each-ref", "--format=%(objectname) %(refname)"]);
        let listed = listed.word(&below).ask(call_off)?;
        let listed = String::from_utf8_lossy(&listed);
        // Where it was once brought from is no part of the work.
        let is_work = |line: &&str| !line.ends_with(&format!(" {below}/{RESTORED}"));
        let listed: String = listed
            .split_inclusive('\n')
            .filter(|line| is_work(&line.trim_end()))
            .collect();
        let text = match &head {
            None if listed.is_empty() => String::new(),
            head => {
                let (head, branch) = (head.as_deref(), branch.as_deref());
                let (head, branch) = (head.unwrap_or_default(), branch.unwrap_or_default());
                format!("{head} HEAD {branch}\n{listed}")
            }
        };
        Ok(Held { branch, head, text })
    }
}

fn too_large(bytes: u64) -> Bundled {
    let (found, max) = (bytes >> 20, BYTES_MAX >> 20);
    Bundled::Without(format!(
        "the repository has {found} MiB, more than the {max} MiB that a backup takes"
    ))
}

/// What all objects of a repository have on disk, in bytes: a bundle has hardly more.
fn object_bytes(git: &Git, call_off: &CallOff) -> Result<u64, GitError> {
    let answer = git.order(&["count-objects", "-v"]).ask(call_off)?;
    let answer = String::from_utf8_lossy(&answer);
    let kibibytes = answer.lines().filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let counts = matches!(name, "size" | "size-pack");
        value.parse::<u64>().ok().filter(|_| counts)
    });
    Ok(kibibytes.sum::<u64>() << 10)
}

#[cfg(test)]
mod tests;
