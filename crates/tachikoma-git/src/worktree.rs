//! Collects from git what was done in a work tree, for the hand-off to a new session. Without git, the hand-off has less information.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use tachikoma_core::WorkTree;

use crate::head::verify;
use crate::path::split_nul;
use crate::program::GitCommand;
pub use crate::repository::may_be_in_a_repository;
use crate::{CancelToken, Git, is_object_name, is_ours, printable};

/// Timeout for all queries of one hand-off. They take a second or two in a large repository, while the new session waits.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit for the output of a query in bytes. It is enough for ten thousand paths. A hand-off names twenty files.
const STDOUT_BYTES_MAX: usize = 1 << 20;

/// Git option that limits the number of counted commits. A hand-off names twenty.
const COMMITS_MAX: &str = "--max-count=1000";

/// Returns the commit of HEAD; `None` without a repository, a commit or `git`. Blocks for a bounded time.
#[must_use]
pub fn head(dir: &Path) -> Option<String> {
    GitQueries::new(dir).head()
}

/// Returns the commits and changed files of a work tree since the commit `start`. Blocks for a bounded time.
#[must_use]
pub fn since(dir: &Path, start: Option<&str>) -> WorkTree {
    let Some(start) = start.filter(|start| is_object_name(start.as_bytes())) else {
        return WorkTree::default();
    };
    let git = GitQueries::new(dir);
    WorkTree {
        head: git.head(),
        changed: changed(&git, start),
        commits: commits(&git, start).unwrap_or_default(),
    }
}

/// Returns tracked files that differ from `start`, committed or not, and untracked files, relative to the working directory.
fn changed(git: &GitQueries, start: &str) -> Option<Vec<String>> {
    let prefix = git.stdout(git.git.command("rev-parse --show-prefix"))?;
    let prefix = String::from_utf8_lossy(&prefix).trim_end().to_owned();
    let args =
        "diff --name-only -z --no-renames --no-ext-diff --no-textconv --ignore-submodules=dirty";
    let tracked = git.stdout(git.git.command(args).arg(start).arg("--"))?;
    let args = "ls-files -z --others --exclude-standard --full-name -- :/";
    let untracked = git.stdout(git.git.command(args))?;
    let files: BTreeSet<String> = [tracked, untracked]
        .iter()
        .flat_map(|stdout| complete_parts(stdout))
        .filter(|file| !is_ours(file.as_bytes()))
        .map(|file| printable(&from(&prefix, &file)).into_owned())
        .collect();
    Some(files.into_iter().collect())
}

fn commits(git: &GitQueries, start: &str) -> Option<Vec<String>> {
    let range = format!("{start}..HEAD");
    let command = git
        .git
        .command("log -z")
        .arg(COMMITS_MAX)
        .arg("--format=%h %s");
    let output = git.stdout(command.arg(&range).arg("--"))?;
    let commits = complete_parts(&output);
    Some(
        commits
            .map(|commit| printable(&commit).into_owned())
            .collect(),
    )
}

/// Converts a path relative to the repository into one relative to the working directory, which is at `prefix` (`a/b/`) in it.
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

/// Runs git queries in one repository until a deadline.
struct GitQueries {
    git: Git,
    /// Token that is canceled at the deadline.
    cancel: CancelToken,
}

impl GitQueries {
    fn new(dir: &Path) -> Self {
        Self {
            git: Git::new(dir, None),
            cancel: CancelToken::new().within(QUERY_TIMEOUT),
        }
    }

    /// Returns the commit of HEAD; `None` if there is none.
    fn head(&self) -> Option<String> {
        verify(&self.git, "HEAD^{commit}", &self.cancel).ok()?
    }

    /// Returns the output of a command; `None` if it fails or the deadline has passed.
    fn stdout(&self, command: GitCommand<'_>) -> Option<Vec<u8>> {
        command
            .stdout_max(STDOUT_BYTES_MAX)
            .stdout(&self.cancel)
            .ok()
    }
}

/// Splits output at each NUL. A last part without a NUL was truncated and is left out.
fn complete_parts(stdout: &[u8]) -> impl Iterator<Item = String> {
    let end = stdout.iter().rposition(|byte| *byte == 0);
    let parts = split_nul(&stdout[..end.unwrap_or(0)]);
    parts.map(|part| String::from_utf8_lossy(part).into_owned())
}

#[cfg(test)]
mod tests;
