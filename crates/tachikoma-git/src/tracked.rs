//! Finds state files of loops that git tracks. They may come from a clone or a pull, so they cannot be trusted.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use tachikoma_fs::RALPH_DIR;

use super::head::git_dir_of;
use super::path::{RepoPath, split_nul};
use super::program::{CancelToken, Git};
use tachikoma_store::lock;

/// Maximum size of an index that is searched directly, in bytes. For a larger one git is started.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Part of every path below `.ralph`, unless the index compresses names.
const PART_OF_PATH: &[u8] = b"ralph/";

/// Name of the index extension that refers to entries in another file.
const SPLIT: &[u8] = b"link";

/// Returns a state file below `.ralph` that git tracks; `None` if there is none. Starts git only if the index may contain one.
#[must_use]
pub fn state_file(working_dir: &Path, search_path: Option<&OsStr>) -> Option<RepoPath> {
    if !working_dir.join(RALPH_DIR).is_dir() || !may_track(working_dir) {
        return None;
    }
    let git = Git::new(working_dir, search_path);
    let command = git.command("ls-files -z --").arg(RALPH_DIR);
    let output = command.stdout(&CancelToken::new()).ok()?;
    let is_ours = |path: &&[u8]| {
        let mut split_nul = path.split(|byte| *byte == b'/').skip(1);
        let name = split_nul
            .next()
            .and_then(|name| std::str::from_utf8(name).ok());
        name.is_some_and(lock::is_our_name)
    };
    split_nul(&output).find(is_ours).map(RepoPath::new)
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
    // Index version 4 stores only the part of a name that differs from the previous name.
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
            assert_eq!(
                found("."),
                None,
                "a file that is tracked below another directory is not reported"
            );
            scratch.git(&["update-index", "--split-index"]);
            assert!(found("below").is_some());
            scratch.git(&["rm", "-r", "-q", "--cached", "below/.ralph/loops"]);
            assert_eq!(found("below"), None);
        }
    }
}
