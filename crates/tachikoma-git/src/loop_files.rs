//! Names of the files that this crate writes into the directory of a loop.

use tachikoma_store::backup::BUNDLE_NAME;

/// The loop's index.
pub const INDEX: &str = "git-index";

/// The record of the loop's work.
pub const WORK: &str = "git-work.json";

/// Checksum and references of the last bundle.
pub const BUNDLE_REFS: &str = "git-work.refs";

/// Returns whether this crate writes a file of that name into the directory of a loop.
pub fn is_ours_in_loop(name: &str) -> bool {
    // Includes git's lock, and the index before it is complete.
    let index = name.strip_prefix(INDEX);
    name == WORK
        || is_bundle(name)
        || index.is_some_and(|rest| matches!(rest, "" | ".lock" | ".new"))
}

/// Returns whether a file of that name belongs to a bundle.
pub fn is_bundle(name: &str) -> bool {
    name == BUNDLE_REFS || name == BUNDLE_NAME || is_under_way(name)
}

/// Returns whether a file of that name is an unfinished bundle or git's lock for it. Each has a unique name, so that the file of
/// a dead process is not in the way.
pub fn is_under_way(name: &str) -> bool {
    let Some(rest) = name
        .strip_prefix(BUNDLE_NAME)
        .and_then(|rest| rest.strip_prefix('.'))
    else {
        return false;
    };
    let own = rest.strip_suffix(".lock").unwrap_or(rest);
    own.len() == 32 && own.chars().all(|c| c.is_ascii_hexdigit())
}
