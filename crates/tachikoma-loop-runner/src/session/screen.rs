//! What is shown of an agent's output, no faster than anyone can read.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

use super::pump::Stream;
use crate::handle::Notice;

/// How often output is mentioned, and how often more of it may be shown.
pub(super) const BEAT: Duration = Duration::from_millis(100);

/// Lines shown per beat: faster than anyone reads, slow enough for any terminal.
const LINES_PER_BEAT: u32 = 40;

/// What is shown of a line.
const SHOWN_BYTES_MAX: usize = 2 << 10;

/// The screen of one launch.
pub(super) struct Screen {
    notices: broadcast::Sender<Notice>,
    left: u32,
    unsaid: u64,
}

impl Screen {
    pub(super) fn new(notices: broadcast::Sender<Notice>) -> Self {
        Self {
            notices,
            left: LINES_PER_BEAT,
            unsaid: 0,
        }
    }

    pub(super) fn is_throttled(&self) -> bool {
        self.left < LINES_PER_BEAT
    }

    pub(super) fn show(&mut self, stream: Stream, text: &str) {
        if self.left == 0 {
            self.unsaid += 1;
            return;
        }
        self.left -= 1;
        let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
        // Nobody may be listening.
        let _ = self.notices.send(Notice::Said {
            stream,
            line: Arc::from(&text[..end]),
        });
    }

    pub(super) fn refill(&mut self) {
        self.left = LINES_PER_BEAT;
        if self.unsaid > 0 {
            let _ = self.notices.send(Notice::Unsaid { lines: self.unsaid });
            self.unsaid = 0;
        }
    }
}
