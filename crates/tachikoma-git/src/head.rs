//! What a work tree stands on, read without a process where that can be done.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::program::{CancelToken, Git, GitError};
use super::repository::Repository;
use super::signature::{Digest, of_file};

/// `HEAD` and a branch are a line each.
const LINE_BYTES_MAX: u64 = 4096;

/// References may name others; git itself follows five.
const HOPS_MAX: usize = 5;

/// The name that stands for "look elsewhere" where references are kept in tables.
const IN_TABLES: &[u8] = b"refs/heads/.invalid";

/// References of these belong to one work tree, all others to the repository.
const OF_THE_WORK_TREE: [&[u8]; 3] = [b"refs/bisect/", b"refs/worktree/", b"refs/rewritten/"];

/// Returns the commit that a work tree stands on, none on a branch without commits. Git is asked where it cannot be read.
pub fn commit(repository: &Repository, cancel: &CancelToken) -> Result<Option<String>, GitError> {
    match Reading::new(&repository.git_dir, &repository.common_dir).commit {
        Some(commit) => Ok(Some(commit)),
        None => verify(&repository.git, "HEAD^{commit}", cancel),
    }
}

/// Returns the name of an object, if there is one.
pub fn verify(git: &Git, object: &str, cancel: &CancelToken) -> Result<Option<String>, GitError> {
    let order = git.order(&["rev-parse", "--verify", "--quiet", object]);
    let answer = order.run(cancel)?;
    let text = String::from_utf8_lossy(&answer.bytes).trim_end().to_owned();
    match answer.code {
        Some(0) if is_object_name(text.as_bytes()) => Ok(Some(text)),
        Some(1) => Ok(None),
        Some(_) | None => Err(order.failed(&answer)),
    }
}

/// What `HEAD` looks like. While it looks the same, the work tree stands on the same commit.
pub fn mark(git_dir: &Path, common_dir: &Path) -> u64 {
    Reading::new(git_dir, common_dir).digest.finish()
}

struct Reading {
    digest: Digest,
    /// Known if it was where it is most of the time.
    commit: Option<String>,
}

impl Reading {
    fn new(git_dir: &Path, common_dir: &Path) -> Self {
        let mut reading = Self {
            digest: Digest::default(),
            commit: None,
        };
        let mut place = git_dir.join("HEAD");
        for _ in 0..HOPS_MAX {
            let Some(line) = line_of(&place) else {
                // A branch that has no file of its own, or no commits.
                reading.digest.add(0);
                break;
            };
            reading.digest.add_bytes(&line);
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
            place = dir.join(std::ffi::OsStr::from_bytes(name));
        }
        for name in ["packed-refs", "reftable/tables.list"] {
            reading.digest.add(of_file(&common_dir.join(name)));
        }
        let own_tables = git_dir.join("reftable/tables.list");
        reading.digest.add(of_file(&own_tables));
        reading
    }
}

/// The first line of a file.
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

/// The directory of git's own files for the work tree in `dir`; none if there is no work tree.
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

/// What a submodule stands on; its directory is `dir`. What is no repository has a mark, too.
pub fn mark_of_submodule(dir: &Path) -> u64 {
    git_dir_of(dir).map_or(1, |git_dir| mark(&git_dir, &git_dir))
}
