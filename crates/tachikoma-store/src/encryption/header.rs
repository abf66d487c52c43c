//! The public part of our age headers: the recipients of the file and the locked identity of a passphrase. It distinguishes a
//! file for other keys from a damaged one, and lets a passphrase decrypt a copy anywhere.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::BufRead;

use age::x25519::{Identity, Recipient};
use age::{DecryptError, Decryptor, EncryptError};
use age_core::format::{FileKey, Stanza};

/// The type of the stanza. Other programs skip unknown types.
const TAG: &str = "tachikoma";

/// Content of a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The public keys of the recipients, sorted.
    pub to: Vec<String>,
    /// The locked identity file; empty if there is none.
    pub locked: Vec<u8>,
}

impl Told {
    pub fn new(recipients: &[Recipient], locked: Option<&[u8]>) -> Self {
        let mut to: Vec<String> = recipients.iter().map(Recipient::to_string).collect();
        to.sort();
        to.dedup();
        Self {
            to,
            locked: locked.unwrap_or_default().to_vec(),
        }
    }

    /// `None` without such a stanza, or if it is damaged: a public key has a checksum.
    fn of(stanzas: &[Stanza]) -> Option<Self> {
        let stanza = stanzas.iter().find(|stanza| stanza.tag == TAG)?;
        let is_key = |text: &String| text.parse::<Recipient>().is_ok();
        let whole = !stanza.args.is_empty() && stanza.args.iter().all(is_key);
        whole.then(|| Self {
            to: stanza.args.clone(),
            locked: stanza.body.clone(),
        })
    }
}

impl age::Recipient for Told {
    fn wrap_file_key(&self, _: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        let stanza = Stanza {
            tag: TAG.to_owned(),
            args: self.to.clone(),
            body: self.locked.clone(),
        };
        Ok((vec![stanza], HashSet::new()))
    }
}

/// Tries keys on a header, and stores the content of the header.
pub struct Opener<F> {
    /// Tries all keys.
    keys: F,
    told: RefCell<Option<Told>>,
}

impl<F: Fn(Option<&Told>, &mut dyn FnMut(&Identity) -> bool)> Opener<F> {
    /// `keys` returns one key after the other, until one fits.
    pub fn new(keys: F) -> Self {
        Self {
            keys,
            told: RefCell::default(),
        }
    }

    /// Returns the content of the header.
    pub fn into_told(self) -> Option<Told> {
        self.told.into_inner()
    }
}

impl<F: Fn(Option<&Told>, &mut dyn FnMut(&Identity) -> bool)> age::Identity for Opener<F> {
    fn unwrap_stanza(&self, stanza: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        self.unwrap_stanzas(std::slice::from_ref(stanza))
    }

    fn unwrap_stanzas(&self, stanzas: &[Stanza]) -> Option<Result<FileKey, DecryptError>> {
        let told = Told::of(stanzas);
        let mut found = None;
        (self.keys)(told.as_ref(), &mut |identity| {
            found = age::Identity::unwrap_stanzas(identity, stanzas);
            found.is_some()
        });
        *self.told.borrow_mut() = told;
        found
    }
}

/// Returns the public part of an age header.
pub fn told(source: impl BufRead) -> Option<Told> {
    let opener = Opener::new(|_: Option<&Told>, _: &mut dyn FnMut(&_) -> bool| {});
    let decryptor = Decryptor::new_buffered(source).ok()?;
    // No key is tried.
    let _ = decryptor.decrypt(std::iter::once(&opener as &dyn age::Identity));
    opener.into_told()
}
