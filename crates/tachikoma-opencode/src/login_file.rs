//! The password of a supervised server, for its owner's own clients. Its supervisor makes a new one whenever it starts, writes it here
//! for its owner alone, and removes it at its end. A password that the user chose is not written.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::{is_missing, safe_read};
use uuid::Uuid;

use super::client::Login;
use tachikoma_config::Secret;
use tachikoma_store::StoreError;

/// What the file is called.
pub const NAME: &str = "login.json";

/// A hundred bytes; what someone else put there must not take all memory.
const BYTES_MAX: u64 = 4 << 10;

/// What the file has.
#[derive(Serialize, Deserialize)]
struct Kept {
    user: String,
    password: String,
}

/// Makes a password that nobody can guess: 122 bits of chance.
pub fn generate(user: String) -> Login {
    Login {
        user,
        password: Secret::from(Uuid::new_v4().simple().to_string()),
    }
}

/// Writes the file: whole or not at all.
pub fn write(dir: &Path, login: &Login) -> Result<(), StoreError> {
    let kept = Kept {
        user: login.user.clone(),
        password: login.password.expose().to_owned(),
    };
    let mut text = serde_json::to_vec(&kept).expect("plain data");
    text.push(b'\n');
    write_whole(&dir.join(NAME), &text, Durability::Lazy)?;
    Ok(())
}

/// Removes the file. One that is not there is as good.
pub fn remove(dir: &Path) {
    let _ = std::fs::remove_file(dir.join(NAME));
}

/// Reads the file in a supervisor's directory; none where there is none.
pub fn read(dir: &Path) -> Result<Option<Login>, StoreError> {
    let path = dir.join(NAME);
    let bytes = match safe_read::read(&path, BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(StoreError::io("read", &path)(error)),
    };
    // The error must not quote what the file has.
    let kept = serde_json::from_slice::<Kept>(&bytes).map_err(|_| {
        StoreError::io("read", &path)(std::io::Error::other("it is not a login of a server"))
    })?;
    Ok(Some(Login {
        user: kept.user,
        password: kept.password.into(),
    }))
}
