//! `tachikoma state backup`, `backups` and `restore`: backups of a loop in one file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tachikoma_core::LoopId;
use tachikoma_loop_runner::offline::{self, OfflineError, Restored, StoreConfig};
use tachikoma_loop_runner::store::backup::{self, Content};
use tachikoma_loop_runner::store::{StoreError, layout, loops};

use super::change::refuse_live;
use super::{cloud, shown, work_tree};
use crate::args::FromArgs;
use crate::commands::trust::adopt;
use crate::confirm::{agree, can_ask, no_terminal};
use crate::failure::{Failure, chain};
use crate::out;
use crate::runtime::runtime;
use crate::sanitize::sanitize;
use crate::trust::{Trust, Untrusted, listed};
use crate::workspace::Workspace;

/// Maximum number of other loops that are named. `state backups` lists all.
const OTHERS_MAX: usize = 3;

/// Takes a backup of the current loop.
pub fn take(workspace: &Workspace) -> Result<ExitCode, Failure> {
    workspace.remove_secrets_from_environment()?;
    let current = workspace.current_loop()?;
    if !current.is_kept {
        let what = format!("{} is not saved (`state.enabled = false`)", current.loop_id);
        return Err(
            Failure::new(what).hint("a backup needs a saved loop; remove `state.enabled = false`")
        );
    }
    let store_config = workspace.store_config(&current.working_dir)?;
    if store_config.cloud.is_some() {
        // The backup is uploaded if the configuration has `state.cloud_url`.
        let loaded = workspace.layers_of(&current.working_dir)?.load()?;
        let trust = Trust::new(workspace, Untrusted::Ask);
        trust.check_configuration(&canonical(&current.working_dir), &loaded)?;
    }
    let taken = runtime()?
        .block_on(offline::backup(&store_config, current.loop_id))
        .map_err(nothing_changed)?;
    for trouble in taken.troubles {
        out::note(&format!("warning: {}", sanitize(&trouble)));
    }
    out::line(&shown(&store_config, &taken.path));
    if let Some(cloud) = &store_config.cloud {
        cloud::send(cloud, &taken.path, taken.has_work)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists all backups.
pub fn list(workspace: &Workspace, json: bool) -> Result<ExitCode, Failure> {
    let store_config = workspace.store_config(&workspace.working_dir_or_here()?)?;
    let mut wrong = 0_usize;
    let mut locked = None;
    let mut objects = Vec::new();
    let listed = backup::list(&store_config.backups.dir, None)?;
    let all = listed.len();
    for listed in listed {
        let read = backup::read_through(&listed.path, &store_config.encryption);
        let is_locked = matches!(read, Err(StoreError::Locked { .. }));
        wrong += usize::from(read.is_err() && !is_locked);
        let bytes = std::fs::metadata(&listed.path).map_or(0, |there| there.len());
        if json {
            objects.push(match &read {
                Ok(Content { manifest, .. }) => json!({
                    "path": listed.path, "good": true, "bytes": bytes, "loop_id": manifest.loop_id,
                    "seq": manifest.seq, "iteration": manifest.iteration, "taken_at": manifest.taken_at,
                    "status": manifest.status,
                }),
                Err(error) => json!({
                    "path": listed.path, "good": false, "bytes": bytes, "loop_id": listed.loop_id,
                    "seq": listed.seq, "error": chain(error),
                }),
            });
            locked = locked.or(read.err().filter(|_| is_locked));
            continue;
        }
        let path = shown(&store_config, &listed.path);
        let text = match &read {
            Ok(Content { manifest, .. }) => format!(
                "good  {path}: iteration {}, record {}, taken at {}, {bytes} bytes",
                manifest.iteration, manifest.seq, manifest.taken_at
            ),
            Err(StoreError::Locked { why, .. }) => format!("note  {path}: {why}"),
            Err(error) => format!("wrong {path}: {}", chain(error)),
        };
        out::line(&sanitize(&text));
        locked = locked.or(read.err().filter(|_| is_locked));
    }
    if json {
        let object = json!({"good": wrong == 0 && locked.is_none(), "backups": objects});
        out::line(&format!("{object:#}"));
    } else if all == 0 {
        out::line(&format!(
            "no backup in {}",
            store_config.backups.dir.display()
        ));
    }
    if wrong == 0 {
        return locked.map_or(Ok(ExitCode::SUCCESS), |error: StoreError| Err(error.into()));
    }
    let what = format!("{wrong} of {all} backups cannot be used");
    Err(Failure::new(what).hint("`tachikoma state backup` makes another one"))
}

/// Restores a loop.
pub fn restore(
    workspace: &Workspace,
    file: Option<&Path>,
    from: &FromArgs,
    yes: bool,
) -> Result<ExitCode, Failure> {
    workspace.remove_secrets_from_environment()?;
    let working_dir = match (file, &from.from) {
        (None, None) => workspace.working_dir_or_here()?,
        // Only this directory is used: a loop in a parent directory is another loop.
        (Some(_), _) | (None, Some(_)) => workspace.run_dir(),
    };
    let store_config = workspace.store_config(&working_dir)?;
    refuse_live(&working_dir)?;
    let asks = !yes;
    if asks && !can_ask() {
        return Err(no_terminal(
            "this restores a loop, and there is no terminal to ask for confirmation",
        ));
    }
    let fetched = cloud::fetch(workspace, &store_config, from, file)?;
    let file = match (&fetched, file) {
        (Some(fetched), _) => fetched.path.clone(),
        (None, Some(file)) => {
            let file = workspace.directory.join(file);
            // The path is canonicalized, because the user may name a symbolic link.
            match std::fs::canonicalize(&file) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let what = format!("{} does not exist", file.display());
                    return Err(Failure::new(what).hint(
                        "`tachikoma state backups` lists local backups, and with `--from URL` remote ones",
                    ));
                }
                found => found.unwrap_or(file),
            }
        }
        (None, None) => newest(&store_config)?,
    };
    let Content { manifest, .. } = backup::read_through(&file, &store_config.encryption)?;
    if asks {
        let shown = working_dir.display();
        agree(&format!(
            "restore {} at iteration {} in {shown}, from {}? (the current loop is backed up first)",
            manifest.loop_id,
            manifest.iteration,
            sanitize(&self::shown(&store_config, &file))
        ))?;
    }
    let restored = runtime()?
        .block_on(offline::restore(&store_config, &file, &manifest))
        .map_err(nothing_changed)?;
    let Restored {
        loop_id,
        seq,
        iteration,
        work,
        kept,
        moved,
        troubles,
    } = restored;
    for trouble in troubles {
        out::note(&format!("warning: {}", sanitize(&trouble)));
    }
    for (what, path) in [("kept as a backup", kept), ("moved", moved)] {
        if let Some(path) = path {
            let path = shown(&store_config, &path);
            out::note(&format!("note: the replaced loop is {what}: {path}"));
        }
    }
    register(workspace, &working_dir);
    let back = format!(
        "{loop_id} is restored at iteration {iteration}, record {seq}, in {}",
        working_dir.display()
    );
    match work_tree::restore(
        &store_config,
        (loop_id, iteration),
        work.as_deref(),
        fetched.as_ref(),
    ) {
        Ok(tree) => out::line(&format!("{back}; {tree}")),
        Err(failure) => {
            out::line(&back);
            return Err(failure);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Records that the user trusts the restored loop, so that a run can resume it, and lists the programs of its launch.
fn register(workspace: &Workspace, working_dir: &Path) {
    let trust = Trust::new(workspace, Untrusted::Refuse);
    match adopt(workspace, &trust, &canonical(working_dir)) {
        Ok(Some(adopted)) if adopted.is_new && !adopted.lines.is_empty() => {
            let what = "note: `tachikoma run` continues it with the settings of its launch:";
            out::note(&listed(what, &adopted.lines));
        }
        Ok(_) => {}
        Err(failure) => {
            let why = failure.what;
            out::note(&format!(
                "warning: run `tachikoma trust` before `tachikoma run`: {why}"
            ));
        }
    }
}

fn canonical(working_dir: &Path) -> PathBuf {
    let canonical = working_dir.canonicalize();
    canonical.unwrap_or_else(|_| working_dir.to_owned())
}

/// Explains why the restore failed. The loop is unchanged.
fn nothing_changed(error: OfflineError) -> Failure {
    let is_full = matches!(&error, OfflineError::Store(error) if error.is_full_disk());
    if is_full {
        return Failure::new(chain(&error))
            .hint("nothing was changed; free some disk space and try again");
    }
    error.into()
}

/// Finds the newest valid backup of the current loop; without one, of any loop.
fn newest(store_config: &StoreConfig) -> Result<PathBuf, Failure> {
    let found = loops::find(
        &store_config.working_dir,
        &store_config.snapshot,
        &store_config.encryption,
    )?;
    let current = found.current;
    let dir = current.map(|loop_id| layout::loop_dir(&store_config.working_dir, loop_id));
    let current_in = current.zip(dir.as_deref());
    let (listed, kept) = backup::best_first(
        &store_config.backups.dir,
        current_in,
        &store_config.encryption,
    )?;
    if let Some(kept) = kept.first() {
        let path = shown(store_config, &kept.path);
        out::note(&format!(
            "note: skipped {path}: an earlier restore replaced that loop; `tachikoma state restore {path}` undoes that restore"
        ));
    }
    let mut found = None;
    for listed in listed {
        match backup::read_through(&listed.path, &store_config.encryption) {
            Ok(_) => {
                found = Some(listed);
                break;
            }
            // The newest backup is not damaged, but its key is missing.
            Err(error @ StoreError::Locked { .. }) => {
                return Err(Failure::from(error).hint(
                    "nothing was changed; this backup is the newest by its name: provide its key, or name another one: `tachikoma state restore FILE`",
                ));
            }
            Err(error) => out::note(&format!("note: skipped: {}", sanitize(&chain(&error)))),
        }
    }
    found.map(|listed| listed.path).ok_or_else(|| {
        let of = current.map_or(String::new(), |loop_id: LoopId| format!(" of {loop_id}"));
        let dir = store_config.backups.dir.display();
        let failure = Failure::new(format!("no good backup{of} in {dir}"));
        let others = others(store_config, current);
        if others.is_empty() {
            return failure.hint("name a file: `tachikoma state restore FILE`");
        }
        failure.hint(format!(
            "other loops have good backups: {}",
            others.join(", ")
        ))
    })
}

/// Describes how to restore the newest valid backup of each other loop.
fn others(store_config: &StoreConfig, current: Option<LoopId>) -> Vec<String> {
    let mut seen: Vec<LoopId> = current.into_iter().collect();
    let mut others = Vec::new();
    for listed in backup::list(&store_config.backups.dir, None).unwrap_or_default() {
        if others.len() == OTHERS_MAX {
            break;
        }
        if seen.contains(&listed.loop_id) {
            continue;
        }
        if let Ok(Content { manifest, .. }) =
            backup::read_through(&listed.path, &store_config.encryption)
        {
            seen.push(listed.loop_id);
            let path = shown(store_config, &listed.path);
            let iteration = manifest.iteration;
            others.push(format!(
                "`tachikoma state restore {path}` (iteration {iteration})"
            ));
        }
    }
    others
}
