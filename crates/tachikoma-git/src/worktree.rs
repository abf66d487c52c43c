//! What the work tree says about the work so far, asked of the `git` program. Only reads, and everything works without it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use tachikoma_core::WorkTree;

pub use crate::repository::may_be_in_a_repository;
use crate::{CancelToken, Git, is_object_name, is_ours, printable};
use tachikoma_runtime::clock;

/// All questions of one hand-off together. A large tree takes a second or two; the fresh session waits meanwhile, and
/// can do without the answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// What one answer may have: names of ten thousand files. A hand-off names twenty of them.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Commits that are counted; a hand-off names twenty of them.
const COMMITS_MAX: &str = "--max-count=1000";

/// Returns the commit that the work tree around a directory stands on; none where there is no repository, no commit or no
/// `git`. Blocks, for a while that is bounded.
#[must_use]
pub fn head(dir: &Path) -> Option<String> {
    head_of(&GitQueries::new(dir))
}

fn head_of(git: &GitQueries) -> Option<String> {
    let answer = git.ask(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])?;
    let commit = String::from_utf8(answer.bytes).ok()?;
    Some(commit.trim_end().to_owned()).filter(|commit| is_object_name(commit.as_bytes()))
}

/// Returns what was done in the work tree around a directory since `start`. What cannot be found out is not known. Blocks,
/// for a while that is bounded.
#[must_use]
pub fn since(dir: &Path, start: Option<&str>) -> WorkTree {
    let Some(start) = start.filter(|start| is_object_name(start.as_bytes())) else {
        return WorkTree::default();
    };
    let git = GitQueries::new(dir);
    WorkTree {
        head: head_of(&git),
        changed: changed(&git, start),
        commits: commits(&git, start).unwrap_or_default(),
    }
}

/// Tracked files that differ from `start`, committed or not, and untracked ones; by path from the working directory.
fn changed(git: &GitQueries, start: &str) -> Option<Vec<String>> {
    let prefix = git.ask(&["rev-parse", "--show-prefix"])?;
    let prefix = String::from_utf8_lossy(&prefix.bytes).trim_end().to_owned();
    let tracked = git.ask(&[
        "diff",
        "--name-only",
        "-z",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules=dirty",
        start,
        "--",
    ])?;
    let untracked = git.ask(&[
        "ls-files",
        "-z",
        "--others",
        "--exclude-standard",
        "--full-name",
        "--",
        ":/",
    ])?;
    let files: BTreeSet<String> = [tracked, untracked]
        .iter()
        .flat_map(Answer::parts)
        .filter(|file| !is_ours(file.as_bytes()))
        .map(|file| printable(&from(&prefix, &file)).into_owned())
        .collect();
    Some(files.into_iter().collect())
}

fn commits(git: &GitQueries, start: &str) -> Option<Vec<String>> {
    let range = format!("{start}..HEAD");
    let answer = git.ask(&["log", "-z", COMMITS_MAX, "--format=%h %s", &range, "--"])?;
    Some(
        answer
            .parts()
            .map(|commit| printable(&commit).into_owned())
            .collect(),
    )
}

/// Turns a path from the top of the repository into one from the working directory, which is `prefix` (`a/b/`) below it.
fn from(prefix: &str, file: &str) -> String {
    let mut prefix = prefix;
    let mut up = String::new();
    loop {
        if let Some(below) = file.strip_prefix(prefix) {
            return up + below;
        }
        up.push_str("../");
        let above = prefix.trim_end_matches('/').rfind('/');
        prefix = above.map_or("", |slash| &prefix[..=slash]);
    }
}

/// GitQueries to one repository, which have to be answered by a moment.
struct GitQueries {
    git: Git,
    deadline: Instant,
}

struct Answer {
    bytes: Vec<u8>,
}

impl Answer {
    /// The parts of it that end with a NUL. One that was cut off has none, and is left out.
    fn parts(&self) -> impl Iterator<Item = String> {
        let whole = self.bytes.iter().rposition(|byte| *byte == 0);
        let parts = self.bytes[..whole.unwrap_or(0)].split(|byte| *byte == 0);
        parts
            .filter(|part| !part.is_empty())
            .map(|part| String::from_utf8_lossy(part).into_owned())
    }
}

impl GitQueries {
    fn new(dir: &Path) -> Self {
        Self {
            git: Git::new(dir, None),
            deadline: clock::monotonic() + ASK_TIMEOUT,
        }
    }

    /// Asks one question; none if it cannot be answered in time.
    fn ask(&self, words: &[&str]) -> Option<Answer> {
        let left = self.deadline.checked_duration_since(clock::monotonic())?;
        let order = self.git.order(words).limit(Some(left));
        let asked = order.answer_max(ANSWER_BYTES_MAX).ask(&CancelToken::new());
        asked.ok().map(|bytes| Answer { bytes })
    }
}

#[cfg(test)]
mod tests;
