//! The server of the loop's own that OpenCode works in: kept alive for as long as the run lasts.

use std::net::TcpStream;
use std::time::Duration;

use tachikoma_agents::Agent;
use tachikoma_agents::opencode::server_variables;
use tachikoma_core::Input;
use tachikoma_core::supervise::{StartedBy, StopSignals};

use super::LoopRunner;
use super::effects::with_ourselves;
use super::failure::{Cut, RunError};
use crate::config::OpenCodeServer;
use crate::opencode::client::Address;
use crate::opencode::supervisor::{Supervisor, SupervisorSettings};
use crate::process::Adoption;
use crate::settings::OpenCodeSettings;

/// How long a server may take to be put away; its guard ends it if it takes longer.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Who is on this machine is there at once, or is not.
const LOOK_TIMEOUT: Duration = Duration::from_millis(100);

impl LoopRunner {
    /// Starts the server that the agent works in, where that is one of the loop's own. It is not waited for: the agent waits.
    pub(super) async fn start_server(&mut self) -> Result<(), Cut> {
        let OpenCodeServer::Own(dir) = self.config.opencode_server(&self.agent) else {
            return Ok(());
        };
        let managed = match &self.agent {
            Agent::OpenCode(agent) => agent.context_is_managed,
            Agent::Command(_) | Agent::Demo(_) | Agent::Claude(_) => return Ok(()),
        };
        let config = &self.config;
        let mut env: Vec<_> = server_variables(managed)
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let own = config.settings.agents.opencode.env.iter();
        env.extend(own.map(|(name, value)| (name.into(), value.expose().into())));
        env.push(("TACHIKOMA_DIR".into(), config.working_dir.clone().into()));
        let path = with_ourselves(config.search_path.as_ref(), config.guard.first());
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
            // By which its tools find the loop when they leave a note.
            id: self.state.loop_id,
            env,
            // One of its own, whatever the user has chosen for other servers: every tool in the server can read it.
            password: None,
            user: None,
            signals: StopSignals::Crash,
            by: StartedBy::Command,
            told_when_idle: true,
            hidden: self.secret_names(),
            keeps_log: !config.vault.seals(),
            reader: None,
        };
        let started = Supervisor::start(settings).await;
        let handle = started.map_err(|error| RunError::Server(Box::new(error)))?;
        self.server = Some(handle);
        Ok(())
    }

    /// Looks whether someone is at the address of a server that someone else runs: the agent waits for it, and would wait in silence.
    pub(super) fn problem_of_server(&self) -> Option<Input> {
        let OpenCodeServer::Attached(url) = self.config.opencode_server(&self.agent) else {
            return None;
        };
        // What is elsewhere would have to be looked up first, and may take its time.
        let address = Address::parse(&url).ok()?;
        let error = TcpStream::connect_timeout(&address.loopback()?, LOOK_TIMEOUT).err()?;
        Some(Input::Warning {
            warning: format!(
                "nobody is at {address} yet ({error}), and the agent waits for up to a minute: start that server, or take \
                 it back with `--attach own`"
            ),
        })
    }

    /// Says that nobody works in the server: one that has grown too large is replaced now.
    pub(super) fn server_is_idle(&self) {
        if let Some(server) = &self.server {
            server.boundary();
        }
    }

    /// Ends the server, and everything that it started.
    pub(super) async fn stop_server(&mut self) {
        let Some(server) = self.server.take() else {
            return;
        };
        // One that has ended by itself needs no telling.
        let stopped = async {
            let _ = server.stop().await;
            server.ended().await
        };
        let _ = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
    }
}
