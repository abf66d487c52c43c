//! `tachikoma notify test`: whether messages arrive.

use std::process::ExitCode;

use tachikoma_loop_runner::notify;

use super::{GUARD, launch, runtime};
use crate::failure::Failure;
use crate::out;
use crate::place::Place;

/// Sends a message to every target, or to one.
pub fn test(place: &Place, number: Option<usize>) -> Result<ExitCode, Failure> {
    let settings = place.layers()?.load()?.settings;
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
    let secrets = launch::secrets(&settings)?;
    let working_dir = launch::working_dir(place, &settings.working_dir)?;
    let guard = place.ourselves(GUARD)?;
    let sent = runtime()?.block_on(notify::test(
        &settings.notify,
        &secrets,
        &working_dir,
        &guard,
        number,
    ));
    let mut failed = false;
    for sent in sent {
        failed |= sent.error.is_some();
        let how = sent.error.unwrap_or_else(|| "sent".to_owned());
        out::line(&format!("{}: {how}", sent.target));
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
