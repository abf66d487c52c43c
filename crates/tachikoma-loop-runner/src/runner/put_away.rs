//! The end of a run: nothing of it is left but what is written down.

use std::time::Duration;

use tachikoma_core::Outcome;

use super::LoopRunner;
use crate::process::{GuardNews, end_children};

/// How long an agent may take to end by itself at the end of a run: it has only to notice that its input has ended.
const LET_GO_TIMEOUT: Duration = Duration::from_secs(2);

impl LoopRunner {
    /// Lets an agent go that ends by itself when nothing more is asked of it: it saves its conversation on the way out.
    async fn let_go(&mut self) {
        let (Some(guard), Some(launch)) = (&mut self.guard, &mut self.launch) else {
            return;
        };
        if !launch.listens() || launch.exit.is_some() {
            return;
        }
        launch.end_input();
        let gone = async {
            loop {
                match guard.next().await {
                    GuardNews::Exited { .. } | GuardNews::Lost { .. } => return,
                    GuardNews::Spawned { .. } | GuardNews::SpawnFailed { .. } => {}
                }
            }
        };
        // Whoever takes longer than that is not on the way out.
        let _ = tokio::time::timeout(LET_GO_TIMEOUT, gone).await;
    }

    /// Ends whatever is left of the run. The journal stays open for the next one.
    pub(super) async fn put_away(&mut self) {
        if let Some(hooks) = &self.hooks {
            hooks.errand.call_off();
        }
        if let Some(run) = self.beside.running() {
            run.errand.call_off();
        }
        if let Some(check) = &self.check {
            check.errand.call_off();
        }
        self.let_go().await;
        if let Some(guard) = self.guard.take() {
            guard.finish().await;
        }
        self.stop_server().await;
        self.keeping
            .finish(self.config.settings.state.enabled)
            .await;
        if let Some(launch) = self.launch.take() {
            // The run is over: what its reader missed, nobody needs.
            let _ = launch.join().await;
        }
        if let Some(hooks) = self.hooks.take() {
            hooks.errand.end().await;
        }
        self.beside.end().await;
        drop(self.notices.end().await);
        if let Some(check) = self.check.take() {
            check.errand.end().await;
        }
        // Last of all: what git left running comes to us, and nobody else looks for it.
        end_children(self.config.adoption, &self.state.loop_id.to_string()).await;
        // Whoever waits for an answer is told that there is nobody to give it.
        self.tickets.clear();
        self.rereads.forget();
        self.queue.clear();
        self.suspended = None;
        self.looking = None;
    }
}

/// How long hooks and messages that are still on their way are waited for when the loop has ended. Whoever sends a signal may be
/// the shutdown of the machine.
pub(super) fn drain_time(outcome: &Outcome) -> Duration {
    match outcome {
        Outcome::Signal { .. } => Duration::from_secs(2),
        Outcome::Done
        | Outcome::LimitReached { .. }
        | Outcome::Condition { .. }
        | Outcome::Budget { .. }
        | Outcome::Operator
        | Outcome::Error { .. } => Duration::from_secs(10),
    }
}
