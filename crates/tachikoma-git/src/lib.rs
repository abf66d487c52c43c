//! The work tree: who changed what, snapshots, commits, rollback and bundles. Knows no loop state.
//!
//! `git` itself is the truth about what is ignored, filtered or odd, and is asked only when something changed: whether it
//! did is found out in this process, by a walk over the work tree. The user's index is touched by `git commit` alone and by
//! the `git add --intent-to-add` that it needs; everything else happens in an index of the loop's own.

pub mod aside;
pub mod bundle;
mod commit;
mod differences;
mod fingerprint;
mod head;
mod index;
mod intent;
mod keeper;
mod lines;
mod loose;
mod own;
mod path;
mod plain;
pub mod present;
pub mod program;
pub mod repository;
pub mod rollback;
mod scan;
mod seen;
mod signature;
mod snapshot;
pub mod snapshots;
pub mod start;
mod survey;
pub mod tracked;
mod walk;
mod whose;
mod work;
pub mod worktree;

pub use commit::{Commit, CommitError};
pub(crate) use head::is_object_name;
pub use keeper::is_ours_in_loop;
pub use keeper::{Keeper, KeeperOptions, Opened};
pub use own::Own;
pub use path::RepoPath;
pub use path::is_ours;
pub use plain::{Plain, PlainError};
pub use program::{CallOff, Git, GitError};
pub use repository::{Found, Repository};
pub use snapshot::{SNAPSHOTS_KEPT, Snapshot};
pub use survey::Survey;
pub use tachikoma_config::{Protected, ProtectedError};
pub use tachikoma_fs::{printable, relative_to};
pub use whose::Whose;

#[cfg(test)]
mod tests;
