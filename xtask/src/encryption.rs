//! The key of loops with encrypted state, in soaks and benchmarks.

use std::fs;
use std::path::Path;

use tachikoma_loop_runner::store::encryption::{Encryption, KeySource};

use crate::product::text;

/// Name of the key file in the working directory.
pub const KEY_FILE: &str = "key.txt";

/// Key for tests. It protects no real data.
pub const KEY: &str =
    "AGE-SECRET-KEY-1GQ9778VQXMMJVE8SK7J6VT8UJ4HDQAJUVSFCWCM02D8GEWQ72PVQ2Y5J33\n";

/// Returns the `Encryption` of a loop in a working directory.
pub fn encryption_of(working_dir: &Path) -> Encryption {
    let key = working_dir.join(KEY_FILE);
    if !key.exists() {
        return Encryption::plain();
    }
    Encryption::new(KeySource {
        encrypt: true,
        identity_file: Some(key),
        ..KeySource::default()
    })
}

/// Writes the key file if the settings use it.
pub fn lay_key(dir: &Path, settings: &str) -> Result<(), String> {
    if settings.contains(KEY_FILE) {
        fs::write(dir.join(KEY_FILE), KEY).map_err(text)?;
    }
    Ok(())
}
