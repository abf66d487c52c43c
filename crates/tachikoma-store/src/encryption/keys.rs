//! Keys of the store: identities for decryption and recipients for encryption, and the files that contain them.

use std::cell::RefCell;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use age::secrecy::{ExposeSecret as _, SecretString};
use age::x25519::{Identity, Recipient};
use age::{DecryptError, Decryptor, Encryptor, scrypt};
use age_core::format::{FileKey, Stanza};
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::quarantine::quarantine;
use tachikoma_fs::safe_read;

use super::header::PublicHeader;
use crate::StoreError;
use tachikoma_config::Secret;

/// Maximum size of a key file or a passphrase file in bytes.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// Work factor of a passphrase, as a power of two. Unlocking takes about a second, once for each run.
const WORK_FACTOR: u8 = 17;

/// Highest work factor that is accepted for a configured identity file: sixteen times the work of this program.
const WORK_FACTOR_MAX: u8 = WORK_FACTOR + 4;

/// Highest work factor that is accepted for an identity in the header of an encrypted file: that of `age -p`. Without this limit,
/// a file could require gigabytes of memory.
const WORK_FACTOR_WITH_FILE_MAX: u8 = WORK_FACTOR + 1;

/// Maximum number of passphrase-locked identities that are tried, because each takes a second. It is more than the number of working
/// directories that share backups.
const LOCKED_MAX: usize = 32;

/// Message for an encrypted file if no key is configured.
pub const NO_KEY: &str = "it is encrypted, and no key is configured: set `state.encrypt_identity_file`, `state.encrypt_passphrase_file` or the \
     variable TACHIKOMA_STATE_PASSPHRASE";

/// Message if no configured key decrypts the file and the file does not name its recipients.
const NONE_OPENS: &str = "it is encrypted, and none of the configured keys decrypts it";

/// Message for an identity in the header of a file that requires too much work.
const TOO_COSTLY: &str = "unlocking the key in it takes too much work; to use that key, copy it to `.ralph/identity.age` or name it \
     in `state.encrypt_identity_file`";

/// Message for an identity that is locked with another passphrase.
const DOES_NOT_UNLOCK: &str = "the passphrase does not unlock it";

/// Configuration of the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySource {
    /// Whether new files are encrypted.
    pub encrypt: bool,
    /// Public keys of the recipients, as `age1...`. If empty, files are encrypted for the configured identities.
    pub recipients: Vec<String>,
    /// File with the identities for decryption; `None` if not configured.
    pub identity_file: Option<PathBuf>,
    /// Passphrase of the generated identity and of identities in the headers of encrypted files; `None` if not configured.
    pub passphrase: Option<Passphrase>,
    /// Path of the identity that this program generates, locked with the passphrase.
    pub generated: PathBuf,
}

/// Where the passphrase comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passphrase {
    /// The passphrase is the content of this file.
    File(PathBuf),
    /// The passphrase itself, from an environment variable.
    Words(Secret),
}

/// Loaded keys.
pub struct Ring {
    source: KeySource,
    /// Identities of the identity file, or why they cannot be loaded.
    file: OnceLock<Result<Vec<Identity>, String>>,
    /// Locked identities that were tried, with the result of unlocking each.
    unlocked: Mutex<Vec<Unlocked>>,
    /// The public keys that new files are encrypted for, or why there are none.
    recipient_set: OnceLock<Result<RecipientSet, String>>,
}

/// A locked identity, and the result of unlocking it.
type Unlocked = (Vec<u8>, Result<Vec<Identity>, String>);

/// The public keys that new files are encrypted for.
pub struct RecipientSet {
    pub recipients: Vec<Recipient>,
    /// Public data that is written unencrypted into the header of every encrypted file.
    pub public_header: PublicHeader,
}

impl KeySource {
    /// Returns whether a key for decryption is configured.
    pub fn has_keys(&self) -> bool {
        self.identity_file.is_some() || self.passphrase.is_some()
    }

    /// Returns whether files are encrypted with the identity that this program generated, because no identity file is configured.
    fn uses_generated(&self) -> bool {
        self.passphrase.is_some() && self.identity_file.is_none()
    }

    fn passphrase(&self) -> Result<SecretString, String> {
        let words = match &self.passphrase {
            None => return Err("there is no passphrase".to_owned()),
            Some(Passphrase::Words(words)) => words.expose().to_owned(),
            Some(Passphrase::File(path)) => {
                let unread = |why: String| {
                    format!(
                        "the passphrase cannot be read from {}: {why}",
                        path.display()
                    )
                };
                let bytes = safe_read::read_secret(path, KEY_FILE_BYTES_MAX)
                    .map_err(|error| unread(error.to_string()))?;
                let text = String::from_utf8(bytes)
                    .map_err(|_| unread("it is not UTF-8 text".to_owned()))?;
                let text = text.trim_end_matches(['\n', '\r']).to_owned();
                if text.contains('\n') {
                    return Err(unread("it has more than one line".to_owned()));
                }
                text
            }
        };
        if words.is_empty() {
            return Err("the passphrase is empty".to_owned());
        }
        Ok(words.into())
    }

    /// Generates an identity and stores it, locked with the passphrase.
    fn generate(&self) -> Result<(), StoreError> {
        let path = &self.generated;
        let failed = |error: io::Error| StoreError::io("create", path)(error);
        let passphrase = self
            .passphrase()
            .map_err(|why| failed(super::locked(why)))?;
        let identity = Identity::generate();
        let mut recipient = scrypt::Recipient::new(passphrase);
        recipient.set_work_factor(WORK_FACTOR);
        let recipients = std::iter::once(&recipient as &dyn age::Recipient);
        let encryptor = Encryptor::with_recipients(recipients)
            .map_err(|error| failed(io::Error::other(error)))?;
        let encrypted = encryptor.wrap_output(Vec::new()).and_then(|mut writer| {
            let text = identity.to_string();
            writeln!(writer, "# public key: {}", identity.to_public())?;
            writeln!(writer, "{}", text.expose_secret())?;
            writer.finish()
        });
        write_whole(path, &encrypted.map_err(failed)?, Durability::Synced)?;
        Ok(())
    }
}

impl Ring {
    pub fn new(source: KeySource) -> Self {
        Self {
            source,
            file: OnceLock::new(),
            unlocked: Mutex::default(),
            recipient_set: OnceLock::new(),
        }
    }

    /// Returns a key ring that rejects every encrypted file with the reason `why`.
    pub fn lost(why: String) -> Self {
        Self {
            file: OnceLock::from(Err(why)),
            ..Self::new(KeySource::default())
        }
    }

    /// Returns the configured key or passphrase file that is below a directory; `None` if neither is.
    pub fn file_below(&self, top: &Path) -> Option<&Path> {
        let passphrase = match &self.source.passphrase {
            Some(Passphrase::File(path)) => Some(path),
            Some(Passphrase::Words(_)) | None => None,
        };
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let top = real(top);
        let files = self.source.identity_file.iter().chain(passphrase);
        files
            .map(PathBuf::as_path)
            .find(|path| real(path).starts_with(&top))
    }

    /// Tries one key after the other until one fits. Keys that take long to unlock are tried last.
    pub fn offer(
        &self,
        public_header: Option<&PublicHeader>,
        fits: &mut dyn FnMut(&Identity) -> bool,
    ) {
        let mut any =
            |found: Result<Vec<Identity>, String>| found.unwrap_or_default().iter().any(&mut *fits);
        if any(self.file()) || self.source.passphrase.is_none() {
            return;
        }
        let locked = public_header
            .map(|public_header| &public_header.locked)
            .filter(|locked| !locked.is_empty());
        if locked.is_some_and(|locked| any(self.unlock(locked, WORK_FACTOR_WITH_FILE_MAX))) {
            return;
        }
        if let Ok(bytes) = safe_read::read(&self.source.generated, KEY_FILE_BYTES_MAX) {
            any(self.unlock(&bytes, WORK_FACTOR_MAX));
        }
    }

    /// Returns the error that explains why none of the configured keys decrypts the file.
    pub fn why_not(&self, public_header: Option<&PublicHeader>) -> io::Error {
        if let Err(why) = self.file() {
            return super::locked(why);
        }
        if !self.source.has_keys() {
            return super::locked(NO_KEY);
        }
        let Some(public_header) = public_header else {
            return super::locked(NONE_OPENS);
        };
        let is_ours =
            |identity: &Identity| public_header.to.contains(&identity.to_public().to_string());
        if self.known().iter().any(is_ours) {
            return super::damage(&"its key is damaged");
        }
        if self.source.passphrase.is_some()
            && !public_header.locked.is_empty()
            && let Err(why) = self.unlock(&public_header.locked, WORK_FACTOR_WITH_FILE_MAX)
        {
            return super::locked(format!("it is encrypted, and {why}"));
        }
        super::locked(format!(
            "it is encrypted for {}, and that key is not configured",
            public_header.to.join(" and ")
        ))
    }

    /// Returns all identities that were loaded so far.
    fn known(&self) -> Vec<Identity> {
        let mut known = self.file().unwrap_or_default();
        let unlocked = self.unlocked.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(
            unlocked
                .iter()
                .flat_map(|(_, found)| found.clone().unwrap_or_default()),
        );
        known
    }

    /// Loads the configured identity file; empty if none is configured.
    fn file(&self) -> Result<Vec<Identity>, String> {
        let load = || {
            let Some(path) = &self.source.identity_file else {
                return Ok(Vec::new());
            };
            let unread =
                |why: String| format!("the identity cannot be read from {}: {why}", path.display());
            let bytes = std::fs::File::open(path)
                .and_then(|file| safe_read::read_all(file, KEY_FILE_BYTES_MAX))
                .map_err(|error| unread(error.to_string()))?;
            if !bytes.starts_with(super::AGE) {
                return parse(&bytes).map_err(unread);
            }
            if self.source.passphrase.is_none() {
                return Err(unread(
                    "it is locked with a passphrase: set `state.encrypt_passphrase_file` or the variable \
                     TACHIKOMA_STATE_PASSPHRASE"
                        .to_owned(),
                ));
            }
            self.unlock(&bytes, WORK_FACTOR_MAX).map_err(unread)
        };
        self.file.get_or_init(load).clone()
    }

    /// Unlocks identities with the passphrase. The result is cached.
    fn unlock(&self, locked: &[u8], work_max: u8) -> Result<Vec<Identity>, String> {
        let mut unlocked = self.unlocked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = unlocked.iter().find(|(known, _)| known == locked) {
            return found.clone();
        }
        if unlocked.len() >= LOCKED_MAX {
            return Err("too many other locked keys were tried".to_owned());
        }
        let found = self
            .source
            .passphrase()
            .and_then(|passphrase| unlock(locked, passphrase, work_max))
            .and_then(|opened| parse(&opened));
        if found.as_ref().is_err_and(|why| why == TOO_COSTLY) {
            // This result is not cached, because the passphrase was not tried.
            return found;
        }
        unlocked.push((locked.to_vec(), found.clone()));
        found
    }

    /// Returns the generated identity, locked and unlocked. If its file is missing, uses one from the header of an encrypted file.
    fn generated(&self) -> Result<(Vec<u8>, Vec<Identity>), String> {
        let path = &self.source.generated;
        let read = safe_read::read(path, KEY_FILE_BYTES_MAX);
        let own = match &read {
            Ok(bytes) => match self.unlock(bytes, WORK_FACTOR_MAX) {
                // An identity with an older passphrase must not replace this file.
                Err(why) if why == DOES_NOT_UNLOCK => {
                    return Err(format!(
                        "{}: {why} (if the file is damaged, move it away: each file that is encrypted with it contains a copy)",
                        path.display()
                    ));
                }
                Err(why) => Err(format!("{}: {why}", path.display())),
                Ok(found) => Ok((bytes.clone(), found)),
            },
            Err(error) => Err(format!(
                "the identity that the passphrase unlocks cannot be read from {}: {error}",
                path.display()
            )),
        };
        own.or_else(|why| {
            let unlocked = self.unlocked.lock().unwrap_or_else(PoisonError::into_inner);
            let good = |(bytes, found): &Unlocked| Some((bytes.clone(), found.clone().ok()?));
            unlocked.iter().find_map(good).ok_or(why)
        })
    }

    /// Returns the public keys that new files are encrypted for.
    pub fn recipient_set(&self) -> Result<&RecipientSet, String> {
        let found = self.recipient_set.get_or_init(|| {
            let (locked, identities) = match self.source.uses_generated() {
                true => self
                    .generated()
                    .map(|(bytes, found)| (Some(bytes), found))?,
                false => (None, self.file()?),
            };
            let named = self.source.recipients.iter().map(|text| {
                text.parse()
                    .map_err(|why| format!("recipient {text}: {why}"))
            });
            let mut recipients = named.collect::<Result<Vec<Recipient>, String>>()?;
            // The user cannot configure a generated identity as a recipient, so it is added here.
            if recipients.is_empty() || locked.is_some() {
                recipients.extend(identities.iter().map(Identity::to_public));
            }
            check(&recipients, &identities)?;
            let public_header = PublicHeader::new(&recipients, locked.as_deref());
            Ok(RecipientSet {
                recipients,
                public_header,
            })
        });
        found.as_ref().map_err(Clone::clone)
    }

    /// Checks that new files could be decrypted again. Writes nothing.
    pub fn check(&self) -> Result<(), String> {
        if self.is_to_be_generated() {
            return self.source.passphrase().map(drop);
        }
        self.recipient_set().map(drop)
    }

    /// Returns whether the identity still has to be generated.
    fn is_to_be_generated(&self) -> bool {
        self.source.uses_generated() && !self.source.generated.exists() && self.generated().is_err()
    }

    /// Generates the identity for the passphrase, if there is none.
    pub fn prepare(&self) -> Result<(), StoreError> {
        if self.is_to_be_generated() {
            self.source.generate()?;
        }
        self.restore_identity()
    }

    /// Writes the generated identity file again if it is missing or damaged.
    pub fn restore_identity(&self) -> Result<(), StoreError> {
        let path = &self.source.generated;
        let recipient_set = self
            .recipient_set()
            .map_err(|why| StoreError::io("encrypt", path)(super::locked(why)))?;
        let locked = &recipient_set.public_header.locked;
        if locked.is_empty()
            || safe_read::read(path, KEY_FILE_BYTES_MAX).is_ok_and(|there| there == *locked)
        {
            return Ok(());
        }
        if let Some(working_dir) = path.ancestors().nth(2)
            && std::fs::symlink_metadata(path).is_ok()
        {
            // A damaged or different file is moved to the quarantine, not overwritten.
            quarantine(working_dir, path)?;
        }
        write_whole(path, locked, Durability::Synced)?;
        Ok(())
    }

    /// Writes the identity file again if it was removed during a run.
    pub fn restore_missing_identity(&self) -> Result<(), StoreError> {
        match self.recipient_set.get() {
            Some(Ok(_)) if !self.source.generated.exists() => self.restore_identity(),
            Some(_) | None => Ok(()),
        }
    }
}

/// Tries keys on the header of a file and stores the unencrypted part of the header.
pub struct Opener<'a> {
    /// The keys to try; `None` to read only the unencrypted part.
    ring: Option<&'a Ring>,
    public_header: RefCell<Option<PublicHeader>>,
}

impl<'a> Opener<'a> {
    pub fn new(ring: Option<&'a Ring>) -> Self {
        let public_header = RefCell::default();
        Self {
            ring,
            public_header,
        }
    }

    /// Returns the unencrypted part of the header.
    pub fn into_header(self) -> Option<PublicHeader> {
        self.public_header.into_inner()
    }
}

impl age::Identity for Opener<'_> {
    fn unwrap_stanza(&self, stanza: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        self.unwrap_stanzas(std::slice::from_ref(stanza))
    }

    fn unwrap_stanzas(&self, stanzas: &[Stanza]) -> Option<Result<FileKey, DecryptError>> {
        let public_header = PublicHeader::of(stanzas);
        let mut found = None;
        if let Some(ring) = self.ring {
            ring.offer(public_header.as_ref(), &mut |identity| {
                found = age::Identity::unwrap_stanzas(identity, stanzas);
                found.is_some()
            });
        }
        *self.public_header.borrow_mut() = public_header;
        found
    }
}

/// Checks that files for these recipients can be decrypted with these identities.
fn check(recipients: &[Recipient], identities: &[Identity]) -> Result<(), String> {
    if recipients.is_empty() {
        return Err(
            "no key to encrypt with is configured: set `state.encrypt_identity_file`, `state.encrypt_passphrase_file` or \
             the variable TACHIKOMA_STATE_PASSPHRASE"
                .to_owned(),
        );
    }
    let ours = |identity: &Identity| {
        let public = identity.to_public().to_string();
        recipients.iter().any(|key| key.to_string() == public)
    };
    if !identities.iter().any(ours) {
        return Err(
            "the loop could not decrypt its own files: `state.encrypt_identity_file` must have the identity of one of \
             `state.encrypt_recipients`"
                .to_owned(),
        );
    }
    Ok(())
}

fn unlock(bytes: &[u8], passphrase: SecretString, work_max: u8) -> Result<Vec<u8>, String> {
    let mut identity = scrypt::Identity::new(passphrase);
    identity.set_max_work_factor(work_max);
    let wrong = |error: DecryptError| match error {
        DecryptError::NoMatchingKeys
        | DecryptError::DecryptionFailed
        | DecryptError::KeyDecryptionFailed => DOES_NOT_UNLOCK.to_owned(),
        DecryptError::ExcessiveWork { .. } if work_max == WORK_FACTOR_WITH_FILE_MAX => {
            TOO_COSTLY.to_owned()
        }
        DecryptError::ExcessiveWork { .. }
        | DecryptError::InvalidHeader
        | DecryptError::InvalidMac
        | DecryptError::Io(_)
        | DecryptError::UnknownFormat
        | _ => format!("it cannot be unlocked: {error}"),
    };
    let decryptor = Decryptor::new(bytes).map_err(wrong)?;
    let identities = std::iter::once(&identity as &dyn age::Identity);
    let mut opened = Vec::new();
    decryptor
        .decrypt(identities)
        .map_err(wrong)?
        .take(KEY_FILE_BYTES_MAX)
        .read_to_end(&mut opened)
        .map_err(|error| format!("it cannot be unlocked: {error}"))?;
    Ok(opened)
}

/// Parses identities, one per line. Lines that start with `#` are comments.
fn parse(bytes: &[u8]) -> Result<Vec<Identity>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())?;
    let lines = text.lines().map(str::trim);
    let identities: Vec<Identity> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            line.parse()
                .map_err(|_| "a line is not an `AGE-SECRET-KEY-1...`".to_owned())
        })
        .collect::<Result<_, String>>()?;
    if identities.is_empty() {
        return Err("it has no identity".to_owned());
    }
    Ok(identities)
}
