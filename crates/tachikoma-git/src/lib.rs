//! The work tree: who changed what, snapshots, commits, rollback and bundles. Knows no loop state.
//!
//! A fingerprint of the work tree tells without a process whether anything may have changed. If so, git decides what is ignored
//! and what changed, with the loop's own index. The user's index is changed only by `git commit` and the `git add --intent-to-
//! add` before it.

pub mod bundle;
mod change_owner;
mod commit;
mod differences;
mod fingerprint;
mod head;
mod index;
mod index_file;
mod intent;
mod known_tree;
mod lines;
mod loop_files;
mod open;
mod path;
mod plain_directory;
pub mod program;
pub mod repository;
pub mod rollback;
pub mod rollback_backup;
mod rules;
mod runtime_files;
mod snapshot;
pub mod snapshots;
mod stamp;
pub mod start;
pub mod tracked;
mod user_index;
mod work_record;
mod work_tracker;
pub mod worktree;
pub mod worktree_tree;

pub use change_owner::ChangeOwner;
pub use commit::{Commit, commit};
pub(crate) use head::is_object_name;
pub use lines::lines_since;
pub use loop_files::{is_bundle, is_ours_in_loop};
pub use open::{TrackerOptions, open};
pub use path::RepoPath;
pub use path::is_ours;
pub use plain_directory::{PlainDirectory, PlainDirectoryError};
pub use program::{CancelToken, Git, GitError};
pub use repository::Repository;
pub use rules::Rules;
pub use runtime_files::RuntimeFiles;
pub use snapshot::{SNAPSHOTS_KEPT, Snapshot, delete_refs, snapshot, write_pending_refs};
pub use tachikoma_config::{Protected, ProtectedError};
pub use tachikoma_fs::{printable, relative_to};
pub use user_index::CommitError;
pub use work_tracker::{Survey, WorkTracker};

#[cfg(test)]
mod tests;
