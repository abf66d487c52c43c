//! The keys of a vault: identities that open and recipients to whom is sealed, and where they come from.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use age::secrecy::{ExposeSecret as _, SecretString};
use age::x25519::{Identity, Recipient};
use age::{DecryptError, Decryptor, Encryptor, scrypt};
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::quarantine::quarantine;
use tachikoma_fs::safe_read;

use super::header::Told;
use crate::StoreError;
use tachikoma_config::Secret;

/// More than any file of keys, and of a passphrase.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// Two to this power is what trying a passphrase costs: about a second, once for each run.
const WORK_FACTOR: u8 = 17;

/// What we accept of a file that settings name, or that lies where ours is made: sixteen times that.
const WORK_FACTOR_MAX: u8 = WORK_FACTOR + 4;

/// What we accept of a key that comes with a file, from wherever that is: made by us, or by `age -p`, which takes twice as
/// much. Each of many could ask for gigabytes.
const WORK_FACTOR_WITH_FILE_MAX: u8 = WORK_FACTOR + 1;

/// How many locked identities are tried, each of which costs a second: more than there are of working directories that
/// share their backups.
const LOCKED_MAX: usize = 32;

/// What is said where no key is given.
pub const NO_KEY: &str = "it is encrypted, and there is no key to it: `state.encrypt_identity_file`, `state.encrypt_passphrase_file` or the \
     variable TACHIKOMA_STATE_PASSPHRASE name one";

/// What is said where the keys that are given are other ones, and the file does not say more.
const NONE_OPENS: &str = "it is encrypted, and none of the keys that are here opens it";

/// What is said of a locked identity that comes with a file and asks for more work than that may.
const TOO_COSTLY: &str = "the key in it is locked so that unlocking it costs too much: only from `.ralph/identity.age` or \
     `state.encrypt_identity_file` it is taken";

/// What is said of a locked identity with another passphrase.
const DOES_NOT_UNLOCK: &str = "the passphrase does not unlock it";

/// Where the keys are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySource {
    /// Whether what is written is to be sealed.
    pub encrypt: bool,
    /// To whom it is sealed, as `age1...`. Empty: to whomever the identities belong.
    pub recipients: Vec<String>,
    /// The file with the identities that open.
    pub identity_file: Option<PathBuf>,
    /// What unlocks the identity that was made here, and those that come with what was sealed elsewhere.
    pub passphrase: Option<Passphrase>,
    /// Where the one that was made here is.
    pub generated: PathBuf,
}

/// A passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passphrase {
    /// The text of a file.
    File(PathBuf),
    /// Itself.
    Words(Secret),
}

/// The keys of one source, as far as they were needed.
pub struct Ring {
    source: KeySource,
    /// Those of the file of identities.
    file: OnceLock<Result<Vec<Identity>, String>>,
    /// Identities as they are kept, locked, and what the passphrase made of them.
    unlocked: Mutex<Vec<Unlocked>>,
    /// To whom is sealed.
    sealing: OnceLock<Result<SealTo, String>>,
}

/// An identity as it is kept, and what the passphrase made of it.
type Unlocked = (Vec<u8>, Result<Vec<Identity>, String>);

/// To whom is sealed.
pub struct SealTo {
    pub recipients: Vec<Recipient>,
    /// What every header tells.
    pub told: Told,
}

impl KeySource {
    /// Returns whether there is a key to decrypt with.
    pub fn has_keys(&self) -> bool {
        self.identity_file.is_some() || self.passphrase.is_some()
    }

    /// Returns whether the identity is one that was made here.
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
                let text =
                    String::from_utf8(bytes).map_err(|_| unread("it is no text".to_owned()))?;
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

    /// Makes the identity, and keeps it locked by the passphrase.
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
        let sealed = encryptor.wrap_output(Vec::new()).and_then(|mut writer| {
            let text = identity.to_string();
            writeln!(writer, "# public key: {}", identity.to_public())?;
            writeln!(writer, "{}", text.expose_secret())?;
            writer.finish()
        });
        write_whole(path, &sealed.map_err(failed)?, Durability::Synced)?;
        Ok(())
    }
}

impl Ring {
    pub fn new(source: KeySource) -> Self {
        Self {
            source,
            file: OnceLock::new(),
            unlocked: Mutex::default(),
            sealing: OnceLock::new(),
        }
    }

    /// Those of one who cannot know them.
    pub fn lost(why: String) -> Self {
        Self {
            file: OnceLock::from(Err(why)),
            ..Self::new(KeySource::default())
        }
    }

    /// Returns a file with a key or a passphrase that lies below a directory.
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

    /// Offers one key after the other to whoever has read a header, until one fits; those that are costly last.
    pub fn offer(&self, told: Option<&Told>, fits: &mut dyn FnMut(&Identity) -> bool) {
        let mut any =
            |found: Result<Vec<Identity>, String>| found.unwrap_or_default().iter().any(&mut *fits);
        if any(self.file()) || self.source.passphrase.is_none() {
            return;
        }
        let locked = told
            .map(|told| &told.locked)
            .filter(|locked| !locked.is_empty());
        if locked.is_some_and(|locked| any(self.unlock(locked, WORK_FACTOR_WITH_FILE_MAX))) {
            return;
        }
        if let Ok(bytes) = safe_read::read(&self.source.generated, KEY_FILE_BYTES_MAX) {
            any(self.unlock(&bytes, WORK_FACTOR_MAX));
        }
    }

    /// Says why no key has fit.
    pub fn why_not(&self, told: Option<&Told>) -> io::Error {
        if let Err(why) = self.file() {
            return super::locked(why);
        }
        if !self.source.has_keys() {
            return super::locked(NO_KEY);
        }
        let Some(told) = told else {
            return super::locked(NONE_OPENS);
        };
        let is_ours = |identity: &Identity| told.to.contains(&identity.to_public().to_string());
        if self.known().iter().any(is_ours) {
            return super::damage(&"its key is damaged");
        }
        if self.source.passphrase.is_some()
            && !told.locked.is_empty()
            && let Err(why) = self.unlock(&told.locked, WORK_FACTOR_WITH_FILE_MAX)
        {
            return super::locked(format!("it is encrypted, and {why}"));
        }
        super::locked(format!(
            "it is encrypted to {}, and that key is not here",
            told.to.join(" and ")
        ))
    }

    /// All identities that were found so far.
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

    /// The identities of the file that settings name; none where they name none.
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
                    "it is locked by a passphrase, which `state.encrypt_passphrase_file` or the variable \
                     TACHIKOMA_STATE_PASSPHRASE has to give"
                        .to_owned(),
                ));
            }
            self.unlock(&bytes, WORK_FACTOR_MAX).map_err(unread)
        };
        self.file.get_or_init(load).clone()
    }

    /// Unlocks identities with the passphrase, once.
    fn unlock(&self, locked: &[u8], work_max: u8) -> Result<Vec<Identity>, String> {
        let mut unlocked = self.unlocked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = unlocked.iter().find(|(known, _)| known == locked) {
            return found.clone();
        }
        if unlocked.len() >= LOCKED_MAX {
            return Err("too many passphrases were tried on others".to_owned());
        }
        let found = self
            .source
            .passphrase()
            .and_then(|passphrase| unlock(locked, passphrase, work_max))
            .and_then(|opened| parse(&opened));
        if found.as_ref().is_err_and(|why| why == TOO_COSTLY) {
            // Not tried: it may be ours.
            return found;
        }
        unlocked.push((locked.to_vec(), found.clone()));
        found
    }

    /// The identity that was made here, or that came with what is here, as it is kept.
    fn generated(&self) -> Result<(Vec<u8>, Vec<Identity>), String> {
        let path = &self.source.generated;
        let read = safe_read::read(path, KEY_FILE_BYTES_MAX);
        let own = match &read {
            Ok(bytes) => match self.unlock(bytes, WORK_FACTOR_MAX) {
                // The passphrase was changed, and this is the old one: it must not bring itself back.
                Err(why) if why == DOES_NOT_UNLOCK => {
                    return Err(format!(
                        "{}: {why} (if the file is damaged, move it away: every file that is encrypted with it has it too)",
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

    /// Returns to whom is sealed.
    pub fn sealing(&self) -> Result<&SealTo, String> {
        let found = self.sealing.get_or_init(|| {
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
            // Nobody could name one that was made here.
            if recipients.is_empty() || locked.is_some() {
                recipients.extend(identities.iter().map(Identity::to_public));
            }
            check(&recipients, &identities)?;
            let told = Told::new(&recipients, locked.as_deref());
            Ok(SealTo { recipients, told })
        });
        found.as_ref().map_err(Clone::clone)
    }

    /// Checks that what is sealed could be read again. Nothing is made yet.
    pub fn check(&self) -> Result<(), String> {
        if self.is_to_be_generated() {
            return self.source.passphrase().map(drop);
        }
        self.sealing().map(drop)
    }

    /// Returns whether the identity is still to be made: there is none, and none came with what is here.
    fn is_to_be_generated(&self) -> bool {
        self.source.uses_generated() && !self.source.generated.exists() && self.generated().is_err()
    }

    /// Makes the identity that a passphrase unlocks, where there is none.
    pub fn prepare(&self) -> Result<(), StoreError> {
        if self.is_to_be_generated() {
            self.source.generate()?;
        }
        self.put_back()
    }

    /// Writes the identity that a passphrase unlocks to where it is missing, or damaged.
    pub fn put_back(&self) -> Result<(), StoreError> {
        let path = &self.source.generated;
        let sealing = self
            .sealing()
            .map_err(|why| StoreError::io("seal", path)(super::locked(why)))?;
        let locked = &sealing.told.locked;
        if locked.is_empty()
            || safe_read::read(path, KEY_FILE_BYTES_MAX).is_ok_and(|there| there == *locked)
        {
            return Ok(());
        }
        if let Some(working_dir) = path.ancestors().nth(2)
            && std::fs::symlink_metadata(path).is_ok()
        {
            // Damaged, or another one: nothing is overwritten.
            quarantine(working_dir, path)?;
        }
        write_whole(path, locked, Durability::Synced)?;
        Ok(())
    }

    /// Puts the identity back that somebody has removed while it is in use.
    pub fn put_back_missing(&self) -> Result<(), StoreError> {
        match self.sealing.get() {
            Some(Ok(_)) if !self.source.generated.exists() => self.put_back(),
            Some(_) | None => Ok(()),
        }
    }
}

/// Checks that what is sealed to the recipients can be opened again.
fn check(recipients: &[Recipient], identities: &[Identity]) -> Result<(), String> {
    if recipients.is_empty() {
        return Err(
            "there is no key to encrypt with: `state.encrypt_identity_file`, `state.encrypt_passphrase_file` or the \
             variable TACHIKOMA_STATE_PASSPHRASE give one"
                .to_owned(),
        );
    }
    let ours = |identity: &Identity| {
        let public = identity.to_public().to_string();
        recipients.iter().any(|key| key.to_string() == public)
    };
    if !identities.iter().any(ours) {
        return Err(
            "the loop could not read it again: `state.encrypt_identity_file` must have the identity of one of \
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

/// Reads identities, one in a line; lines that begin with `#` are remarks.
fn parse(bytes: &[u8]) -> Result<Vec<Identity>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
    let lines = text.lines().map(str::trim);
    let identities: Vec<Identity> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            line.parse()
                .map_err(|_| "a line of it is no `AGE-SECRET-KEY-1...`".to_owned())
        })
        .collect::<Result<_, String>>()?;
    if identities.is_empty() {
        return Err("there is none in it".to_owned());
    }
    Ok(identities)
}
