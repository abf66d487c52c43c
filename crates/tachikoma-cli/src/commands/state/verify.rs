//! `tachikoma state verify`: checks all stored files. Only reads.

use std::path::Path;
use std::process::ExitCode;

use tachikoma_loop_runner::admin::verify::{Checked, Kind, Verdict, verify as look};
use tachikoma_loop_runner::offline::StoreConfig;
use tachikoma_loop_runner::store::recover::{self, Loss};
use tachikoma_loop_runner::store::{layout, lock, loops};

use crate::failure::Failure;
use crate::out;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;

/// Prints the result for each checked object. Fails if one is damaged.
pub fn verify(workspace: &Workspace, json: bool) -> Result<ExitCode, Failure> {
    let Some(working_dir) = workspace.working_dir()? else {
        return Err(workspace.no_loop());
    };
    let current = workspace.loop_in(working_dir.clone())?;
    let root = current.map_or_else(|| working_dir.clone(), |current| current.root);
    let store_config = workspace.store_config_for_reading(&working_dir, &root);
    let mut objects = Vec::new();
    let (mut all, mut wrong) = (0_usize, 0_usize);
    let is_live = || lock::is_held(&working_dir);
    look(&store_config, is_live, |checked| {
        all += 1;
        wrong += usize::from(checked.verdict == Verdict::Wrong);
        if json {
            objects.push(checked);
        } else {
            out::line(&line(&working_dir, &checked));
        }
    })?;
    if json {
        let object = serde_json::json!({"good": wrong == 0, "objects": objects});
        out::line(&format!("{object:#}"));
    }
    if wrong == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let what = format!("{wrong} of {all} state files are damaged");
    Err(Failure::new(what).hint(next_step(&store_config)))
}

fn line(working_dir: &Path, checked: &Checked) -> String {
    let verdict = match checked.verdict {
        Verdict::Good => "good",
        Verdict::Note => "note",
        Verdict::Wrong => "wrong",
    };
    let kind = match checked.kind {
        Kind::Journal => "journal",
        Kind::Snapshot => "snapshot",
        Kind::Transcripts => "transcripts",
        Kind::Checkpoints => "hand-offs",
        Kind::Gates => "gates",
        Kind::Backup => "backup",
        Kind::Quarantine => "quarantine",
    };
    let path = checked.path.strip_prefix(working_dir);
    let path = path.unwrap_or(&checked.path).display();
    let text = format!("{verdict:<6}{kind:<12}{path}: {}", checked.what);
    sanitize(&text).into_owned()
}

/// Describes what the damage means for the current loop.
fn next_step(store_config: &StoreConfig) -> String {
    let spared = "nothing was changed; the current loop does not need the damaged files: `tachikoma run` continues it";
    let Ok(Some(loop_id)) = loops::current(
        &store_config.working_dir,
        &store_config.snapshot,
        &store_config.encryption,
    ) else {
        return "nothing was changed; no loop is unfinished, and `tachikoma run` starts a new one"
            .to_owned();
    };
    let dir = layout::loop_dir(&store_config.working_dir, loop_id);
    match recover::read(&dir, &store_config.copies(), loop_id, Loss::Refuse) {
        Ok(_) => spared.to_owned(),
        Err(error) => Failure::from(error)
            .hint
            .unwrap_or_else(|| "check the damaged files".to_owned()),
    }
}
