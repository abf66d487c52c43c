//! What is kept, and whether it is sealed: every reader and writer of the store is handed a vault. `docs/encryption.md`
//! describes the files.
//!
//! A file that is written in one piece is an age file. One that grows, a segment or a transcript, is sealed line by line
//! under a key of its own, which age wraps: see `lines`. What a file is, is told by how it begins, never by its name.

pub(crate) mod convert;
mod keys;
pub(crate) mod lines;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use age::stream::{StreamReader, StreamWriter};
use age::{DecryptError, Decryptor, Encryptor};

use super::{StoreError, regular};
use keys::Keys;
pub(crate) use keys::check_recipient;
pub use keys::{KeySource, Passphrase};
use lines::{Lines, OnDamage};

/// The variable that has the passphrase. No child of the runner gets it.
pub const PASSPHRASE_VARIABLE: &str = "TACHIKOMA_STATE_PASSPHRASE";

/// What the name of a snapshot or a backup ends with when it is sealed.
pub const SUFFIX: &str = ".age";

/// The identity that was made here, and that a passphrase unlocks.
pub const IDENTITY: &str = "identity.age";

/// What is said where no key is given.
const NO_KEY: &str = "it is encrypted, and there is no key to it: `state.encrypt_identity_file`, `state.encrypt_passphrase_file` or the \
     variable TACHIKOMA_STATE_PASSPHRASE name one";

/// How every age file begins.
const AGE: &[u8] = b"age-encryption.org/";

/// What is read at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// The keys to what is kept, or none: then all is written as it is, and nothing that is sealed can be read.
#[derive(Clone, Default)]
pub struct Vault(Option<Arc<Inner>>);

struct Inner {
    source: KeySource,
    /// Looked for when they are first needed: a passphrase costs a second.
    keys: OnceLock<Result<Keys, String>>,
    /// Whether they have opened something that was there: from then on what they do not open is damaged.
    proven: AtomicBool,
}

/// Something is sealed, and the keys to it are not here.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Locked(pub String);

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
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Eq for Vault {}

impl Vault {
    /// Returns the vault of those who keep everything as it is.
    #[must_use]
    pub fn plain() -> Self {
        Self(None)
    }

    /// Returns a vault whose keys are looked for when they are needed.
    #[must_use]
    pub fn new(source: KeySource) -> Self {
        if !source.encrypt && !source.has_keys() {
            return Self::plain();
        }
        Self(Some(Arc::new(Inner {
            source,
            keys: OnceLock::new(),
            proven: AtomicBool::new(false),
        })))
    }

    /// Returns whether what is written is sealed.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.source.encrypt)
    }

    /// Returns whether anything could have been sealed, or is to be.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.0.is_none()
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

    fn keys(&self) -> io::Result<(&Inner, &Keys)> {
        let Some(inner) = &self.0 else {
            return Err(locked(NO_KEY));
        };
        match inner.keys.get_or_init(|| Keys::load(&inner.source)) {
            Ok(keys) => Ok((inner, keys)),
            Err(why) => Err(locked(why)),
        }
    }

    /// Checks, before anything is touched, that what is written could be read again, and that what is there and sealed opens.
    ///
    /// # Errors
    /// It could not, or it does not.
    pub(crate) fn check(&self, witnesses: &[PathBuf]) -> Result<(), StoreError> {
        self.check_opens(witnesses)?;
        self.check_own(Path::new(super::RALPH_DIR))
    }

    /// Checks that one of the files that are sealed opens. From then on what does not is damaged: without it nobody could tell
    /// a damaged file from a wrong key.
    pub(crate) fn check_opens(&self, witnesses: &[PathBuf]) -> Result<(), StoreError> {
        if self.is_proven() {
            return Ok(());
        }
        let mut unopened = None;
        for path in witnesses.iter().filter(|path| is_sealed(path)) {
            let opened = regular::open(path).and_then(|file| {
                let mut content = self.unseal(file, OnDamage::Fail)?.content;
                content.read(&mut [0; 1]).map(drop)
            });
            match opened {
                Ok(()) => return Ok(()),
                Err(error) if is_locked(&error) => {
                    unopened.get_or_insert((path, error));
                }
                // Damage is found, and said, by whoever reads all of it.
                Err(_) => {}
            }
        }
        match unopened {
            Some((path, error)) => Err(StoreError::io("open", path)(error)),
            None => Ok(()),
        }
    }

    fn is_proven(&self) -> bool {
        let proven = |inner: &Arc<Inner>| inner.proven.load(Ordering::Relaxed);
        self.0.as_ref().is_some_and(proven)
    }

    /// Checks that what is written could be read again.
    fn check_own(&self, path: &Path) -> Result<(), StoreError> {
        if !self.seals() {
            return Ok(());
        }
        let refused = |why: &str| StoreError::io("seal", path)(locked(why));
        let Some(inner) = &self.0 else {
            return Ok(());
        };
        if inner.source.is_to_be_generated() {
            return inner.source.check_passphrase().map_err(|why| refused(&why));
        }
        let (_, keys) = self.keys().map_err(StoreError::io("seal", path))?;
        keys.check().map_err(|why| refused(&why))
    }

    /// Makes the identity that a passphrase unlocks, where there is none yet and nothing is sealed. The lock of the working
    /// directory must be held, and [`Vault::check`] have passed.
    pub(crate) fn prepare(&self) -> Result<(), StoreError> {
        let Some(inner) = self.0.as_ref().filter(|_| self.seals()) else {
            return Ok(());
        };
        if inner.source.is_to_be_generated() {
            inner.source.generate()?;
        }
        let (_, keys) = self
            .keys()
            .map_err(StoreError::io("seal", &inner.source.generated))?;
        inner.source.put_back(keys)
    }

    /// Puts the identity back that somebody has removed: without it nobody could go on.
    pub(crate) fn put_back_identity(&self) -> Result<(), StoreError> {
        match self.0.as_ref().map(|inner| (inner, inner.keys.get())) {
            Some((inner, Some(Ok(keys)))) => inner.source.put_back(keys),
            Some((_, Some(Err(_)) | None)) | None => Ok(()),
        }
    }

    /// Returns bytes as they are to be written.
    pub(crate) fn seal<'a>(&self, bytes: &'a [u8]) -> io::Result<Cow<'a, [u8]>> {
        if !self.seals() {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut sealed = self.writer(Vec::new())?;
        sealed.write_all(bytes)?;
        sealed.finish().map(Cow::Owned)
    }

    /// Returns what writes into `target` as it is to be written; nothing is whole before [`Sealing::finish`].
    pub(crate) fn writer<W: Write>(&self, target: W) -> io::Result<Sealing<W>> {
        if !self.seals() {
            return Ok(Sealing::Plain(target));
        }
        self.age_writer(target)
            .map(|writer| Sealing::Age(Box::new(writer)))
    }

    fn age_writer<W: Write>(&self, target: W) -> io::Result<StreamWriter<W>> {
        let (_, keys) = self.keys()?;
        let recipients = keys.recipients.iter().map(|key| key as &dyn age::Recipient);
        let encryptor = Encryptor::with_recipients(recipients).map_err(io::Error::other)?;
        encryptor.wrap_output(target)
    }

    /// Opens what may be sealed, in whichever way.
    pub(crate) fn unseal(
        &self,
        source: impl Read + 'static,
        on_damage: OnDamage,
    ) -> io::Result<Unsealed> {
        let mut source = BufReader::with_capacity(CHUNK_BYTES, source);
        let begins = source.fill_buf()?;
        if begins.starts_with(AGE) {
            let content = self.open_age(source)?;
            return Ok(Unsealed {
                content: Box::new(BufReader::with_capacity(CHUNK_BYTES, content)),
                place: None,
            });
        }
        if begins.starts_with(lines::BEGINNING) {
            let lines = Lines::new(source, self, on_damage)?;
            return Ok(Unsealed {
                place: Some(lines.place()),
                content: Box::new(lines),
            });
        }
        Ok(Unsealed {
            content: Box::new(source),
            place: None,
        })
    }

    fn open_age<R: Read>(&self, source: R) -> io::Result<AgeContent<R>> {
        let (inner, keys) = self.keys()?;
        let decryptor = Decryptor::new(source).map_err(|error| damage(&error))?;
        let identities = keys.identities.iter();
        match decryptor.decrypt(identities.map(|key| key as &dyn age::Identity)) {
            Ok(content) => {
                inner.proven.store(true, Ordering::Relaxed);
                Ok(AgeContent(content))
            }
            Err(DecryptError::NoMatchingKeys) if keys.identities.is_empty() => Err(locked(NO_KEY)),
            Err(DecryptError::NoMatchingKeys) if !inner.proven.load(Ordering::Relaxed) => Err(
                locked("it is encrypted, and none of the keys that are here opens it"),
            ),
            Err(error) => Err(damage(&error)),
        }
    }

    /// Reads a whole file of at most `max` bytes, whether it is sealed or not.
    pub(crate) fn read(&self, path: &Path, max: u64) -> io::Result<Vec<u8>> {
        let content = self.unseal(regular::open(path)?, OnDamage::Fail)?.content;
        regular::read_all(content, max)
    }
}

/// What was sealed, or was not.
pub(crate) struct Unsealed {
    pub content: Box<dyn io::BufRead>,
    /// How many bytes of the file what was read so far takes, where it is sealed line by line.
    pub place: Option<lines::Place>,
}

/// What writes as the vault wants it.
pub(crate) enum Sealing<W: Write> {
    Plain(W),
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

pub(crate) fn locked(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, Locked(why.into()))
}

/// Returns whether an error says that something is sealed and the keys to it are not here.
#[must_use]
pub fn is_locked(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner
        .and_then(|inner| inner.downcast_ref::<Locked>())
        .is_some()
}

/// Returns whether there is a file that begins as a sealed one does.
#[must_use]
pub fn is_sealed(path: &Path) -> bool {
    begins_with(path, AGE) || begins_with(path, lines::BEGINNING)
}

/// Returns whether a file is sealed in one piece: nothing can be added to it.
pub(crate) fn is_age(path: &Path) -> bool {
    begins_with(path, AGE)
}

fn begins_with(path: &Path, beginning: &[u8]) -> bool {
    let mut bytes = Vec::new();
    let read = regular::open(path)
        .and_then(|file| file.take(beginning.len() as u64).read_to_end(&mut bytes));
    read.is_ok() && bytes == beginning
}

/// What may be sealed of a working directory, the newest first: enough to tell whether the keys are the right ones.
pub(crate) fn witnesses(working_dir: &Path, snapshot: &Path) -> Vec<PathBuf> {
    let loops = std::fs::read_dir(super::loops::all(working_dir));
    let dirs = loops.into_iter().flatten().flatten();
    let mut found = super::snapshot::all_places(snapshot);
    for entry in dirs {
        found.extend(witnesses_in(&entry.path()));
    }
    found
}

/// What may be sealed of one loop.
pub(crate) fn witnesses_in(loop_dir: &Path) -> impl Iterator<Item = PathBuf> {
    let segments = super::journal::segments(loop_dir).unwrap_or_default();
    segments.into_iter().rev().map(|(_, path)| path)
}

#[cfg(test)]
mod tests;
