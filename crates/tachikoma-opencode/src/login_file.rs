//! The login file: the generated password of a supervised server, for clients of the same user. The supervisor writes it at its start
//! and removes it at its end. A password that the user set is not written.

use std::path::Path;

use serde_json::json;
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::{is_missing, safe_read};
use uuid::Uuid;

use super::client::Login;
use tachikoma_config::Secret;
use tachikoma_store::StoreError;

/// Name of the login file.
pub const NAME: &str = "login.json";

/// Maximum size of the file in bytes. It has about a hundred, so a larger one is foreign.
const BYTES_MAX: u64 = 4 << 10;

/// Generates a password with 122 random bits.
pub fn generate(user: String) -> Login {
    Login {
        user,
        password: Secret::from(Uuid::new_v4().simple().to_string()),
    }
}

/// Replaces the login file atomically.
pub fn write(dir: &Path, login: &Login) -> Result<(), StoreError> {
    let text = json!({"user": login.user, "password": login.password.expose()});
    let text = format!("{text}\n");
    write_whole(&dir.join(NAME), text.as_bytes(), Durability::Lazy)?;
    Ok(())
}

/// Removes the login file if it exists.
pub fn remove(dir: &Path) {
    let _ = std::fs::remove_file(dir.join(NAME));
}

/// Reads the login file in a supervisor's directory; `None` if there is no file.
pub fn read(dir: &Path) -> Result<Option<Login>, StoreError> {
    let path = dir.join(NAME);
    let bytes = match safe_read::read(&path, BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(StoreError::io("read", &path)(error)),
    };
    // The error must not quote the password.
    serde_json::from_slice(&bytes).map(Some).map_err(|_| {
        StoreError::io("read", &path)(std::io::Error::other(
            "the file does not contain the user name and the password of a server",
        ))
    })
}
