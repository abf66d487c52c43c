//! The work tree as it is when a bundle is made: all that is not committed, and whose it is. Whoever goes on with it elsewhere has no
//! other way to know.

use std::path::Path;

use tachikoma_core::LoopId;

use super::{ATTEMPTS, Work};
use crate::head::verify;
use crate::index_file::{TemporaryDir, copy_index};
use crate::loop_files::{INDEX, WORK};
use crate::open::{self, KeeperOptions, Opened};
use crate::present::Rules;
use crate::program::{CallOff, Git, GitError};
use crate::repository::Repository;
use crate::snapshot::commit_tree;
use crate::snapshots;
use crate::whose::Whose;
use crate::work::{Remembered, Work as Known};
use crate::work_tracker::Keeper;
use tachikoma_core::error_chain as chain;

/// What the reference is called, below those of the loop.
const COPIED: &str = "copied";

/// Returns the reference of the work tree as it was when a bundle was last made.
#[must_use]
pub fn copied_ref(loop_id: LoopId) -> String {
    format!("{}/{COPIED}", snapshots::below(loop_id))
}

/// Keeps the work tree as it is, in a commit behind the one that it stands on. `whose` is what changed since it was last looked at.
pub fn keep_present(
    source: &Work,
    repository: &Repository,
    loop_dir: &Path,
    whose: &dyn Fn() -> Whose,
    call_off: &CallOff,
) -> Result<(), String> {
    let rules = source.bounds.rules().map_err(|error| error.to_string())?;
    for _ in 0..ATTEMPTS {
        let kept = try_to_keep(source, repository, loop_dir, &rules, whose, call_off);
        if kept.map_err(|error| chain(&error))? {
            return Ok(());
        }
    }
    Err("it changes faster than it can be looked at".to_owned())
}

/// Returns whether all stood still for long enough.
fn try_to_keep(
    source: &Work,
    repository: &Repository,
    loop_dir: &Path,
    rules: &Rules,
    whose: &dyn Fn() -> Whose,
    call_off: &CallOff,
) -> Result<bool, GitError> {
    let git = &repository.git;
    let (head, changes) = (verify(git, "HEAD", call_off)?, whose());
    // The loop looks at the same files beside us, with an index and notes of its own.
    let scratch = TemporaryDir::new()?;
    let index = scratch.0.join(INDEX);
    if copy_index(&loop_dir.join(INDEX), &index).is_err() {
        // Without one it takes longer.
        let _ = std::fs::remove_file(&index);
    }
    if let Remembered::Work(known) = Known::read(&loop_dir.join(WORK)) {
        let known = Known {
            // Nor is a commit ours that is under way there.
            intended: Default::default(),
            displaced: Default::default(),
            ..*known
        };
        known.write(&scratch.0.join(WORK))?;
    }
    let options = options(source, &scratch.0, rules.clone());
    let (keeper, _) = open::begin(repository.clone(), options, changes, call_off)?;
    let begun = whose() == Whose::Loop && changes != Whose::Loop;
    if keeper.head != head || begun {
        return Ok(false);
    }
    let name = copied_ref(source.loop_id);
    let before = verify(git, &name, call_off)?;
    let commit = commit_of(source, &keeper, before.as_deref(), call_off)?;
    if before.as_ref() != Some(&commit) {
        git.order(&["update-ref", &name, &commit]).ask(call_off)?;
    }
    Ok(true)
}

/// The commit that has what a keeper saw: the one before, if that has the same.
fn commit_of(
    source: &Work,
    keeper: &Keeper,
    before: Option<&str>,
    call_off: &CallOff,
) -> Result<String, GitError> {
    let tree = &keeper.work.tree;
    if let Some(head) = keeper.head.as_ref()
        && keeper.equals_head.as_ref() == Some(tree)
    {
        return Ok(head.clone());
    }
    let known = Known {
        surveyed: None,
        snapshot: None,
        ..keeper.work.clone()
    };
    let known = serde_json::to_string(&known).map_err(|error| GitError::Odd {
        what: "commit-tree",
        answer: error.to_string(),
    })?;
    let message = format!(
        "the work tree as copied, of {}\n\n{known}\n",
        source.loop_id
    );
    if let Some(before) = before {
        let there = raw(&keeper.ground.repository.git, before, call_off)?;
        let parent = keeper.head.as_ref();
        let parent = parent.map_or_else(String::new, |head| format!("parent {head}\n"));
        let is_same = there.starts_with(&format!("tree {tree}\n{parent}author "))
            && there.ends_with(&format!("\n\n{message}"));
        if is_same {
            return Ok(before.to_owned());
        }
    }
    commit_tree(keeper, &message, call_off)
}

fn options(source: &Work, loop_dir: &Path, rules: Rules) -> KeeperOptions {
    KeeperOptions {
        working_dir: source.working_dir.clone(),
        loop_dir: loop_dir.to_owned(),
        loop_id: source.loop_id,
        search_path: source.search_path.clone(),
        hidden: source.hidden.clone(),
        protected: rules.protected,
        max_file_bytes: rules.max_file_bytes,
        own: rules.own,
    }
}

/// Looks at the work tree in the name of the loop, and remembers what is whose. Blocks.
///
/// # Errors
/// Nobody can look at it.
pub fn look(source: &Work, loop_dir: &Path, whose: Whose) -> Result<(), String> {
    let rules = source.bounds.rules().map_err(|error| error.to_string())?;
    match open::open(options(source, loop_dir, rules), whose, &CallOff::new()) {
        Opened::Ready { .. } | Opened::NoRepository => Ok(()),
        Opened::Unusable { reason } => Err(reason),
    }
}

/// Remembers whose what is not committed was in the work tree that a new one was made from. What else is there is somebody else's.
pub fn take_over(
    source: &Work,
    git: &Git,
    commit: &str,
    head: Option<&str>,
    loop_dir: &Path,
) -> Result<(), String> {
    let call_off = CallOff::new();
    let told = |error: GitError| chain(&error);
    let tree = verify(git, &format!("{commit}^{{tree}}"), &call_off).map_err(told)?;
    let known = match Some(commit) == head {
        true => Known::default(),
        false => {
            let text = raw(git, commit, &call_off).map_err(told)?;
            let known = text.trim_end().rsplit('\n').next().unwrap_or_default();
            serde_json::from_str(known).map_err(|error| error.to_string())?
        }
    };
    let known = Known {
        tree: tree.unwrap_or_default(),
        surveyed: Some(tachikoma_runtime::clock::file_time()),
        ..known
    };
    known.write(&loop_dir.join(WORK)).map_err(told)?;
    look(source, loop_dir, Whose::Others)
}

/// A commit as git keeps it.
fn raw(git: &Git, commit: &str, call_off: &CallOff) -> Result<String, GitError> {
    let bytes = git.order(&["cat-file", "commit", commit]).ask(call_off)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
