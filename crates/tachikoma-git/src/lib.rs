//! The work tree: who changed what, snapshots, commits, rollback and bundles. Knows no loop state.
//!
//! `git` itself is the truth about what is ignored, filtered or odd, and is asked only when something changed: whether it
//! did is found out in this process, by a walk over the work tree. The user's index is touched by `git commit` alone and by
//! the `git add --intent-to-add` that it needs; everything else happens in an index of the loop's own.

pub mod bundle;
mod change_owner;
mod commit;
mod differences;
mod fingerprint;
mod head;
mod index;
mod index_file;
mod intent;
mod lines;
mod loop_files;
mod loose_refs;
mod open;
mod path;
mod plain_directory;
pub mod program;
pub mod repository;
pub mod rollback;
pub mod rollback_backup;
mod runtime_files;
mod scan;
mod signature;
mod snapshot;
pub mod snapshots;
pub mod start;
pub mod tracked;
mod user_index;
mod walk;
mod walk_result;
mod work_record;
mod work_tracker;
pub mod worktree;
pub mod worktree_tree;

pub use change_owner::ChangeOwner;
pub use commit::{Commit, commit};
pub(crate) use head::is_object_name;
pub use lines::lines_since;
pub use loop_files::{is_bundle, is_ours_in_loop};
pub use open::{Opened, TrackerOptions, open};
pub use path::RepoPath;
pub use path::is_ours;
pub use plain_directory::{PlainDirectory, PlainDirectoryError};
pub use program::{CancelToken, Git, GitError};
pub use repository::{Found, Repository};
pub use runtime_files::RuntimeFiles;
pub use snapshot::{SNAPSHOTS_KEPT, Snapshot, forget_refs, settle_refs, snapshot};
pub use tachikoma_config::{Protected, ProtectedError};
pub use tachikoma_fs::{printable, relative_to};
pub use user_index::CommitError;
pub use work_tracker::{Survey, WorkTracker};

#[cfg(test)]
mod tests;
