//! The public part of our age headers: the recipients of the file and the locked identity of a passphrase. It distinguishes a
//! file for other keys from a damaged one, and lets a passphrase decrypt a copy anywhere.

use std::collections::HashSet;

use age::EncryptError;
use age::x25519::Recipient;
use age_core::format::{FileKey, Stanza};

/// The type of the stanza. Other programs skip unknown types.
const TAG: &str = "tachikoma";

/// The recipients of an encrypted file, as its header lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublicHeader {
    /// The public keys of the recipients, sorted.
    pub to: Vec<String>,
    /// The locked identity file; empty if there is none.
    pub locked: Vec<u8>,
}

impl PublicHeader {
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
    pub fn of(stanzas: &[Stanza]) -> Option<Self> {
        let stanza = stanzas.iter().find(|stanza| stanza.tag == TAG)?;
        let is_key = |text: &String| text.parse::<Recipient>().is_ok();
        let whole = !stanza.args.is_empty() && stanza.args.iter().all(is_key);
        whole.then(|| Self {
            to: stanza.args.clone(),
            locked: stanza.body.clone(),
        })
    }
}

impl age::Recipient for PublicHeader {
    fn wrap_file_key(&self, _: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        let stanza = Stanza {
            tag: TAG.to_owned(),
            args: self.to.clone(),
            body: self.locked.clone(),
        };
        Ok((vec![stanza], HashSet::new()))
    }
}
