//! Finds the files of the work tree that may have changed. The fingerprint finds changes, and `git status` lists which new files
//! are ignored.

use std::collections::{BTreeMap, HashSet};

use super::fingerprint::{ChangedFile, Fingerprint};
use super::index::{Changes, IndexEntry, LoopIndex, SUBMODULE, entries};
use super::path::{RepoPath, is_there, split_nul};
use super::program::{CancelToken, GitError};

/// Maximum size in bytes of all uncommitted new files in a snapshot together. Agents do not write that much.
#[cfg(not(test))]
const NEW_BYTES_MAX: u64 = 1 << 30;

/// The same limit in tests, where it is lower.
#[cfg(test)]
const NEW_BYTES_MAX: u64 = 64 << 10;

/// The work tree as the last survey found it.
#[derive(Debug)]
pub struct KnownTree {
    pub fingerprint: Fingerprint,
    /// Ignored files and directories, and nested repositories that are not submodules. They are not examined.
    pub hidden: HashSet<RepoPath>,
    budget: NewFileBudget,
    /// Whether new files were left out because of their total size.
    pub over_budget: bool,
    /// Whether a `.gitignore` changed since the last survey.
    pub rules_changed: bool,
}

impl KnownTree {
    /// Reads the whole work tree and recreates the index of the loop from the user's index. All files count as changed.
    pub fn read(loop_index: &LoopIndex, cancel: &CancelToken) -> Result<(Self, Changes), GitError> {
        loop_index.recreate_index()?;
        let budget = NewFileBudget::new(loop_index.rules.max_file_bytes);
        let (known, mut changes) = list(loop_index, None, budget, cancel)?;
        // Protected files that existed before are not reported.
        changes.protected.clear();
        Ok((known, changes))
    }

    /// Finds the files that changed since the last survey. `None` if the whole work tree has to be read again.
    pub fn update(
        &mut self,
        loop_index: &LoopIndex,
        cancel: &CancelToken,
    ) -> Result<Option<Changes>, GitError> {
        let top = &loop_index.repository.top;
        let check = self
            .fingerprint
            .check(top, cancel)
            .map_err(GitError::io("read directory", top))?;
        fail_if_canceled(cancel)?;
        let mut changes = Changes {
            changed: check.changed,
            ..Changes::default()
        };
        let mut now = None;
        if check.rescan {
            let before = std::mem::take(&mut self.fingerprint);
            let (known, found) = list(loop_index, Some(before), self.budget, cancel)?;
            changes.changed.extend(found.changed);
            changes.gone = found.gone;
            changes.over_budget = found.over_budget;
            changes.protected = found.protected;
            now = Some(known);
        }
        self.rules_changed = changes.include_ignore_file();
        let is_over = self.over_budget && !changes.is_empty() || !changes.over_budget.is_empty();
        if self.rules_changed || is_over {
            return Ok(None);
        }
        if let Some(now) = now {
            *self = now;
        }
        changes.separate_protected(loop_index);
        Ok(Some(changes))
    }
}

/// Scans the work tree and asks git which files are tracked, untracked and ignored. Changes are reported relative to `before`.
fn list(
    loop_index: &LoopIndex,
    before: Option<Fingerprint>,
    mut budget: NewFileBudget,
    cancel: &CancelToken,
) -> Result<(KnownTree, Changes), GitError> {
    let top = &loop_index.repository.top;
    let own = loop_index.own_entries(cancel)?;
    let (left_out, tracked): (Vec<_>, Vec<_>) =
        entries(&own).partition(|entry| loop_index.is_left_out(entry.path));
    loop_index.remove_entries(left_out.iter().map(|entry| entry.path), cancel)?;
    let tracked: BTreeMap<&[u8], IndexEntry<'_>> = tracked
        .into_iter()
        .map(|entry| (entry.path, entry))
        .collect();
    let status = loop_index.status(cancel)?;
    let with_code =
        |code: &'static [u8]| split_nul(&status).filter_map(|part| part.strip_prefix(code));
    let without_slash = |path: &[u8]| RepoPath::new(path.strip_suffix(b"/").unwrap_or(path));
    let untracked: HashSet<&[u8]> = with_code(b"?? ").collect();
    let mut hidden: HashSet<RepoPath> = with_code(b"!! ").map(without_slash).collect();
    let skip = |path: &[u8]| hidden.contains(path) || loop_index.rules.is_runtime_file(top, path);
    let is_first = before.is_none();
    let scan = Fingerprint::scan(top, before.unwrap_or_default(), &skip, cancel);
    let mut scan = scan.map_err(GitError::io("read directory", top))?;
    fail_if_canceled(cancel)?;
    // Git lists a nested repository as a directory.
    let nested = untracked.iter().filter(|path| path.ends_with(b"/"));
    hidden.extend(nested.map(|path| without_slash(path)));
    // A file that was created after git listed the names may be ignored, so it is left to the next survey.
    let is_listed = |path: &[u8]| tracked.contains_key(path) || untracked.contains(path);
    scan.fingerprint.retain(is_listed);
    scan.changed.retain(|file| is_listed(file.path.bytes()));
    let mut changes = Changes {
        gone: scan.gone,
        ..Changes::default()
    };
    if is_first {
        let present: HashSet<&[u8]> = scan.changed.iter().map(|file| file.path.bytes()).collect();
        let missing = tracked.values().filter(|entry| !entry.is_sparse());
        let missing = missing.filter(|entry| !present.contains(entry.path));
        changes.gone = missing.map(|entry| RepoPath::new(entry.path)).collect();
    }
    changes.gone.retain(|path| {
        let mode = tracked.get(path.bytes()).map(|entry| entry.mode);
        let there = top.join(path.as_path()).symlink_metadata();
        let is_same_kind = there.is_ok_and(|there| {
            there.is_file() || there.is_symlink() || there.is_dir() && mode == Some(SUBMODULE)
        });
        !is_same_kind || !is_there(top, path.bytes())
    });
    let submodules = scan.fingerprint.repositories().filter(|path| {
        let entry = tracked.get(path.bytes());
        entry.is_some_and(|entry| entry.mode == SUBMODULE)
    });
    changes.changed = submodules
        .map(|path| ChangedFile {
            path: path.clone(),
            size: 0,
        })
        .collect();
    scan.changed.sort_by(|one, other| one.path.cmp(&other.path));
    for file in scan.changed {
        if tracked.contains_key(file.path.bytes())
            || loop_index.rules.protected.has(file.path.bytes())
            || budget.take(file.size)
        {
            changes.changed.push(file);
        } else {
            changes.over_budget.push(file.path);
        }
    }
    changes.separate_protected(loop_index);
    let known = KnownTree {
        fingerprint: scan.fingerprint,
        hidden,
        budget,
        over_budget: !changes.over_budget.is_empty(),
        rules_changed: false,
    };
    Ok((known, changes))
}

fn fail_if_canceled(cancel: &CancelToken) -> Result<(), GitError> {
    match cancel.is_canceled() {
        false => Ok(()),
        true => Err(GitError::Canceled {
            command: "survey".to_owned(),
        }),
    }
}

/// Limits the total size of new files, so that large data that should have been ignored does not fill the disk with copies.
#[derive(Clone, Copy, Debug)]
pub struct NewFileBudget {
    left: u64,
    /// Files above this size in bytes are left out anyway and do not use the budget; 0 = neither a file limit nor a budget.
    file_max: u64,
}

impl NewFileBudget {
    pub fn new(file_max: u64) -> Self {
        Self {
            left: NEW_BYTES_MAX,
            file_max,
        }
    }

    /// Subtracts the size of a new file from the budget. Returns false if the budget is too small for it.
    pub fn take(&mut self, size: u64) -> bool {
        if self.file_max == 0 || size > self.file_max {
            return true;
        }
        let left = self.left.checked_sub(size);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }
}
