//! The keys of a vault: identities that open and recipients to whom is sealed, and where they come from.

use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use age::secrecy::{ExposeSecret as _, SecretString};
use age::x25519::{Identity, Recipient};
use age::{DecryptError, Decryptor, Encryptor, scrypt};

use crate::settings::Secret;
use crate::store::whole::{Durability, write_whole};
use crate::store::{StoreError, regular};

/// More than any file of keys, and of a passphrase.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// Two to this power is what trying a passphrase costs: about a second, once for each run.
const WORK_FACTOR: u8 = 17;

/// What we accept of a file that somebody else has made: sixteen times that.
const WORK_FACTOR_MAX: u8 = WORK_FACTOR + 4;

/// Where the keys are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySource {
    /// Whether what is written is to be sealed.
    pub encrypt: bool,
    /// To whom it is sealed, as `age1...`. Empty: to whomever the identities belong.
    pub recipients: Vec<String>,
    /// The file with the identities that open.
    pub identity_file: Option<PathBuf>,
    /// What unlocks the identity that was made here.
    pub passphrase: Option<Passphrase>,
    /// Where that one is.
    pub generated: PathBuf,
    /// And a copy of it.
    pub copy: PathBuf,
}

/// A passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passphrase {
    /// The text of a file.
    File(PathBuf),
    /// Itself.
    Words(Secret),
}

/// Keys that were found.
pub(super) struct Keys {
    pub identities: Vec<Identity>,
    pub recipients: Vec<Recipient>,
    /// The file of the identity that was made here, as it is.
    generated: Option<Vec<u8>>,
}

impl KeySource {
    pub(super) fn has_keys(&self) -> bool {
        self.identity_file.is_some() || self.passphrase.is_some()
    }

    /// Returns whether the identity is still to be made.
    pub(super) fn is_to_be_generated(&self) -> bool {
        self.uses_generated() && !self.generated.exists() && !self.copy.exists()
    }

    /// Returns whether the identity is one that was made here.
    fn uses_generated(&self) -> bool {
        self.passphrase.is_some() && self.identity_file.is_none()
    }

    pub(super) fn check_passphrase(&self) -> Result<(), String> {
        self.passphrase().map(drop)
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
                let bytes = std::fs::File::open(path)
                    .and_then(|file| regular::read_all(file, KEY_FILE_BYTES_MAX))
                    .map_err(|error| unread(error.to_string()))?;
                let text =
                    String::from_utf8(bytes).map_err(|_| unread("it is no text".to_owned()))?;
                text.trim_end_matches(['\n', '\r']).to_owned()
            }
        };
        if words.is_empty() {
            return Err("the passphrase is empty".to_owned());
        }
        Ok(words.into())
    }

    /// Makes the identity, and keeps it locked by the passphrase.
    pub(super) fn generate(&self) -> Result<(), StoreError> {
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
        write_whole(path, &sealed.map_err(failed)?, Durability::Synced).map(drop)
    }

    /// Writes the identity that was made here to where it is missing.
    pub(super) fn put_back(&self, keys: &Keys) -> Result<(), StoreError> {
        let Some(bytes) = keys.generated.as_ref().filter(|_| self.uses_generated()) else {
            return Ok(());
        };
        for path in [&self.generated, &self.copy] {
            if !path.as_os_str().is_empty() && !path.exists() {
                write_whole(path, bytes, Durability::Synced)?;
            }
        }
        Ok(())
    }
}

impl Keys {
    pub(super) fn load(source: &KeySource) -> Result<Self, String> {
        let mut identities = Vec::new();
        let mut generated = None;
        if let Some(path) = &source.identity_file {
            let unread =
                |why: String| format!("the identity cannot be read from {}: {why}", path.display());
            let bytes = std::fs::File::open(path)
                .and_then(|file| regular::read_all(file, KEY_FILE_BYTES_MAX))
                .map_err(|error| unread(error.to_string()))?;
            let bytes = match bytes.starts_with(super::AGE) {
                true => unlock(&bytes, source.passphrase()?)?,
                false => bytes,
            };
            identities = parse(&bytes).map_err(unread)?;
        } else if source.passphrase.is_some() {
            let files = [&source.generated, &source.copy];
            let found = files
                .into_iter()
                .find_map(|path| Some((path, regular::read(path, KEY_FILE_BYTES_MAX).ok()?)));
            let Some((path, bytes)) = found else {
                return Err(format!(
                    "the identity that the passphrase unlocks is missing: {}",
                    source.generated.display()
                ));
            };
            let opened = unlock(&bytes, source.passphrase()?)
                .map_err(|why| format!("{}: {why}", path.display()))?;
            identities = parse(&opened)?;
            generated = Some(bytes);
        }
        let recipients = match source.recipients.is_empty() {
            true => identities.iter().map(Identity::to_public).collect(),
            false => source
                .recipients
                .iter()
                .map(|text| {
                    text.parse()
                        .map_err(|why| format!("recipient {text}: {why}"))
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Self {
            identities,
            recipients,
            generated,
        })
    }

    /// Checks that what is sealed to the recipients can be opened again.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.recipients.is_empty() {
            return Err(
                "there is no key to encrypt with: `state.encrypt_recipients`, `state.encrypt_identity_file`, \
                 `state.encrypt_passphrase_file` or the variable TACHIKOMA_STATE_PASSPHRASE give one"
                    .to_owned(),
            );
        }
        let ours = |identity: &Identity| {
            let public = identity.to_public().to_string();
            self.recipients.iter().any(|key| key.to_string() == public)
        };
        if !self.identities.iter().any(ours) {
            return Err(
                "the loop could not read it again: `state.encrypt_identity_file` must have the identity of one of \
                 `state.encrypt_recipients`"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// Reads a public key.
///
/// # Errors
/// It is none.
pub(crate) fn check_recipient(text: &str) -> Result<(), String> {
    text.parse::<Recipient>().map(drop).map_err(str::to_owned)
}

fn unlock(bytes: &[u8], passphrase: SecretString) -> Result<Vec<u8>, String> {
    let mut identity = scrypt::Identity::new(passphrase);
    identity.set_max_work_factor(WORK_FACTOR_MAX);
    let wrong = |error: DecryptError| match error {
        DecryptError::NoMatchingKeys
        | DecryptError::DecryptionFailed
        | DecryptError::KeyDecryptionFailed => "the passphrase does not unlock it".to_owned(),
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
