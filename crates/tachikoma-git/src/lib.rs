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
mod index_file;
mod intent;
mod lines;
mod loop_files;
mod loose;
mod open;
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
pub mod tracked;
mod user_index;
mod walk;
mod whose;
mod work;
mod work_tracker;
pub mod worktree;

pub use commit::{Commit, commit};
pub(crate) use head::is_object_name;
pub use lines::lines_since;
pub use loop_files::{is_bundle, is_ours_in_loop};
pub use open::{KeeperOptions, Opened, open};
pub use own::Own;
pub use path::RepoPath;
pub use path::is_ours;
pub use plain::{Plain, PlainError};
pub use program::{CallOff, Git, GitError};
pub use repository::{Found, Repository};
pub use snapshot::{SNAPSHOTS_KEPT, Snapshot, forget_refs, settle_refs, snapshot};
pub use tachikoma_config::{Protected, ProtectedError};
pub use tachikoma_fs::{printable, relative_to};
pub use user_index::CommitError;
pub use whose::Whose;
pub use work_tracker::{Keeper, Survey};

#[cfg(test)]
mod tests;
