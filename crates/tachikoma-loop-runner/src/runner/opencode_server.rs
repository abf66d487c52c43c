//! The OpenCode server of the loop: it runs as long as the run lasts.

use std::net::TcpStream;
use std::time::Duration;

use tachikoma_agents::Agent;
use tachikoma_agents::opencode::server_variables;
use tachikoma_core::Input;
use tachikoma_core::supervise::{StartedBy, StopSignals};

use super::context::Context;
use super::error::RunError;
use super::program::path_with_ourselves;
use super::queue::warning_input;
use crate::config::{OpenCodeServer, exposed};
use crate::opencode::client::Address;
use crate::opencode::supervisor::{Supervisor, SupervisorHandle, SupervisorSettings};
use crate::process::Adoption;
use crate::settings::OpenCodeSettings;

/// How long the server may take to end; its guard ends it after that.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A server on this machine accepts a connection at once, or does not run.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);

/// The server, if the loop runs one.
#[derive(Debug, Default)]
pub(super) struct OwnServer {
    supervisor: Option<SupervisorHandle>,
}

impl OwnServer {
    /// Starts the server if the agent works in one of the loop's own. The agent waits for it, the loop does not.
    ///
    /// # Errors
    /// The supervisor cannot be started.
    pub async fn start(&mut self, context: Context<'_>) -> Result<(), RunError> {
        let OpenCodeServer::Own(dir) = context.config.opencode_server(context.agent) else {
            return Ok(());
        };
        let Agent::OpenCode(agent) = context.agent else {
            return Ok(());
        };
        let config = context.config;
        let mut env: Vec<_> = server_variables(agent.context_is_managed)
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        env.extend(exposed(&config.settings.agents.opencode.env));
        env.push(("TACHIKOMA_DIR".into(), config.working_dir.clone().into()));
        let path = path_with_ourselves(config.search_path.as_ref(), config.guard.first());
        env.extend(path.map(|path| ("PATH".into(), path)));
        let settings = SupervisorSettings {
            opencode: OpenCodeSettings {
                serve_port: 0,
                serve_hostname: "127.0.0.1".to_owned(),
                require_password: true,
                ..config.settings.opencode.clone()
            },
            working_dir: config.working_dir.clone(),
            dir,
            runtime_dir: config.runtime_dir.clone(),
            guard: config.guard.clone(),
            cgroup: config.cgroup,
            adoption: Adoption::Marked,
            // Tools in the server find the loop by this id when they leave a note.
            id: context.state.loop_id,
            env,
            // A password of its own, because every tool in the server can read it.
            password: None,
            user: None,
            signals: StopSignals::Crash,
            by: StartedBy::Command,
            idle_is_reported: true,
            hidden: context.secret_names(),
            keeps_log: !config.encryption.encrypts(),
            reader: None,
        };
        let started = Supervisor::start(settings).await;
        let supervisor = started.map_err(|error| RunError::Server(Box::new(error)))?;
        self.supervisor = Some(supervisor);
        Ok(())
    }

    /// Returns whether the server runs.
    pub fn is_running(&self) -> bool {
        self.supervisor.is_some()
    }

    /// The agent does not work in the server now. A server that has grown too large is replaced.
    pub fn idle(&self) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.report_idle();
        }
    }

    /// Ends the server, and all processes that it started.
    pub async fn shutdown(&mut self) {
        let Some(supervisor) = self.supervisor.take() else {
            return;
        };
        // A supervisor that has ended by itself refuses the stop.
        let stopped = async {
            let _ = supervisor.stop().await;
            supervisor.ended().await
        };
        let _ = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
    }
}

/// Returns a warning if no server listens at the address that the agent is attached to. The agent would wait for it in silence.
pub(super) fn attach_warning(context: Context<'_>) -> Option<Input> {
    let OpenCodeServer::Attached(url) = context.config.opencode_server(context.agent) else {
        return None;
    };
    // Only local addresses: resolving a name could take long.
    let address = Address::parse(&url).ok()?;
    let error = TcpStream::connect_timeout(&address.loopback()?, CONNECT_TIMEOUT).err()?;
    Some(warning_input(format!(
        "no server listens at {address} yet ({error}), and the agent waits for up to a minute: start that server, or take \
         it back with `--attach own`"
    )))
}
