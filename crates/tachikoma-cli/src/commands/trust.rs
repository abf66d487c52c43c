//! `tachikoma trust`: records that the user trusts the programs and permissions of the configuration, and the loop, in this directory.

use std::path::Path;
use std::process::ExitCode;

use tachikoma_core::LoopId;
use tachikoma_loop_runner::settings::Loaded;
use tachikoma_loop_runner::store::recover::{self, Loss};
use tachikoma_loop_runner::store::trust::Agreement;
use tachikoma_loop_runner::store::{layout, loops};

use super::launch::Base;
use crate::failure::{Failure, chain};
use crate::out;
use crate::sanitize::sanitize;
use crate::trust::{Trust, Untrusted, agreements_of, guarded_lines, listed};
use crate::workspace::Workspace;

/// Records the user's agreement, or deletes it.
pub fn trust(workspace: &Workspace, revoke: bool) -> Result<ExitCode, Failure> {
    let base = Base::read(workspace)?;
    let trust = Trust::new(workspace, Untrusted::Refuse);
    let dir = base.working_dir.display();
    if revoke {
        let text = match trust.forget(&base.working_dir)? {
            true => format!("all trust in {dir} is removed"),
            false => format!("nothing was trusted in {dir}"),
        };
        out::line(&text);
        return Ok(ExitCode::SUCCESS);
    }
    let configuration = configuration(&trust, &base.working_dir, &base.loaded)?;
    let adopted = adopt(workspace, &trust, &base.working_dir)?;
    if let Some(Adopted { loop_id, lines, .. }) = &adopted {
        let what = format!("{loop_id} is now trusted: `tachikoma run` continues it");
        out::line(&listed(&what, lines));
    }
    if !configuration && adopted.is_none() {
        out::line(&format!("nothing in {dir} needs to be trusted"));
    }
    Ok(ExitCode::SUCCESS)
}

fn configuration(trust: &Trust, working_dir: &Path, loaded: &Loaded) -> Result<bool, Failure> {
    let guarded = &loaded.guarded;
    if guarded.is_empty() {
        return Ok(false);
    }
    trust.record(working_dir, &[Agreement::Configuration(guarded.digest())])?;
    let what = format!(
        "trusted in {}, until one of these changes:",
        working_dir.display()
    );
    out::line(&listed(
        &what,
        &tachikoma_loop_runner::settings::guarded_lines(guarded),
    ));
    Ok(true)
}

/// A loop that the user now trusts.
#[derive(Debug)]
pub struct Adopted {
    pub loop_id: LoopId,
    /// The programs and permissions of the loop's launch, one per line.
    pub lines: Vec<String>,
    /// Whether the user did not trust the loop before.
    pub is_new: bool,
}

/// Records that the user trusts the current loop of a working directory, with the programs of its launch; `None` if there is no readable loop.
pub fn adopt(
    workspace: &Workspace,
    trust: &Trust,
    working_dir: &Path,
) -> Result<Option<Adopted>, Failure> {
    let copies = workspace.copies(working_dir);
    let Some(loop_id) = loops::current(working_dir, &copies.snapshot, &copies.encryption)? else {
        return Ok(None);
    };
    let dir = layout::loop_dir(working_dir, loop_id);
    let state = match recover::read(&dir, &copies, loop_id, Loss::Accept) {
        Ok(found) => found.state,
        Err(error) => {
            let why = chain(&error);
            out::note(&sanitize(&format!(
                "warning: {loop_id} is not trusted: {why}"
            )));
            return Ok(None);
        }
    };
    let overrides = &state.launch.overrides;
    let agreements = agreements_of(loop_id, overrides);
    let is_new = !agreements
        .iter()
        .all(|agreement| trust.is_agreed(working_dir, agreement));
    if is_new {
        trust.record(working_dir, &agreements)?;
    }
    Ok(Some(Adopted {
        loop_id,
        lines: guarded_lines(overrides),
        is_new,
    }))
}
