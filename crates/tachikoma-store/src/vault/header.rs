//! What the header of our age files tells anyone besides: to whom the file is sealed, and the identity that a passphrase
//! unlocks, still locked. So a file that is sealed to another key is told from a damaged one, and the passphrase opens a copy
//! wherever that is.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::BufRead;

use age::x25519::{Identity, Recipient};
use age::{DecryptError, Decryptor, EncryptError};
use age_core::format::{FileKey, Stanza};

/// The kind of the stanza. Other programs pass over kinds that they do not know.
const TAG: &str = "tachikoma";

/// What a header says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The public keys of those who can open the file, in order.
    pub to: Vec<String>,
    /// The file of the identity that a passphrase unlocks; empty where there is none.
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

    /// None where nothing is said, or something that was damaged: a public key has a checksum.
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

/// Tries keys on a header, and remembers what that says.
pub struct Opener<F> {
    /// Tries whatever keys there are.
    keys: F,
    told: RefCell<Option<Told>>,
}

impl<F: Fn(Option<&Told>, &mut dyn FnMut(&Identity) -> bool)> Opener<F> {
    /// `keys` offers one key after the other, until one fits.
    pub fn new(keys: F) -> Self {
        Self {
            keys,
            told: RefCell::default(),
        }
    }

    /// Returns what the header said.
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

/// Returns what the header of an age file tells.
pub fn told(source: impl BufRead) -> Option<Told> {
    let opener = Opener::new(|_: Option<&Told>, _: &mut dyn FnMut(&_) -> bool| {});
    let decryptor = Decryptor::new_buffered(source).ok()?;
    // No key is tried.
    let _ = decryptor.decrypt(std::iter::once(&opener as &dyn age::Identity));
    opener.into_told()
}
