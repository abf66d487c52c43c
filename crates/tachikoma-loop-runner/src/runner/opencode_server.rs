//! The loop's own OpenCode server. It runs as long as the run.

use std::net::TcpStream;
use std::time::Duration;

use tachikoma_agents::Agent;
use tachikoma_agents::opencode::server_variables;
use tachikoma_core::Input;
use tachikoma_core::supervise::{StartedBy, StopSignals};

use super::context::{Context, warning_input};
use super::error::RunError;
use super::program::path_with_ourselves;
use crate::config::{OpenCodeServer, exposed};
use crate::opencode::client::Address;
use crate::opencode::supervisor::{Supervisor, SupervisorHandle, SupervisorSettings};
use crate::process::Adoption;
use crate::settings::OpenCodeSettings;

/// How long the server may take to stop. After that its guard ends it.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout of a connection. A server on this machine accepts a connection immediately, or does not run.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);

/// The loop's own server; empty if the loop uses none.
#[derive(Debug, Default)]
pub(super) struct OwnServer {
    supervisor: Option<SupervisorHandle>,
}

impl OwnServer {
    /// Starts the server if the agent uses the loop's own server. The agent waits until the server is ready, the loop does not.
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
            // Tools that run in the server find the loop by this id, for example to add a note.
            id: context.state.loop_id,
            env,
            // The server gets a generated password and not the user's, because every tool in the server can read it.
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

    /// Returns whether the loop's own server is running.
    pub fn is_running(&self) -> bool {
        self.supervisor.is_some()
    }

    /// Reports to the supervisor that the agent is idle. A server that has grown too large is then replaced.
    pub fn idle(&self) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.report_idle();
        }
    }

    /// Stops the server and all processes that it started.
    pub async fn shutdown(&mut self) {
        let Some(supervisor) = self.supervisor.take() else {
            return;
        };
        // The result is ignored: a supervisor that has already ended refuses the stop.
        let stopped = async {
            let _ = supervisor.stop().await;
            supervisor.ended().await
        };
        let _ = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
    }
}

/// Returns a warning if no server listens at the address that the agent is attached to. The agent would wait for the server without a message.
pub(super) fn attach_warning(context: Context<'_>) -> Option<Input> {
    let OpenCodeServer::Attached(url) = context.config.opencode_server(context.agent) else {
        return None;
    };
    // Only local addresses are checked, because resolving a host name could take long.
    let address = Address::parse(&url).ok()?;
    let error = TcpStream::connect_timeout(&address.loopback()?, CONNECT_TIMEOUT).err()?;
    Some(warning_input(format!(
        "no server listens at {address} yet ({error}), and the agent waits for up to a minute: start that server, or take \
         it back with `--attach own`"
    )))
}
