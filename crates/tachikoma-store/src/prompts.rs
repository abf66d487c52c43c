//! Prompts that the operator wrote for one iteration. Each file is named by the hash of its text, so that a later runner finds the
//! recorded prompt.

use std::io;
use std::path::{Path, PathBuf};

use tachikoma_core::EditedPrompt;
use tachikoma_fs::atomic_file::{self, Durability};

use super::StoreError;
use super::encryption::Encryption;

/// Maximum size of a prompt in bytes. A larger file is a mistake, such as a log or a binary.
pub const PROMPT_MAX_BYTES: u64 = 8 << 20;

/// Name of the directory with prompts, in the directory of a loop.
pub const DIR: &str = "prompts";

const SUFFIX: &str = ".md";

/// Returns whether a file name is that of a prompt.
pub fn is_ours(name: &str) -> bool {
    let hash = name.strip_suffix(SUFFIX).unwrap_or_default();
    let is_hash = hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash || atomic_file::is_temporary(name)
}

fn path_of(loop_dir: &Path, hash: &str) -> PathBuf {
    loop_dir.join(DIR).join(format!("{hash}{SUFFIX}"))
}

fn hash(text: &[u8]) -> String {
    format!("{:08x}", crc32c::crc32c(text))
}

/// Writes and syncs a prompt.
///
/// # Errors
/// The prompt cannot be written.
pub fn write(dir: &Path, text: &str, encryption: &Encryption) -> Result<EditedPrompt, StoreError> {
    let hash = hash(text.as_bytes());
    let path = path_of(dir, &hash);
    encryption.write(&path, text.as_bytes(), Durability::Synced)?;
    Ok(EditedPrompt {
        hash,
        bytes: text.len() as u64,
    })
}

/// Reads a prompt.
///
/// # Errors
/// The file is missing, or its content does not match the recorded hash.
pub fn read(dir: &Path, prompt: &EditedPrompt, encryption: &Encryption) -> io::Result<String> {
    let path = path_of(dir, &prompt.hash);
    let bytes = encryption.read(&path, PROMPT_MAX_BYTES)?;
    if hash(&bytes) != prompt.hash {
        let path = path.display();
        let what =
            format!("the content of {path} does not match the prompt that the operator wrote");
        return Err(io::Error::other(what));
    }
    String::from_utf8(bytes).map_err(io::Error::other)
}
