//! `tachikoma`: runs a coding agent in a supervised loop. Parses arguments and prints; it decides nothing.

mod args;
mod bridge;
mod commands;
mod confirm;
mod demo_agent;
mod diagnostics;
mod failure;
mod keys;
mod out;
mod report;
mod runtime;
mod sanitize;
mod sd_notify;
mod secrets;
mod signals;
mod trust;
mod view;
mod workspace;
mod zone;

use std::process::ExitCode;

fn main() -> ExitCode {
    // The internal roles of this program are handled first, because it starts itself in them and startup time matters.
    let mut words = std::env::args_os().skip(1);
    let mut handed = 0;
    match words.next().as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(secrets::WITH_SECRETS) => {
            if let Err(failure) = secrets::take_over(words.next().as_deref()) {
                return failure.report();
            }
            handed = 2;
        }
        Some(commands::GUARD) => return tachikoma_loop_runner::process::serve(),
        Some(commands::DEMO_AGENT) => return demo_agent::run(),
        Some(commands::BRIDGE) => return bridge::run(),
        Some(_) | None => {}
    }
    let mut words = std::env::args_os();
    let words = words.next().into_iter().chain(words.skip(handed));
    let args = args::Args::parse(words);
    out::choose_color(args.color);
    match commands::dispatch(args) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
