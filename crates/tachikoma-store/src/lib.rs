//! The files of a loop: journal, snapshot, lock, encryption, backups and trust. Starts no process and knows no git.

pub mod archive;
mod archived_snapshot;
pub mod backup;
pub mod checked_line;
pub mod checkpoints;
pub mod compressed;
pub mod encryption;
pub mod epochs;
mod error;
pub mod journal;
pub mod key_check;
pub mod layout;
pub mod lock;
pub mod loops;
pub mod migrate;
pub mod prompts;
pub mod recover;
pub mod snapshot;
pub mod temporary;
pub mod test_history;
pub mod trust;

pub use error::{StoreError, is_damage, is_locked};
