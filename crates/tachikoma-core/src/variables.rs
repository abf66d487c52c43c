//! Names of environment variables that several crates use. Child processes do not inherit them.

/// This variable contains the passphrase of encrypted state.
pub const PASSPHRASE_VARIABLE: &str = "TACHIKOMA_STATE_PASSPHRASE";

/// The value `1` of this variable switches the trust checks off.
pub const TRUST_VARIABLE: &str = "TACHIKOMA_TRUST";
