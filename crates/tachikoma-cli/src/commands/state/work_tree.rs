//! The work tree of a restored loop: unpacks it, and describes how to continue.

use std::path::Path;

use tachikoma_core::LoopId;
use tachikoma_loop_runner::git::rollback::some;
use tachikoma_loop_runner::offline::{
    self, InTheWay, Merge, StoreConfig, Unpacked, copied_ref, restored_head,
};
use tachikoma_loop_runner::worktree;

use super::cloud::Fetched;
use super::shown;
use crate::failure::Failure;
use crate::out;
use crate::sanitize::sanitize;

/// Message for an unchanged work tree.
const UNCHANGED: &str = "the work tree is unchanged";

/// Message for a loop that can continue without a merge.
const GOES_ON: &str = "`tachikoma run` continues";

/// Unpacks the work of a backup if it may be missing here. Returns a message about the work tree and how to continue.
///
/// # Errors
/// The backup contains work that cannot be unpacked.
pub fn restore(
    store_config: &StoreConfig,
    (loop_id, iteration): (LoopId, u32),
    bundle: Option<&Path>,
    fetched: Option<&Fetched>,
) -> Result<String, Failure> {
    let has_repository = worktree::may_be_in_a_repository(&store_config.working_dir);
    let Some(bundle) = bundle else {
        let what = match fetched {
            Some(fetched) if !has_repository => without(fetched),
            Some(_) | None => UNCHANGED.to_owned(),
        };
        return Ok(format!("{what}; {GOES_ON}"));
    };
    if has_repository && fetched.is_none() {
        // The backup was made in this repository, so its work is already here.
        let _ = std::fs::remove_file(bundle);
        return Ok(format!("{UNCHANGED}; {GOES_ON}"));
    }
    match offline::unpack(store_config, loop_id, iteration, bundle) {
        Ok(Unpacked::Made {
            on,
            from_snapshot,
            in_the_way,
        }) => {
            if let Some(in_the_way) = in_the_way {
                out::note(&sanitize(&stays(&in_the_way)));
            }
            let what = match from_snapshot {
                true => ", with uncommitted changes",
                false => "",
            };
            let what = format!("the work tree is restored, on {on}{what}; {GOES_ON}");
            Ok(sanitize(&what).into_owned())
        }
        Ok(Unpacked::Fetched { merge, uncommitted }) => {
            if uncommitted {
                let tree = copied_ref(loop_id);
                out::note(&format!(
                    "note: changes that were uncommitted at the time of the backup are not in the work tree: `git diff HEAD {tree}` shows them"
                ));
            }
            let first = merge.map(|merge| first(&merge, &restored_head(loop_id)));
            let how = first.unwrap_or_else(|| GOES_ON.to_owned());
            Ok(sanitize(&format!("{UNCHANGED}; {how}")).into_owned())
        }
        Err(error) => {
            let what = format!("the work tree was not restored: {error}");
            let hint = format!(
                "the commits are in a bundle for `git clone` and `git fetch`: {}; get them before `tachikoma run`",
                shown(store_config, bundle)
            );
            Err(Failure::new(sanitize(&what).into_owned()).hint(sanitize(&hint).into_owned()))
        }
    }
}

/// Describes commits that must be merged first, because a run would not see them and would repeat their work.
fn first(merge: &Merge, head: &str) -> String {
    let Merge { on, is_ahead } = merge;
    let how = if *is_ahead { " --ff-only" } else { "" };
    format!(
        "its commits, on {on} in the backup, are not in the current branch: first `git merge{how} {head}`, then `tachikoma run`"
    )
}

/// Returns the message for a remote backup without a work tree.
fn without(fetched: &Fetched) -> String {
    let mut what =
        "warning: this backup has no work tree: get the loop's work before `tachikoma run`"
            .to_owned();
    if let Some(name) = &fetched.with_work {
        what = format!("{what}, or restore {name}, the newest backup that has one");
    }
    out::note(&sanitize(&what));
    "without a work tree".to_owned()
}

fn stays(in_the_way: &InTheWay) -> String {
    let InTheWay { paths, commit } = in_the_way;
    let named = some(paths);
    let short: String = commit.chars().take(12).collect();
    format!(
        "warning: these files were kept and differ from the backup: {named}; `git diff {short} -- FILE` shows it, \
         `git checkout {short} -- FILE` takes that of the backup"
    )
}
