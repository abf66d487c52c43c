//! Encryption of stored files. All code that reads or writes the store gets an [`Encryption`]. `docs/encryption.md` describes the files.
//!
//! A file that is written at once is an age file. A file that grows, such as a segment or a transcript, is encrypted line by line
//! with its own key, which age wraps (see `lines`). Files are recognized by their first bytes, never by their name.

pub mod convert;
mod header;
mod keys;
pub mod lines;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use age::stream::{StreamReader, StreamWriter};
use age::{DecryptError, Decryptor, Encryptor};
use tachikoma_fs::atomic_file::{Durability, FileMark, write_whole};
use tachikoma_fs::safe_read;

use super::error::{StoreError, is_locked, locked};
use super::layout::with_suffix;
use header::PublicHeader;
pub use keys::{KeySource, Passphrase};
use keys::{NO_KEY, Opener, RecipientSet, Ring};
use lines::{Lines, OnDamage};

/// Extension of an encrypted snapshot or backup.
pub const SUFFIX: &str = ".age";

/// Name of the identity file that this program generates and locks with a passphrase.
pub const IDENTITY: &str = "identity.age";

/// The first bytes of every age file.
const AGE: &[u8] = b"age-encryption.org/";

/// Size of the read buffer in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The keys for stored files. Without keys, new files are not encrypted, and encrypted files cannot be read.
#[must_use]
#[derive(Clone, Default)]
pub struct Encryption {
    /// The keys; `None` without encryption. They are loaded at their first use, because unlocking with a passphrase takes a second.
    ring: Option<Arc<Ring>>,
    /// Whether new files are encrypted.
    encrypts: bool,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Encryption(encrypts: {})", self.encrypts)
    }
}

impl Encryption {
    /// Returns an `Encryption` without keys: new files are not encrypted.
    pub fn plain() -> Self {
        Self::default()
    }

    /// Returns an `Encryption` that loads its keys at their first use.
    pub fn new(source: KeySource) -> Self {
        let encrypts = source.encrypt;
        if !encrypts && !source.has_keys() {
            return Self::plain();
        }
        Self {
            ring: Some(Arc::new(Ring::new(source))),
            encrypts,
        }
    }

    /// Returns an `Encryption` with keys that cannot be loaded. Encrypted files are rejected with the reason `why`.
    pub fn lost(why: &str) -> Self {
        let why =
            format!("it is encrypted, and the settings that name its key cannot be read: {why}");
        Self {
            ring: Some(Arc::new(Ring::lost(why))),
            encrypts: false,
        }
    }

    /// Returns the encryption for files that are extracted from another file. They are encrypted if that file is.
    pub fn for_files_from(&self, path: &Path) -> Self {
        Self {
            ring: self.ring.clone(),
            encrypts: self.encrypts || is_encrypted(path),
        }
    }

    /// Returns whether new files are encrypted.
    #[must_use]
    pub fn encrypts(&self) -> bool {
        self.encrypts
    }

    /// Returns whether no keys are configured: new files are not encrypted, and encrypted files cannot be read.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.ring.is_none()
    }

    /// Returns the path with the extension of encrypted files if new files are encrypted, otherwise the path unchanged.
    #[must_use]
    pub fn named(&self, path: PathBuf) -> PathBuf {
        match self.encrypts() {
            true => with_suffix(&path, SUFFIX),
            false => path,
        }
    }

    /// Returns the keys; `None` if new files are not encrypted.
    fn encrypting_ring(&self) -> Option<&Ring> {
        self.ring.as_deref().filter(|_| self.encrypts)
    }

    fn ring(&self) -> io::Result<&Ring> {
        self.ring.as_deref().ok_or_else(|| locked(NO_KEY))
    }

    fn recipient_set(&self) -> io::Result<&RecipientSet> {
        self.ring()?.recipient_set().map_err(locked)
    }

    /// Checks that the given encrypted files can be decrypted, and that new files could be decrypted again. Changes nothing.
    ///
    /// # Errors
    /// The key of an encrypted file is missing, or new files could not be decrypted again.
    pub fn check(&self, witnesses: &[PathBuf]) -> Result<(), StoreError> {
        self.check_opens(witnesses)?;
        self.encrypting_ring()
            .map_or(Ok(()), Ring::check)
            .map_err(|why| {
                StoreError::io("encrypt", Path::new(tachikoma_fs::RALPH_DIR))(locked(why))
            })
    }

    /// Checks that no key file is inside the working directory, which may be committed, backed up and uploaded.
    pub fn check_apart(&self, working_dir: &Path) -> Result<(), StoreError> {
        let is_top = |dir: &&Path| dir.join(".git").exists();
        let Some(top) = working_dir.ancestors().find(is_top) else {
            return Ok(());
        };
        match self.encrypting_ring().and_then(|ring| ring.file_below(top)) {
            None => Ok(()),
            Some(path) => {
                let why = "this key file is in the repository of the loop, where it would be committed and backed up: move it out of the repository";
                Err(StoreError::io("use", path)(locked(why)))
            }
        }
    }

    /// Checks that the keys decrypt all given files. Damaged files pass; the code that reads them reports the damage.
    pub fn check_opens(&self, witnesses: &[PathBuf]) -> Result<(), StoreError> {
        for path in witnesses {
            if let Some(error) = self.missing_key_error(path) {
                return Err(StoreError::io("open", path)(error));
            }
        }
        Ok(())
    }

    /// Returns the error for a file if its key is missing; otherwise `None`.
    pub fn missing_key_error(&self, path: &Path) -> Option<io::Error> {
        let encrypted = Some(path).filter(|path| is_encrypted(path))?;
        let opened = safe_read::open(encrypted).and_then(|file| self.decrypt(file, OnDamage::Fail));
        opened.err().filter(is_locked)
    }

    /// Returns whether a file is stored as configured: plain, or encrypted for exactly the configured recipients.
    pub fn is_in_form(&self, path: &Path) -> bool {
        if !self.encrypts {
            return !is_encrypted(path);
        }
        let wanted = self.recipient_set();
        wanted.is_ok_and(|wanted| {
            public_header_of(path)
                .is_some_and(|public_header| public_header == wanted.public_header)
        })
    }

    /// Generates the identity that the passphrase unlocks, if there is none. The caller must hold the lock of the working
    /// directory, and [`Encryption::check`] must have succeeded.
    pub fn prepare(&self) -> Result<(), StoreError> {
        self.encrypting_ring().map_or(Ok(()), Ring::prepare)
    }

    /// Writes the generated identity file again if it was removed.
    pub fn put_back_identity(&self) -> Result<(), StoreError> {
        self.encrypting_ring()
            .map_or(Ok(()), Ring::restore_missing_identity)
    }

    /// Returns bytes as they are written: encrypted if that is configured.
    pub fn encrypt<'a>(&self, bytes: &'a [u8]) -> io::Result<Cow<'a, [u8]>> {
        if !self.encrypts() {
            return Ok(match looks_encrypted(bytes) {
                Some(true) => Cow::Owned([APART, bytes].concat()),
                Some(false) | None => Cow::Borrowed(bytes),
            });
        }
        let mut encrypted = self.writer(Vec::new())?;
        encrypted.write_all(bytes)?;
        encrypted.finish().map(Cow::Owned)
    }

    /// Replaces a file atomically, encrypted if that is configured. Returns the identity (device and inode) of the new file.
    pub fn write(
        &self,
        path: &Path,
        bytes: &[u8],
        durability: Durability,
    ) -> Result<FileMark, StoreError> {
        let bytes = self.encrypt(bytes);
        let bytes = bytes.map_err(StoreError::io("encrypt", path))?;
        Ok(write_whole(path, &bytes, durability)?)
    }

    /// Returns a writer that encrypts if that is configured. The file is complete after [`EncryptingWriter::finish`].
    pub fn writer<W: Write>(&self, target: W) -> io::Result<EncryptingWriter<W>> {
        if !self.encrypts() {
            return Ok(EncryptingWriter::Plain(target));
        }
        self.age_writer(target)
            .map(|writer| EncryptingWriter::Age(Box::new(writer)))
    }

    fn age_writer<W: Write>(&self, target: W) -> io::Result<StreamWriter<W>> {
        let RecipientSet {
            recipients,
            public_header,
        } = self.recipient_set()?;
        let recipients = recipients.iter().map(|key| key as &dyn age::Recipient);
        let recipients = std::iter::once(public_header as &dyn age::Recipient).chain(recipients);
        let encryptor = Encryptor::with_recipients(recipients).map_err(io::Error::other)?;
        encryptor.wrap_output(target)
    }

    /// Returns a reader of content that may be encrypted.
    pub fn decrypt(
        &self,
        source: impl Read + 'static,
        on_damage: OnDamage,
    ) -> io::Result<Decrypted> {
        let mut source = BufReader::with_capacity(CHUNK_BYTES, source);
        let begins = source.fill_buf()?;
        if begins.starts_with(AGE) {
            let content = self.open_age(source)?;
            let content = BufReader::with_capacity(CHUNK_BYTES, content);
            return Ok(Decrypted::new(content));
        }
        if begins.starts_with(lines::BEGINNING) {
            let lines = Lines::new(source, self, on_damage)?;
            return Ok(Decrypted {
                path: PathBuf::new(),
                place: Some(lines.place()),
                first_line: lines.first_line(),
                of: lines.of(),
                content: Box::new(lines),
            });
        }
        Ok(Decrypted::new(source))
    }

    fn open_age<R: Read>(&self, source: R) -> io::Result<AgeContent<R>> {
        let ring = self.ring()?;
        let decryptor = Decryptor::new(source).map_err(|error| damage(&error))?;
        let opener = Opener::new(Some(ring));
        match decryptor.decrypt(std::iter::once(&opener as &dyn age::Identity)) {
            Ok(content) => Ok(AgeContent(content)),
            Err(DecryptError::NoMatchingKeys) => Err(ring.why_not(opener.into_header().as_ref())),
            Err(error) => Err(damage(&error)),
        }
    }

    /// Reads a file of at most `max` bytes, encrypted or not.
    pub fn read(&self, path: &Path, max: u64) -> io::Result<Vec<u8>> {
        let content = self
            .decrypt(safe_read::open(path)?, OnDamage::Fail)?
            .content;
        safe_read::read_all(content, max)
    }
}

/// The decrypted content of an open file. A plain file is passed on unchanged.
pub struct Decrypted {
    /// Path of the file, plain or compressed; empty if the caller opened the file.
    pub path: PathBuf,
    /// The decrypted content, also decompressed if the file was opened by its path.
    pub content: Box<dyn io::BufRead>,
    /// Current position in the file; `None` unless the file is encrypted line by line.
    pub place: Option<lines::Place>,
    /// Line number in the file of the first line of `content`.
    pub first_line: usize,
    /// Name under which the file was created, which it must still have; `None` unless it is encrypted line by line.
    pub of: Option<String>,
}

impl Decrypted {
    /// Returns content that is not encrypted line by line.
    pub fn new(content: impl io::BufRead + 'static) -> Self {
        Self {
            path: PathBuf::new(),
            content: Box::new(content),
            place: None,
            first_line: 1,
            of: None,
        }
    }
}

/// Writer that encrypts if that is configured.
pub enum EncryptingWriter<W: Write> {
    /// Encryption is off: writes the bytes unchanged.
    Plain(W),
    /// Encrypts with age for the configured recipients.
    Age(Box<StreamWriter<W>>),
}

impl<W: Write> EncryptingWriter<W> {
    /// Writes the remaining data and returns the target.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Self::Plain(target) => Ok(target),
            Self::Age(writer) => writer.finish(),
        }
    }
}

impl<W: Write> Write for EncryptingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(target) => target.write(bytes),
            Self::Age(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(target) => target.flush(),
            Self::Age(writer) => writer.flush(),
        }
    }
}

/// Reader of an age file. Every error is reported as damage.
struct AgeContent<R>(StreamReader<R>);

impl<R: Read> Read for AgeContent<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0
            .read(buffer)
            .map_err(|error| match error.raw_os_error() {
                Some(_) => error,
                None => damage(&error),
            })
    }
}

fn damage(error: &dyn fmt::Display) -> io::Error {
    let what = format!("it cannot be decrypted: {error}");
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Returns whether a file starts like an encrypted one.
#[must_use]
pub fn is_encrypted(path: &Path) -> bool {
    begins_with(path, AGE) || begins_with(path, lines::BEGINNING)
}

/// Returns the public part of an encrypted file's header.
fn public_header_of(path: &Path) -> Option<PublicHeader> {
    let mut source = BufReader::new(safe_read::open(path).ok()?);
    if source.fill_buf().ok()?.starts_with(AGE) {
        return read_public_header(source);
    }
    lines::wrapped_key(&mut source).and_then(|key| read_public_header(key.as_slice()))
}

/// Returns the public part of an age header.
fn read_public_header(source: impl io::BufRead) -> Option<PublicHeader> {
    let opener = Opener::new(None);
    let decryptor = Decryptor::new_buffered(source).ok()?;
    let _ = decryptor.decrypt(std::iter::once(&opener as &dyn age::Identity));
    opener.into_header()
}

/// Byte that is written before plain text that starts like an encrypted file. An agent can print such text, which would then look
/// encrypted.
pub const APART: &[u8] = b"\n";

/// Number of bytes that are enough to recognize an encrypted file.
pub const BEGINNING_BYTES_MAX: u64 = 32;

/// Returns whether a text starts like an encrypted file; `None` if it is too short to decide.
pub fn looks_encrypted(text: &[u8]) -> Option<bool> {
    let beginnings = [AGE, lines::BEGINNING];
    if beginnings
        .iter()
        .any(|beginning| text.starts_with(beginning))
    {
        return Some(true);
    }
    let may = beginnings
        .iter()
        .any(|beginning| beginning.starts_with(text));
    (!may).then_some(false)
}

/// Returns whether a file is an age file, to which nothing can be appended.
pub fn is_age(path: &Path) -> bool {
    begins_with(path, AGE)
}

fn begins_with(path: &Path, beginning: &[u8]) -> bool {
    let mut bytes = Vec::new();
    let read = safe_read::open(path)
        .and_then(|file| file.take(beginning.len() as u64).read_to_end(&mut bytes));
    read.is_ok() && bytes == beginning
}

#[cfg(test)]
mod tests;
