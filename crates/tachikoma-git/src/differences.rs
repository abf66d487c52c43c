//! What differs between two trees, and what follows from it for what is uncommitted.

use std::collections::BTreeMap;

use super::index::LoopIndex;
use super::path::RepoPath;
use super::program::{CancelToken, GitError};

/// The tree of a branch without commits, in both kinds of repository; git knows them without having them.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
const EMPTY_TREE_256: &str = "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321";

/// Returns the empty tree of the repository that has another tree.
pub fn empty_tree(tree: &str) -> &'static str {
    if tree.len() == EMPTY_TREE.len() {
        EMPTY_TREE
    } else {
        EMPTY_TREE_256
    }
}

/// What a tree has under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// 0 if it has nothing.
    mode: u32,
    object: Box<str>,
}

impl Side {
    pub fn is_nothing(&self) -> bool {
        self.mode == 0
    }

    pub fn object(&self) -> Option<&str> {
        (!self.is_nothing()).then_some(&*self.object)
    }
}

/// A file that differs between two trees.
#[derive(Debug)]
pub struct Change {
    pub before: Side,
    pub after: Side,
}

impl Change {
    /// Reads `:old-mode new-mode old-object new-object status`.
    fn parse(head: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(head)
            .ok()?
            .strip_prefix(':')?
            .split(' ');
        let mut mode = || u32::from_str_radix(words.next()?, 8).ok();
        let (before, after) = (mode()?, mode()?);
        let mut side = |mode| {
            let object = words.next()?.into();
            Some(Side { mode, object })
        };
        Some(Self {
            before: side(before)?,
            after: side(after)?,
        })
    }

    /// Whether it is a file that was not in the first.
    pub fn came(&self) -> bool {
        self.before.is_nothing()
    }
}

/// What differs from the commit that the work tree stands on, and what that commit has of it.
pub type Dirty = BTreeMap<RepoPath, Side>;

/// The differences of two trees.
#[derive(Debug, Default)]
pub struct Differences {
    /// The files that differ, those aside that are never kept.
    pub files: BTreeMap<RepoPath, Change>,
    /// Whether nothing differs at all.
    pub none: bool,
}

impl Differences {
    /// Takes the first tree for that of the commit, and the second for the work tree.
    pub fn uncommitted(self) -> Dirty {
        let files = self.files.into_iter();
        files.map(|(path, change)| (path, change.before)).collect()
    }
}

/// What is uncommitted after a change follows from what was before, as long as the work tree stands on the same commit.
pub fn follow(dirty: &Dirty, changed: &BTreeMap<RepoPath, Change>) -> Dirty {
    let mut now = dirty.clone();
    for (path, change) in changed {
        // Who was not uncommitted was what the commit has.
        let committed = dirty.get(path).unwrap_or(&change.before);
        if *committed == change.after {
            now.remove(path);
        } else {
            now.insert(path.clone(), committed.clone());
        }
    }
    now
}

/// Compares two trees, or the trees of commits.
pub fn differences(
    loop_index: &LoopIndex,
    from: &str,
    to: &str,
    cancel: &CancelToken,
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
    let answer = loop_index.repository.git.order(&words).ask(cancel)?;
    let mut differences = Differences {
        none: answer.is_empty(),
        ..Differences::default()
    };
    let mut parts = answer.split(|byte| *byte == 0);
    while let (Some(head), Some(path)) = (parts.next(), parts.next()) {
        let change = Change::parse(head).ok_or_else(|| GitError::Odd {
            what: "diff-tree",
            answer: String::from_utf8_lossy(head).into_owned(),
        })?;
        if !loop_index.leaves_out(path) {
            differences.files.insert(RepoPath::new(path), change);
        }
    }
    Ok(differences)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(mode: u32, object: &str) -> Side {
        let object = object.into();
        Side { mode, object }
    }

    #[test]
    fn what_is_uncommitted_follows_from_what_changed() {
        let path = |name: &str| RepoPath::new(name.as_bytes());
        let nothing = || side(0, "0");
        let file = |object: &str| side(0o100_644, object);
        let change = |before: Side, after: Side| Change { before, after };
        let dirty = Dirty::from([
            (path("back"), file("1")),
            (path("came"), nothing()),
            (path("stays"), file("1")),
            (path("again"), file("1")),
        ]);
        let changed = BTreeMap::from([
            (path("back"), change(file("2"), file("1"))),
            (path("came"), change(file("1"), nothing())),
            (path("again"), change(file("2"), file("3"))),
            (path("mode"), change(file("1"), side(0o100_755, "1"))),
            (path("new"), change(nothing(), file("1"))),
        ]);
        let expected = Dirty::from([
            (path("stays"), file("1")),
            (path("again"), file("1")),
            (path("mode"), file("1")),
            (path("new"), nothing()),
        ]);
        assert_eq!(follow(&dirty, &changed), expected);
    }

    #[test]
    fn what_git_says_of_a_file_is_read_or_refused() {
        let read = Change::parse(b":000000 100644 0000 abcd A").unwrap();
        assert!(read.came());
        assert_eq!(read.after.object(), Some("abcd"));
        assert!(Change::parse(b":000000 100644 0000").is_none());
        assert!(Change::parse(b"100644 100644 0 1 M").is_none());
    }
}
