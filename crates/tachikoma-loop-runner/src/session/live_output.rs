//! Shows the agent's output to subscribers, at a limited rate.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::notice::{Notice, Stream};

/// Interval at which output is reported to the core, and after which more lines may be shown.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of lines shown per interval. It is more than a person can read, and any terminal can show it.
const LINES_PER_INTERVAL: u32 = 40;

/// Maximum length of the part of a line that is shown.
const SHOWN_BYTES_MAX: usize = 2 << 10;

/// Shows the output of one launch.
pub(super) struct LiveOutput {
    notices: broadcast::Sender<Notice>,
    left: u32,
    /// Number of lines that were not shown in this interval.
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

    /// Returns whether the next interval must begin ([`LiveOutput::refill`]) before more lines are shown.
    pub fn is_throttled(&self) -> bool {
        self.left < LINES_PER_INTERVAL
    }

    /// Shows a line. If too many lines were shown in this interval, only counts it.
    pub fn show(&mut self, stream: Stream, text: &str) {
        if self.left == 0 {
            self.skipped += 1;
            return;
        }
        self.left -= 1;
        let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
        // Sending fails if there is no subscriber, which does not matter.
        let _ = self.notices.send(Notice::Output {
            stream,
            line: Arc::from(&text[..end]),
        });
    }

    /// Begins the next interval, in which lines may be shown again.
    pub fn refill(&mut self) {
        self.left = LINES_PER_INTERVAL;
        if self.skipped > 0 {
            let lines = std::mem::take(&mut self.skipped);
            let _ = self.notices.send(Notice::OutputSkipped { lines });
        }
    }
}
