//! The server's event stream.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tachikoma_agents::line::LineSplitter;
use tachikoma_agents::opencode::LINE_BYTES_MAX;

use super::Connection;
use tachikoma_runtime::clock::monotonic;

/// Time without data after which the stream counts as dead. The server sends a heartbeat every ten seconds.
const SILENCE_MAX: Duration = Duration::from_secs(35);

/// How the stream ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamEnd {
    /// The server closed the stream, or exited.
    #[error("the event stream of the server ended")]
    Closed,
    /// The connection broke.
    #[error("the event stream of the server broke off: {0}")]
    Broken(String),
    /// No bytes arrived for too long.
    #[error("the event stream of the server sent nothing for {} s", SILENCE_MAX.as_secs())]
    Silent,
}

/// An open event stream.
#[derive(Debug)]
pub(crate) struct EventStream {
    body: Incoming,
    _connection: Connection,
    /// Splits the stream into lines. A line beyond the limit is truncated, so that it cannot fill the memory.
    lines: LineSplitter,
    ready: VecDeque<String>,
    /// When the last bytes arrived. Canceling [`EventStream::next`] does not reset it.
    heard: Instant,
    silence_max: Duration,
}

impl EventStream {
    pub(super) fn new(body: Incoming, connection: Connection) -> Self {
        Self {
            body,
            _connection: connection,
            lines: LineSplitter::new(LINE_BYTES_MAX),
            ready: VecDeque::new(),
            heard: monotonic(),
            silence_max: SILENCE_MAX,
        }
    }

    /// Returns the data of the next event. Cancel-safe.
    ///
    /// # Errors
    /// The stream has ended.
    pub async fn next(&mut self) -> Result<String, StreamEnd> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Ok(data);
            }
            let until = self.heard + self.silence_max;
            let frame = tokio::time::timeout_at(until.into(), self.body.frame()).await;
            let frame = frame.map_err(|_| StreamEnd::Silent)?;
            self.heard = monotonic();
            let frame = frame.ok_or(StreamEnd::Closed)?;
            let frame = frame.map_err(|error| StreamEnd::Broken(root_cause(&error)))?;
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            let ready = &mut self.ready;
            self.lines.push(&bytes, &mut |line| {
                // The server writes each event as one `data:` line. Other lines (event names, ids and comments) are not needed.
                if let Some(data) = line.text.strip_prefix("data:") {
                    ready.push_back(data.trim().to_owned());
                }
            });
        }
    }
}

/// Returns the innermost cause of an error. The outer errors only say that a body could not be read.
fn root_cause(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.last().unwrap_or(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::{Address, Client};
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Starts a server that sends one event and then nothing, and keeps the connection open.
    async fn half_open() -> (EventStream, tokio::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let accepted = tokio::spawn(async move { listener.accept().await.unwrap().0 });
        let client = Client::new(Address::parse(&url).unwrap(), None, None);
        let opened = tokio::spawn(async move { client.events().await.unwrap() });
        let mut connection = accepted.await.unwrap();
        let _ = connection.read(&mut [0; 4096]).await.unwrap();
        let sent = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n";
        connection.write_all(sent.as_bytes()).await.unwrap();
        (opened.await.unwrap(), connection)
    }

    #[tokio::test]
    async fn canceled_reads_do_not_extend_the_silence_limit() {
        let (mut stream, _connection) = half_open().await;
        stream.silence_max = Duration::from_millis(300);
        assert_eq!(stream.next().await.unwrap(), "{}");
        // A bridge checks its turn every ten seconds, which cancels the read each time.
        for _ in 0..1000 {
            let read = tokio::time::timeout(Duration::from_millis(50), stream.next()).await;
            if let Ok(end) = read {
                assert!(matches!(end, Err(StreamEnd::Silent)), "{end:?}");
                return;
            }
        }
        panic!("the stream never ends with silence");
    }
}
