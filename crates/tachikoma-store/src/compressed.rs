//! Compresses closed files with zstd. At every moment the plain file, the compressed file, or both exist and are complete. If both
//! exist, the plain file is used.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use ruzstd::encoding::{CompressionLevel, FrameCompressor};
use tachikoma_fs::safe_read;

use super::encryption::convert::is_same;
use super::encryption::lines::OnDamage;
use super::encryption::{Decrypted, Encryption};
use super::is_damage;
use super::layout::with_suffix;

/// Extension of a compressed file.
pub const SUFFIX: &str = ".zst";

/// Extension of a temporary file, after a unique name.
const TEMP_SUFFIX: &str = ".tmp";

/// Maximum window size of a zstd frame in bytes, so that a damaged file cannot use up the memory. Frames of this program need far less.
const WINDOW_BYTES_MAX: u64 = 8 << 20;

/// The first bytes of every zstd frame.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Size of the read buffer in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Opens a file by its plain or compressed name. Rejects other kinds of files, and encrypted files that were renamed.
///
/// # Errors
/// The file cannot be opened. Damage of a compressed file is found only while it is read, see [`is_damage`].
pub fn open(path: &Path, encryption: &Encryption) -> io::Result<Decrypted> {
    let opened = open_with(path, encryption, OnDamage::Fail, safe_read::open)?;
    let name = opened.path.file_name().and_then(|name| name.to_str());
    let is_it = |of: &String| of.rsplit('/').next() == name;
    match opened.of.as_ref().filter(|of| !is_it(of)) {
        Some(of) => Err(damage(format!(
            "the file was encrypted under the name {of} and renamed later"
        ))),
        None => Ok(opened),
    }
}

/// Opens a segment of a journal. Lines that cannot be decrypted are returned unchanged, for callers that check each line.
pub fn open_lines(path: &Path, encryption: &Encryption) -> io::Result<Decrypted> {
    open_with(path, encryption, OnDamage::Pass, safe_read::open)
}

/// Opens a file that the user named. Follows links and accepts pipes.
///
/// # Errors
/// The same errors as [`open`].
pub fn open_named(path: &Path, encryption: &Encryption) -> io::Result<Decrypted> {
    open_with(path, encryption, OnDamage::Fail, |path| File::open(path))
}

fn open_with(
    path: &Path,
    encryption: &Encryption,
    on_damage: OnDamage,
    open: impl Fn(&Path) -> io::Result<File>,
) -> io::Result<Decrypted> {
    let (path, file) = match open(path) {
        Ok(file) => (path.to_owned(), file),
        Err(error) if error.kind() == ErrorKind::NotFound && !is_compressed(path) => {
            let compressed = with_suffix(path, SUFFIX);
            let file = open(&compressed).map_err(|_| error)?;
            (compressed, file)
        }
        Err(error) => return Err(error),
    };
    let decrypted = match encryption.decrypt(file, on_damage) {
        // The damage is reported when the content is read, like damage at other places.
        Err(error) if is_damage(&error) => Decrypted::new(broken(&error)),
        decrypted => decrypted?,
    };
    let content = match is_compressed(&path) {
        true => unpack(decrypted.content),
        false => decrypted.content,
    };
    Ok(Decrypted {
        path,
        content,
        ..decrypted
    })
}

fn unpack(content: Box<dyn BufRead>) -> Box<dyn BufRead> {
    match StreamingDecoder::new_with_max_window_size(content, WINDOW_BYTES_MAX) {
        Ok(decoder) => {
            let unpacked = Unpacked(Some(Box::new(decoder)));
            Box::new(BufReader::with_capacity(CHUNK_BYTES, unpacked))
        }
        Err(error) => Box::new(broken(&error)),
    }
}

/// Returns a reader for a file that is damaged at its start: its first read fails.
fn broken(error: &dyn std::fmt::Display) -> BufReader<Broken> {
    BufReader::new(Broken(error.to_string()))
}

struct Broken(String);

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(damage(self.0.clone()))
    }
}

/// Returns the decrypted and decompressed content of an open file. The format is recognized by its first bytes.
pub fn content_of(file: File, encryption: &Encryption) -> io::Result<Box<dyn BufRead>> {
    let mut content = encryption.decrypt(file, OnDamage::Fail)?.content;
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

/// Form of a file, as its name shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// A plain file.
    Plain,
    /// Compressed with zstd.
    Compressed,
    /// An incomplete temporary file of a process that died during compression.
    UnderWay,
}

/// Splits a file name into the plain name and the form.
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

/// Compresses a closed file. The compressed file is read back, compared and synced before the plain one is removed. Does not
/// follow links.
///
/// # Errors
/// The compression failed or was canceled. The plain file is unchanged.
pub fn replace(plain: &Path, encryption: &Encryption, canceled: &AtomicBool) -> io::Result<()> {
    let (Some(parent), Some(name)) = (plain.parent(), plain.file_name().and_then(|n| n.to_str()))
    else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let directory = open_dir(parent)?;
    let source = open_in(&directory, name)?;
    let compressed = format!("{name}{SUFFIX}");
    let temp = format!("{compressed}.{}{TEMP_SUFFIX}", uuid::Uuid::new_v4());
    let written = write(&directory, &temp, &source, encryption, canceled).and_then(|()| {
        rustix::fs::renameat(&directory, &temp, &directory, &compressed).map_err(Into::into)
    });
    if let Err(error) = written {
        // A temporary file that cannot be removed now is removed later with its directory.
        let _ = rustix::fs::unlinkat(&directory, &temp, AtFlags::empty());
        return Err(error);
    }
    rustix::fs::fsync(&directory)?;
    Ok(rustix::fs::unlinkat(&directory, name, AtFlags::empty())?)
}

/// Opens a directory without following a link.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn open_in(directory: &OwnedFd, name: &str) -> io::Result<File> {
    // `NONBLOCK` prevents the open from blocking if the file is a pipe.
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
    encryption: &Encryption,
    canceled: &AtomicBool,
) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let mut target: File = rustix::fs::openat(directory, temp, flags, mode)?.into();
    let mut writer = encryption.writer(&mut target)?;
    pack(&mut plain_of(source, encryption)?, &mut writer, canceled)?;
    writer.finish()?;
    compare(source, &target, encryption, canceled)?;
    // The modification time is copied. For a damaged file it may be the only known time.
    target.set_modified(source.metadata()?.modified()?)?;
    target.sync_all()
}

/// Returns the decrypted and decompressed content of a file.
fn plain_of(file: &File, encryption: &Encryption) -> io::Result<Box<dyn BufRead>> {
    use io::Seek as _;
    let mut file = file.try_clone()?;
    file.rewind()?;
    Ok(encryption.decrypt(file, OnDamage::Fail)?.content)
}

/// Compresses a source into one zstd frame. The compressor panics on I/O errors, so the reader and the writer store errors, and
/// the reader then ends early.
pub fn pack(
    source: &mut dyn Read,
    target: &mut dyn Write,
    canceled: &AtomicBool,
) -> io::Result<()> {
    let mut feed = Feed {
        source,
        canceled,
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

fn compare(
    source: &File,
    target: &File,
    encryption: &Encryption,
    canceled: &AtomicBool,
) -> io::Result<()> {
    let mut expected = plain_of(source, encryption)?;
    let mut found = unpack(plain_of(target, encryption)?);
    match is_same(&mut expected, &mut found, &mut || {
        fail_if_canceled(canceled)
    })? {
        true => Ok(()),
        false => Err(damage(
            "the compressed file differs from the original".to_owned(),
        )),
    }
}

/// Fails if the operation was canceled.
pub fn fail_if_canceled(canceled: &AtomicBool) -> io::Result<()> {
    if canceled.load(Ordering::Relaxed) {
        return Err(io::Error::other("canceled"));
    }
    Ok(())
}

struct Feed<'a> {
    source: &'a mut dyn Read,
    canceled: &'a AtomicBool,
    error: Option<io::Error>,
}

impl Read for Feed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.error.is_some() {
            return Ok(0);
        }
        let read = fail_if_canceled(self.canceled).and_then(|()| self.source.read(buffer));
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

/// Reader of a compressed file: one complete frame with a valid checksum, and no data after it. `None` after its end.
struct Unpacked(Option<Box<Decoder>>);

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(decoder) = &mut self.0 else {
            return Ok(0);
        };
        let read = decoder
            .read(buffer)
            .map_err(|error| damage(error.to_string()))?;
        if read == 0 && !buffer.is_empty() {
            check_end(decoder)?;
            self.0 = None;
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
        return Err(damage(
            "there is data after the end of the compressed data".to_owned(),
        ));
    }
    Ok(())
}

fn damage(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;
