//! `tachikoma`: leaves a coding agent working alone, and answers for it.

mod args;
mod bridge;
mod commands;
mod demo_agent;
mod failure;
mod keys;
mod out;
mod place;
mod report;
mod sanitise;
mod sd_notify;
mod signals;
mod zone;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    // Before anything else: these are started by ourselves, and start-up counts.
    let mut words = std::env::args_os().skip(1);
    match words.next().as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(commands::GUARD) => return tachikoma_loop_runner::process::serve(),
        Some(commands::DEMO_AGENT) => return demo_agent::play(),
        Some(commands::BRIDGE) => return bridge::play(),
        Some(_) | None => {}
    }
    match commands::dispatch(args::Args::parse()) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
