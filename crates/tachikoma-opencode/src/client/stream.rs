//! The server's stream of events, read line by line.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use reqwest::Response;
use tachikoma_agents::line::LineSplitter;
use tachikoma_agents::opencode::LINE_BYTES_MAX;

use tachikoma_runtime::clock::monotonic;

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
            // The library says "error decoding response body" for a connection that was cut.
            Self::Broken(error) => match std::error::Error::source(error) {
                Some(_) => write!(f, "its event stream was cut: {}", root(error)),
                None => write!(f, "its event stream was cut: {error}"),
            },
            Self::Silent => write!(
                f,
                "its event stream was silent for {} s",
                SILENCE_MAX.as_secs()
            ),
        }
    }
}

/// Returns the cause of an error behind which there is no other.
fn root(error: &dyn std::error::Error) -> &dyn std::error::Error {
    std::iter::successors(Some(error), |error| error.source())
        .last()
        .unwrap_or(error)
}

/// A stream of events that is open.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    lines: LineSplitter,
    ready: VecDeque<String>,
    /// When something was heard last. Who waits is called away to other things now and then, and silence goes on meanwhile.
    heard: Instant,
    silence_max: Duration,
}

impl EventStream {
    pub(super) fn new(response: Response) -> Self {
        Self {
            response,
            lines: LineSplitter::new(LINE_BYTES_MAX),
            ready: VecDeque::new(),
            heard: monotonic(),
            silence_max: SILENCE_MAX,
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
            let until = self.heard + self.silence_max;
            let chunk = tokio::time::timeout_at(until.into(), self.response.chunk()).await;
            let chunk = chunk.map_err(|_| StreamEnd::Silent)?;
            self.heard = monotonic();
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A server that says one thing and then nothing more, and does not hang up.
    async fn half_open() -> (EventStream, tokio::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/event", listener.local_addr().unwrap());
        let answer = tokio::spawn(async move { listener.accept().await.unwrap().0 });
        let http = tachikoma_cloud::plain_http(reqwest::Client::builder());
        let http = http.build().unwrap();
        let asked = tokio::spawn(async move { http.get(url).send().await.unwrap() });
        let mut connection = answer.await.unwrap();
        let _ = connection.read(&mut [0; 4096]).await.unwrap();
        let said = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n";
        connection.write_all(said.as_bytes()).await.unwrap();
        (EventStream::new(asked.await.unwrap()), connection)
    }

    #[tokio::test]
    async fn silence_goes_on_while_nobody_listens() {
        let (mut stream, _connection) = half_open().await;
        stream.silence_max = Duration::from_millis(300);
        assert_eq!(stream.next().await.unwrap(), "{}");
        // A bridge looks after its turn every ten seconds, and listens anew behind each look.
        for _ in 0..1000 {
            let listened = tokio::time::timeout(Duration::from_millis(50), stream.next()).await;
            if let Ok(end) = listened {
                assert!(matches!(end, Err(StreamEnd::Silent)), "{end:?}");
                return;
            }
        }
        panic!("it is never called silent");
    }
}
