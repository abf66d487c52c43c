//! `tachikoma done`: claims that the whole work is complete, for the agent or the operator.

use std::process::ExitCode;

use tachikoma_core::NOTE_BYTES_MAX;
use tachikoma_loop_runner::control::ControlRequest;

use super::note::tell_own_loop;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// Sends the claim to the running loop. The answer says what is still required.
pub fn done(workspace: &Workspace, reason: Option<String>) -> Result<ExitCode, Failure> {
    let reason = reason.map(|words| words.trim().to_owned());
    let reason = reason.filter(|words| !words.is_empty());
    if let Some(words) = reason.as_ref().filter(|words| words.len() > NOTE_BYTES_MAX) {
        let what = format!(
            "the reason has {} bytes; the limit is {NOTE_BYTES_MAX}",
            words.len()
        );
        return Err(Failure::usage(what).hint("a sentence is enough: the gates look at the work"));
    }
    tell_own_loop(
        workspace,
        &ControlRequest::Done { reason },
        "completion is claimed for an iteration that runs; `tachikoma run` starts one",
    )
}
