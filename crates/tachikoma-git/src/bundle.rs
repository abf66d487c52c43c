//! The work of a loop in one file: its branch, its work tree and its snapshots, as a bundle that git itself reads. A backup that goes
//! elsewhere has it, since there the repository may not be.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tachikoma_cloud::digest_of;
use tachikoma_core::LoopId;
use tachikoma_fs::atomic_file::{self, Durability};

use tachikoma_store::backup::BUNDLE_BYTES_MAX as BYTES_MAX;
pub use tachikoma_store::backup::BUNDLE_NAME as NAME;

use super::change_owner::ChangeOwner;
use super::head::verify;
use super::loop_files::{BUNDLE_REFS, is_under_way};
use super::program::{CancelToken, Git, GitError};
use super::repository::{Found, Repository};
use super::snapshots;
use super::worktree_tree::Bounds;
use tachikoma_core::error_chain as chain;

mod copied;
mod unpack;

pub use copied::{copied_ref, look};
pub use unpack::MARK;
pub use unpack::{InTheWay, Merge, Unpacked, unpack};

/// The reference that HEAD of a backup gets where it is brought to.
#[must_use]
pub fn restored_head(loop_id: LoopId) -> String {
    format!("{}/{RESTORED}", snapshots::below(loop_id))
}

/// Where a fetched bundle's HEAD is kept, below the references of the loop.
const RESTORED: &str = "restored-head";

/// Packing a repository of that size takes half a minute on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How often it is tried while commits are made, or iterations begin: they take longer than a look.
const ATTEMPTS: u32 = 3;

/// The loop, and the work tree with its work.
#[derive(Clone, Debug)]
pub struct BundleSource {
    /// The working directory of the loop.
    pub working_dir: PathBuf,
    /// The loop.
    pub loop_id: LoopId,
    /// Where git is looked for.
    pub search_path: Option<OsString>,
    /// Variables that git does not get.
    pub hidden: Vec<OsString>,
    /// What of the work tree is left alone.
    pub bounds: Bounds,
}

/// What came of making a bundle.
#[derive(Debug, PartialEq, Eq)]
pub enum Bundled {
    /// There is no repository, or nothing in it.
    Nothing,
    /// It is there.
    At {
        /// The file.
        path: PathBuf,
        /// Why the work tree as it is is not in it, if it is not: only what was committed, and what was there before iterations.
        without_tree: Option<String>,
    },
    /// There is a repository, and no bundle of it, for a reason.
    Without(String),
}

impl Bundled {
    /// Returns where the bundle is, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::At { path, .. } => Some(path.clone()),
            Self::Nothing | Self::Without(_) => None,
        }
    }

    /// Returns what is not in a backup with it, and why.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::At { without_tree, .. } => {
                let why = without_tree.as_ref()?;
                Some(format!("without what is not committed yet: {why}"))
            }
            Self::Without(why) => Some(format!("without the work tree: {why}")),
        }
    }
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
    /// Whether the work tree as it is is in it.
    tree: bool,
    /// The branch that HEAD points to.
    branch: Option<String>,
    head: Option<String>,
    /// All of it: a commit, and what it is called, in a line.
    listed: Vec<String>,
}

impl Held {
    /// Whether all of it is in a bundle that has these.
    fn is_all_in(&self, heads: &str) -> bool {
        let heads: BTreeSet<&str> = heads.lines().collect();
        self.listed.iter().all(|line| heads.contains(line.as_str()))
    }

    /// What is written down of it, and of the bundle that has it.
    fn remembered(&self, sum: &str) -> String {
        format!("{sum}\n{}\n", self.listed.join("\n"))
    }
}

/// What a file is known by again.
fn sum_of(path: &Path) -> io::Result<String> {
    digest_of(&mut File::open(path)?).map(|digest| digest.hex)
}

impl BundleSource {
    /// Makes a bundle of the repository and its work tree as they are, unless one is there that has all of it. `whose` is what changed
    /// since the loop last looked. Blocks, for a while that is bounded.
    #[must_use]
    pub fn bundle(
        &self,
        loop_dir: &Path,
        owner: &dyn Fn() -> ChangeOwner,
        cancel: &CancelToken,
    ) -> Bundled {
        let cancel = cancel.within(TIMEOUT);
        let found = Repository::find(&self.working_dir, self.search_path.as_deref(), &cancel);
        let repository = match found {
            Found::Repository(repository) => repository.of_loop(self.loop_id, self.hidden.clone()),
            Found::NoRepository => return Bundled::Nothing,
            Found::Unusable { reason } => return Bundled::Without(reason),
        };
        self.pack(&repository, loop_dir, owner, &cancel)
            .unwrap_or_else(|error| Bundled::Without(chain(&error)))
    }

    fn pack(
        &self,
        repository: &Repository,
        loop_dir: &Path,
        owner: &dyn Fn() -> ChangeOwner,
        cancel: &CancelToken,
    ) -> Result<Bundled, GitError> {
        let git = &repository.git;
        let without = |reason: &str| Ok(Bundled::Without(reason.to_owned()));
        let shallow = git.order(&["rev-parse", "--is-shallow-repository"]);
        if shallow.ask_line(cancel)? == "true" {
            return without(
                "the repository is a shallow clone; `git fetch --unshallow` makes it whole",
            );
        }
        let partial = git.order(&["config", "--get", "extensions.partialClone"]);
        if partial.run(cancel)?.code == Some(0) {
            return without(
                "the repository is a partial clone, which does not have all that a bundle needs",
            );
        }
        if !self.is_top(repository) {
            return without("the working directory is not the top of its repository");
        }
        let bytes = object_bytes(git, cancel)?;
        if bytes > BYTES_MAX {
            return Ok(too_large(bytes));
        }
        for _ in 0..ATTEMPTS {
            let kept = copied::keep_present(self, repository, loop_dir, owner, cancel);
            let held = self.held(git, kept.is_ok(), cancel)?;
            if held.listed.is_empty() {
                return Ok(Bundled::Nothing);
            }
            if let Some(packed) = self.pack_held(git, loop_dir, &held, kept.err(), cancel)? {
                return Ok(packed);
            }
        }
        without("commits are made faster than they can be packed")
    }

    /// Makes a bundle of what was seen, unless one is there that has it, whole. Returns none where that has moved on in between: git leaves
    /// such references out, and says nothing.
    fn pack_held(
        &self,
        git: &Git,
        loop_dir: &Path,
        held: &Held,
        without_tree: Option<String>,
        cancel: &CancelToken,
    ) -> Result<Option<Bundled>, GitError> {
        let (path, refs) = (loop_dir.join(NAME), loop_dir.join(BUNDLE_REFS));
        let is_known = |sum: String| {
            let known = std::fs::read_to_string(&refs);
            known.is_ok_and(|text| text == held.remembered(&sum))
        };
        if sum_of(&path).is_ok_and(is_known) {
            return Ok(Some(Bundled::At { path, without_tree }));
        }
        remove_remains(loop_dir);
        let made = loop_dir.join(format!("{NAME}.{}", uuid::Uuid::new_v4().simple()));
        let packed = self.pack_into(&made, git, held, cancel);
        let packed = packed.and_then(|bytes| {
            if bytes > BYTES_MAX {
                return Ok(Some(too_large(bytes)));
            }
            let heads = git.order(&["bundle", "list-heads"]).word(&made);
            let heads = heads.ask(cancel)?;
            if !held.is_all_in(&String::from_utf8_lossy(&heads)) {
                return Ok(None);
            }
            let sum = sum_of(&made).map_err(GitError::io("read", &made))?;
            std::fs::rename(&made, &path).map_err(GitError::io("replace", &path))?;
            // Without it the next one is made anew.
            let _ =
                atomic_file::write_whole(&refs, held.remembered(&sum).as_bytes(), Durability::Lazy);
            Ok(Some(Bundled::At { path, without_tree }))
        });
        if !matches!(packed, Ok(Some(Bundled::At { .. }))) {
            let _ = std::fs::remove_file(&made);
        }
        packed
    }

    /// Returns whether the working directory is the top of a repository.
    fn is_top(&self, repository: &Repository) -> bool {
        repository.top.canonicalize().ok() == self.working_dir.canonicalize().ok()
    }

    /// Makes a bundle, for the owner alone, and has it on the disk. Returns its size.
    fn pack_into(
        &self,
        path: &Path,
        git: &Git,
        held: &Held,
        cancel: &CancelToken,
    ) -> Result<u64, GitError> {
        let below = snapshots::below(self.loop_id);
        let exclude = format!("--exclude={}", restored_head(self.loop_id));
        let exclude_tree = format!("--exclude={}", copied_ref(self.loop_id));
        let glob = format!("--glob={below}");
        let mut order = git.order(&["bundle", "create", "-q"]).word(path);
        if held.head.is_some() {
            order = order.word("HEAD");
        }
        if let Some(branch) = held.branch.as_ref().filter(|_| held.head.is_some()) {
            order = order.word(branch);
        }
        if !held.tree {
            order = order.word(&exclude_tree);
        }
        let order = order.word(&exclude).word(&glob).limit(Some(TIMEOUT));
        let order = order.env("GIT_NO_LAZY_FETCH", "1").ends_with_us();
        order.ask(cancel)?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path, private).map_err(GitError::io("protect", path))?;
        let synced = File::open(path).and_then(|file| {
            file.sync_all()?;
            file.metadata()
        });
        Ok(synced.map_err(GitError::io("sync", path))?.len())
    }

    fn held(&self, git: &Git, tree: bool, cancel: &CancelToken) -> Result<Held, GitError> {
        let branch = git.order(&["symbolic-ref", "--quiet", "HEAD"]);
        let branch = branch.run(cancel)?;
        let branch = (branch.code == Some(0)).then(|| {
            let name = String::from_utf8_lossy(&branch.bytes);
            name.trim_end().to_owned()
        });
        let head = verify(git, "HEAD", cancel)?;
        let below = snapshots::below(self.loop_id);
        let listed = git.order(&["for-each-ref", "--format=%(objectname) %(refname)"]);
        let listed = listed.word(&below).ask(cancel)?;
        let listed = String::from_utf8_lossy(&listed);
        // References to earlier restorations and to other work trees are not part of the work.
        let restored = format!(" {}", restored_head(self.loop_id));
        let copied = format!(" {}", copied_ref(self.loop_id));
        let is_work =
            |line: &&str| !line.ends_with(&restored) && (tree || !line.ends_with(&copied));
        let mut listed: Vec<String> = listed.lines().filter(is_work).map(str::to_owned).collect();
        if let Some(head) = &head {
            listed.push(format!("{head} HEAD"));
            listed.extend(branch.iter().map(|branch| format!("{head} {branch}")));
        }
        Ok(Held {
            tree,
            branch,
            head,
            listed,
        })
    }
}

fn too_large(bytes: u64) -> Bundled {
    let (found, max) = (bytes >> 20, BYTES_MAX >> 20);
    Bundled::Without(format!(
        "the repository has {found} MiB, more than the {max} MiB that a backup takes"
    ))
}

/// What all objects of a repository have on disk, in bytes: a bundle has hardly more.
fn object_bytes(git: &Git, cancel: &CancelToken) -> Result<u64, GitError> {
    let answer = git.order(&["count-objects", "-v"]).ask(cancel)?;
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
