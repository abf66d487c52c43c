//! The guard of the agent, and what all guards of the loop have in common.

use super::LoopRunner;
use crate::process::{Adoption, Guard, GuardError, GuardNews, GuardOptions};

impl LoopRunner {
    pub(super) fn guard_options(&self) -> GuardOptions {
        let mut words = self.config.guard.iter().cloned();
        let program = words.next().unwrap_or_default().into();
        // Beside the guard of a server, who ends all children would end that one, too.
        let adoption = match self.server {
            Some(_) => Adoption::Marked,
            None => self.config.adoption,
        };
        GuardOptions {
            program,
            args: words.collect(),
            marker: self.state.loop_id.to_string(),
            lock: self.lock.share().ok(),
            cgroup: self.config.cgroup,
            adoption,
        }
    }

    pub(super) fn start_guard(&mut self) -> Result<(), GuardError> {
        let guard = Guard::start(self.guard_options())?;
        if let Some(control) = &self.control {
            control.guard_is(guard.pid());
        }
        self.guard = Some(guard);
        Ok(())
    }
}

pub(super) async fn guard_news(guard: Option<&mut Guard>) -> GuardNews {
    match guard {
        Some(guard) => guard.next().await,
        None => std::future::pending().await,
    }
}
