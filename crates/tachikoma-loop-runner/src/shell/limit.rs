//! The time limit of a command.

use std::time::{Duration, Instant};

use crate::clock;

/// The time that is left. Time during which the process is stopped, by Ctrl-Z or from outside, does not count.
#[derive(Debug)]
pub(crate) struct Limit {
    /// `None` = no limit.
    until: Option<Instant>,
    stopped: Option<Instant>,
}

impl Limit {
    /// Starts the limit now; zero means no limit.
    pub fn new(limit: Duration) -> Self {
        let until = Some(limit).filter(|limit| !limit.is_zero());
        Self {
            until: until.and_then(|limit| clock::monotonic().checked_add(limit)),
            stopped: None,
        }
    }

    /// The process is about to be stopped.
    pub fn stop(&mut self) {
        self.stopped = Some(clock::monotonic());
    }

    /// The process continues.
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
