//! Waits that end early when the server does.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Set once, never back.
#[derive(Debug, Default)]
pub(super) struct Stop {
    stopped: Mutex<bool>,
    news: Condvar,
}

impl Stop {
    /// Ends all waits, now and later.
    pub(super) fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.news.notify_all();
    }

    /// Returns whether it was ended.
    pub(super) fn is_stopped(&self) -> bool {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a time. Returns whether the end came.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .news
            .wait_timeout_while(stopped, time, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits for the end.
    pub(super) fn wait(&self) {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.news.wait_while(stopped, |stopped| !*stopped));
    }
}
