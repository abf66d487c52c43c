//! Names of the files that this crate writes into the directory of a loop.

use tachikoma_store::backup::BUNDLE_NAME;

/// The index of the loop's own, in the directory of the loop.
pub const INDEX: &str = "git-index";

/// What is remembered from one runner to the next.
pub const WORK: &str = "git-work.json";

/// What was in the repository when it was made.
pub const BUNDLE_REFS: &str = "git-work.refs";

/// Returns whether a file of that name in the directory of a loop is a keeper's.
pub fn is_ours_in_loop(name: &str) -> bool {
    // Git's lock on the index, and the index before it is whole.
    let index = name.strip_prefix(INDEX);
    name == WORK
        || is_bundle(name)
        || index.is_some_and(|rest| matches!(rest, "" | ".lock" | ".new"))
}

/// Returns whether a file of that name in the directory of a loop is a bundle's.
pub fn is_bundle(name: &str) -> bool {
    name == BUNDLE_REFS || name == BUNDLE_NAME || is_under_way(name)
}

/// Whether a file of that name is a bundle that is being made, or git's lock beside it. Each maker has a name of its own, so that what one
/// left that died is in nobody's way.
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
