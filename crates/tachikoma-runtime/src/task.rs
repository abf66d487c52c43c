//! Background tasks that report their panics. Otherwise a caller that waits for a message of the task would wait forever.

use std::any::Any;
use std::future::Future;

use tokio::task::JoinHandle;

/// A background task with a name, which reports its panic.
#[derive(Debug)]
pub struct Task {
    name: &'static str,
    handle: JoinHandle<()>,
    /// Whether the task has finished. A finished handle must not be polled again.
    over: bool,
}

impl Task {
    /// Starts a background task. `name` identifies it in the message of a panic.
    pub fn spawn(name: &'static str, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            name,
            handle: tokio::spawn(work),
            over: false,
        }
    }

    /// Waits for a panic of the task. Returns a message with the name of the task; never returns without a panic. Cancel-safe.
    pub async fn broken(&mut self) -> String {
        match self.ended().await {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    /// Waits for the end of the task. Returns the message of its panic; `None` without a panic, or if the message was returned
    /// before. Cancel-safe.
    pub async fn ended(&mut self) -> Option<String> {
        if self.over {
            return None;
        }
        let ended = (&mut self.handle).await;
        self.over = true;
        let error = ended.err().filter(tokio::task::JoinError::is_panic)?;
        Some(panicked(self.name, error.into_panic().as_ref()))
    }

    /// Aborts the task at its next `await`.
    pub fn abort(&self) {
        self.handle.abort();
    }
}

/// Waits for the future; never returns if it is `None`.
pub async fn await_some<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Sleeps until `moment`; never returns if it is `None`. Cancel-safe.
pub async fn until(moment: Option<tokio::time::Instant>) {
    await_some(moment.map(tokio::time::sleep_until)).await;
}

/// Returns the error message for a panic. The panic hook has printed the location to standard error.
pub fn panicked(name: &str, payload: &(dyn Any + Send)) -> String {
    let words = words_of(payload);
    format!("the task `{name}` panicked ({words}): this is a bug in tachikoma, please report it")
}

/// Returns the message of a panic.
pub fn words_of(payload: &(dyn Any + Send)) -> &str {
    let words = payload.downcast_ref::<&str>().copied();
    let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    words.unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_is_reported_once_with_the_name_of_the_task() {
        let mut task = Task::spawn("reader", async { panic!("nine lives, {} left", 0) });
        let reason = task.broken().await;
        assert!(
            reason.starts_with("the task `reader` panicked (nine lives, 0 left)"),
            "{reason}"
        );
        assert_eq!(task.ended().await, None);
    }

    #[tokio::test]
    async fn normal_end_and_abort_are_not_reported() {
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
