//! What is kept, and whether it is sealed: every reader and writer of the store is handed a vault. `docs/encryption.md`
//! describes the files.
//!
//! A file that is written in one piece is an age file. One that grows, a segment or a transcript, is sealed line by line
//! under a key of its own, which age wraps: see `lines`. What a file is, is told by how it begins, never by its name.

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
use tachikoma_fs::safe_read;

use super::error::{StoreError, is_locked, locked};
use header::{Opener, Told};
pub use keys::{KeySource, Passphrase};
use keys::{NO_KEY, Ring, SealTo};
use lines::{Lines, OnDamage};

/// What the name of a snapshot or a backup ends with when it is sealed.
pub const SUFFIX: &str = ".age";

/// The identity that was made here, and that a passphrase unlocks.
pub const IDENTITY: &str = "identity.age";

/// How every age file begins.
const AGE: &[u8] = b"age-encryption.org/";

/// What is read at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// The keys to what is kept, or none: then all is written as it is, and nothing that is sealed can be read.
#[derive(Clone, Default)]
pub struct Vault {
    /// Looked for when they are first needed: a passphrase costs a second.
    ring: Option<Arc<Ring>>,
    /// Whether what is written is sealed.
    seals: bool,
}

impl fmt::Debug for Vault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.seals() {
            "Vault(seals)"
        } else {
            "Vault(plain)"
        })
    }
}

impl PartialEq for Vault {
    fn eq(&self, other: &Self) -> bool {
        let is_same = match (&self.ring, &other.ring) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        is_same && self.seals == other.seals
    }
}

impl Eq for Vault {}

impl Vault {
    /// Returns the vault of those who keep everything as it is.
    #[must_use]
    pub fn plain() -> Self {
        Self::default()
    }

    /// Returns a vault whose keys are looked for when they are needed.
    #[must_use]
    pub fn new(source: KeySource) -> Self {
        let seals = source.encrypt;
        if !seals && !source.has_keys() {
            return Self::plain();
        }
        Self {
            ring: Some(Arc::new(Ring::new(source))),
            seals,
        }
    }

    /// Returns the vault of those who cannot read where their keys are.
    #[must_use]
    pub fn lost(why: &str) -> Self {
        let why =
            format!("it is encrypted, and the settings that name its key cannot be read: {why}");
        Self {
            ring: Some(Arc::new(Ring::lost(why))),
            seals: false,
        }
    }

    /// Returns the vault for what is taken out of a file: of one that is sealed everything stays so.
    pub fn as_sealed_as(&self, path: &Path) -> Self {
        Self {
            ring: self.ring.clone(),
            seals: self.seals || is_sealed(path),
        }
    }

    /// Returns whether what is written is sealed.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.seals
    }

    /// Returns whether anything could have been sealed, or is to be.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.ring.is_none()
    }

    /// Returns the name of a file that is sealed in one piece, or not.
    #[must_use]
    pub fn named(&self, path: PathBuf) -> PathBuf {
        if !self.seals() {
            return path;
        }
        let mut name = path.into_os_string();
        name.push(SUFFIX);
        name.into()
    }

    fn ring(&self) -> io::Result<&Ring> {
        self.ring.as_deref().ok_or_else(|| locked(NO_KEY))
    }

    fn sealing(&self) -> io::Result<&SealTo> {
        self.ring()?.sealing().map_err(locked)
    }

    /// Checks, before anything is touched, that what is there and sealed opens, and that what is written could be read again.
    ///
    /// # Errors
    /// It does not, or it could not.
    pub fn check(&self, witnesses: &[PathBuf]) -> Result<(), StoreError> {
        self.check_opens(witnesses)?;
        let ring = self.ring.as_deref().filter(|_| self.seals);
        ring.map_or(Ok(()), Ring::check)
            .map_err(|why| StoreError::io("seal", Path::new(tachikoma_fs::RALPH_DIR))(locked(why)))
    }

    /// Checks that what opens all of it does not lie where it is committed, kept in snapshots and copied.
    pub fn check_apart(&self, working_dir: &Path) -> Result<(), StoreError> {
        let is_top = |dir: &&Path| dir.join(".git").exists();
        let Some(top) = working_dir.ancestors().find(is_top) else {
            return Ok(());
        };
        let ring = self.ring.as_deref().filter(|_| self.seals);
        match ring.and_then(|ring| ring.file_below(top)) {
            None => Ok(()),
            Some(path) => {
                let why = "it opens what is encrypted, and lies in the repository of the work, whose commits and copies would have it: move it out of there";
                Err(StoreError::io("use", path)(locked(why)))
            }
        }
    }

    /// Checks that there are keys to all of the files that are sealed. Damage is found, and said, by whoever reads all of one.
    pub fn check_opens(&self, witnesses: &[PathBuf]) -> Result<(), StoreError> {
        for path in witnesses {
            if let Some(error) = self.locked_out_of(path) {
                return Err(StoreError::io("open", path)(error));
            }
        }
        Ok(())
    }

    /// Returns why a file does not open, if it is sealed to a key that is not here.
    pub fn locked_out_of(&self, path: &Path) -> Option<io::Error> {
        let sealed = Some(path).filter(|path| is_sealed(path))?;
        let opened = safe_read::open(sealed).and_then(|file| self.unseal(file, OnDamage::Fail));
        opened.err().filter(is_locked)
    }

    /// Returns whether a file is as it would be written today: not sealed, or sealed to just those who are to open it.
    pub fn is_in_form(&self, path: &Path) -> bool {
        if !self.seals {
            return !is_sealed(path);
        }
        let wanted = self.sealing();
        wanted.is_ok_and(|wanted| told_by(path).is_some_and(|told| told == wanted.told))
    }

    /// Makes the identity that a passphrase unlocks, where there is none yet. The lock of the working directory must be held,
    /// and [`Vault::check`] have passed.
    pub fn prepare(&self) -> Result<(), StoreError> {
        let ring = self.ring.as_deref().filter(|_| self.seals);
        ring.map_or(Ok(()), Ring::prepare)
    }

    /// Puts the identity back that somebody has removed.
    pub fn put_back_identity(&self) -> Result<(), StoreError> {
        let ring = self.ring.as_deref().filter(|_| self.seals);
        ring.map_or(Ok(()), Ring::put_back_missing)
    }

    /// Returns bytes as they are to be written.
    pub fn seal<'a>(&self, bytes: &'a [u8]) -> io::Result<Cow<'a, [u8]>> {
        if !self.seals() {
            return Ok(match begins_as_sealed(bytes) {
                Some(true) => Cow::Owned([APART, bytes].concat()),
                Some(false) | None => Cow::Borrowed(bytes),
            });
        }
        let mut sealed = self.writer(Vec::new())?;
        sealed.write_all(bytes)?;
        sealed.finish().map(Cow::Owned)
    }

    /// Returns what writes into `target` as it is to be written; nothing is whole before [`Sealing::finish`].
    pub fn writer<W: Write>(&self, target: W) -> io::Result<Sealing<W>> {
        if !self.seals() {
            return Ok(Sealing::Plain(target));
        }
        self.age_writer(target)
            .map(|writer| Sealing::Age(Box::new(writer)))
    }

    fn age_writer<W: Write>(&self, target: W) -> io::Result<StreamWriter<W>> {
        let SealTo { recipients, told } = self.sealing()?;
        let recipients = recipients.iter().map(|key| key as &dyn age::Recipient);
        let recipients = std::iter::once(told as &dyn age::Recipient).chain(recipients);
        let encryptor = Encryptor::with_recipients(recipients).map_err(io::Error::other)?;
        encryptor.wrap_output(target)
    }

    /// Opens what may be sealed, in whichever way.
    pub fn unseal(&self, source: impl Read + 'static, on_damage: OnDamage) -> io::Result<Unsealed> {
        let mut source = BufReader::with_capacity(CHUNK_BYTES, source);
        let begins = source.fill_buf()?;
        if begins.starts_with(AGE) {
            let content = self.open_age(source)?;
            return Ok(Unsealed {
                content: Box::new(BufReader::with_capacity(CHUNK_BYTES, content)),
                place: None,
                first_line: 1,
                of: None,
            });
        }
        if begins.starts_with(lines::BEGINNING) {
            let lines = Lines::new(source, self, on_damage)?;
            return Ok(Unsealed {
                place: Some(lines.place()),
                first_line: lines.first_line(),
                of: lines.of(),
                content: Box::new(lines),
            });
        }
        Ok(Unsealed {
            content: Box::new(source),
            place: None,
            first_line: 1,
            of: None,
        })
    }

    fn open_age<R: Read>(&self, source: R) -> io::Result<AgeContent<R>> {
        let ring = self.ring()?;
        let decryptor = Decryptor::new(source).map_err(|error| damage(&error))?;
        let opener = Opener::new(|told: Option<&Told>, fits: &mut dyn FnMut(&_) -> bool| {
            ring.offer(told, fits);
        });
        match decryptor.decrypt(std::iter::once(&opener as &dyn age::Identity)) {
            Ok(content) => Ok(AgeContent(content)),
            Err(DecryptError::NoMatchingKeys) => Err(ring.why_not(opener.into_told().as_ref())),
            Err(error) => Err(damage(&error)),
        }
    }

    /// Reads a whole file of at most `max` bytes, whether it is sealed or not.
    pub fn read(&self, path: &Path, max: u64) -> io::Result<Vec<u8>> {
        let content = self.unseal(safe_read::open(path)?, OnDamage::Fail)?.content;
        safe_read::read_all(content, max)
    }
}

/// What was sealed, or was not.
pub struct Unsealed {
    /// The decrypted content.
    pub content: Box<dyn io::BufRead>,
    /// How many bytes of the file what was read so far takes, where it is sealed line by line.
    pub place: Option<lines::Place>,
    /// Which line of the file what is read begins with.
    pub first_line: usize,
    /// What the file was begun as, where it is sealed line by line: the name that it has to have.
    pub of: Option<String>,
}

/// What writes as the vault wants it.
pub enum Sealing<W: Write> {
    /// Writes as it comes.
    Plain(W),
    /// Encrypts for the recipients.
    Age(Box<StreamWriter<W>>),
}

impl<W: Write> Sealing<W> {
    /// Writes what is left, and returns the target.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Self::Plain(target) => Ok(target),
            Self::Age(writer) => writer.finish(),
        }
    }
}

impl<W: Write> Write for Sealing<W> {
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

/// The content of an age file. Whatever is wrong with it is damage.
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
    let what = format!("it does not open: {error}");
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Returns whether there is a file that begins as a sealed one does.
#[must_use]
pub fn is_sealed(path: &Path) -> bool {
    begins_with(path, AGE) || begins_with(path, lines::BEGINNING)
}

/// Returns what the header of a sealed file tells anyone.
fn told_by(path: &Path) -> Option<Told> {
    let mut source = BufReader::new(safe_read::open(path).ok()?);
    if source.fill_buf().ok()?.starts_with(AGE) {
        return header::told(source);
    }
    lines::wrapped_key(&mut source).and_then(|key| header::told(key.as_slice()))
}

/// Stands before a text in the clear that begins as something sealed does. An agent can say that, and nobody would read or seal it any more.
pub const APART: &[u8] = b"\n";

/// More than the longer of the two beginnings.
pub const BEGINNING_BYTES_MAX: u64 = 32;

/// Returns whether a text begins as something sealed does; none while that cannot be told.
pub fn begins_as_sealed(text: &[u8]) -> Option<bool> {
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

/// Returns whether a file is sealed in one piece: nothing can be added to it.
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
