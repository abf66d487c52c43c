//! A sample of what the agent's processes do while it writes nothing.

use tachikoma_core::{Activity, AgentInput, Generation, Input};
use tokio::sync::oneshot;

use crate::process::{Guard, look};
use crate::task::Task;

/// The name of the task in an error message.
const SAMPLE: &str = "look at the agent";

/// A sample that is being taken. Dropping it cancels it.
#[derive(Debug)]
pub(super) struct ProcessSample {
    generation: Generation,
    activity: oneshot::Receiver<Option<Activity>>,
    task: Task,
}

impl ProcessSample {
    /// Starts to observe the processes below the guard.
    pub fn start(generation: Generation, guard: Option<&Guard>) -> Self {
        let root = guard.map(Guard::pid);
        let (sender, activity) = oneshot::channel();
        let work = async move {
            let seen = match root {
                Some(root) => look(root).await,
                None => None,
            };
            // The actor may have started another sample.
            let _ = sender.send(seen);
        };
        Self {
            generation,
            activity,
            task: Task::spawn(SAMPLE, work),
        }
    }

    /// Waits for the result. Cancel-safe.
    pub async fn finished(&mut self) -> Input {
        match (&mut self.activity).await {
            Ok(activity) => Input::Agent {
                generation: self.generation,
                event: AgentInput::ProcessesSampled { activity },
            },
            Err(_) => Input::Broken {
                reason: self.task.broken().await,
            },
        }
    }
}

impl Drop for ProcessSample {
    fn drop(&mut self) {
        self.task.abort();
    }
}
