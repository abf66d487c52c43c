//! What guard, server and tasks have to say, as inputs of the core.

use tachikoma_core::Generation;
use tachikoma_core::supervise::ServerInput;

use super::super::http::Target;
use super::super::{SupervisorEvent, command_line, launch};
use super::Supervisor;
use tachikoma_process::GuardNews;

impl Supervisor {
    pub(super) fn news(&mut self, news: SupervisorEvent) -> Option<ServerInput> {
        match news {
            SupervisorEvent::Input(input) => Some(input),
            SupervisorEvent::Listening { generation, port } => {
                if generation == self.state.generation && self.state.phase.is_live() {
                    let hostname = &self.settings.opencode.serve_hostname;
                    self.target = Some(self.target_at(command_line::address(hostname, port)));
                }
                Some(ServerInput::Listening { generation })
            }
        }
    }

    pub(super) fn target_at(&self, address: String) -> Target {
        let login = self.login.as_ref();
        Target {
            address,
            authorization: login
                .map(|login| Target::authorization(&login.user, login.password.expose())),
            server: None,
        }
    }

    pub(super) fn guard_news(&mut self, news: GuardNews) -> Option<ServerInput> {
        Some(match news {
            GuardNews::Spawned { generation, pid } => ServerInput::Spawned {
                generation: Generation(generation),
                pid,
            },
            GuardNews::SpawnFailed {
                generation,
                subject,
                message,
                ..
            } => {
                let words = command_line::words(&self.settings.opencode);
                let program = words.ok().and_then(|words| words.into_iter().next());
                let why = launch::not_started(&program.unwrap_or_default(), subject, &message);
                self.reader = None;
                ServerInput::NotStarted {
                    generation: Generation(generation),
                    why,
                }
            }
            GuardNews::Exited {
                generation,
                exit,
                leftovers,
                ..
            } => {
                self.forget_server();
                ServerInput::Exited {
                    generation: Generation(generation),
                    exit,
                    leftovers,
                }
            }
            GuardNews::Lost { .. } => {
                self.guard = None;
                self.forget_server();
                ServerInput::GuardLost
            }
        })
    }

    pub(super) fn forget_server(&mut self) {
        self.reader = None;
        self.target = None;
        if let Some(probing) = self.probing.take() {
            probing.abort();
        }
    }
}
