//! All that is known about a work tree: each name in each directory that is not left out, and by what it is known again.

use rustix::fs::FileType;
use std::ffi::CStr;

/// A directory and what is in it.
#[derive(Debug, Default)]
pub struct Dir {
    /// Its own signature when it was listed last; 0 if it never was.
    pub signature: u64,
    /// Whether names may have come since within the same tick of the clock.
    pub racy: bool,
    /// The names, each ended by a NUL.
    names: Vec<u8>,
    /// In order of their names.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    start: u32,
    end: u32,
    what: What,
}

/// What a name stands for.
#[derive(Debug)]
pub enum What {
    /// A file or a symbolic link that is watched.
    File(Mark),
    /// A directory that is watched.
    Dir(Box<Dir>),
    /// A submodule, with a mark of what it stands on.
    Submodule(u64),
    /// A repository of somebody's own.
    Nested,
    /// Ignored by a rule, as the kind of thing that it was.
    Ignored(FileType),
    /// A pipe, a socket or a device.
    Odd(FileType),
    /// Never kept, as its user wants it; its signature tells when there is something to say. 0 before the first look.
    Protected(u64),
    /// Nobody looks there: the loop's own, or assumed to be unchanged.
    Left,
}

/// By what a file is known again.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// 0 if it was not looked at yet.
    pub signature: u64,
    pub content: Content,
}

impl Mark {
    pub const UNSEEN: Self = Self {
        signature: 0,
        content: Content::Settled,
    };
}

/// Whether the signature says enough about the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// It does.
    Settled,
    /// The file was changed so lately that it may change again without a trace; this is a hash of what it has.
    Racy(u64),
    /// The same, but nobody knows what it has.
    Unknown,
}

/// A directory in another.
#[derive(Debug)]
pub struct Below<'a> {
    pub name: &'a CStr,
    pub dir: &'a mut Dir,
    /// Whether it turned out to be none any more.
    pub gone: bool,
}

impl Dir {
    /// Returns what a name stands for.
    pub fn get(&self, name: &[u8]) -> Option<&What> {
        let at = self.position(name).ok()?;
        Some(&self.entries[at].what)
    }

    fn position(&self, name: &[u8]) -> Result<usize, usize> {
        self.entries
            .binary_search_by(|entry| name_in(&self.names, entry).cmp(name))
    }

    /// Sets what a name stands for. A name that does not fit is no name of a file.
    pub fn set(&mut self, name: &[u8], what: What) {
        match self.position(name) {
            Ok(at) => self.entries[at].what = what,
            Err(at) => {
                let range = |names: &Vec<u8>| u32::try_from(names.len()).ok();
                let Some(start) = range(&self.names) else {
                    return;
                };
                self.names.extend_from_slice(name);
                let Some(end) = range(&self.names) else {
                    self.names.truncate(start as usize);
                    return;
                };
                self.names.push(0);
                self.entries.insert(at, Entry { start, end, what });
            }
        }
    }

    /// Returns the directory of a path, making those on the way; none if one of them is something else.
    pub fn dir_of(&mut self, dir: &[u8]) -> Option<&mut Self> {
        if dir.is_empty() {
            return Some(self);
        }
        let mut current = self;
        for name in dir.split(|byte| *byte == b'/') {
            // A directory that is ignored may have files that are not.
            if matches!(
                current.get(name),
                None | Some(What::Ignored(FileType::Directory))
            ) {
                current.set(name, What::Dir(Box::default()));
            }
            let at = current.position(name).ok()?;
            match &mut current.entries[at].what {
                What::Dir(below) => current = below,
                _ => return None,
            }
        }
        Some(current)
    }

    /// Returns what a path stands for.
    pub fn at(&self, path: &[u8]) -> Option<&What> {
        let (dir, name) = split(path);
        let mut current = self;
        for part in dir
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
        {
            match current.get(part)? {
                What::Dir(below) => current = below,
                _ => return None,
            }
        }
        current.get(name)
    }

    /// Returns what a path stands for, or the directory above it that nobody looked into; and whether it is the path itself.
    pub fn outermost(&self, path: &[u8]) -> Option<(&What, bool)> {
        let mut current = self;
        let mut parts = path.split(|byte| *byte == b'/').peekable();
        while let Some(part) = parts.next() {
            let what = current.get(part)?;
            match what {
                What::Dir(below) if parts.peek().is_some() => current = below,
                _ => return Some((what, parts.peek().is_none())),
            }
        }
        None
    }

    /// Sets what a path stands for, unless something on the way to it is no directory.
    pub fn put(&mut self, path: &[u8], what: What) {
        let (dir, name) = split(path);
        if let Some(dir) = self.dir_of(dir) {
            dir.set(name, what);
        }
    }

    /// Forgets a path.
    pub fn forget(&mut self, path: &[u8]) {
        let (dir, name) = split(path);
        if let Some(dir) = self.dir_of(dir) {
            dir.retain(|known, _| known.to_bytes() != name);
        }
    }

    /// Goes through all entries, and forgets those for which `keep` says no.
    pub fn retain(&mut self, mut keep: impl FnMut(&CStr, &mut What) -> bool) {
        let names = &self.names;
        let before = self.entries.len();
        self.entries.retain_mut(|entry| {
            let with_nul = &names[entry.start as usize..=entry.end as usize];
            // What cannot be a name cannot be looked at either.
            CStr::from_bytes_with_nul(with_nul).is_ok_and(|name| keep(name, &mut entry.what))
        });
        if self.entries.len() < before {
            self.compact();
        }
    }

    /// The directories in it.
    pub fn below(&mut self) -> Vec<Below<'_>> {
        let names = &self.names;
        let dirs = self.entries.iter_mut().filter_map(|entry| {
            let with_nul = &names[entry.start as usize..=entry.end as usize];
            match &mut entry.what {
                What::Dir(dir) => Some(Below {
                    name: CStr::from_bytes_with_nul(with_nul).ok()?,
                    dir,
                    gone: false,
                }),
                _ => None,
            }
        });
        dirs.collect()
    }

    /// How many names there are in it and below.
    pub fn weight(&self) -> usize {
        let below = self.entries.iter().map(|entry| match &entry.what {
            What::Dir(dir) => dir.weight(),
            _ => 1,
        });
        below.sum()
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.iter().map(|entry| name_in(&self.names, entry))
    }

    fn compact(&mut self) {
        let mut names = Vec::with_capacity(self.names.len());
        for entry in &mut self.entries {
            let name = &self.names[entry.start as usize..=entry.end as usize];
            let length = entry.end - entry.start;
            // Shorter than what was there, so it fits.
            entry.start = u32::try_from(names.len()).unwrap_or(u32::MAX);
            entry.end = entry.start + length;
            names.extend_from_slice(name);
        }
        self.names = names;
    }

    /// Calls `each` with the path of every watched file and submodule in it; `path` is that of the directory, with a slash.
    pub fn watched(&self, path: &mut Vec<u8>, each: &mut impl FnMut(&[u8])) {
        for entry in &self.entries {
            let length = path.len();
            path.extend_from_slice(name_in(&self.names, entry));
            match &entry.what {
                What::File(_) | What::Submodule(_) => each(path),
                What::Dir(below) => {
                    path.push(b'/');
                    below.watched(path, each);
                }
                _ => {}
            }
            path.truncate(length);
        }
    }
}

fn name_in<'a>(names: &'a [u8], entry: &Entry) -> &'a [u8] {
    &names[entry.start as usize..entry.end as usize]
}

/// Splits a path into its directory and its name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_where_they_were_put_and_gone_when_they_were_taken() {
        let mut root = Dir::default();
        let paths: [&[u8]; 5] = [b"b", b"a/z", b"a/y/x", b"c\n", b"a-b"];
        for path in paths {
            root.put(path, What::File(Mark::UNSEEN));
        }
        let all = |root: &Dir| {
            let mut found = Vec::new();
            root.watched(&mut Vec::new(), &mut |path| found.push(path.to_vec()));
            found
        };
        assert_eq!(all(&root), [&b"a/y/x"[..], b"a/z", b"a-b", b"b", b"c\n"]);
        root.retain(|name, _| name.to_bytes() != b"a-b");
        root.put(b"b/below", What::Left);
        assert!(root.at(b"b/below").is_none(), "a file has nothing below it");
        assert!(matches!(root.at(b"c\n"), Some(What::File(_))));
        assert!(root.at(b"a-b").is_none());
        assert_eq!(all(&root), [&b"a/y/x"[..], b"a/z", b"b", b"c\n"]);
    }
}
