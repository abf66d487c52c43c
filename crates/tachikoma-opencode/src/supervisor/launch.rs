//! How a server is started, and how it is said what stood in the way.

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::fd::OwnedFd;

use tachikoma_core::Generation;
use tachikoma_core::supervise::{Answered, ServerInput};
use tokio::net::unix::pipe::Receiver;

use super::command_line::{self, address, host};
use super::http::Target;
use super::probe::{self, Moment};
use super::{SupervisorEvent, SupervisorSettings};
use crate::client::Login;
use tachikoma_process::{Spawn, SpawnSubject, input, output};

/// What is to be started.
pub(super) struct Launch {
    pub spawn: Spawn,
    /// Both outputs of it.
    pub streams: (Receiver, Receiver),
    /// Where it will listen; none if it chooses the port itself.
    pub address: Option<String>,
}

/// Why nothing can be started.
pub(super) enum Refusal {
    /// Said at once.
    Known(String),
    /// The port is taken; who has it is worth a question.
    PortTaken { address: String },
}

/// Prepares a start.
pub(super) fn prepare(
    settings: &SupervisorSettings,
    login: Option<&Login>,
    generation: Generation,
) -> Result<Launch, Refusal> {
    let opencode = &settings.opencode;
    let mut words = command_line::words(opencode)
        .map_err(Refusal::Known)?
        .into_iter()
        .map(OsString::from);
    let program = words.next().unwrap_or_default();
    let port = opencode.serve_port;
    let address = (port > 0).then(|| address(&opencode.serve_hostname, port));
    if let Some(address) = &address
        && is_taken(host(&opencode.serve_hostname), port)
    {
        let address = address.clone();
        return Err(Refusal::PortTaken { address });
    }
    let failed = |error: std::io::Error| Refusal::Known(format!("prepare its streams: {error}"));
    let (stdout, theirs_out) = output().map_err(failed)?;
    let (stderr, theirs_err) = output().map_err(failed)?;
    let stdin: OwnedFd = input(b"").map_err(failed)?;
    let mut env = settings.env.clone();
    if let Some(Login { user, password }) = login {
        env.extend([
            (
                "OPENCODE_SERVER_PASSWORD".into(),
                password.expose().to_owned().into(),
            ),
            ("OPENCODE_SERVER_USERNAME".into(), user.clone().into()),
        ]);
    }
    let spawn = Spawn {
        generation: generation.0,
        program,
        args: words.collect(),
        env,
        // Meant for us, if at all.
        env_remove: ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"]
            .map(Into::into)
            .into(),
        cwd: settings.working_dir.clone(),
        stdin,
        stdout: theirs_out,
        stderr: theirs_err,
    };
    Ok(Launch {
        spawn,
        streams: (stdout, stderr),
        address,
    })
}

/// A server that finds its port taken says nothing about it: better look before.
fn is_taken(host: &str, port: u16) -> bool {
    let bound = TcpListener::bind((host, port));
    bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

/// Says who has the port.
pub(super) async fn port_taken(generation: Generation, target: Target) -> SupervisorEvent {
    let address = &target.address;
    // Whoever has it was ready before, and may be slow; it is asked once.
    let who = match probe::health(&target, Moment::Later).await {
        Answered::Healthy { .. } => "by another OpenCode server",
        Answered::Wrong { what } if what.contains(probe::WANTS_PASSWORD) => {
            "by a server that wants a password, probably another OpenCode"
        }
        Answered::Silent { .. } | Answered::Wrong { .. } => "by another program",
    };
    SupervisorEvent::Input(ServerInput::NotStarted {
        generation,
        why: format!(
            "{address} is taken {who}: stop that one, or set another `opencode.serve_port`"
        ),
    })
}

/// Says why the guard could not start it.
pub(super) fn not_started(program: &str, subject: SpawnSubject, message: &str) -> String {
    match subject {
        SpawnSubject::Program => {
            format!("`{program}`: {message}; install it, or name it in `opencode.serve_command`")
        }
        SpawnSubject::WorkingDirectory => format!("its working directory: {message}"),
        SpawnSubject::Guard => format!("`{program}`: {message}"),
    }
}
