//! The work that came with a restored loop, and what is said of it: whoever goes on has to know whether it is there.

use std::path::Path;

use tachikoma_core::LoopId;
use tachikoma_loop_runner::offline::{self, InTheWay, Premises, Unpacked};
use tachikoma_loop_runner::worktree;

use super::backup::shown;
use super::cloud::Fetched;
use crate::failure::Failure;
use crate::out;
use crate::sanitise::sanitise;

/// What is said of a work tree that nobody touched.
const AS_IT_WAS: &str = "the work tree is as it was";

/// So many files are named; git names the others.
const NAMED_MAX: usize = 10;

/// Brings the work back that a backup had in it, where it may be missing. Returns what is to be said of it.
///
/// # Errors
/// It had some, and that is not made.
pub fn bring(
    premises: &Premises,
    loop_id: LoopId,
    bundle: Option<&Path>,
    fetched: Option<&Fetched>,
) -> Result<String, Failure> {
    let has_repository = worktree::may_be_in_a_repository(&premises.working_dir);
    let Some(bundle) = bundle else {
        return Ok(match fetched {
            Some(fetched) if !has_repository => without(fetched),
            Some(_) | None => AS_IT_WAS.to_owned(),
        });
    };
    if has_repository && fetched.is_none() {
        // It came from here.
        let _ = std::fs::remove_file(bundle);
        return Ok(AS_IT_WAS.to_owned());
    }
    match offline::unpack(premises, loop_id, bundle) {
        Ok(Unpacked::Made {
            on,
            from_snapshot,
            in_the_way,
        }) => {
            if let Some(in_the_way) = in_the_way {
                out::note(&sanitise(&stays(&in_the_way)));
            }
            let what = match from_snapshot {
                true => ", with what was not committed",
                false => "",
            };
            Ok(sanitise(&format!("the work tree is made, on {on}{what}")).into_owned())
        }
        Ok(Unpacked::Fetched { check_out: None }) => Ok(AS_IT_WAS.to_owned()),
        Ok(Unpacked::Fetched {
            check_out: Some(on),
        }) => {
            let head = format!("refs/tachikoma/{loop_id}/restored-head");
            let what = format!(
                "note: the backup was on {on}; its commits are here: `git checkout {head}` or `git merge {head}`"
            );
            out::note(&sanitise(&what));
            Ok(AS_IT_WAS.to_owned())
        }
        Err(error) => {
            let what = format!("the work tree is not made: {error}");
            let hint = format!(
                "the commits are in a bundle that `git clone` and `git fetch` read: {}; bring the work here before `tachikoma run`",
                shown(premises, bundle)
            );
            Err(Failure::new(sanitise(&what).into_owned()).hint(sanitise(&hint).into_owned()))
        }
    }
}

/// What is said of a copy that has no work in it.
fn without(fetched: &Fetched) -> String {
    let mut what =
        "warning: no work tree is in this copy: bring the work here before `tachikoma run`"
            .to_owned();
    if let Some(name) = &fetched.with_work {
        what = format!("{what}, or restore {name}, the newest copy that has it");
    }
    out::note(&sanitise(&what));
    "no work tree came with it".to_owned()
}

fn stays(in_the_way: &InTheWay) -> String {
    let InTheWay { paths, commit } = in_the_way;
    let mut named = paths[..paths.len().min(NAMED_MAX)].join(", ");
    if paths.len() > NAMED_MAX {
        named = format!("{named} and {} more", paths.len() - NAMED_MAX);
    }
    let short: String = commit.chars().take(12).collect();
    format!(
        "warning: what was here stays, and differs from the backup: {named}; `git diff {short} -- FILE` shows it, \
         `git checkout {short} -- FILE` takes that of the backup"
    )
}
