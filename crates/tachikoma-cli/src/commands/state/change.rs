//! `tachikoma state set` and `clear`: through the running loop or, if none runs, by changing the files.

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;
use tachikoma_core::policy::custom;
use tachikoma_loop_runner::control::{ClientError, ControlRequest, Response};
use tachikoma_loop_runner::offline::{self, OfflineError};
use tachikoma_loop_runner::store::lock::{self, LockError};

use crate::commands::control::{answered, ask, live_socket, unreachable_runner};
use crate::confirm::{agree, can_ask, no_terminal};
use crate::failure::Failure;
use crate::out;
use crate::runtime::runtime;
use crate::workspace::Workspace;

/// Sets a value.
pub fn set(workspace: &Workspace, key: String, value: &str) -> Result<ExitCode, Failure> {
    let value: Value = serde_json::from_str(value).map_err(|error| {
        Failure::usage(format!("the value of `{key}` is not JSON: {error}"))
            .hint("a string needs double quotes: '\"some text\"'")
    })?;
    custom::check(&key, &value).map_err(|refusal| Failure::usage(refusal.to_string()))?;
    let working_dir = workspace.current_loop()?.working_dir;
    let store_config = workspace.store_config(&working_dir)?;
    if let Some(socket) = live_socket(&working_dir) {
        let request = ControlRequest::Set {
            key: key.clone(),
            value: value.clone(),
        };
        match ask(&socket, &request)? {
            Ok(response) => return answered(response),
            // The runner has just ended, and its guard will end soon.
            Err(ClientError::NotListening { .. }) => {}
            Err(error) => return Err(unreachable_runner(&error)),
        }
    }
    let done = runtime()?.block_on(offline::set(&store_config, key, value))?;
    if let Some(why) = done.unsaved {
        out::note(&format!("note: the snapshot is not up to date: {why}"));
    }
    answered(Response::Answer {
        answer: done.answer,
    })
}

/// Archives the current loop, or deletes everything.
pub fn clear(workspace: &Workspace, purge: bool, yes: bool) -> Result<ExitCode, Failure> {
    let found = match workspace.working_dir()? {
        None if purge => workspace.purgeable_dir()?,
        found => found,
    };
    let working_dir = found.ok_or_else(|| workspace.no_loop())?;
    let store_config = workspace.store_config(&working_dir)?;
    refuse_live(&working_dir)?;
    if !purge {
        // Fails if there is no loop, before the user is asked for confirmation.
        workspace.current_loop()?;
    }
    let shown = working_dir.display();
    let question = if purge {
        format!("delete all loops of {shown}, with their journals and transcripts, for good?")
    } else {
        format!("archive the loop of {shown}, so that the next run starts a new one?")
    };
    if !yes && can_ask() {
        agree(&question)?;
    } else if !yes && purge {
        return Err(no_terminal(
            "this deletes everything, and there is no terminal to ask for confirmation",
        ));
    }
    if purge {
        let purged = runtime()?.block_on(offline::purge(&store_config))?;
        for path in &purged.left {
            out::note(&format!(
                "note: not deleted, because Tachikoma did not create it: {}",
                path.display()
            ));
        }
        for trouble in &purged.troubles {
            out::note(&format!("warning: {trouble}"));
        }
        out::line(&format!("deleted {} files", purged.files));
    } else {
        let loop_id = runtime()?.block_on(offline::clear(&store_config))?;
        out::line(&format!(
            "{loop_id} is archived; `tachikoma run` starts a new loop"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails at once if a runner is running, instead of waiting for its lock.
pub fn refuse_live(working_dir: &Path) -> Result<(), Failure> {
    let answers = |socket| std::os::unix::net::UnixStream::connect(socket).is_ok();
    if live_socket(working_dir).is_some_and(answers) {
        let held = LockError::Held {
            working_dir: working_dir.to_owned(),
            holder: lock::holder(working_dir),
        };
        return Err(OfflineError::Lock(held).into());
    }
    Ok(())
}
