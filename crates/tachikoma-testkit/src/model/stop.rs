//! Waits that end early when the server stops.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Flag that stops the server. It is never reset.
#[derive(Debug, Default)]
pub(super) struct Stop {
    stopped: Mutex<bool>,
    news: Condvar,
}

impl Stop {
    /// Stops the server and ends all current and later waits.
    pub(super) fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.news.notify_all();
    }

    /// Returns whether the server was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a time. Returns whether the server was stopped meanwhile.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .news
            .wait_timeout_while(stopped, time, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until the server is stopped.
    pub(super) fn wait(&self) {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.news.wait_while(stopped, |stopped| !*stopped));
    }
}
