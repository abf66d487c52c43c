//! A look at what the agent's processes do, while it says nothing.

use tachikoma_core::{Activity, AgentEvent, Generation, Input};
use tokio::sync::oneshot;

use super::LoopRunner;
use crate::process::{Guard, look};
use crate::task::Task;

/// What the task is called when it fails.
const LOOK: &str = "look at the agent";

/// A look under way. Dropped, it is given up.
#[derive(Debug)]
pub(super) struct Looking {
    generation: Generation,
    answer: oneshot::Receiver<Option<Activity>>,
    task: Task,
}

impl Looking {
    fn begin(generation: Generation, guard: Option<&Guard>) -> Self {
        let root = guard.map(Guard::pid);
        let (out, answer) = oneshot::channel();
        let work = async move {
            let seen = match root {
                Some(root) => look(root).await,
                None => None,
            };
            // Whoever waited may have gone.
            let _ = out.send(seen);
        };
        Self {
            generation,
            answer,
            task: Task::spawn(LOOK, work),
        }
    }

    /// Returns what was seen. Cancel-safe.
    async fn ended(&mut self) -> Input {
        match (&mut self.answer).await {
            Ok(activity) => Input::Agent {
                generation: self.generation,
                event: AgentEvent::ProcessesSampled { activity },
            },
            Err(_) => Input::Broken {
                reason: self.task.broken().await,
            },
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LoopRunner {
    /// Begins a look at the agent's processes. One that is under way is for nobody any more.
    pub(super) fn look(&mut self, generation: Generation) {
        self.looking = Some(Looking::begin(generation, self.guard.as_ref()));
    }
}

/// Waits for the end of a look, if one is under way. Cancel-safe.
pub(super) async fn looked(looking: &mut Option<Looking>) -> Input {
    let Some(under_way) = looking else {
        return std::future::pending().await;
    };
    let input = under_way.ended().await;
    *looking = None;
    input
}
