//! What the work tree says about the work so far, asked of the `git` program. Only reads, and everything works without it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tachikoma_core::WorkTree;

use crate::clock;
use crate::store::RALPH_DIR;

/// All questions of one hand-off together. A large tree takes a second or two; the fresh session waits meanwhile, and
/// can do without the answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// What one answer may have: names of ten thousand files. A hand-off names twenty of them.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Commits that are counted; a hand-off names twenty of them.
const COMMITS_MAX: &str = "--max-count=1000";

/// How often a program that has said everything is asked whether it has ended.
const REAP_PAUSE: Duration = Duration::from_millis(2);

/// Variables that would lead to another repository than that of the working directory.
const LEADS_ELSEWHERE: [&str; 4] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"];

/// Returns the commit that the work tree around a directory stands on; none where there is no repository, no commit or no
/// `git`. Blocks, for a while that is bounded.
#[must_use]
pub fn head(dir: &Path) -> Option<String> {
    head_of(&Git::new(dir))
}

fn head_of(git: &Git<'_>) -> Option<String> {
    let answer = git.ask(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])?;
    let commit = String::from_utf8(answer.bytes).ok()?;
    Some(commit.trim_end().to_owned()).filter(|commit| is_hash(commit))
}

/// Returns whether asking `git` about a directory is worth a process: somewhere above it there is a `.git`, a directory or,
/// in linked work trees, a file.
#[must_use]
pub fn may_be_in_a_repository(dir: &Path) -> bool {
    dir.ancestors().any(|above| above.join(".git").exists())
}

/// Returns what was done in the work tree around a directory since `start`. What cannot be found out is not known. Blocks,
/// for a while that is bounded.
#[must_use]
pub fn since(dir: &Path, start: Option<&str>) -> WorkTree {
    let Some(start) = start.filter(|start| is_hash(start)) else {
        return WorkTree::default();
    };
    let git = Git::new(dir);
    WorkTree {
        head: head_of(&git),
        changed: changed(&git, start),
        commits: commits(&git, start).unwrap_or_default(),
    }
}

/// Tracked files that differ from `start`, committed or not, and untracked ones; by path from the working directory.
fn changed(git: &Git<'_>, start: &str) -> Option<Vec<String>> {
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
        .filter(|file| !is_ours(file))
        .map(|file| printable(&from(&prefix, &file)))
        .collect();
    Some(files.into_iter().collect())
}

fn commits(git: &Git<'_>, start: &str) -> Option<Vec<String>> {
    let range = format!("{start}..HEAD");
    let answer = git.ask(&["log", "-z", COMMITS_MAX, "--format=%h %s", &range, "--"])?;
    Some(answer.parts().map(|commit| printable(&commit)).collect())
}

fn is_hash(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The loop's own files are nobody's work, wherever in the repository its directory is.
fn is_ours(file: &str) -> bool {
    file.split('/').any(|part| part == RALPH_DIR)
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

/// A name is one line of the hand-off, whatever is in it.
fn printable(text: &str) -> String {
    let escape = |c: char| -> Vec<char> {
        if c.is_control() {
            c.escape_default().collect()
        } else {
            vec![c]
        }
    };
    text.chars().flat_map(escape).collect()
}

/// Questions to one repository, which have to be answered by a moment.
struct Git<'a> {
    dir: &'a Path,
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

impl<'a> Git<'a> {
    fn new(dir: &'a Path) -> Self {
        let deadline = clock::monotonic() + ASK_TIMEOUT;
        Self { dir, deadline }
    }

    /// Asks one question; none if it cannot be answered in time.
    fn ask(&self, words: &[&str]) -> Option<Answer> {
        self.ask_program(OsStr::new("git"), words)
    }

    fn ask_program(&self, program: &OsStr, words: &[&str]) -> Option<Answer> {
        let mut command = Command::new(program);
        // Nothing that the repository's own configuration names is run for a look at it.
        command.args([
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.hooksPath=/dev/null",
        ]);
        command.args(words).current_dir(self.dir);
        for name in LEADS_ELSEWHERE {
            command.env_remove(name);
        }
        let mut child = command
            // The agent may be at work in the same repository.
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let answer = self.read(&mut child);
        let ended = answer.is_some() && self.ended_well(&mut child);
        if !ended {
            // Whoever is late, or says too much, is not waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
        answer.filter(|answer| ended || answer.bytes.len() >= ANSWER_BYTES_MAX)
    }

    /// Reads until the end, or until there is more than anyone wants to know.
    fn read(&self, child: &mut Child) -> Option<Answer> {
        let mut stdout = child.stdout.take()?;
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        while bytes.len() < ANSWER_BYTES_MAX {
            let left = self.deadline.checked_duration_since(clock::monotonic())?;
            let left = Timespec::try_from(left).ok()?;
            let mut fds = [PollFd::new(&stdout, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return None,
            }
            match stdout.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => bytes.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(Answer { bytes })
    }

    fn ended_well(&self, child: &mut Child) -> bool {
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) if clock::monotonic() < self.deadline => std::thread::sleep(REAP_PAUSE),
                Ok(None) | Err(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests;
