//! Mounts the simulated disk as a file system with FUSE.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, BackgroundSession, BsdFileFlags, Config, FileAttr, FileHandle, FileType,
    Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::{Content, Copies, Disk, Number};
use crate::product::text;

/// Cache time in the kernel. Cached data would survive a power failure, so nothing is cached.
const FORGET_AT_ONCE: Duration = Duration::ZERO;

/// Generation of all inodes, because inode numbers are never reused.
const GENERATION: Generation = Generation(0);

/// Handle of all open files. Files are identified by their number, so handles are not used.
const NO_HANDLE: FileHandle = FileHandle(0);

/// A mounted disk, which is unmounted when dropped.
pub struct Mounted {
    disk: Arc<Mutex<Disk>>,
    path: PathBuf,
    session: Option<BackgroundSession>,
}

impl Mounted {
    pub fn at(path: &Path, disk: Arc<Mutex<Disk>>) -> Result<Self, String> {
        let mut config = Config::default();
        config
            .mount_options
            .push(fuser::MountOption::FSName("tachikoma-soak".to_owned()));
        let session = fuser::spawn_mount(Served(disk.clone()), path, &config).map_err(|error| {
            format!("this machine cannot show it: no FUSE file system can be mounted: {error}")
        })?;
        Ok(Self {
            disk,
            path: path.to_owned(),
            session: Some(session),
        })
    }

    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        locked(&self.disk)
    }

    /// Unmounts the disk and returns when no process uses it.
    pub fn unmount(mut self) -> Result<(), String> {
        self.detach().map_err(text)
    }

    fn detach(&mut self) -> std::io::Result<()> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        // A process that is just ending may still use the disk.
        rustix::mount::unmount(&self.path, UnmountFlags::DETACH)?;
        session.join()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // If this fails, the disk stays mounted and can be inspected.
        let _ = self.detach();
    }
}

fn locked(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Served(Arc<Mutex<Disk>>);

impl Served {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        locked(&self.0)
    }
}

impl Disk {
    fn attributes(&self, number: Number) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        let (kind, size) = match &node.content {
            Content::File(file) => (FileType::RegularFile, file.now.len() as u64),
            Content::Dir(_) => (FileType::Directory, 0),
        };
        let owner = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        Ok(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: u16::try_from(node.mode & 0o7777).unwrap_or(0o700),
            nlink: 1,
            uid: owner,
            gid: group,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn looked_up(&self, parent: Number, name: &OsStr) -> Result<FileAttr, Errno> {
        self.attributes(self.find(parent, name)?)
    }

    fn made(
        &mut self,
        parent: Number,
        name: &OsStr,
        mode: u32,
        content: Content,
    ) -> Result<FileAttr, Errno> {
        let number = self.make(parent, name, mode, content)?;
        self.attributes(number)
    }
}

fn code(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

fn reply_entry(result: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match result {
        Ok(attributes) => reply.entry(&FORGET_AT_ONCE, &attributes, GENERATION),
        Err(errno) => reply.error(code(errno)),
    }
}

fn reply_attributes(result: Result<FileAttr, Errno>, reply: ReplyAttr) {
    match result {
        Ok(attributes) => reply.attr(&FORGET_AT_ONCE, &attributes),
        Err(errno) => reply.error(code(errno)),
    }
}

fn reply_done(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(code(errno)),
    }
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(self.disk().looked_up(parent.0, name), reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply_attributes(self.disk().attributes(ino.0), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut disk = self.disk();
        let mut set = || {
            disk.changeable()?;
            if let Some(mode) = mode {
                disk.node_mut(ino.0)?.mode = mode;
            }
            if let Some(size) = size {
                disk.resize(ino.0, place(size))?;
            }
            disk.attributes(ino.0)
        };
        reply_attributes(set(), reply);
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let content = Content::Dir(Copies::default());
        let made = self.disk().made(parent.0, name, mode & !umask, content);
        reply_entry(made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_done(self.disk().remove(parent.0, name), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_done(self.disk().remove(parent.0, name), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = self.disk().rename((parent.0, name), (newparent.0, newname));
        reply_done(renamed, reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.disk().node(ino.0) {
            Ok(_) => reply.opened(NO_HANDLE, FopenFlags::empty()),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let content = Content::File(Copies::default());
        match self.disk().made(parent.0, name, mode & !umask, content) {
            Ok(attributes) => reply.created(
                &FORGET_AT_ONCE,
                &attributes,
                GENERATION,
                NO_HANDLE,
                FopenFlags::empty(),
            ),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.disk().bytes(ino.0) {
            Ok(bytes) => {
                let start = place(offset).min(bytes.len());
                let end = start.saturating_add(size as usize).min(bytes.len());
                reply.data(&bytes[start..end]);
            }
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.disk().write(ino.0, place(offset), data) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_done(self.disk().sync(ino.0), reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_done(self.disk().sync(ino.0), reply);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let disk = self.disk();
        let entries = match disk.entries(ino.0) {
            Ok(entries) => entries,
            Err(errno) => return reply.error(code(errno)),
        };
        for (index, (name, number)) in entries.iter().enumerate().skip(place(offset)) {
            let kind = match disk.entries(*number) {
                Ok(_) => FileType::Directory,
                Err(_) => FileType::RegularFile,
            };
            if reply.add(INodeNo(*number), index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn access(&self, _: &Request, ino: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply_done(self.disk().node(ino.0).map(|_| ()), reply);
    }
}
