//! A walk over the work tree: whether anything changed since the last one, and what may have. Starts no process, and reads
//! only what was changed so lately that stamps cannot tell.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::fingerprint::{Below, Content, Dir, Mark, What, split};
use super::head::mark_of_submodule;
use super::path::RepoPath;
use super::program::CancelToken;
use super::signature::{changed_at, of};
use super::walk_result::{Changed, New, NewFileBudget, WalkResult};
use tachikoma_runtime::clock;

/// Stamps have the tick of the kernel, ten milliseconds at most: who was stamped this long ago will get another stamp if it
/// changes again. With room for a machine that is busy.
const RACY_NANOS: i64 = 50_000_000;

/// The same where a file system stamps whole seconds, or every other.
const RACY_COARSE_NANOS: i64 = 2_100_000_000;

/// A file that is larger is taken for changed instead of read, for as long as its stamps cannot tell.
const HASHED_BYTES_MAX: u64 = 32 << 20;

/// Each level costs a descriptor. Deeper directories are not looked at.
const DEPTH_MAX: usize = 200;

/// A second thread takes as long to begin as a look at a hundred files: from this many on it is worth it,
const TOGETHER_MIN: usize = 1000;

/// if each of the two has at least this many.
const PART_MIN: usize = 250;

/// What one read takes.
const CHUNK_BYTES: usize = 64 << 10;

/// One walk.
pub struct Walk {
    /// What was stamped later may change without another stamp.
    fine: i64,
    coarse: i64,
    path: Vec<u8>,
    chunk: Vec<u8>,
    /// Looked at in each directory.
    cancel: CancelToken,
    /// How many bytes new files may still have.
    pub room: NewFileBudget,
    pub seen: WalkResult,
}

impl Walk {
    pub fn new(room: NewFileBudget, cancel: &CancelToken) -> Self {
        let now = clock::file_time();
        Self {
            fine: now.saturating_sub(RACY_NANOS),
            coarse: now.saturating_sub(RACY_COARSE_NANOS),
            path: Vec::with_capacity(256),
            chunk: Vec::new(),
            cancel: cancel.clone(),
            room,
            seen: WalkResult::default(),
        }
    }

    /// Walks over a directory, which has the path `path` from the top.
    ///
    /// # Errors
    /// It cannot be opened, which is not for what is below it.
    pub fn walk(&mut self, top: &Path, path: &[u8], dir: &mut Dir) -> Result<(), Errno> {
        let mut fd = rustix::fs::open(top, dir_flags(), Mode::empty())?;
        let mut depth = 0;
        for part in path
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
        {
            fd = openat(&fd, part, dir_flags(), Mode::empty())?;
            depth += 1;
        }
        self.path.clear();
        self.path.extend_from_slice(path);
        if !path.is_empty() {
            self.path.push(b'/');
        }
        let alone = dir.weight() < TOGETHER_MIN;
        self.dir(top, &fd, dir, depth, alone);
        Ok(())
    }

    /// Looks at a directory and all below it: alone, or where there is enough to do with a helper.
    fn dir(&mut self, top: &Path, fd: &OwnedFd, dir: &mut Dir, depth: usize, alone: bool) {
        // Whoever walks asks when it is over.
        if self.cancel.is_canceled() {
            return;
        }
        let Ok(stat) = rustix::fs::fstat(fd) else {
            return;
        };
        let signature = of(&stat);
        if dir.racy || dir.signature != signature {
            if self.list(fd, dir) {
                dir.signature = signature;
                dir.racy = self.is_racy(&stat);
            } else {
                // Tried again the next time.
                dir.racy = true;
            }
        }
        dir.retain(|name, what| match what {
            What::File(mark) => self.file(fd, name, mark),
            What::Submodule(mark) => self.submodule(top, fd, name, mark),
            What::Nested => self.nested(fd, name),
            What::Protected(mark) => self.protected(fd, name, mark),
            What::Dir(_) | What::Ignored(_) | What::Odd(_) | What::Left => true,
        });
        let mut below = dir.below();
        let half = if alone { None } else { half(&below) };
        match half {
            Some(half) => self.halves(top, fd, below.split_at_mut(half), depth),
            None => self.each(top, fd, &mut below, depth, alone),
        }
        let gone = below.iter().filter(|below| below.gone);
        let gone: Vec<CString> = gone.map(|below| below.name.to_owned()).collect();
        if !gone.is_empty() {
            dir.retain(|name, _| !gone.iter().any(|gone| gone.as_c_str() == name));
        }
    }

    fn each(
        &mut self,
        top: &Path,
        fd: &OwnedFd,
        dirs: &mut [Below<'_>],
        depth: usize,
        alone: bool,
    ) {
        for below in dirs {
            below.gone = !self.below(top, fd, below.name, below.dir, depth, alone);
        }
    }

    /// Each of two looks at one part: most of the time goes into calls of the system, which another processor can make.
    fn halves(
        &mut self,
        top: &Path,
        fd: &OwnedFd,
        (mine, helpers): (&mut [Below<'_>], &mut [Below<'_>]),
        depth: usize,
    ) {
        let mut helper = Self {
            fine: self.fine,
            coarse: self.coarse,
            path: self.path.clone(),
            chunk: Vec::new(),
            cancel: self.cancel.clone(),
            // Only files that are new need room, and those are learned of by one.
            room: self.room,
            seen: WalkResult::default(),
        };
        let seen = std::thread::scope(|scope| {
            let helping = scope.spawn(|| {
                helper.each(top, fd, helpers, depth, true);
                helper.seen
            });
            self.each(top, fd, mine, depth, true);
            helping.join()
        });
        match seen {
            Ok(seen) => self.seen.extend(seen),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn is_racy(&self, stat: &Stat) -> bool {
        let (at, fine) = changed_at(stat);
        at >= if fine { self.fine } else { self.coarse }
    }

    /// Compares the names of a directory with those that are known. Returns whether it could be listed.
    fn list(&mut self, fd: &OwnedFd, dir: &mut Dir) -> bool {
        let Ok(mut listed) = names_of(fd) else {
            return false;
        };
        listed.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        // Those that went.
        dir.retain(|name, what| {
            let found = listed.binary_search_by(|(there, _)| there.as_c_str().cmp(name));
            match (found, &*what) {
                (Ok(at), What::Ignored(kind) | What::Odd(kind)) => {
                    // Another kind of thing may be ignored by another rule, or by none.
                    let now = listed[at].1;
                    now == *kind || now == FileType::Unknown
                }
                (Ok(_), _) => true,
                (Err(_), _) => {
                    self.gone(name, what);
                    false
                }
            }
        });
        // Those that came.
        let mut known = dir.names().peekable();
        for (name, kind) in &listed {
            let name = name.as_c_str();
            while known.next_if(|known| *known < name.to_bytes()).is_some() {}
            if known.peek() != Some(&name.to_bytes()) {
                self.came(fd, name, *kind);
            }
        }
        true
    }

    /// Looks at a file; returns whether it is still one.
    fn file(&mut self, fd: &OwnedFd, name: &CStr, mark: &mut Mark) -> bool {
        let stat = match statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => {
                self.push_gone(name);
                return false;
            }
            // Nobody can look at it now.
            Err(_) => return true,
        };
        let signature = of(&stat);
        let same = mark.signature == signature;
        if same && mark.content == Content::Settled {
            return true;
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Symlink => {}
            kind => {
                self.push_gone(name);
                self.push_new(name, kind);
                return false;
            }
        }
        let seen = self.content(fd, name, &stat, mark.content != Content::Settled && same);
        let unchanged = same
            && match (mark.content, seen) {
                (Content::Racy(before), Some(now)) => before == now,
                (Content::Settled, _) => true,
                (Content::Unknown, _) | (Content::Racy(_), None) => false,
            };
        let content = match (self.is_racy(&stat), seen) {
            (false, _) => Content::Settled,
            (true, Some(hash)) => Content::Racy(hash),
            (true, None) => Content::Unknown,
        };
        *mark = Mark { signature, content };
        if !unchanged {
            self.push_changed(name, &stat);
        }
        true
    }

    /// A hash of what a file has, if that matters: while its stamps cannot tell, or to compare with what they could not.
    fn content(&mut self, fd: &OwnedFd, name: &CStr, stat: &Stat, compare: bool) -> Option<u64> {
        if !compare && !self.is_racy(stat) {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            let target = readlinkat(fd, name, Vec::new()).ok()?;
            hasher.write(target.to_bytes());
            return Some(hasher.finish());
        }
        if size_of(stat) > HASHED_BYTES_MAX {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file: File = openat(fd, name, flags, Mode::empty()).ok()?.into();
        self.chunk.resize(CHUNK_BYTES, 0);
        let mut left = HASHED_BYTES_MAX;
        loop {
            let read = file.read(&mut self.chunk).ok()?;
            if read == 0 {
                return Some(hasher.finish());
            }
            hasher.write(&self.chunk[..read]);
            left = left.checked_sub(read as u64)?;
        }
    }

    /// Walks on in a directory; returns whether it is still one.
    fn below(
        &mut self,
        top: &Path,
        fd: &OwnedFd,
        name: &CStr,
        below: &mut Dir,
        depth: usize,
        alone: bool,
    ) -> bool {
        if depth >= DEPTH_MAX {
            return true;
        }
        match openat(fd, name, dir_flags(), Mode::empty()) {
            Ok(opened) => {
                let length = self.enter(name);
                self.dir(top, &opened, below, depth + 1, alone);
                self.path.truncate(length);
                true
            }
            Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => {
                self.all_gone(name, below);
                if errno != Errno::NOENT {
                    self.came(fd, name, FileType::Unknown);
                }
                false
            }
            // Nobody can look into it now.
            Err(_) => true,
        }
    }

    fn submodule(&mut self, top: &Path, fd: &OwnedFd, name: &CStr, mark: &mut u64) -> bool {
        match statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                let length = self.path.len();
                self.path.extend_from_slice(name.to_bytes());
                let path = RepoPath::new(&self.path);
                self.path.truncate(length);
                let now = mark_of_submodule(&top.join(path.as_path()));
                if *mark != now {
                    *mark = now;
                    self.seen.changed.push(Changed { path, size: 0 });
                }
                true
            }
            Ok(stat) => {
                self.push_gone(name);
                self.push_new(name, FileType::from_raw_mode(stat.st_mode));
                false
            }
            Err(Errno::NOENT) => {
                self.push_gone(name);
                false
            }
            Err(_) => true,
        }
    }

    /// A repository of somebody's own, which may have become a plain directory.
    fn nested(&mut self, fd: &OwnedFd, name: &CStr) -> bool {
        let is = is_nested(fd, name.to_bytes());
        if !is {
            self.came(fd, name, FileType::Unknown);
        }
        is
    }

    /// A file that is never kept: whether it changed is said, once.
    fn protected(&mut self, fd: &OwnedFd, name: &CStr, mark: &mut u64) -> bool {
        if let Ok(stat) = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            let now = of(&stat);
            if *mark != 0 && *mark != now {
                let path = self.full(name);
                self.seen.protected.push(path);
            }
            *mark = now;
        }
        true
    }

    fn gone(&mut self, name: &CStr, what: &What) {
        match what {
            What::File(_) | What::Submodule(_) => self.push_gone(name),
            What::Dir(below) => self.all_gone(name, below),
            What::Nested | What::Ignored(_) | What::Odd(_) | What::Protected(_) | What::Left => {}
        }
    }

    fn all_gone(&mut self, name: &CStr, dir: &Dir) {
        let length = self.enter(name);
        let Self { path, seen, .. } = self;
        dir.watched(path, &mut |path| {
            seen.rules |= is_rules(path);
            seen.gone.push(RepoPath::new(path));
        });
        self.path.truncate(length);
    }

    /// Makes a directory the one whose names come next; returns how long the path was before.
    fn enter(&mut self, name: &CStr) -> usize {
        let length = self.path.len();
        self.path.extend_from_slice(name.to_bytes());
        self.path.push(b'/');
        length
    }

    fn full(&mut self, name: &CStr) -> RepoPath {
        let length = self.path.len();
        self.path.extend_from_slice(name.to_bytes());
        let path = RepoPath::new(&self.path);
        self.path.truncate(length);
        self.seen.rules |= is_rules(path.bytes());
        path
    }

    fn push_gone(&mut self, name: &CStr) {
        let path = self.full(name);
        self.seen.gone.push(path);
    }

    fn push_changed(&mut self, name: &CStr, stat: &Stat) {
        let path = self.full(name);
        let size = size_of(stat);
        self.seen.changed.push(Changed { path, size });
    }

    fn push_new(&mut self, name: &CStr, kind: FileType) {
        let path = self.full(name);
        self.seen.new.push(New { path, kind });
    }

    /// A name that nobody knows, if there still is one.
    fn came(&mut self, fd: &OwnedFd, name: &CStr, kind: FileType) {
        if kind != FileType::Unknown {
            self.push_new(name, kind);
        } else if let Ok(stat) = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            self.push_new(name, FileType::from_raw_mode(stat.st_mode));
        }
    }

    /// Looks at a file that has just become known; none if it is none any more.
    pub fn first_look(&mut self, top: &OwnedFd, path: &RepoPath) -> Option<Mark> {
        let name = CString::new(path.bytes()).ok()?;
        let mut mark = Mark::UNSEEN;
        self.path.clear();
        let before = self.seen.changed.len();
        let is_file = self.file(top, &name, &mut mark);
        if let Some(size) = self.seen.changed.get(before).map(|changed| changed.size)
            && !self.room.take(size)
        {
            self.seen.changed.truncate(before);
            self.seen.crowded.push(path.clone());
        }
        is_file.then_some(mark)
    }
}

/// Where to cut a list of directories so that both parts have enough to do; none if that cannot be.
fn half(dirs: &[Below<'_>]) -> Option<usize> {
    let weights: Vec<usize> = dirs.iter().map(|below| below.dir.weight()).collect();
    let all: usize = weights.iter().sum();
    let mut before = 0;
    for (at, weight) in weights.iter().enumerate() {
        before += weight;
        let after = all - before;
        if before >= PART_MIN && after >= PART_MIN && 2 * before >= after {
            return Some(at + 1);
        }
    }
    None
}

/// Whether a directory is the top of a repository.
pub fn is_nested(fd: impl AsFd, dir: &[u8]) -> bool {
    let mut link = dir.to_vec();
    link.extend_from_slice(b"/.git");
    match statat(&fd, link.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            link.extend_from_slice(b"/HEAD");
            statat(&fd, link.as_slice(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

fn dir_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Whether a file says what is ignored.
pub fn is_rules(path: &[u8]) -> bool {
    split(path).1 == b".gitignore"
}

fn names_of(fd: &OwnedFd) -> Result<Vec<(CString, FileType)>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b".." | b".git") {
            names.push((name.to_owned(), entry.file_type()));
        }
    }
    Ok(names)
}
