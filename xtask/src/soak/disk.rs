//! A simulated disk with power failures: it keeps the synced content of files and the synced entries of directories. It can also
//! be full or read-only.

mod mount;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use rustix::io::Errno;

use super::dice::Dice;

pub use mount::Mounted;

/// The number of a file or directory.
type Number = u64;

/// Number of the root directory, as defined by FUSE.
const ROOT: Number = 1;

#[derive(Debug)]
pub struct Disk {
    nodes: BTreeMap<Number, Node>,
    last: Number,
    pub fault: Option<Fault>,
}

/// A simulated fault of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The power is off. Processes may still read, and their writes are lost.
    Off,
    /// Writes fail.
    ReadOnly,
    /// Writes that need more space fail.
    Full,
}

/// How much unsynced data reaches the disk at a power failure.
#[derive(Debug)]
pub enum Unsynced<'a> {
    Lost,
    /// A random prefix of the appended data reaches the disk.
    Torn(&'a mut Dice),
}

#[derive(Debug)]
struct Node {
    mode: u32,
    content: Content,
}

#[derive(Debug)]
enum Content {
    File(Copies<Vec<u8>>),
    Dir(Copies<BTreeMap<OsString, Number>>),
}

/// The visible and the synced content.
#[derive(Debug, Default)]
struct Copies<T> {
    now: T,
    synced: T,
}

impl Disk {
    pub fn new() -> Self {
        let top = Node {
            mode: 0o700,
            content: Content::Dir(Copies::default()),
        };
        Self {
            nodes: BTreeMap::from([(ROOT, top)]),
            last: ROOT,
            fault: None,
        }
    }

    /// Simulates a power failure: restores the synced content, and removes the fault.
    pub fn cut(&mut self, mut unsynced: Unsynced<'_>) {
        for node in self.nodes.values_mut() {
            match &mut node.content {
                Content::File(file) => {
                    if let Unsynced::Torn(dice) = &mut unsynced
                        && file.now.starts_with(&file.synced)
                    {
                        let appended = file.now.len() - file.synced.len();
                        let length = file.synced.len() + dice.below(appended + 1);
                        file.synced = file.now[..length].to_vec();
                    }
                    file.now.clone_from(&file.synced);
                }
                Content::Dir(dir) => dir.now.clone_from(&dir.synced),
            }
        }
        let found = self.reachable();
        self.nodes.retain(|number, _| found.contains(number));
        self.fault = None;
    }

    /// Syncs everything.
    pub fn sync_all(&mut self) {
        for node in self.nodes.values_mut() {
            node.sync();
        }
    }

    fn reachable(&self) -> BTreeSet<Number> {
        let mut found = BTreeSet::new();
        let mut open = vec![ROOT];
        while let Some(number) = open.pop() {
            if !found.insert(number) {
                continue;
            }
            if let Some(Content::Dir(dir)) = self.nodes.get(&number).map(|node| &node.content) {
                open.extend(dir.now.values());
            }
        }
        found
    }

    fn changeable(&self) -> Result<(), Errno> {
        match self.fault {
            Some(Fault::Off) => Err(Errno::IO),
            Some(Fault::ReadOnly) => Err(Errno::ROFS),
            Some(Fault::Full) | None => Ok(()),
        }
    }

    fn extensible(&self) -> Result<(), Errno> {
        match self.fault {
            Some(Fault::Full) => Err(Errno::NOSPC),
            Some(Fault::Off | Fault::ReadOnly) | None => self.changeable(),
        }
    }

    fn node(&self, number: Number) -> Result<&Node, Errno> {
        self.nodes.get(&number).ok_or(Errno::NOENT)
    }

    fn node_mut(&mut self, number: Number) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&number).ok_or(Errno::NOENT)
    }

    fn entries(&self, number: Number) -> Result<&BTreeMap<OsString, Number>, Errno> {
        match &self.node(number)?.content {
            Content::Dir(dir) => Ok(&dir.now),
            Content::File(_) => Err(Errno::NOTDIR),
        }
    }

    fn entries_mut(&mut self, number: Number) -> Result<&mut BTreeMap<OsString, Number>, Errno> {
        match &mut self.node_mut(number)?.content {
            Content::Dir(dir) => Ok(&mut dir.now),
            Content::File(_) => Err(Errno::NOTDIR),
        }
    }

    fn bytes(&self, number: Number) -> Result<&Vec<u8>, Errno> {
        match &self.node(number)?.content {
            Content::File(file) => Ok(&file.now),
            Content::Dir(_) => Err(Errno::ISDIR),
        }
    }

    fn bytes_mut(&mut self, number: Number) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.node_mut(number)?.content {
            Content::File(file) => Ok(&mut file.now),
            Content::Dir(_) => Err(Errno::ISDIR),
        }
    }

    fn find(&self, parent: Number, name: &OsStr) -> Result<Number, Errno> {
        self.entries(parent)?.get(name).copied().ok_or(Errno::NOENT)
    }

    fn make(
        &mut self,
        parent: Number,
        name: &OsStr,
        mode: u32,
        content: Content,
    ) -> Result<Number, Errno> {
        self.extensible()?;
        if self.entries(parent)?.contains_key(name) {
            return Err(Errno::EXIST);
        }
        self.last += 1;
        let number = self.last;
        self.nodes.insert(number, Node { mode, content });
        self.entries_mut(parent)?.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Removes an entry. The node exists until the next power failure, because it may be open or be restored.
    fn remove(&mut self, parent: Number, name: &OsStr) -> Result<(), Errno> {
        self.changeable()?;
        let number = self.find(parent, name)?;
        if self
            .entries(number)
            .is_ok_and(|entries| !entries.is_empty())
        {
            return Err(Errno::NOTEMPTY);
        }
        self.entries_mut(parent)?.remove(name);
        Ok(())
    }

    fn rename(&mut self, from: (Number, &OsStr), to: (Number, &OsStr)) -> Result<(), Errno> {
        self.changeable()?;
        let number = self.find(from.0, from.1)?;
        self.entries_mut(from.0)?.remove(from.1);
        self.entries_mut(to.0)?.insert(to.1.to_owned(), number);
        Ok(())
    }

    fn write(&mut self, number: Number, offset: usize, data: &[u8]) -> Result<(), Errno> {
        self.extensible()?;
        let bytes = self.bytes_mut(number)?;
        let end = offset + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset..end].copy_from_slice(data);
        Ok(())
    }

    fn resize(&mut self, number: Number, length: usize) -> Result<(), Errno> {
        self.changeable()?;
        self.bytes_mut(number)?.resize(length, 0);
        Ok(())
    }

    fn sync(&mut self, number: Number) -> Result<(), Errno> {
        self.changeable()?;
        self.node_mut(number)?.sync();
        Ok(())
    }
}

impl Node {
    fn sync(&mut self) {
        match &mut self.content {
            Content::File(file) => file.synced.clone_from(&file.now),
            Content::Dir(dir) => dir.synced.clone_from(&dir.now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(disk: &mut Disk, parent: Number, name: &str) -> Number {
        let content = Content::File(Copies::default());
        disk.make(parent, OsStr::new(name), 0o600, content)
            .expect("nothing has this name")
    }

    fn found(disk: &Disk, name: &str) -> Option<Vec<u8>> {
        let number = disk.find(ROOT, OsStr::new(name)).ok()?;
        disk.bytes(number).ok().cloned()
    }

    #[test]
    fn a_power_failure_keeps_synced_content_and_entries() {
        let mut disk = Disk::new();
        let kept = file(&mut disk, ROOT, "kept");
        disk.write(kept, 0, b"one").expect("it is there");
        disk.sync(kept).expect("it is there");
        disk.sync(ROOT).expect("it is there");
        disk.write(kept, 3, b"two").expect("it is there");
        let nameless = file(&mut disk, ROOT, "nameless");
        disk.sync(nameless).expect("it is there");
        assert_eq!(found(&disk, "kept"), Some(b"onetwo".to_vec()));

        disk.cut(Unsynced::Lost);
        assert_eq!(found(&disk, "kept"), Some(b"one".to_vec()));
        assert_eq!(
            found(&disk, "nameless"),
            None,
            "its directory was not synced"
        );
    }

    #[test]
    fn a_name_without_synced_content_is_an_empty_file() {
        let mut disk = Disk::new();
        let empty = file(&mut disk, ROOT, "empty");
        disk.write(empty, 0, b"one").expect("it is there");
        disk.sync(ROOT).expect("it is there");
        disk.cut(Unsynced::Lost);
        assert_eq!(found(&disk, "empty"), Some(Vec::new()));
    }

    #[test]
    fn power_failure_undoes_unsynced_removals_and_renames() {
        let mut disk = Disk::new();
        for name in ["gone", "old"] {
            file(&mut disk, ROOT, name);
        }
        disk.sync(ROOT).expect("it is there");
        let (old, new) = (OsStr::new("old"), OsStr::new("new"));
        disk.remove(ROOT, OsStr::new("gone")).expect("it is there");
        disk.rename((ROOT, old), (ROOT, new)).expect("it is there");
        disk.cut(Unsynced::Lost);
        assert!(found(&disk, "gone").is_some() && found(&disk, "old").is_some());
        assert!(found(&disk, "new").is_none());
    }

    #[test]
    fn only_appended_data_can_be_written_partially() {
        for seed in 0..50 {
            let mut disk = Disk::new();
            let torn = file(&mut disk, ROOT, "torn");
            disk.write(torn, 0, b"one").expect("it is there");
            disk.sync_all();
            disk.write(torn, 3, b"two").expect("it is there");
            disk.cut(Unsynced::Torn(&mut Dice::from_seed(seed)));
            let left = found(&disk, "torn").expect("it is there");
            assert!(left.starts_with(b"one") && b"onetwo".starts_with(&left));
        }
    }

    #[test]
    fn each_fault_rejects_its_operations() {
        let mut disk = Disk::new();
        let number = file(&mut disk, ROOT, "file");
        disk.fault = Some(Fault::Full);
        assert_eq!(disk.write(number, 0, b"x"), Err(Errno::NOSPC));
        assert_eq!(disk.resize(number, 0), Ok(()));
        disk.fault = Some(Fault::ReadOnly);
        assert_eq!(disk.resize(number, 0), Err(Errno::ROFS));
        assert!(disk.bytes(number).is_ok());
        disk.fault = Some(Fault::Off);
        assert_eq!(disk.sync(number), Err(Errno::IO));
    }
}
