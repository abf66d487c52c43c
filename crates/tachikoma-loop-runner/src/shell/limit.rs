//! How long a command may still take.

use std::time::{Duration, Instant};

use crate::clock;

/// The time that is left, which does not count what is spent stopped: by Ctrl-Z, or from outside.
#[derive(Debug)]
pub(crate) struct Limit {
    /// None = it may take as long as it likes.
    until: Option<Instant>,
    stopped: Option<Instant>,
}

impl Limit {
    /// Begins now; zero is no limit.
    pub fn new(limit: Duration) -> Self {
        let until = Some(limit).filter(|limit| !limit.is_zero());
        Self {
            until: until.and_then(|limit| clock::monotonic().checked_add(limit)),
            stopped: None,
        }
    }

    /// Everything is about to be stopped.
    pub fn stop(&mut self) {
        self.stopped = Some(clock::monotonic());
    }

    /// Everything goes on.
    pub fn go_on(&mut self) {
        if let Some(stopped) = self.stopped.take() {
            self.put_off(clock::monotonic().saturating_duration_since(stopped));
        }
    }

    fn put_off(&mut self, by: Duration) {
        self.until = self.until.and_then(|until| until.checked_add(by));
    }

    /// Returns when the time is over. Cancel-safe.
    pub async fn over(&mut self) {
        loop {
            let (Some(until), None) = (self.until, self.stopped) else {
                return std::future::pending().await;
            };
            let meant = until.into();
            let since = clock::monotonic();
            tokio::time::sleep_until(meant).await;
            match clock::overslept(since, meant) {
                Some(stood_still) => self.put_off(stood_still),
                None => return,
            }
        }
    }
}
