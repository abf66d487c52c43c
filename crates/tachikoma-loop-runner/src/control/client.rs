//! The client of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::process::peer;

use super::protocol::{ControlRequest, Hello, LINE_BYTES_MAX, PROTOCOL, Response};

/// Timeout of each answer. A runner answers at once unless it is suspended or hangs. Its caller must not hang too.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a live runner.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    patience: Duration,
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

/// Why a request to a runner failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No runner listens on the socket. A dead runner may have left the socket file.
    #[error("no runner listens at {}", path.display())]
    NotListening {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The process that listens belongs to another user, or its user is unknown. Nothing was sent to it.
    #[error("the process that listens at {} belongs to another user", path.display())]
    Foreign {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The runner uses another version of the protocol.
    #[error(
        "the runner is of version {version} and speaks protocol {theirs}; this is protocol {PROTOCOL}"
    )]
    Protocol {
        /// The runner's version.
        version: String,
        /// The protocol version of the runner.
        theirs: u32,
    },
    /// The runner did not answer, or its answer is not valid.
    #[error("the runner at {} does not answer: {what}", path.display())]
    Silent {
        /// Path of the socket.
        path: PathBuf,
        /// Why there is no valid answer.
        what: String,
    },
}

impl Client {
    /// Connects to the runner that listens at `path`.
    ///
    /// # Errors
    /// No runner listens there, or it uses another version of the protocol.
    pub async fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_within(path, ANSWER_TIMEOUT).await
    }

    /// Connects like [`Client::connect`]. `patience` is the timeout of each answer.
    ///
    /// # Errors
    /// No runner listens there, or it uses another version of the protocol.
    pub async fn connect_within(path: &Path, patience: Duration) -> Result<Self, ClientError> {
        let stream =
            UnixStream::connect(path)
                .await
                .map_err(|source| ClientError::NotListening {
                    path: path.to_owned(),
                    source,
                })?;
        if !peer::is_ours(&stream) {
            return Err(ClientError::Foreign {
                path: path.to_owned(),
            });
        }
        let (reader, writer) = stream.into_split();
        let mut client = Self {
            path: path.to_owned(),
            patience,
            reader: BufReader::new(reader),
            writer,
        };
        let hello: Hello = client
            .line(Some(patience))
            .await?
            .ok_or_else(|| client.silent("it hung up"))?;
        if hello.protocol != PROTOCOL {
            return Err(ClientError::Protocol {
                version: hello.version,
                theirs: hello.protocol,
            });
        }
        Ok(client)
    }

    /// Sends a request and returns its first response.
    ///
    /// # Errors
    /// The runner does not answer.
    pub async fn ask(&mut self, request: &ControlRequest) -> Result<Response, ClientError> {
        self.send(request).await?;
        self.line(Some(self.patience))
            .await?
            .ok_or_else(|| self.silent("it hung up"))
    }

    /// Sends a request. [`Client::next`] returns its responses.
    ///
    /// # Errors
    /// The runner has closed the connection.
    pub async fn send(&mut self, request: &ControlRequest) -> Result<(), ClientError> {
        let mut line = serde_json::to_vec(request).expect("requests can be serialized");
        line.push(b'\n');
        self.writer
            .write_all(&line)
            .await
            .map_err(|error| self.silent(&error.to_string()))
    }

    /// Returns the next response; `None` when the runner has closed the connection.
    ///
    /// # Errors
    /// The response is not valid.
    pub async fn next(&mut self) -> Result<Option<Response>, ClientError> {
        self.line(None).await
    }

    async fn line<T: serde::de::DeserializeOwned>(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<T>, ClientError> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.reader).take(LINE_BYTES_MAX as u64);
        let reading = bounded.read_until(b'\n', &mut line);
        let read = match timeout {
            Some(timeout) => tokio::time::timeout(timeout, reading).await,
            None => Ok(reading.await),
        };
        match read {
            // A line without a newline at the end is not a response: the runner has closed the connection.
            Ok(Ok(read)) if line.last() != Some(&b'\n') && read < LINE_BYTES_MAX => Ok(None),
            Ok(Ok(_)) => serde_json::from_slice(&line)
                .map(Some)
                .map_err(|error| self.silent(&error.to_string())),
            Ok(Err(error)) => Err(self.silent(&error.to_string())),
            Err(_) => Err(self.silent("it takes too long")),
        }
    }

    fn silent(&self, what: &str) -> ClientError {
        ClientError::Silent {
            path: self.path.clone(),
            what: what.to_owned(),
        }
    }
}
