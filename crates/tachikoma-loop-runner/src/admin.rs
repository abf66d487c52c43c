//! Commands on stored loops that need more than their files: restore, verify, purge, retention and re-encryption. Each caller holds the
//! lock of the working directory.

pub mod purge;
pub(crate) mod reencrypt;
pub(crate) mod restore;
pub mod retention;
pub mod verify;

use crate::git;
use crate::store::loops;

/// Returns whether a file of this name in the directory of a loop was written by Tachikoma.
fn is_ours_in_loop(name: &str) -> bool {
    loops::is_ours_in_loop(name) || git::is_ours_in_loop(name)
}
