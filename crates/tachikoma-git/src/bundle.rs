//! Bundles: the branch, the work tree and the snapshots of a loop in one file that git can read. A backup that is uploaded
//! contains a bundle, because the repository may not exist where the backup is restored.

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
use super::repository::Repository;
use super::rules::Bounds;
use super::snapshots;
use tachikoma_core::error_chain as chain;

mod copied;
mod unpack;

pub use copied::{copied_ref, update_work_record};
pub use unpack::MARK;
pub use unpack::{InTheWay, Merge, Unpacked, unpack};

/// Returns the reference that names HEAD of the backup in the repository into which the backup is restored.
#[must_use]
pub fn restored_head(loop_id: LoopId) -> String {
    format!("{}/{RESTORED}", snapshots::below(loop_id))
}

/// Name of the reference of a restored HEAD, below the references of the loop.
const RESTORED: &str = "restored-head";

/// Timeout for packing. A repository of the maximum size takes half a minute on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Number of attempts if references change while git packs. A commit or the start of an iteration can change them.
const ATTEMPTS: u32 = 3;

/// The loop and the work tree to pack.
#[derive(Clone, Debug)]
pub struct BundleSource {
    /// The working directory of the loop.
    pub working_dir: PathBuf,
    /// Id of the loop.
    pub loop_id: LoopId,
    /// The `PATH` in which git is searched; `None` = that of this process.
    pub search_path: Option<OsString>,
    /// Environment variables that are removed for git.
    pub hidden: Vec<OsString>,
    /// Which files of the work tree are left out of the bundle.
    pub bounds: Bounds,
}

/// Result of packing a bundle.
#[derive(Debug, PartialEq, Eq)]
pub enum Bundled {
    /// Nothing was packed: there is no repository, or it is empty.
    Nothing,
    /// The repository was packed into a bundle.
    At {
        /// Path of the bundle.
        path: PathBuf,
        /// Why uncommitted changes are not in the bundle; `None` if they are.
        without_tree: Option<String>,
    },
    /// The repository could not be packed, for this reason.
    Without(String),
}

impl Bundled {
    /// Returns the path of the bundle, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::At { path, .. } => Some(path.clone()),
            Self::Nothing | Self::Without(_) => None,
        }
    }

    /// Returns a description of what is missing in a backup with this bundle, and why; `None` if nothing is.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::At { without_tree, .. } => {
                let why = without_tree.as_ref()?;
                Some(format!("uncommitted changes: {why}"))
            }
            Self::Without(why) => Some(format!("the work tree: {why}")),
        }
    }
}

/// Removes unfinished bundles of processes that died: files that are older than the timeout.
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

/// References that a bundle has to contain.
struct WantedContent {
    /// Whether uncommitted changes are among them.
    tree: bool,
    /// The branch that HEAD points to; `None` if HEAD is detached.
    branch: Option<String>,
    head: Option<String>,
    /// One line for each reference: the commit and the name.
    listed: Vec<String>,
}

impl WantedContent {
    /// Returns whether a bundle with these heads contains all wanted references.
    fn is_contained_in(&self, heads: &str) -> bool {
        let heads: BTreeSet<&str> = heads.lines().collect();
        self.listed.iter().all(|line| heads.contains(line.as_str()))
    }

    /// Returns the text that is stored beside the bundle, to recognize later that nothing has changed.
    fn record(&self, sum: &str) -> String {
        format!("{sum}\n{}\n", self.listed.join("\n"))
    }
}

/// Returns the checksum of a file.
fn sum_of(path: &Path) -> io::Result<String> {
    digest_of(&mut File::open(path)?).map(|digest| digest.hex)
}

impl BundleSource {
    /// Packs the repository and its work tree, unless the existing bundle already contains both. `owner` is the owner of changes
    /// since the last survey. Blocks for a bounded time.
    #[must_use]
    pub fn bundle(
        &self,
        loop_dir: &Path,
        owner: &dyn Fn() -> ChangeOwner,
        cancel: &CancelToken,
    ) -> Bundled {
        let cancel = cancel.within(TIMEOUT);
        let found = Repository::find(&self.working_dir, self.search_path.as_deref(), &cancel);
        let packed = found.and_then(|found| {
            let Some(repository) = found else {
                return Ok(Bundled::Nothing);
            };
            let repository = repository.of_loop(self.loop_id, self.hidden.clone());
            let packed = self.pack(&repository, loop_dir, owner, &cancel);
            packed.map_err(|error| chain(&error))
        });
        packed.unwrap_or_else(Bundled::Without)
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
        let shallow = git.command("rev-parse --is-shallow-repository");
        if shallow.stdout_line(cancel)? == "true" {
            return without(
                "the repository is a shallow clone; `git fetch --unshallow` completes it",
            );
        }
        let partial = git.command("config --get extensions.partialClone");
        if partial.run(cancel)?.code == Some(0) {
            return without(
                "the repository is a partial clone, which lacks objects that a bundle needs",
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
            let saved = copied::save_work_tree(self, repository, loop_dir, owner, cancel);
            let wanted = self.wanted(git, saved.is_ok(), cancel)?;
            if wanted.listed.is_empty() {
                return Ok(Bundled::Nothing);
            }
            if let Some(packed) = self.pack_wanted(git, loop_dir, &wanted, saved.err(), cancel)? {
                return Ok(packed);
            }
        }
        without("commits are made faster than git can pack them")
    }

    /// Packs the wanted references, unless the existing bundle contains them. Returns `None` if references changed meanwhile: git
    /// leaves such references out without an error.
    fn pack_wanted(
        &self,
        git: &Git,
        loop_dir: &Path,
        wanted: &WantedContent,
        without_tree: Option<String>,
        cancel: &CancelToken,
    ) -> Result<Option<Bundled>, GitError> {
        let (path, refs) = (loop_dir.join(NAME), loop_dir.join(BUNDLE_REFS));
        let is_known = |sum: String| {
            let known = std::fs::read_to_string(&refs);
            known.is_ok_and(|text| text == wanted.record(&sum))
        };
        if sum_of(&path).is_ok_and(is_known) {
            return Ok(Some(Bundled::At { path, without_tree }));
        }
        remove_remains(loop_dir);
        let made = loop_dir.join(format!("{NAME}.{}", uuid::Uuid::new_v4().simple()));
        let packed = self.pack_into(&made, git, wanted, cancel);
        let packed = packed.and_then(|bytes| {
            if bytes > BYTES_MAX {
                return Ok(Some(too_large(bytes)));
            }
            let heads = git.command("bundle list-heads").arg(&made);
            let heads = heads.stdout(cancel)?;
            if !wanted.is_contained_in(&String::from_utf8_lossy(&heads)) {
                return Ok(None);
            }
            let sum = sum_of(&made).map_err(GitError::io("read", &made))?;
            std::fs::rename(&made, &path).map_err(GitError::io("replace", &path))?;
            // If this write fails, the next call packs the bundle again.
            let _ =
                atomic_file::write_whole(&refs, wanted.record(&sum).as_bytes(), Durability::Lazy);
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

    /// Writes and syncs a bundle that only the owner can read. Returns its size in bytes.
    fn pack_into(
        &self,
        path: &Path,
        git: &Git,
        wanted: &WantedContent,
        cancel: &CancelToken,
    ) -> Result<u64, GitError> {
        let below = snapshots::below(self.loop_id);
        let exclude = format!("--exclude={}", restored_head(self.loop_id));
        let exclude_tree = format!("--exclude={}", copied_ref(self.loop_id));
        let glob = format!("--glob={below}");
        let mut command = git.command("bundle create -q").arg(path);
        if wanted.head.is_some() {
            command = command.arg("HEAD");
        }
        if let Some(branch) = wanted.branch.as_ref().filter(|_| wanted.head.is_some()) {
            command = command.arg(branch);
        }
        if !wanted.tree {
            command = command.arg(&exclude_tree);
        }
        let command = command.arg(&exclude).arg(&glob).timeout(Some(TIMEOUT));
        let command = command.env("GIT_NO_LAZY_FETCH", "1").ends_with_caller();
        command.stdout(cancel)?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path, private).map_err(GitError::io("protect", path))?;
        let synced = File::open(path).and_then(|file| {
            file.sync_all()?;
            file.metadata()
        });
        Ok(synced.map_err(GitError::io("sync", path))?.len())
    }

    fn wanted(
        &self,
        git: &Git,
        tree: bool,
        cancel: &CancelToken,
    ) -> Result<WantedContent, GitError> {
        let branch = git.command("symbolic-ref --quiet HEAD");
        let branch = branch.run(cancel)?;
        let branch = (branch.code == Some(0)).then(|| {
            let name = String::from_utf8_lossy(&branch.stdout);
            name.trim_end().to_owned()
        });
        let head = verify(git, "HEAD", cancel)?;
        let below = snapshots::below(self.loop_id);
        let refs = snapshots::refs_of(git, self.loop_id, cancel)?.into_iter();
        // References to earlier restores and to other work trees are left out.
        let mut listed: Vec<String> = refs
            .filter(|(_, name)| name != RESTORED && (tree || name != copied::COPIED))
            .map(|(commit, name)| format!("{commit} {below}/{name}"))
            .collect();
        if let Some(head) = &head {
            listed.push(format!("{head} HEAD"));
            listed.extend(branch.iter().map(|branch| format!("{head} {branch}")));
        }
        Ok(WantedContent {
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
        "the repository has {found} MiB, more than the {max} MiB that a backup can contain"
    ))
}

/// Returns the size in bytes of all objects of a repository. The size of a bundle is similar.
fn object_bytes(git: &Git, cancel: &CancelToken) -> Result<u64, GitError> {
    let output = git.command("count-objects -v").stdout(cancel)?;
    let output = String::from_utf8_lossy(&output);
    let kibibytes = output.lines().filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let counts = matches!(name, "size" | "size-pack");
        value.parse::<u64>().ok().filter(|_| counts)
    });
    Ok(kibibytes.sum::<u64>() << 10)
}

#[cfg(test)]
mod tests;
