//! Prompts that the operator wrote for one iteration: files named by the hash of their words, so that a runner that takes the
//! loop up finds what was recorded.

use std::io;
use std::path::{Path, PathBuf};

use tachikoma_core::EditedPrompt;
use tachikoma_fs::atomic_file::{self, Durability, write_whole};

use super::StoreError;
use super::vault::Vault;

/// A prompt is text for a context window. A larger file is a mistake, such as a log or a binary.
pub const PROMPT_MAX_BYTES: u64 = 8 << 20;

/// The directory of a loop that has them.
pub const DIR: &str = "prompts";

const SUFFIX: &str = ".md";

/// Returns whether a file of that name among the prompts is ours.
pub fn is_ours(name: &str) -> bool {
    let hash = name.strip_suffix(SUFFIX).unwrap_or_default();
    let is_hash = hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash || atomic_file::is_temporary(name)
}

fn path_of(loop_dir: &Path, hash: &str) -> PathBuf {
    loop_dir.join(DIR).join(format!("{hash}{SUFFIX}"))
}

fn hash(words: &[u8]) -> String {
    format!("{:08x}", crc32c::crc32c(words))
}

/// Keeps a prompt of the loop in `dir`, on disk before it returns.
///
/// # Errors
/// It cannot be written.
pub fn keep(dir: &Path, words: &str, vault: &Vault) -> Result<EditedPrompt, StoreError> {
    let hash = hash(words.as_bytes());
    let path = path_of(dir, &hash);
    let bytes = vault
        .seal(words.as_bytes())
        .map_err(StoreError::io("seal", &path))?;
    write_whole(&path, &bytes, Durability::Synced)?;
    Ok(EditedPrompt {
        hash,
        bytes: words.len() as u64,
    })
}

/// Reads a prompt of the loop in `dir`.
///
/// # Errors
/// It is not there, or not what was kept.
pub fn read(dir: &Path, prompt: &EditedPrompt, vault: &Vault) -> io::Result<String> {
    let bytes = vault.read(&path_of(dir, &prompt.hash), PROMPT_MAX_BYTES)?;
    if hash(&bytes) != prompt.hash {
        return Err(io::Error::other("somebody has changed it"));
    }
    String::from_utf8(bytes).map_err(io::Error::other)
}
