//! How a work tree becomes known: from the two indexes at first, and from git's own word on names that are new.

use std::collections::{BTreeSet, HashSet};
use std::mem;

use rustix::fs::{FileType, Mode, OFlags};

use super::fingerprint::{Dir, Mark, What};
use super::index::{IndexEntry, LoopIndex, SUBMODULE, entries};
use super::path::RepoPath;
use super::program::{CancelToken, GitError};
use super::walk::{Walk, is_nested};
use super::walk_result::{New, NewFileBudget, WalkResult};

/// What is called off when a walk is.
const WALK: &str = "a look at the work tree";

/// What is known of a work tree.
#[derive(Debug)]
pub struct KnownTree {
    pub root: Dir,
    /// Whether it has less than the index: who changes that changes the user's index, and then everything is looked at anew.
    sparse: bool,
    /// Whether the last look found that what is ignored may be another than before.
    pub rules: bool,
    /// What was left of it after the last look: what goes or is committed gives none back before everything is looked at anew.
    room: NewFileBudget,
    /// Whether there are files for which there was none.
    pub crowded: bool,
}

/// Makes everything known anew. All that is watched counts as changed; git tells what really did.
pub fn scan(
    loop_index: &LoopIndex,
    cancel: &CancelToken,
) -> Result<(KnownTree, WalkResult), GitError> {
    loop_index.ensure_index()?;
    let own = loop_index.own_entries(cancel)?;
    let users = loop_index.users_entries(cancel)?;
    let of_user: HashSet<&[u8]> = entries(&users).map(|entry| entry.path).collect();
    let sparse: HashSet<&[u8]> = entries(&users)
        .filter(IndexEntry::is_sparse)
        .map(|entry| entry.path)
        .collect();
    let assumed: HashSet<&[u8]> = entries(&users)
        .filter(IndexEntry::is_assumed)
        .map(|entry| entry.path)
        .collect();
    let mut root = Dir::default();
    let mut out = BTreeSet::new();
    let mut put_back = BTreeSet::new();
    let mut lifted = Lifted::default();
    for entry in entries(&own) {
        if loop_index.leaves_out(entry.path) {
            out.insert(RepoPath::new(entry.path));
            continue;
        }
        lifted.note(&entry, &sparse, &assumed);
        if sparse.contains(entry.path) {
            if !entry.is_sparse() {
                put_back.insert(entry.path);
            }
        } else {
            root.put(entry.path, unseen(&entry));
        }
    }
    // What only the loop knows may be ignored by now.
    let only_own = entries(&own).map(|entry| entry.path);
    let only_own = only_own.filter(|path| !of_user.contains(path));
    out.extend(loop_index.ignored(only_own, true, cancel)?);
    for entry in entries(&users) {
        if loop_index.leaves_out(entry.path) || entry.is_sparse() {
            continue;
        }
        if entry.is_assumed() {
            root.put(entry.path, What::Left);
        } else if root.at(entry.path).is_none() {
            root.put(entry.path, unseen(&entry));
        }
    }
    let put_back: Vec<IndexEntry<'_>> = entries(&users)
        .filter(|entry| put_back.contains(entry.path))
        .collect();
    loop_index.take_out(out.iter().map(RepoPath::bytes), cancel)?;
    loop_index.put_back(&put_back, cancel)?;
    loop_index.lift("--no-skip-worktree", &lifted.sparse, cancel)?;
    loop_index.lift("--no-assume-unchanged", &lifted.assumed, cancel)?;
    for path in &out {
        root.forget(path.bytes());
    }
    let mut walk = Walk::new(NewFileBudget::new(loop_index.max_file_bytes), cancel);
    walk_known(loop_index, &mut walk, &mut root, cancel)?;
    for changed in &walk.seen.changed {
        if !of_user.contains(changed.path.bytes()) {
            walk.room.take(changed.size);
        }
    }
    learn(loop_index, &mut walk, &mut root, cancel)?;
    let known = KnownTree {
        root,
        sparse: !sparse.is_empty(),
        rules: false,
        room: walk.room,
        crowded: !walk.seen.crowded.is_empty(),
    };
    let mut seen = walk.seen;
    seen.rules = false;
    // They were there before.
    seen.protected.clear();
    Ok((known, seen))
}

/// Walks over what is known.
fn walk_known(
    loop_index: &LoopIndex,
    walk: &mut Walk,
    root: &mut Dir,
    cancel: &CancelToken,
) -> Result<(), GitError> {
    let top = &loop_index.repository.top;
    walk.walk(top, b"", root)
        .map_err(|errno| GitError::io("look at directory", top)(errno.into()))?;
    if cancel.is_canceled() {
        return Err(GitError::Canceled {
            what: WALK.to_owned(),
        });
    }
    Ok(())
}

/// Finds out what the new names stand for that a walk saw, and what is in new directories.
fn learn(
    loop_index: &LoopIndex,
    walk: &mut Walk,
    root: &mut Dir,
    cancel: &CancelToken,
) -> Result<(), GitError> {
    if walk.seen.new.is_empty() {
        return Ok(());
    }
    let top = &loop_index.repository.top;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top_fd = rustix::fs::open(top, flags, Mode::empty())
        .map_err(|errno| GitError::io("look at directory", top)(errno.into()))?;
    // Each round is a level deeper.
    while !walk.seen.new.is_empty() {
        let mut asked = Vec::new();
        for new in mem::take(&mut walk.seen.new) {
            if loop_index.protected.has(new.path.bytes()) {
                root.put(new.path.bytes(), What::Protected(0));
                walk.seen.protected.push(new.path);
            } else if loop_index.leaves_out(new.path.bytes()) {
                root.put(new.path.bytes(), What::Left);
            } else {
                match new.kind {
                    FileType::RegularFile | FileType::Symlink | FileType::Directory => {
                        asked.push(new);
                    }
                    kind => root.put(new.path.bytes(), What::Odd(kind)),
                }
            }
        }
        let names = asked.iter().map(|new| new.path.bytes());
        let ignored = loop_index.ignored(names, false, cancel)?;
        for New { path, kind } in asked {
            if ignored.contains(&path) {
                root.put(path.bytes(), What::Ignored(kind));
            } else if kind != FileType::Directory {
                if let Some(mark) = walk.first_look(&top_fd, &path) {
                    root.put(path.bytes(), What::File(mark));
                }
            } else if is_nested(&top_fd, path.bytes()) {
                root.put(path.bytes(), What::Nested);
            } else {
                let mut dir = Box::<Dir>::default();
                // One that went in the meantime is found to be gone by the next walk.
                let _ = walk.walk(top, path.bytes(), &mut dir);
                root.put(path.bytes(), What::Dir(dir));
            }
        }
    }
    Ok(())
}

/// Looks at all that is known; none if everything has to become known anew. With `follow` the user's index changed, too.
pub fn look(
    loop_index: &LoopIndex,
    known: &mut KnownTree,
    follow: bool,
    cancel: &CancelToken,
) -> Result<Option<WalkResult>, GitError> {
    if follow && known.sparse {
        return Ok(None);
    }
    let root = &mut known.root;
    let mut walk = Walk::new(known.room, cancel);
    walk_known(loop_index, &mut walk, root, cancel)?;
    known.rules = walk.seen.rules;
    if known.rules {
        return Ok(None);
    }
    learn(loop_index, &mut walk, root, cancel)?;
    known.rules = walk.seen.rules;
    if follow {
        match follow_user(loop_index, root, &walk.seen.gone, cancel)? {
            Followed::Nothing => {}
            Followed::More => walk_known(loop_index, &mut walk, root, cancel)?,
            Followed::Everything => return Ok(None),
        }
    }
    known.room = walk.room;
    // There may be room again.
    let again = known.crowded && !walk.seen.gone.is_empty() || !walk.seen.crowded.is_empty();
    if again {
        return Ok(None);
    }
    Ok(Some(walk.seen).filter(|seen| !seen.rules && seen.new.is_empty()))
}

/// Takes over what the user's index says now: files that were added although they are ignored, and those that are to be
/// taken for unchanged.
fn follow_user(
    loop_index: &LoopIndex,
    root: &mut Dir,
    gone: &[RepoPath],
    cancel: &CancelToken,
) -> Result<Followed, GitError> {
    let users = loop_index.users_entries(cancel)?;
    let gone: HashSet<&[u8]> = gone.iter().map(RepoPath::bytes).collect();
    let mut followed = Followed::Nothing;
    for entry in entries(&users) {
        if loop_index.leaves_out(entry.path) {
            continue;
        }
        let known = root.at(entry.path);
        let is_submodule = matches!(known, Some(What::Submodule(_)));
        let is_file = matches!(known, Some(What::File(_)));
        if entry.is_sparse() {
            if is_file || is_submodule || gone.contains(entry.path) {
                return Ok(Followed::Everything);
            }
        } else if entry.mode == SUBMODULE {
            if !is_submodule && is_there(loop_index, entry.path) {
                return Ok(Followed::Everything);
            }
        } else if entry.is_assumed() {
            root.put(entry.path, What::Left);
        } else if !is_file && is_there(loop_index, entry.path) {
            if !matches!(known, Some(What::Ignored(_))) {
                // It was to be taken for unchanged, or not to be there.
                return Ok(Followed::Everything);
            }
            root.put(entry.path, unseen(&entry));
            followed = Followed::More;
        }
    }
    Ok(followed)
}

fn is_there(loop_index: &LoopIndex, path: &[u8]) -> bool {
    let path = RepoPath::new(path);
    let path = loop_index.repository.top.join(path.as_path());
    path.symlink_metadata().is_ok()
}

/// Entries of the loop's own index that are marked as the user's are no more.
#[derive(Default)]
struct Lifted<'a> {
    sparse: Vec<&'a [u8]>,
    assumed: Vec<&'a [u8]>,
}

impl<'a> Lifted<'a> {
    fn note(&mut self, entry: &IndexEntry<'a>, sparse: &HashSet<&[u8]>, assumed: &HashSet<&[u8]>) {
        if entry.is_sparse() && !sparse.contains(entry.path) {
            self.sparse.push(entry.path);
        }
        if entry.is_assumed() && !assumed.contains(entry.path) {
            self.assumed.push(entry.path);
        }
    }
}

/// What a change of the user's index came to.
enum Followed {
    /// Nothing that matters.
    Nothing,
    /// There is more to be looked at.
    More,
    /// Everything has to become known anew.
    Everything,
}

fn unseen(entry: &IndexEntry<'_>) -> What {
    if entry.mode == SUBMODULE {
        What::Submodule(0)
    } else {
        What::File(Mark::UNSEEN)
    }
}
