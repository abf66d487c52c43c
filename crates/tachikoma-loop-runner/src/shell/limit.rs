//! The timeout of a command.

use std::time::{Duration, Instant};

use crate::clock;

/// A timeout. Time during which the process is suspended, by Ctrl-Z or by another process, is not included.
#[derive(Debug)]
pub(crate) struct Limit {
    /// When the time is over; `None` = no timeout.
    until: Option<Instant>,
    stopped: Option<Instant>,
}

impl Limit {
    /// Starts the timeout now. Zero means no timeout.
    pub fn new(limit: Duration) -> Self {
        let until = Some(limit).filter(|limit| !limit.is_zero());
        Self {
            until: until.and_then(|limit| clock::monotonic().checked_add(limit)),
            stopped: None,
        }
    }

    /// Pauses the timeout, because the process is about to be suspended.
    pub fn stop(&mut self) {
        self.stopped = Some(clock::monotonic());
    }

    /// Continues the timeout after a suspension.
    pub fn resume(&mut self) {
        if let Some(stopped) = self.stopped.take() {
            self.extend(clock::monotonic().saturating_duration_since(stopped));
        }
    }

    fn extend(&mut self, by: Duration) {
        self.until = self.until.and_then(|until| until.checked_add(by));
    }

    /// Waits until the time is over. Cancel-safe.
    pub async fn over(&mut self) {
        loop {
            let (Some(until), None) = (self.until, self.stopped) else {
                return std::future::pending().await;
            };
            let meant = until.into();
            let since = clock::monotonic();
            tokio::time::sleep_until(meant).await;
            match clock::overslept(since, meant) {
                Some(stood_still) => self.extend(stood_still),
                None => return,
            }
        }
    }
}
