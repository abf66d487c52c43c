//! The work of a loop in one file: its branch and its snapshots, as a bundle that git itself reads. A backup that goes elsewhere has it,
//! since there the repository may not be.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tachikoma_core::LoopId;

use super::head::verify;
use super::program::{CallOff, Git, GitError};
use super::repository::{Found, Repository};
use super::snapshots::{self, Kept, Moment};
use crate::chain;
use crate::store::whole::{self, Durability};

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

/// Returns whether a file of that name in the directory of a loop is a bundle's. Git has a lock beside it while it writes.
pub(crate) fn is_ours_in_loop(name: &str) -> bool {
    name == REFS || matches!(name.strip_prefix(NAME), Some("" | ".lock"))
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
        // What a bundler left that died; nobody else makes one of this loop for that long.
        let lock = loop_dir.join(format!("{NAME}.lock"));
        let is_old = |there: std::fs::Metadata| {
            let age = there.modified().ok().and_then(|time| time.elapsed().ok());
            age.is_some_and(|age| age > TIMEOUT)
        };
        if std::fs::symlink_metadata(&lock).is_ok_and(is_old) {
            let _ = std::fs::remove_file(&lock);
        }
        let glob = format!("--glob={}", snapshots::below(self.loop_id));
        let mut order = git.order(&["bundle", "create", "-q"]).word(&path);
        if held.head.is_some() {
            order = order.word("HEAD");
        }
        if let Some(branch) = held.branch.as_ref().filter(|_| held.head.is_some()) {
            order = order.word(branch);
        }
        let order = order.word(&glob).limit(Some(TIMEOUT));
        let order = order.env("GIT_NO_LAZY_FETCH", "1").ends_with_us();
        order.ask(call_off)?;
        let bytes = std::fs::metadata(&path).map_err(GitError::io("look at", &path))?;
        if bytes.len() > BYTES_MAX {
            let _ = std::fs::remove_file(&path);
            return Ok(too_large(bytes.len()));
        }
        // Without it the next one is made anew.
        let _ = whole::write_whole(&refs, held.text.as_bytes(), Durability::Lazy);
        Ok(Bundled::At(path))
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

/// What came of bringing the work back.
#[derive(Debug, PartialEq, Eq)]
pub enum Unpacked {
    /// A repository was made, and the work tree in it.
    Made {
        /// What HEAD stands on: a branch, or a commit.
        on: String,
        /// Whether the work tree is a snapshot's, with what was not committed.
        from_snapshot: bool,
    },
    /// A repository was there: it has the commits now, and its work tree is as it was.
    Fetched {
        /// What HEAD stood on in the backup, unless it stands there.
        check_out: Option<String>,
    },
}

impl Work {
    /// Brings the work of a bundle back: into the repository that is there, or into a new one. Blocks.
    ///
    /// # Errors
    /// Git cannot do it, or files are in the way. No file of the work tree has changed then, and a new repository is gone.
    pub fn unpack(&self, bundle: &Path) -> Result<Unpacked, String> {
        let call_off = CallOff::new();
        let told = |error: GitError| chain(&error);
        match Repository::find(&self.working_dir, self.search_path.as_deref(), &call_off) {
            Found::Repository(repository) => {
                let (head, branch) = self.fetch(&repository.git, bundle).map_err(told)?;
                let here = verify(&repository.git, "HEAD", &call_off).map_err(told)?;
                let there = branch.as_deref().or(head.as_deref());
                let check_out = there.filter(|_| head != here).map(short);
                Ok(Unpacked::Fetched { check_out })
            }
            Found::Unusable { reason } => Err(reason),
            Found::NoRepository => {
                let git = Git::new(&self.working_dir, self.search_path.as_deref());
                let init = git.order(&["init", "--quiet"]);
                init.ask(&call_off).map_err(told)?;
                self.make(&git, bundle).map_err(|error| {
                    // It was not there before.
                    let _ = std::fs::remove_dir_all(self.working_dir.join(".git"));
                    told(error)
                })
            }
        }
    }

    /// Fetches all that a bundle has of the loop. Returns what HEAD was, and its branch.
    fn fetch(
        &self,
        git: &Git,
        bundle: &Path,
    ) -> Result<(Option<String>, Option<String>), GitError> {
        let call_off = CallOff::new();
        let heads = git.order(&["bundle", "list-heads"]).word(bundle);
        let heads = heads.ask(&call_off)?;
        let heads = String::from_utf8_lossy(&heads).into_owned();
        let named = |wanted: &dyn Fn(&str) -> bool| {
            let mut lines = heads.lines().filter_map(|line| line.split_once(' '));
            let found = lines.find(|(_, name)| wanted(name));
            found.map(|(commit, name)| (commit.to_owned(), name.to_owned()))
        };
        let head = named(&|name| name == "HEAD").map(|(commit, _)| commit);
        let branch = named(&|name| name.starts_with("refs/heads/")).map(|(_, name)| name);
        let below = snapshots::below(self.loop_id);
        let all = format!("+{below}/*:{below}/*");
        let restored = format!("+HEAD:{below}/{RESTORED}");
        let mut order = git.order(&["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"]);
        order = order.word(bundle).word(&all).limit(Some(TIMEOUT));
        if head.is_some() {
            order = order.word(&restored);
        }
        order.ask(&call_off)?;
        Ok((head, branch))
    }

    /// Makes branch, index and work tree in a repository that has nothing yet. What was not committed when the last snapshot was made is there
    /// again, and is not committed.
    fn make(&self, git: &Git, bundle: &Path) -> Result<Unpacked, GitError> {
        let call_off = CallOff::new();
        let ask = |words: &[&str]| git.order(words).limit(Some(TIMEOUT)).ask(&call_off);
        let (head, branch) = self.fetch(git, bundle)?;
        if let Some(branch) = &branch {
            ask(&["symbolic-ref", "HEAD", branch])?;
        }
        let kept = snapshots::list(git, self.loop_id, &call_off)?;
        let last = kept.iter().rev().find(|kept| is_iteration(kept));
        let fits = match (last, &head) {
            (Some(last), Some(head)) => {
                let parent = verify(git, &format!("{}^", last.commit), &call_off)?;
                last.commit == *head || parent.as_ref() == Some(head)
            }
            (last, None) => last.is_some(),
            (None, Some(_)) => false,
        };
        let snapshot = last.filter(|_| fits).map(|last| last.commit.clone());
        let from_snapshot = snapshot.is_some() && snapshot != head;
        if let Some(tree) = snapshot.as_ref().or(head.as_ref()) {
            // Refuses to write over what is there.
            ask(&["read-tree", "-m", "-u", tree])?;
        }
        let on = match (&head, &branch) {
            (Some(head), Some(branch)) => {
                ask(&["update-ref", branch, head])?;
                short(branch)
            }
            (Some(head), None) => {
                ask(&["update-ref", "--no-deref", "HEAD", head])?;
                head.clone()
            }
            (None, _) => "a branch without commits".to_owned(),
        };
        match &head {
            Some(head) => ask(&["read-tree", head])?,
            None => ask(&["read-tree", "--empty"])?,
        };
        // So that git need not look at every file again.
        let _ = git
            .order(&["update-index", "-q", "--refresh"])
            .run(&call_off);
        Ok(Unpacked::Made { on, from_snapshot })
    }
}

fn is_iteration(kept: &Kept) -> bool {
    matches!(kept.moment, Moment::Iteration(_))
}

fn short(branch: &str) -> String {
    branch
        .strip_prefix("refs/heads/")
        .unwrap_or(branch)
        .to_owned()
}
