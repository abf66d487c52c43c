//! What differs between two trees.

use std::collections::BTreeMap;

use super::index::Ground;
use super::path::RepoPath;
use super::program::{CallOff, GitError};

/// The tree of a branch without commits, in both kinds of repository; git knows them without having them.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
const EMPTY_TREE_256: &str = "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321";

/// Returns the empty tree of the repository that has another tree.
pub(super) fn empty_tree(tree: &str) -> &'static str {
    if tree.len() == EMPTY_TREE.len() {
        EMPTY_TREE
    } else {
        EMPTY_TREE_256
    }
}

/// What one of two trees has under a name: mode and object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Side {
    mode: u32,
    object: Box<[u8]>,
}

impl Side {
    /// Whether there is something.
    pub fn is_there(&self) -> bool {
        self.mode != 0
    }
}

/// The differences of two trees.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// What each has of the files that differ, those aside that are never kept.
    pub files: BTreeMap<RepoPath, [Side; 2]>,
    /// Whether there are none at all.
    pub none: bool,
}

impl Ground {
    /// Compares two trees, or the trees of commits.
    pub fn differences(
        &self,
        from: &str,
        to: &str,
        call_off: &CallOff,
    ) -> Result<Differences, GitError> {
        let words = [
            "diff-tree",
            "-r",
            "-z",
            "--no-renames",
            "--no-ext-diff",
            "--ignore-submodules=dirty",
            from,
            to,
        ];
        let answer = self.repository.git.order(&words).ask(call_off)?;
        let mut differences = Differences {
            none: answer.is_empty(),
            ..Differences::default()
        };
        let mut parts = answer.split(|byte| *byte == 0);
        while let (Some(meta), Some(path)) = (parts.next(), parts.next()) {
            let sides = sides(meta).ok_or_else(|| GitError::Odd {
                what: "diff-tree",
                answer: String::from_utf8_lossy(meta).into_owned(),
            })?;
            if !self.leaves_out(path) {
                differences.files.insert(RepoPath::new(path), sides);
            }
        }
        Ok(differences)
    }
}

/// Reads `:100644 100644 <object> <object> M`.
fn sides(meta: &[u8]) -> Option<[Side; 2]> {
    let mut words = meta.strip_prefix(b":")?.split(|byte| *byte == b' ');
    let mut mode = || u32::from_str_radix(std::str::from_utf8(words.next()?).ok()?, 8).ok();
    let modes = [mode()?, mode()?];
    let objects = [words.next()?, words.next()?];
    let side = |at: usize| Side {
        mode: modes[at],
        object: objects[at].into(),
    };
    Some([side(0), side(1)])
}
