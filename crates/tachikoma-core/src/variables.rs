//! Names of environment variables that more than one crate has to know: no child process inherits them.

/// Has the passphrase of encrypted state.
pub const PASSPHRASE_VARIABLE: &str = "TACHIKOMA_STATE_PASSPHRASE";

/// Switches the checks of trust off if it is `1`.
pub const TRUST_VARIABLE: &str = "TACHIKOMA_TRUST";
