//! Differences between two trees, and the uncommitted files that result from them.

use std::collections::BTreeMap;

use super::index::LoopIndex;
use super::path::{RepoPath, split_nul};
use super::program::{CancelToken, GitError};

/// Object ids of the empty tree in SHA-1 and SHA-256. Git knows these trees without storing them.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
const EMPTY_TREE_256: &str = "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321";

/// Returns the id of the empty tree in the hash format of `tree`.
pub fn empty_tree(tree: &str) -> &'static str {
    if tree.len() == EMPTY_TREE.len() {
        EMPTY_TREE
    } else {
        EMPTY_TREE_256
    }
}

/// Mode and object id of a path in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// File mode; 0 if the tree does not have the path.
    pub mode: u32,
    pub object: Box<str>,
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
    /// Parses `:old-mode new-mode old-object new-object status`.
    fn parse(head: &[u8]) -> Option<Self> {
        let mut args = std::str::from_utf8(head)
            .ok()?
            .strip_prefix(':')?
            .split(' ');
        let mut mode = || u32::from_str_radix(args.next()?, 8).ok();
        let (before, after) = (mode()?, mode()?);
        let mut side = |mode| {
            let object = args.next()?.into();
            Some(Side { mode, object })
        };
        Some(Self {
            before: side(before)?,
            after: side(after)?,
        })
    }

    /// Returns whether the first tree does not have the file.
    pub fn is_new(&self) -> bool {
        self.before.is_nothing()
    }

    /// Returns whether the second tree does not have the file.
    pub fn is_removal(&self) -> bool {
        self.after.is_nothing()
    }
}

/// Files that differ from HEAD, each with its version in HEAD.
pub type Dirty = BTreeMap<RepoPath, Side>;

/// The differences of two trees.
#[derive(Debug, Default)]
pub struct Differences {
    /// The files that differ, without files that are never committed.
    pub files: BTreeMap<RepoPath, Change>,
    /// Whether the two trees are equal.
    pub none: bool,
}

impl Differences {
    /// Returns the uncommitted files. The first tree must be that of HEAD, the second the work tree.
    pub fn uncommitted(self) -> Dirty {
        let files = self.files.into_iter();
        files.map(|(path, change)| (path, change.before)).collect()
    }
}

/// Updates the uncommitted files after changes. HEAD must be unchanged.
pub fn follow(dirty: &Dirty, changed: &BTreeMap<RepoPath, Change>) -> Dirty {
    let mut now = dirty.clone();
    for (path, change) in changed {
        // A file that was not uncommitted had the content of HEAD.
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
    let args = "diff-tree -r -z --no-renames --no-ext-diff --ignore-submodules=dirty";
    let command = loop_index.repository.git.command(args).arg(from).arg(to);
    let output = command.stdout(cancel)?;
    let mut files = parse_changes(&output)?;
    let none = files.is_empty();
    files.retain(|path, _| !loop_index.is_left_out(path.bytes()));
    Ok(Differences { files, none })
}

/// Parses the output of `git diff-tree -z`: `:old-mode new-mode old-object new-object status`, NUL, path, NUL.
pub fn parse_changes(output: &[u8]) -> Result<BTreeMap<RepoPath, Change>, GitError> {
    let mut changes = BTreeMap::new();
    let mut parts = split_nul(output);
    while let (Some(head), Some(path)) = (parts.next(), parts.next()) {
        let change = Change::parse(head)
            .ok_or_else(|| GitError::unexpected("diff-tree", String::from_utf8_lossy(head)))?;
        changes.insert(RepoPath::new(path), change);
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(mode: u32, object: &str) -> Side {
        let object = object.into();
        Side { mode, object }
    }

    #[test]
    fn uncommitted_files_follow_from_changes() {
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
    fn diff_tree_line_is_parsed_or_rejected() {
        let read = Change::parse(b":000000 100644 0000 abcd A").unwrap();
        assert!(read.is_new());
        assert_eq!(read.after.object(), Some("abcd"));
        assert!(Change::parse(b":000000 100644 0000").is_none());
        assert!(Change::parse(b"100644 100644 0 1 M").is_none());
    }
}
