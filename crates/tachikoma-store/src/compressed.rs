//! Files that are closed for good and compressed in place, as zstd. At every moment the plain file, the compressed one
//! or both are there and whole; if both are, the plain one counts.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use ruzstd::encoding::{CompressionLevel, FrameCompressor};
use tachikoma_fs::safe_read;

use super::is_damage;
use super::vault::lines::{OnDamage, Place};
use super::vault::{Unsealed, Vault};

/// What a compressed file is called besides the name of the plain one.
pub const SUFFIX: &str = ".zst";

/// What a file under way is called besides its own name and a name that nobody else has.
const TEMP_SUFFIX: &str = ".tmp";

/// What a frame may ask a reader to remember. Ours ask for far less, and a damaged one must not take all memory.
const WINDOW_BYTES_MAX: u64 = 8 << 20;

/// How every frame begins.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What is compared at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// A file that was opened for reading, plain or compressed.
pub struct Opened {
    /// The file that is really read.
    pub path: PathBuf,
    /// Its plain content.
    pub content: Box<dyn BufRead>,
    /// How many bytes of the file what was read so far takes, where it is sealed line by line.
    pub place: Option<Place>,
    /// Which line of the file its content begins with.
    pub first_line: usize,
    /// What the file was begun as, where it is sealed line by line.
    of: Option<String>,
}

/// Opens a file of ours by its plain or its compressed name. A plain file that has been compressed in between is found too.
/// What is no regular file is not opened, nor what was sealed as another one.
///
/// # Errors
/// It cannot be opened. That a compressed file is damaged is found while it is read, see [`is_damage`].
pub fn open(path: &Path, vault: &Vault) -> io::Result<Opened> {
    let opened = open_with(path, vault, OnDamage::Fail, safe_read::open)?;
    let name = opened.path.file_name().and_then(|name| name.to_str());
    let is_it = |of: &String| of.rsplit('/').next() == name;
    match opened.of.as_ref().filter(|of| !is_it(of)) {
        Some(of) => Err(damage(format!(
            "it was sealed as {of}, and is not in its place"
        ))),
        None => Ok(opened),
    }
}

/// Opens a segment of a journal: lines that do not open are passed on, for one who looks at each line.
pub fn open_lines(path: &Path, vault: &Vault) -> io::Result<Opened> {
    open_with(path, vault, OnDamage::Pass, safe_read::open)
}

/// Opens what a person has named, whatever it is: behind a link, or a pipe.
///
/// # Errors
/// As those of [`open`].
pub fn open_named(path: &Path, vault: &Vault) -> io::Result<Opened> {
    open_with(path, vault, OnDamage::Fail, |path| File::open(path))
}

fn open_with(
    path: &Path,
    vault: &Vault,
    on_damage: OnDamage,
    open: impl Fn(&Path) -> io::Result<File>,
) -> io::Result<Opened> {
    let (path, file) = match open(path) {
        Ok(file) => (path.to_owned(), file),
        Err(error) if error.kind() == ErrorKind::NotFound && !is_compressed(path) => {
            let compressed = compressed_path(path);
            let file = open(&compressed).map_err(|_| error)?;
            (compressed, file)
        }
        Err(error) => return Err(error),
    };
    let unsealed = match vault.unseal(file, on_damage) {
        // Found while it is read, like all damage.
        Err(error) if is_damage(&error) => Unsealed {
            content: Box::new(BufReader::new(Broken(error.to_string()))),
            place: None,
            first_line: 1,
            of: None,
        },
        unsealed => unsealed?,
    };
    let content = match is_compressed(&path) {
        true => unpack(unsealed.content),
        false => unsealed.content,
    };
    Ok(Opened {
        path,
        content,
        place: unsealed.place,
        first_line: unsealed.first_line,
        of: unsealed.of,
    })
}

fn unpack(content: Box<dyn BufRead>) -> Box<dyn BufRead> {
    Box::new(BufReader::with_capacity(
        CHUNK_BYTES,
        Unpacked::new(content),
    ))
}

/// A file that is damaged where it begins.
struct Broken(String);

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(damage(self.0.clone()))
    }
}

/// Returns the plain content of a file that was opened. What it is, is told by what is in it.
pub fn content_of(file: File, vault: &Vault) -> io::Result<Box<dyn BufRead>> {
    let mut content = vault.unseal(file, OnDamage::Fail)?.content;
    Ok(match content.fill_buf()?.starts_with(&MAGIC) {
        true => unpack(content),
        false => content,
    })
}

/// Returns whether a path has the name of a compressed file.
#[must_use]
pub fn is_compressed(path: &Path) -> bool {
    path.as_os_str()
        .as_encoded_bytes()
        .ends_with(SUFFIX.as_bytes())
}

/// Which form of a file a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// As it was written.
    Plain,
    /// Compressed with zstd.
    Compressed,
    /// Half a compressed file, left by a writer that died.
    UnderWay,
}

/// Splits a file's name into the plain one and the form.
pub fn form_of(name: &str) -> (&str, Form) {
    let under_way = || {
        let (rest, unique) = name.strip_suffix(TEMP_SUFFIX)?.rsplit_once('.')?;
        uuid::Uuid::try_parse(unique).ok()?;
        rest.strip_suffix(SUFFIX)
    };
    match (under_way(), name.strip_suffix(SUFFIX)) {
        (Some(plain), _) => (plain, Form::UnderWay),
        (None, Some(plain)) => (plain, Form::Compressed),
        (None, None) => (name, Form::Plain),
    }
}

/// Puts a compressed file in the place of a plain one that nobody writes to any more. The compressed one is read back,
/// compared and on disk before the plain one goes. Links are not followed.
///
/// # Errors
/// It could not be done, or was called off; the plain file is there as before.
pub fn replace(plain: &Path, vault: &Vault, called_off: &AtomicBool) -> io::Result<()> {
    let (Some(parent), Some(name)) = (plain.parent(), plain.file_name().and_then(|n| n.to_str()))
    else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let directory = open_dir(parent)?;
    let source = open_in(&directory, name)?;
    let compressed = format!("{name}{SUFFIX}");
    let temp = format!("{compressed}.{}{TEMP_SUFFIX}", uuid::Uuid::new_v4());
    let written = write(&directory, &temp, &source, vault, called_off).and_then(|()| {
        rustix::fs::renameat(&directory, &temp, &directory, &compressed).map_err(Into::into)
    });
    if let Err(error) = written {
        // What cannot be removed is removed with its directory.
        let _ = rustix::fs::unlinkat(&directory, &temp, AtFlags::empty());
        return Err(error);
    }
    rustix::fs::fsync(&directory)?;
    Ok(rustix::fs::unlinkat(&directory, name, AtFlags::empty())?)
}

/// Opens a directory that is none behind a link.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn open_in(directory: &OwnedFd, name: &str) -> io::Result<File> {
    // Without waiting for the other end, should it be a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: File = rustix::fs::openat(directory, name, flags, Mode::empty())?.into();
    if !file.metadata()?.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    Ok(file)
}

fn write(
    directory: &OwnedFd,
    temp: &str,
    source: &File,
    vault: &Vault,
    called_off: &AtomicBool,
) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let mut target: File = rustix::fs::openat(directory, temp, flags, mode)?.into();
    let mut writer = vault.writer(&mut target)?;
    pack(&mut plain_of(source, vault)?, &mut writer, called_off)?;
    writer.finish()?;
    compare(source, &target, vault, called_off)?;
    // The age of a file may be all that is known of a damaged one.
    target.set_modified(source.metadata()?.modified()?)?;
    target.sync_all()
}

/// Returns what a file holds from its beginning, sealed or not.
fn plain_of(file: &File, vault: &Vault) -> io::Result<Box<dyn BufRead>> {
    use io::Seek as _;
    let mut file = file.try_clone()?;
    file.rewind()?;
    Ok(vault.unseal(file, OnDamage::Fail)?.content)
}

/// Writes all that can be read from `source` as one frame. The compressor panics on an error of its ends: they keep it to
/// themselves, and the one that reads ends early.
pub fn pack(
    source: &mut dyn Read,
    target: &mut dyn Write,
    called_off: &AtomicBool,
) -> io::Result<()> {
    let mut feed = Feed {
        source,
        called_off,
        error: None,
    };
    let mut drain = Drain {
        target,
        error: None,
    };
    let mut compressor = FrameCompressor::new(CompressionLevel::Fastest);
    compressor.set_source(&mut feed);
    compressor.set_drain(&mut drain);
    compressor.compress();
    drop(compressor);
    feed.error.or(drain.error).map_or(Ok(()), Err)
}

fn compare(source: &File, target: &File, vault: &Vault, called_off: &AtomicBool) -> io::Result<()> {
    let mut expected = plain_of(source, vault)?;
    let mut found = unpack(plain_of(target, vault)?);
    loop {
        go_on(called_off)?;
        let (left, right) = (expected.fill_buf()?, found.fill_buf()?);
        let length = left.len().min(right.len());
        if left[..length] != right[..length] || left.is_empty() != right.is_empty() {
            return Err(damage("it does not hold what was put in".to_owned()));
        }
        if length == 0 {
            return Ok(());
        }
        expected.consume(length);
        found.consume(length);
    }
}

/// Fails if what is being done was called off.
pub fn go_on(called_off: &AtomicBool) -> io::Result<()> {
    if called_off.load(Ordering::Relaxed) {
        return Err(io::Error::other("called off"));
    }
    Ok(())
}

struct Feed<'a> {
    source: &'a mut dyn Read,
    called_off: &'a AtomicBool,
    error: Option<io::Error>,
}

impl Read for Feed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.error.is_some() {
            return Ok(0);
        }
        let read = go_on(self.called_off).and_then(|()| self.source.read(buffer));
        Ok(read.unwrap_or_else(|error| {
            self.error = Some(error);
            0
        }))
    }
}

struct Drain<'a> {
    target: &'a mut dyn Write,
    error: Option<io::Error>,
}

impl Write for Drain<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.error.is_none() {
            self.error = self.target.write_all(bytes).err();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Decoder = StreamingDecoder<Box<dyn BufRead>, FrameDecoder>;

/// The content of a compressed file: one frame, whole, that has the checksum it says, and nothing behind it.
enum Unpacked {
    Closed(Option<Box<dyn BufRead>>),
    Open(Box<Decoder>),
    Ended,
}

impl Unpacked {
    fn new(content: Box<dyn BufRead>) -> Self {
        Self::Closed(Some(content))
    }
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Self::Closed(file) = self {
            let file = file
                .take()
                .ok_or_else(|| damage("it has no frame".to_owned()))?;
            let decoder = StreamingDecoder::new_with_max_window_size(file, WINDOW_BYTES_MAX);
            *self = Self::Open(Box::new(
                decoder.map_err(|error| damage(error.to_string()))?,
            ));
        }
        let Self::Open(decoder) = self else {
            return Ok(0);
        };
        let read = decoder
            .read(buffer)
            .map_err(|error| damage(error.to_string()))?;
        if read == 0 && !buffer.is_empty() {
            check_end(decoder)?;
            *self = Self::Ended;
        }
        Ok(read)
    }
}

fn check_end(decoder: &mut Decoder) -> io::Result<()> {
    let stated = decoder.decoder.get_checksum_from_data();
    if stated.is_none() || stated != decoder.decoder.get_calculated_checksum() {
        return Err(damage("its checksum does not match".to_owned()));
    }
    if !decoder.get_mut().fill_buf()?.is_empty() {
        return Err(damage("something stands behind its end".to_owned()));
    }
    Ok(())
}

fn damage(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Returns the name of a file when it is compressed.
pub fn compressed_path(plain: &Path) -> PathBuf {
    let mut name = plain.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

#[cfg(test)]
mod tests;
