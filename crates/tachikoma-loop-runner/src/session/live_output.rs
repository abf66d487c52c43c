//! Shows the agent's output, not faster than a person can read.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::notice::{Notice, Stream};

/// How often output is reported to the core, and how often more of it may be shown.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// Lines shown per interval: faster than a person reads, slow enough for any terminal.
const LINES_PER_INTERVAL: u32 = 40;

/// The part of a line that is shown.
const SHOWN_BYTES_MAX: usize = 2 << 10;

/// The output of one launch.
pub(super) struct LiveOutput {
    notices: broadcast::Sender<Notice>,
    left: u32,
    /// Lines that were not shown in this interval.
    skipped: u64,
}

impl LiveOutput {
    pub fn new(notices: broadcast::Sender<Notice>) -> Self {
        Self {
            notices,
            left: LINES_PER_INTERVAL,
            skipped: 0,
        }
    }

    /// Returns whether the next interval has to be awaited before [`LiveOutput::refill`].
    pub fn is_throttled(&self) -> bool {
        self.left < LINES_PER_INTERVAL
    }

    /// Shows a line, or counts it if there were too many.
    pub fn show(&mut self, stream: Stream, text: &str) {
        if self.left == 0 {
            self.skipped += 1;
            return;
        }
        self.left -= 1;
        let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
        // There may be no subscriber.
        let _ = self.notices.send(Notice::Output {
            stream,
            line: Arc::from(&text[..end]),
        });
    }

    /// Begins the next interval.
    pub fn refill(&mut self) {
        self.left = LINES_PER_INTERVAL;
        if self.skipped > 0 {
            let lines = std::mem::take(&mut self.skipped);
            let _ = self.notices.send(Notice::OutputSkipped { lines });
        }
    }
}
