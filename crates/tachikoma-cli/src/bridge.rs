//! The bridge to an OpenCode server. The runner starts `tachikoma opencode-bridge` as the agent of a loop.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tachikoma_agents::Permission;
use tachikoma_loop_runner::opencode::bridge::{self, End, Options, Server};
use tachikoma_loop_runner::opencode::client::{DEFAULT_USER, Login};
use tachikoma_loop_runner::settings::Secret;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::out;
use crate::runtime::runtime;

/// Command-line arguments of the bridge.
#[derive(Debug, Parser)]
struct BridgeArgs {
    #[arg(long, required_unless_present = "supervised")]
    url: Option<String>,
    #[arg(long, conflicts_with = "url")]
    supervised: Option<PathBuf>,
    #[arg(long)]
    directory: PathBuf,
    #[arg(long)]
    permission: String,
    #[arg(long)]
    allow: Vec<String>,
    #[arg(long)]
    model: Option<String>,
    #[arg(long)]
    resume: Option<String>,
    #[arg(long)]
    managed: bool,
}

/// Returns the login for a server from OpenCode's own environment variables; `None` if they are not set.
pub fn login() -> Option<Login> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let password = Secret::from(variable("OPENCODE_SERVER_PASSWORD")?);
    let user = variable("OPENCODE_SERVER_USERNAME").unwrap_or_else(|| DEFAULT_USER.to_owned());
    Some(Login { user, password })
}

/// Runs the bridge until the runner or the server ends.
pub fn run() -> ExitCode {
    let args = BridgeArgs::parse_from(std::env::args_os().skip(1));
    match serve(args) {
        Ok(end) => {
            if let Some(message) = end.message() {
                out::note(&message);
            }
            ExitCode::from(end.code())
        }
        Err(failure) => failure.report(),
    }
}

fn serve(args: BridgeArgs) -> Result<End, Failure> {
    let options = Options {
        server: match (args.url, args.supervised) {
            (Some(url), _) => Server::At(url),
            (None, dir) => Server::Supervised(dir.unwrap_or_default()),
        },
        directory: args.directory,
        model: args.model,
        permission: match args.permission.as_str() {
            "bypass" => Permission::Bypass,
            _ => Permission::Safe,
        },
        allow: args.allow,
        resume: args.resume,
        managed: args.managed,
        login: login(),
    };
    runtime()?.block_on(async {
        let own = |error: std::io::Error| {
            Failure::new(format!(
                "the bridge talks to a runner through pipes: {error}"
            ))
        };
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let output = std::io::stdout().as_fd().try_clone_to_owned();
        let input = input.and_then(pipe::Receiver::from_owned_fd).map_err(own)?;
        let output = output.and_then(pipe::Sender::from_owned_fd).map_err(own)?;
        let mut terminations = signal(SignalKind::terminate()).map_err(own)?;
        let mut interrupts = signal(SignalKind::interrupt()).map_err(own)?;
        let terminated = async move {
            tokio::select! {
                _ = terminations.recv() => {}
                _ = interrupts.recv() => {}
            }
        };
        Ok(bridge::run(options, input, output, terminated).await)
    })
}
