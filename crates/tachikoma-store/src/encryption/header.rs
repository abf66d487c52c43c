//! The unencrypted part of the age headers of this program: the recipients of the file, and the identity that is locked with a
//! passphrase. It distinguishes a file for other keys from a damaged one, and lets a passphrase decrypt a copy on any machine.

use std::collections::HashSet;

use age::EncryptError;
use age::x25519::Recipient;
use age_core::format::{FileKey, Stanza};

/// Type of the header stanza. Other programs skip unknown types.
const TAG: &str = "tachikoma";

/// Recipients of an encrypted file and the identity that is locked with a passphrase, from the header of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublicHeader {
    /// The public keys of the recipients, sorted.
    pub to: Vec<String>,
    /// Content of the identity file that is locked with a passphrase; empty if there is none.
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

    /// Parses the stanza. `None` if it is missing or damaged. The checksums of the public keys detect damage.
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
