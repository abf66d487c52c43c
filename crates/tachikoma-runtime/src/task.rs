//! A task of the runner. One that panics must not be missed: whoever waited for its word would wait for ever.

use std::any::Any;
use std::future::Future;

use tokio::task::JoinHandle;

/// A task with a name, watched for a panic.
#[derive(Debug)]
pub struct Task {
    name: &'static str,
    handle: JoinHandle<()>,
    /// Whether its end was taken note of: a handle tells it once.
    over: bool,
}

impl Task {
    /// Starts a task.
    pub fn spawn(name: &'static str, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            name,
            handle: tokio::spawn(work),
            over: false,
        }
    }

    /// Returns which task panicked, and how; does not return for one that does not panic. Cancel-safe.
    pub async fn broken(&mut self) -> String {
        match self.ended().await {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    /// Waits for the end of the task. Returns how it panicked, if it did and that was not told before. Cancel-safe.
    pub async fn ended(&mut self) -> Option<String> {
        if self.over {
            return None;
        }
        let ended = (&mut self.handle).await;
        self.over = true;
        let error = ended.err().filter(tokio::task::JoinError::is_panic)?;
        Some(panicked(self.name, error.into_panic().as_ref()))
    }

    /// Ends the task where it is.
    pub fn abort(&self) {
        self.handle.abort();
    }
}

/// Says who panicked, and how. Where it did is on standard error, unless someone has replaced the panic hook.
pub fn panicked(name: &str, payload: &(dyn Any + Send)) -> String {
    let words = words_of(payload);
    format!("the runner's {name} panicked ({words}): this is a bug in tachikoma, please report it")
}

/// Returns what a panic said.
pub fn words_of(payload: &(dyn Any + Send)) -> &str {
    let words = payload.downcast_ref::<&str>().copied();
    let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    words.unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_told_with_the_name_of_the_task_and_told_once() {
        let mut task = Task::spawn("reader", async { panic!("nine lives, {} left", 0) });
        let reason = task.broken().await;
        assert!(
            reason.starts_with("the runner's reader panicked (nine lives, 0 left)"),
            "{reason}"
        );
        assert_eq!(task.ended().await, None);
    }

    #[tokio::test]
    async fn an_end_in_order_and_an_abort_are_no_news() {
        let mut ended = Task::spawn("reader", async {});
        let mut aborted = Task::spawn("reader", std::future::pending());
        aborted.abort();
        for task in [&mut ended, &mut aborted] {
            assert_eq!(task.ended().await, None);
            tokio::select! {
                biased;
                reason = task.broken() => panic!("{reason}"),
                () = std::future::ready(()) => {}
            }
        }
    }
}
