//! `tachikoma notify test`: whether messages arrive.

use std::process::ExitCode;

use tachikoma_loop_runner::notify;

use super::launch::{self, Base};
use super::{GUARD, runtime};
use crate::failure::Failure;
use crate::out;
use crate::place::Place;
use crate::trust::{Trust, Untrusted};

/// Sends a message to every target, or to one.
pub fn test(place: &Place, number: Option<usize>) -> Result<ExitCode, Failure> {
    let base = Base::trusted(place, &Trust::new(place, Untrusted::Ask))?;
    let settings = base.loaded.settings;
    let targets = settings.notify.len();
    if targets == 0 {
        return Err(Failure::usage(
            "there is no `[[notify]]` that could be tried",
        ));
    }
    if let Some(number) = number.filter(|number| !(1..=targets).contains(number)) {
        let message =
            format!("there is no `[[notify]]` {number}: there are {targets}, counted from 1");
        return Err(Failure::usage(message));
    }
    let secrets = launch::secrets_of(&settings, number)?;
    let guard = place.ourselves(GUARD)?;
    let mut failed = false;
    let told = |sent: notify::Sent| {
        failed |= sent.error.is_some();
        let how = sent.error.unwrap_or_else(|| "sent".to_owned());
        out::line(&format!("{}: {how}", sent.target));
    };
    let (targets, ours) = (&settings.notify, &base.working_dir);
    runtime()?.block_on(notify::test(targets, &secrets, ours, &guard, number, told));
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
