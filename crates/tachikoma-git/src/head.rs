//! Reads HEAD from the files of the git directory, and starts git only if that is not possible.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::program::{CancelToken, Git, GitError};
use super::repository::Repository;
use super::stamp::stamp_of;

/// Maximum length of the line in `HEAD` or a branch file, in bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// Maximum number of references that name other references. Git follows five.
const HOPS_MAX: usize = 5;

/// Content of `HEAD` in a repository with the reftable format.
const IN_TABLES: &[u8] = b"refs/heads/.invalid";

/// References with these prefixes belong to one work tree, all others to the repository.
const OF_THE_WORK_TREE: [&[u8]; 3] = [b"refs/bisect/", b"refs/worktree/", b"refs/rewritten/"];

/// Returns the commit of HEAD; `None` on a branch without commits. Runs git if the reference files cannot be read.
pub fn commit(repository: &Repository, cancel: &CancelToken) -> Result<Option<String>, GitError> {
    match HeadReading::new(&repository.git_dir, &repository.common_dir).commit {
        Some(commit) => Ok(Some(commit)),
        None => verify(&repository.git, "HEAD^{commit}", cancel),
    }
}

/// Returns the id of an object; `None` if it does not exist.
pub fn verify(git: &Git, object: &str, cancel: &CancelToken) -> Result<Option<String>, GitError> {
    let command = git.command("rev-parse --verify --quiet").arg(object);
    let output = command.run(cancel)?;
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned();
    match output.code {
        Some(0) if is_object_name(text.as_bytes()) => Ok(Some(text)),
        Some(1) => Ok(None),
        Some(_) | None => Err(command.failure(&output)),
    }
}

/// Returns a stamp of `HEAD` and the references that it names. While the stamp is the same, HEAD is the same commit.
pub fn head_stamp(git_dir: &Path, common_dir: &Path) -> u64 {
    HeadReading::new(git_dir, common_dir).hasher.finish()
}

struct HeadReading {
    hasher: DefaultHasher,
    /// The commit of HEAD; `None` if it cannot be read without git.
    commit: Option<String>,
}

impl HeadReading {
    fn new(git_dir: &Path, common_dir: &Path) -> Self {
        let mut reading = Self {
            hasher: DefaultHasher::new(),
            commit: None,
        };
        let mut file = git_dir.join("HEAD");
        for _ in 0..HOPS_MAX {
            let Some(line) = line_of(&file) else {
                // The branch has no commits, or its reference is in the packed file.
                break;
            };
            line.hash(&mut reading.hasher);
            let Some(name) = line.strip_prefix(b"ref: ") else {
                let known = is_object_name(&line).then(|| String::from_utf8(line).ok());
                reading.commit = known.flatten();
                return reading;
            };
            if name == IN_TABLES || !name.starts_with(b"refs/") {
                break;
            }
            let own = OF_THE_WORK_TREE.iter().any(|own| name.starts_with(own));
            let dir = if own { git_dir } else { common_dir };
            file = dir.join(std::ffi::OsStr::from_bytes(name));
        }
        for file in [
            common_dir.join("packed-refs"),
            common_dir.join("reftable/tables.list"),
            git_dir.join("reftable/tables.list"),
        ] {
            stamp_of(&file).hash(&mut reading.hasher);
        }
        reading
    }
}

/// Reads the first line of a file.
fn line_of(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(LINE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let end = bytes.iter().position(|byte| *byte == b'\n');
    bytes.truncate(end.unwrap_or(bytes.len()));
    Some(bytes.trim_ascii_end().to_vec())
}

pub(crate) fn is_object_name(text: &[u8]) -> bool {
    matches!(text.len(), 40 | 64) && text.iter().all(u8::is_ascii_hexdigit)
}

/// Returns the git directory of the work tree in `dir`; `None` if there is no work tree.
pub fn git_dir_of(dir: &Path) -> Option<PathBuf> {
    let link = dir.join(".git");
    match std::fs::symlink_metadata(&link) {
        Ok(there) if there.is_file() => {
            let line = line_of(&link)?;
            let target = line.strip_prefix(b"gitdir: ")?;
            Some(dir.join(std::ffi::OsStr::from_bytes(target)))
        }
        Ok(_) => Some(link),
        Err(_) => None,
    }
}

/// Returns a stamp of the commit that the submodule in `dir` has checked out; 0 if `dir` is not a repository.
pub fn submodule_stamp(dir: &Path) -> u64 {
    git_dir_of(dir).map_or(0, |git_dir| head_stamp(&git_dir, &git_dir))
}
