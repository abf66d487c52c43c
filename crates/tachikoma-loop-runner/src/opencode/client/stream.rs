//! The server's stream of events, read line by line.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::Response;
use tachikoma_agents::line::LineSplitter;
use tachikoma_agents::opencode::LINE_BYTES_MAX;

/// The server says every ten seconds that it is there. Who has missed three of them hears nothing any more.
const SILENCE_MAX: Duration = Duration::from_secs(35);

/// How the stream ended.
#[derive(Debug)]
pub enum StreamEnd {
    /// The server closed it, or is gone.
    Ended,
    /// The connection broke.
    Broken(reqwest::Error),
    /// Nothing was heard for too long.
    Silent,
}

impl std::fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended => f.write_str("its event stream ended"),
            Self::Broken(error) => write!(f, "its event stream broke: {error}"),
            Self::Silent => write!(
                f,
                "its event stream was silent for {} s",
                SILENCE_MAX.as_secs()
            ),
        }
    }
}

/// A stream of events that is open.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    lines: LineSplitter,
    ready: VecDeque<String>,
}

impl EventStream {
    pub(super) fn new(response: Response) -> Self {
        Self {
            response,
            lines: LineSplitter::new(LINE_BYTES_MAX),
            ready: VecDeque::new(),
        }
    }

    /// Returns the data of the next event. Cancel-safe.
    ///
    /// # Errors
    /// There is none, and none will come.
    pub async fn next(&mut self) -> Result<String, StreamEnd> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Ok(data);
            }
            let chunk = tokio::time::timeout(SILENCE_MAX, self.response.chunk()).await;
            let chunk = chunk.map_err(|_| StreamEnd::Silent)?;
            let chunk = chunk.map_err(|error| StreamEnd::Broken(error.without_url()))?;
            let Some(chunk) = chunk else {
                return Err(StreamEnd::Ended);
            };
            let ready = &mut self.ready;
            self.lines.push(&chunk, &mut |line| {
                // Comments, names and ids of events say nothing here.
                if let Some(data) = line.text.strip_prefix("data:") {
                    ready.push_back(data.trim().to_owned());
                }
            });
        }
    }
}
