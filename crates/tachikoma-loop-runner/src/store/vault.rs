//! What is kept, and whether it is sealed: every reader and writer of the store is handed a vault.

/// The keys to what is kept. This one has none: all is written as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vault;

impl Vault {
    /// Returns the vault of those who keep everything as it is.
    #[must_use]
    pub fn plain() -> Self {
        Self
    }
}
