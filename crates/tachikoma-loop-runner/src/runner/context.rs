//! The data of the loop that all features may read.

use std::ffi::OsString;
use std::path::PathBuf;

use tachikoma_agents::Agent;
use tachikoma_core::{Policy, State};

use crate::config::LoopConfig;
use crate::handle::LoopHandle;
use crate::process::{Adoption, GuardOptions};
use crate::shell::Shell;
use crate::store::layout;
use crate::store::lock::WorkLock;

/// The parts of the actor that every feature may read. No feature gets the actor itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub config: &'a LoopConfig,
    pub agent: &'a Agent,
    pub policy: &'a Policy,
    pub state: &'a State,
    pub lock: &'a WorkLock,
    pub handle: &'a LoopHandle,
    /// Whether the loop runs its own OpenCode server.
    pub own_server: bool,
}

impl Context<'_> {
    /// Returns the directory with the journal of the loop.
    pub fn loop_dir(&self) -> PathBuf {
        let root = self.config.store_root(self.state.loop_id);
        layout::loop_dir(&root, self.state.loop_id)
    }

    /// Returns the options of a guard that runs processes for the loop.
    pub fn guard_options(&self) -> GuardOptions {
        // The guard of the OpenCode server is also a child of this process, so the guard of the agent must not end all children.
        let adoption = match self.own_server {
            true => Adoption::Marked,
            false => self.config.adoption,
        };
        GuardOptions {
            lock: self.lock.share().ok(),
            cgroup: self.config.cgroup,
            adoption,
            hidden: self.secret_names(),
            ..GuardOptions::new(&self.config.guard, self.state.loop_id.to_string())
        }
    }

    /// Returns a shell for commands of the configuration.
    pub fn shell(&self) -> Shell {
        Shell::new(self.guard_options())
    }

    /// Returns the names of variables that only notifications get. They are hidden from the agent and from scripts that it may have written.
    pub fn secret_names(&self) -> Vec<OsString> {
        self.config.secrets.keys().map(Into::into).collect()
    }
}
