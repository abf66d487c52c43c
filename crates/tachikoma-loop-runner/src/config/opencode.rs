//! The configuration of OpenCode: which server it works in, if any.

use std::ffi::OsString;
use std::path::PathBuf;

use tachikoma_agents::opencode::{ServerAt, Way};
use tachikoma_agents::{Agent, Lifetime, OpenCodeAgent};
use tachikoma_fs::RALPH_DIR;

use super::{AgentError, LoopConfig, permission};
use crate::error::chain;
use crate::opencode::client::Address;
use crate::opencode::server_file::{Condition, ServerFile};
use crate::opencode::supervisor::{DIR, command_line};

/// The directory of the supervisor of a loop's own server, next to that of the shared server.
const OWN_DIR: &str = "opencode-agent";

/// Which server a loop uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenCodeServer {
    /// A server at this address that the loop does not supervise.
    Attached(String),
    /// The server of `tachikoma opencode up`, with the directory of its supervisor.
    Shared(PathBuf),
    /// A server of the loop, with the directory of its supervisor.
    Own(PathBuf),
    /// No server: every turn is a process.
    None,
}

impl LoopConfig {
    /// Returns which server an agent works in. The choice was made with the agent, because the server of `tachikoma opencode up` may start
    /// and stop meanwhile.
    #[must_use]
    pub fn opencode_server(&self, agent: &Agent) -> OpenCodeServer {
        let way = match agent {
            Agent::OpenCode(agent) => &agent.way,
            Agent::Command(_) | Agent::Demo(_) | Agent::Claude(_) => return OpenCodeServer::None,
        };
        let own = self.working_dir.join(RALPH_DIR).join(OWN_DIR);
        match way {
            Way::Once { .. } => OpenCodeServer::None,
            Way::Server { at, .. } => match at {
                ServerAt::Url(url) => OpenCodeServer::Attached(url.clone()),
                ServerAt::Supervised(dir) if *dir == own => OpenCodeServer::Own(own),
                ServerAt::Supervised(dir) => OpenCodeServer::Shared(dir.into()),
            },
        }
    }

    fn choose_server(&self) -> OpenCodeServer {
        let settings = &self.settings.opencode;
        let ralph = self.working_dir.join(RALPH_DIR);
        if self.settings.session.process_each_iteration {
            return OpenCodeServer::None;
        }
        if let Some(url) = settings.attach.as_ref().filter(|url| !url.is_empty()) {
            return OpenCodeServer::Attached(url.clone());
        }
        let shared = ralph.join(DIR);
        if settings.enabled
            && let Ok(Some(file)) = ServerFile::read(&shared)
            && file.state != Condition::Stopped
        {
            return OpenCodeServer::Shared(shared);
        }
        OpenCodeServer::Own(ralph.join(OWN_DIR))
    }

    pub(super) fn opencode_agent(&self) -> Result<OpenCodeAgent, AgentError> {
        let own = &self.settings.agents.opencode;
        let session = &self.settings.session;
        let refused = |why: String| AgentError::OpenCode(why);
        if let Some(model) = own.model.as_ref().filter(|model| !model.contains('/')) {
            return Err(refused(format!(
                "model `{model}` is not of the form provider/model; `opencode models` lists them"
            )));
        }
        let served = |at: ServerAt| Way::Server {
            bridge: self.bridge.clone(),
            at,
            directory: self.working_dir.clone().into_os_string(),
            lifetime: match session.fresh_each_iteration {
                true => Lifetime::Turn,
                false => Lifetime::Session,
            },
        };
        let way = match self.choose_server() {
            OpenCodeServer::Attached(url) => {
                let address = Address::parse(&url).map_err(|error| refused(chain(&error)))?;
                if !address.is_loopback() && !self.has_password() {
                    return Err(refused(format!(
                        "{address} is not on this machine: set OPENCODE_SERVER_PASSWORD, there and here"
                    )));
                }
                served(ServerAt::Url(url))
            }
            OpenCodeServer::Shared(dir) | OpenCodeServer::Own(dir) => {
                served(ServerAt::Supervised(dir.into_os_string()))
            }
            OpenCodeServer::None => Way::Once {
                program: self.opencode_program()?,
                args: own.args.iter().map(Into::into).collect(),
            },
        };
        let env = own.env.iter();
        Ok(OpenCodeAgent {
            way,
            env: env
                .map(|(name, value)| (name.into(), value.expose().into()))
                .collect(),
            model: own.model.clone(),
            permission: permission(own.permission),
            allow: own.allow.clone(),
            context_is_managed: self.reboot_rules().manages_context(),
            window_tokens: Some(self.settings.context.window_tokens).filter(|tokens| *tokens > 0),
        })
    }

    /// Returns the program that starts OpenCode, and the arguments that come first.
    ///
    /// # Errors
    /// The configured command line is not valid.
    pub(crate) fn opencode_program(&self) -> Result<Vec<OsString>, AgentError> {
        let words = command_line(&self.settings.opencode).map_err(AgentError::OpenCode)?;
        let own = words.into_iter().take_while(|word| word != "serve");
        Ok(own.map(Into::into).collect())
    }

    fn has_password(&self) -> bool {
        let own = &self.settings.agents.opencode.env;
        self.opencode_login.is_some() || own.contains_key("OPENCODE_SERVER_PASSWORD")
    }
}
