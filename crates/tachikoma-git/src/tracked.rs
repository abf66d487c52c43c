//! Whether git tracks the state of loops. What git tracks may come with a clone or a pull, and is not the user's own.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use tachikoma_fs::RALPH_DIR;

use super::head::git_dir_of;
use super::path::{RepoPath, parts};
use super::program::{CancelToken, Git};
use tachikoma_store::lock;

/// An index of a million files is smaller. In a larger one git itself has to look.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Every path below `.ralph` has this in an index, unless names are stored in parts.
const PART_OF_PATH: &[u8] = b"ralph/";

/// The name of the extension by which entries are in another file.
const SPLIT: &[u8] = b"link";

/// Returns a file of ours below a working directory's `.ralph` that git tracks, if there is one. Starts git only where the index makes
/// that likely.
#[must_use]
pub fn state_file(working_dir: &Path, search_path: Option<&OsStr>) -> Option<RepoPath> {
    if !working_dir.join(RALPH_DIR).is_dir() || !may_track(working_dir) {
        return None;
    }
    let git = Git::new(working_dir, search_path);
    let order = git.order(&["ls-files", "-z", "--", RALPH_DIR]);
    let answer = order.ask(&CancelToken::new()).ok()?;
    let is_ours = |path: &&[u8]| {
        let mut parts = path.split(|byte| *byte == b'/').skip(1);
        let name = parts.next().and_then(|name| std::str::from_utf8(name).ok());
        name.is_some_and(lock::is_our_name)
    };
    parts(&answer).find(is_ours).map(RepoPath::new)
}

fn may_track(working_dir: &Path) -> bool {
    let Some(index) = index_of(working_dir) else {
        return false;
    };
    let mut bytes = Vec::new();
    let Ok(file) = File::open(index) else {
        return false;
    };
    let read = file.take(INDEX_BYTES_MAX).read_to_end(&mut bytes);
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    // In version 4 a name has only what the one before it has not.
    let version = bytes.get(7).copied();
    read.is_err()
        || bytes.len() as u64 == INDEX_BYTES_MAX
        || !matches!(version, Some(2 | 3))
        || has(PART_OF_PATH)
        || has(SPLIT)
}

fn index_of(working_dir: &Path) -> Option<PathBuf> {
    let git_dir = working_dir.ancestors().find_map(git_dir_of)?;
    Some(git_dir.join("index"))
}

#[cfg(test)]
mod tests {
    use tachikoma_testkit::Scratch;

    use super::*;

    #[test]
    fn tracked_state_is_found_in_every_form_of_an_index() {
        for version in ["2", "4"] {
            let scratch = Scratch::with_git();
            let found = |dir: &str| state_file(&scratch.path().join(dir), None);
            scratch.write("below/.ralph/prompt.md", "of another tool");
            scratch.write("below/.ralp", "");
            scratch.git(&["add", "."]);
            scratch.git(&["update-index", "--index-version", version]);
            assert_eq!(found("below"), None);
            scratch.write("below/.ralph/loops/x/journal-0001.jsonl", "{}");
            assert_eq!(found("below"), None, "not tracked");
            scratch.git(&["add", "."]);
            let tracked = found("below").map(|path| path.to_string());
            assert_eq!(
                tracked.as_deref(),
                Some(".ralph/loops/x/journal-0001.jsonl")
            );
            assert_eq!(found("."), None, "another directory's");
            scratch.git(&["update-index", "--split-index"]);
            assert!(found("below").is_some());
            scratch.git(&["rm", "-r", "-q", "--cached", "below/.ralph/loops"]);
            assert_eq!(found("below"), None);
        }
    }
}
