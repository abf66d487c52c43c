//! `tachikoma notify test`: sends a test message to the configured targets.

use std::process::ExitCode;

use tachikoma_loop_runner::notify;

use super::GUARD;
use super::launch::{self, Base};
use crate::failure::Failure;
use crate::out;
use crate::runtime::block_on;
use crate::trust::{Trust, Untrusted};
use crate::workspace::Workspace;

/// Sends a test message to every target, or to one.
pub fn test(workspace: &Workspace, number: Option<usize>) -> Result<ExitCode, Failure> {
    let base = Base::trusted(workspace, &Trust::new(workspace, Untrusted::Ask))?;
    let settings = base.loaded.settings;
    let targets = settings.notify.len();
    if targets == 0 {
        return Err(Failure::usage("there is no `[[notify]]` to test"));
    }
    if let Some(number) = number.filter(|number| !(1..=targets).contains(number)) {
        let message =
            format!("there is no `[[notify]]` {number}: there are {targets}, counted from 1");
        return Err(Failure::usage(message));
    }
    let secrets = launch::secrets_of(&settings, number)?;
    let guard = workspace.ourselves(GUARD)?;
    let mut failed = false;
    let report = |sent: notify::TestDelivery| {
        failed |= sent.error.is_some();
        let how = sent.error.unwrap_or_else(|| "sent".to_owned());
        out::line(&format!("{}: {how}", sent.target));
    };
    let proxies = workspace.cloud_environment().proxies();
    let (targets, dir) = (&settings.notify, &base.working_dir);
    block_on(notify::test(
        targets, &secrets, dir, &guard, &proxies, number, report,
    ))?;
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
