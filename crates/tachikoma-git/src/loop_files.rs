//! Names of the files that this crate writes into the directory of a loop.

use tachikoma_store::backup::BUNDLE_NAME;

/// Name of the index of the loop.
pub const INDEX: &str = "git-index";

/// Name of the work record: the owners of uncommitted files.
pub const WORK: &str = "git-work.json";

/// Name of the file with the checksum and the references of the last bundle.
pub const BUNDLE_REFS: &str = "git-work.refs";

/// Returns whether a file name in the directory of a loop belongs to this crate.
pub fn is_ours_in_loop(name: &str) -> bool {
    // Git's lock file and temporary copies of the index are included.
    let index = name.strip_prefix(INDEX);
    name == WORK
        || is_bundle(name)
        || index.is_some_and(|rest| matches!(rest, "" | ".lock" | ".new"))
}

/// Returns whether a file name belongs to a bundle.
pub fn is_bundle(name: &str) -> bool {
    name == BUNDLE_REFS || name == BUNDLE_NAME || is_under_way(name)
}

/// Returns whether a file name is that of an unfinished bundle or of git's lock for it. Each has a unique name, so a file of a
/// dead process does not block others.
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
