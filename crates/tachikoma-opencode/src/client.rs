//! A client of OpenCode's server: each request has its own connection and is bounded in time and size.
//!
//! Connections are not reused. If the server dies, it is unknown whether a request on a reused connection arrived. The server also
//! never answers requests that it gets in its first second, nor later ones on the same connection.

mod address;
mod stream;

pub use address::{Address, AddressError};
pub(crate) use stream::{EventStream, StreamEnd};

use std::fmt;
use std::io;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use tachikoma_config::Secret;
use tachikoma_process::{ListenerError, Owner, verify};

/// Timeout for connecting. A server on the same machine accepts a connection at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of most requests. The first request of a directory loads its tools, which takes seconds, or longer on a busy machine.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of an answer in bytes. The last message of a conversation, or the list of all models, has some megabytes.
const BODY_BYTES_MAX: usize = 32 << 20;

/// Maximum length in bytes of the part of an unexpected answer that is quoted in an error.
const QUOTED_BYTES_MAX: usize = 200;

/// The server's user name unless `OPENCODE_SERVER_USERNAME` is set.
pub const DEFAULT_USER: &str = "opencode";

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// User name and password for a server.
#[derive(Clone, Debug, Deserialize)]
pub struct Login {
    /// User name.
    pub user: String,
    /// Password.
    pub password: Secret,
}

/// Sends requests to a server.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    address: Address,
    /// Project directory of the requests; `None` for the directory in which the server was started.
    directory: Option<String>,
    /// User name and password; `None` if the server has no password.
    login: Option<Login>,
    /// The only process that may receive the password.
    owner: Owner,
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) struct ClientError {
    /// Method and path of the request, for messages.
    request: String,
    address: Address,
    pub failure: Failure,
}

/// What went wrong with a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The server is not reachable, or its answer is incomplete.
    #[error("does not answer")]
    NoAnswer {
        /// Whether the server may have received the request.
        may_have_arrived: bool,
        #[source]
        source: BoxError,
    },
    /// A process other than the server listens at the address. The password was not sent to it.
    #[error("is not the OpenCode server")]
    OtherListener {
        #[source]
        source: ListenerError,
        /// Whether the server has a supervisor, which restarts it.
        is_supervised: bool,
    },
    /// The password is missing or wrong.
    #[error("wants {}: set OPENCODE_SERVER_PASSWORD", match given { true => "another password", false => "a password" })]
    Unauthorized {
        /// Whether a password was sent.
        given: bool,
    },
    /// The server answered with an error.
    #[error("answered {status}: {message}")]
    Refused { status: StatusCode, message: String },
    /// The answer is not that of an OpenCode server.
    #[error(
        "answered with {answer}: this is not an OpenCode server, or its version is not supported"
    )]
    NotOpenCode { answer: String },
    /// The server reports that it is not healthy.
    #[error("is not healthy: {0}")]
    Unhealthy(String),
    /// The answer is longer than the limit.
    #[error("sent an answer of more than {} MiB", BODY_BYTES_MAX >> 20)]
    TooLong,
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.request, self.address, self.failure)
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.failure.source()
    }
}

impl ClientError {
    /// Returns whether the server may have received the request, although it did not answer.
    pub fn may_have_arrived(&self) -> bool {
        matches!(self.failure, Failure::NoAnswer { may_have_arrived, .. } if may_have_arrived)
    }

    /// Returns whether the server is down or does not answer, so that it may come back later.
    pub fn is_absence(&self) -> bool {
        match &self.failure {
            Failure::NoAnswer { .. } | Failure::Unhealthy(_) => true,
            Failure::OtherListener { is_supervised, .. } => *is_supervised,
            Failure::Refused { status, .. } => *status == StatusCode::SERVICE_UNAVAILABLE,
            Failure::Unauthorized { .. } | Failure::NotOpenCode { .. } | Failure::TooLong => false,
        }
    }

    /// Returns whether the requested object does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(&self.failure, Failure::Refused { status, .. } if *status == StatusCode::NOT_FOUND)
    }
}

/// Returns the answer to an optional request; `None` if the server refused it.
///
/// # Errors
/// The server does not answer.
pub(crate) fn unless_absent<T>(answer: Result<T, ClientError>) -> Result<Option<T>, ClientError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_absence() => Err(error),
        Err(_) => Ok(None),
    }
}

impl Failure {
    fn not_sent(source: impl Into<BoxError>) -> Self {
        Self::NoAnswer {
            may_have_arrived: false,
            source: source.into(),
        }
    }

    fn cut(source: impl Into<BoxError>) -> Self {
        Self::NoAnswer {
            may_have_arrived: true,
            source: source.into(),
        }
    }

    fn timeout(timeout: Duration) -> Self {
        let what = format!("no answer within {} ms", timeout.as_millis());
        Self::cut(io::Error::new(io::ErrorKind::TimedOut, what))
    }
}

/// A request to the server.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    pub method: Method,
    /// Path of the request. It begins with a slash.
    pub path: &'a str,
    /// Query parameters, without the directory.
    pub query: &'a [(&'a str, &'a str)],
    pub body: Option<&'a Value>,
    /// Time limit for the whole request and its answer.
    pub timeout: Duration,
}

impl<'a> Request<'a> {
    pub fn get(path: &'a str) -> Self {
        Self {
            method: Method::GET,
            path,
            query: &[],
            body: None,
            timeout: REQUEST_TIMEOUT,
        }
    }

    pub fn post(path: &'a str, body: Option<&'a Value>) -> Self {
        Self {
            method: Method::POST,
            body,
            ..Self::get(path)
        }
    }
}

/// Keeps a connection open.
#[derive(Debug)]
struct Connection {
    _sender: SendRequest<Full<Bytes>>,
    /// Dropping the set ends its task.
    _driver: JoinSet<()>,
}

impl Client {
    /// Returns a client of a server. `pid` is the process of the server; the password is sent to no other process. `None` if it is unknown.
    pub fn new(address: Address, login: Option<Login>, pid: Option<i32>) -> Self {
        Self {
            address,
            directory: None,
            login,
            owner: pid.map_or(Owner::User, Owner::Server),
        }
    }

    /// Sets the project directory of the requests.
    pub fn in_directory(self, directory: String) -> Self {
        Self {
            directory: Some(directory),
            ..self
        }
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Sends a GET request and returns the answer.
    ///
    /// # Errors
    /// The same errors as [`Client::ask`].
    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.ask(Request::get(path)).await
    }

    /// Sends a POST request and returns the answer.
    ///
    /// # Errors
    /// The same errors as [`Client::ask`].
    pub async fn post(&self, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        self.ask(Request::post(path, body)).await
    }

    /// Asks whether the server is healthy, and returns its version.
    ///
    /// # Errors
    /// The server is not healthy, or is not an OpenCode server.
    pub async fn health(&self, timeout: Duration) -> Result<Option<String>, ClientError> {
        let request = Request {
            timeout,
            ..Request::get("/global/health")
        };
        let failed = |failure| self.error(&request, failure);
        let answer = match self.ask(request.clone()).await {
            Ok(answer) => answer,
            Err(ClientError {
                failure: Failure::Refused { status, message },
                ..
            }) => {
                return Err(failed(match status.is_server_error() {
                    true => Failure::Unhealthy(format!("{status}: {message}")),
                    false => Failure::NotOpenCode {
                        answer: status.to_string(),
                    },
                }));
            }
            Err(error) => return Err(error),
        };
        // The server answers unknown paths with a web page and status 200, so only the body shows whether it is an OpenCode server.
        match answer["healthy"].as_bool() {
            Some(true) => Ok(answer["version"].as_str().map(str::to_owned)),
            Some(false) => Err(failed(Failure::Unhealthy(quoted(&answer.to_string())))),
            None => Err(failed(Failure::NotOpenCode {
                answer: format!("JSON ({})", quoted(&answer.to_string())),
            })),
        }
    }

    /// Sends a request and returns the answer as JSON; null if the answer is empty.
    ///
    /// # Errors
    /// The server does not answer, or its answer is an error or not JSON.
    pub async fn ask(&self, request: Request<'_>) -> Result<Value, ClientError> {
        let answered = tokio::time::timeout(request.timeout, self.exchange(&request)).await;
        let answered = answered.unwrap_or_else(|_| Err(Failure::timeout(request.timeout)));
        answered.map_err(|failure| self.error(&request, failure))
    }

    async fn exchange(&self, request: &Request<'_>) -> Result<Value, Failure> {
        let (response, _connection) = self.send(request).await?;
        let status = response.status();
        // Query and body are not logged, because they may contain paths and texts.
        tracing::debug!(
            method = %request.method,
            path = request.path,
            status = status.as_u16(),
            "OpenCode answered"
        );
        let content_type = content_type_of(&response);
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX);
        let body = body.collect().await.map_err(|error| {
            match error.downcast_ref::<LengthLimitError>() {
                Some(_) => Failure::TooLong,
                None => Failure::cut(error),
            }
        })?;
        let body = body.to_bytes();
        let text = || quoted(&String::from_utf8_lossy(&body));
        let json = serde_json::from_slice::<Value>(&body);
        if !status.is_success() {
            let message = json.map_or_else(|_| text(), |json| message_of(&json));
            return Err(Failure::Refused { status, message });
        }
        if body.is_empty() {
            return Ok(Value::Null);
        }
        json.map_err(|_| {
            let is_page = content_type.starts_with("text/html") || text().starts_with('<');
            let kind = match content_type.starts_with("application/json") {
                true => "invalid JSON",
                false => &content_type,
            };
            Failure::NotOpenCode {
                answer: match is_page {
                    true => "a web page".to_owned(),
                    false => format!("{kind} ({})", text()),
                },
            }
        })
    }

    /// Opens the event stream of the directory. `REQUEST_TIMEOUT` limits the time until it begins.
    ///
    /// # Errors
    /// The server does not answer, or not with an event stream.
    pub async fn events(&self) -> Result<EventStream, ClientError> {
        let request = Request::get("/event");
        let failed = |failure| self.error(&request, failure);
        let answered = tokio::time::timeout(request.timeout, self.send(&request)).await;
        let answered = answered.unwrap_or_else(|_| Err(Failure::timeout(request.timeout)));
        let (response, connection) = answered.map_err(failed)?;
        let content_type = content_type_of(&response);
        if !response.status().is_success() {
            return Err(failed(Failure::Refused {
                status: response.status(),
                message: content_type,
            }));
        }
        if !content_type.starts_with("text/event-stream") {
            return Err(failed(Failure::NotOpenCode {
                answer: content_type,
            }));
        }
        Ok(EventStream::new(response.into_body(), connection))
    }

    /// Sends a request. Returns the response before its body is read, and the connection, which must stay open until then.
    async fn send(
        &self,
        request: &Request<'_>,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        let directory = self.directory.as_deref();
        let target = self.address.target(request.path, directory, request.query);
        let mut builder = hyper::Request::builder()
            .method(&request.method)
            .uri(target)
            .header(header::HOST, self.address.authority())
            .header(header::ACCEPT, "*/*");
        if let Some(Login { user, password }) = &self.login {
            let pair = BASE64_STANDARD.encode(format!("{user}:{}", password.expose()));
            builder = builder.header(header::AUTHORIZATION, format!("Basic {pair}"));
        }
        let body = request.body.map(ToString::to_string);
        if body.is_some() {
            builder = builder.header(header::CONTENT_TYPE, "application/json");
        }
        let message = builder.body(Full::from(body.unwrap_or_default()));
        let message = message.map_err(Failure::not_sent)?;
        let stream = TokioIo::new(self.connect().await?);
        let (mut sender, driver) = http1::handshake(stream).await.map_err(Failure::not_sent)?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            // The code that sent the request gets the error, too.
            let _ = driver.await;
        });
        let answered = sender.send_request(message).await;
        let response = answered.map_err(|error| match error.is_parse() {
            true => Failure::NotOpenCode {
                answer: "something that is not HTTP".to_owned(),
            },
            false => Failure::cut(error),
        })?;
        if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&response.status()) {
            let given = self.login.is_some();
            return Err(Failure::Unauthorized { given });
        }
        let connection = Connection {
            _sender: sender,
            _driver: task,
        };
        Ok((response, connection))
    }

    /// Connects, and checks before and after that which process listens at the address. If the same socket listened both times, it
    /// accepted the connection. After a server has died, any process can use its port.
    async fn connect(&self) -> Result<TcpStream, Failure> {
        let authority = self.address.authority();
        let before = authority.parse().ok();
        let before = before.map(|address| self.verify(address)).transpose()?;
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&authority)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = connected.map_err(Failure::not_sent)?;
        let peer = stream.peer_addr().map_err(Failure::not_sent)?;
        let after = self.verify(peer)?;
        if before.is_some_and(|before| before != after) {
            return Err(Failure::not_sent(io::Error::from(
                io::ErrorKind::ConnectionReset,
            )));
        }
        Ok(stream)
    }

    /// Checks that the process which listens at an address may get the password. Returns its sockets.
    fn verify(
        &self,
        address: std::net::SocketAddr,
    ) -> Result<Vec<tachikoma_process::Listener>, Failure> {
        let is_supervised = self.owner != Owner::User;
        // The user configured a server on another machine, so its process cannot be checked.
        let is_elsewhere = !is_supervised && !address.ip().is_loopback();
        if self.login.is_none() || is_elsewhere {
            return Ok(Vec::new());
        }
        verify(address, self.owner).map_err(|source| match source {
            ListenerError::None => Failure::not_sent(source),
            ListenerError::Foreign(_) | ListenerError::Unknown(_) => Failure::OtherListener {
                source,
                is_supervised,
            },
        })
    }

    fn error(&self, request: &Request<'_>, failure: Failure) -> ClientError {
        ClientError {
            request: format!("{} {}", request.method, request.path),
            address: self.address.clone(),
            failure,
        }
    }
}

fn content_type_of(response: &Response<Incoming>) -> String {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    content_type
        .unwrap_or("content of an unknown type")
        .to_owned()
}

/// Returns the message in an error of the server: `{"name":...,"data":{"message":...}}`.
fn message_of(json: &Value) -> String {
    let texts = [&json["data"]["message"], &json["message"], &json["name"]];
    let text = texts.into_iter().find_map(Value::as_str);
    quoted(&text.map_or_else(|| json.to_string(), str::to_owned))
}

/// Returns the beginning of the first line of a text.
fn quoted(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let end = line.floor_char_boundary(QUOTED_BYTES_MAX);
    line.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tachikoma_core::error_chain;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// Starts a server that sends these bytes on one connection, and returns the result of a health request to it.
    async fn health(answer: String, password: Option<&str>) -> Result<Option<String>, ClientError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        let login = password.map(|password| Login {
            user: DEFAULT_USER.to_owned(),
            password: password.to_owned().into(),
        });
        let client = Client::new(Address::parse(&address).unwrap(), login, None);
        let health = client.health(Duration::from_secs(10)).await;
        server.await.unwrap();
        health
    }

    fn http(status: &str, content_type: &str, body: &str) -> String {
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }

    async fn shown(answer: String, password: Option<&str>) -> String {
        match health(answer, password).await {
            Ok(version) => format!("healthy {version:?}"),
            Err(error) => {
                let address = error.address.to_string();
                let kind = if error.is_absence() {
                    "absent"
                } else {
                    "wrong"
                };
                format!(
                    "{kind}: {}",
                    error_chain(&error).replace(&address, "[ADDRESS]")
                )
            }
        }
    }

    #[tokio::test]
    async fn health_request_explains_each_wrong_answer() {
        let json = "application/json";
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n10\r\n{\"healthy\":true}\r\n0\r\n\r\n";
        let lines = [
            shown(
                http("200 OK", json, r#"{"healthy":true,"version":"1.18.33"}"#),
                None,
            )
            .await,
            shown(chunked.to_owned(), None).await,
            shown(http("200 OK", json, r#"{"healthy":false}"#), None).await,
            shown(http("200 OK", json, r#"{"status":"ok"}"#), None).await,
            shown(http("200 OK", json, "[]"), None).await,
            shown(http("200 OK", "text/html", "<!doctype html>"), None).await,
            shown(http("200 OK", "", "  <html>"), None).await,
            shown(http("200 OK", "text/plain", "OK"), None).await,
            shown(http("302 Found", json, ""), None).await,
            shown(http("401 Unauthorized", json, ""), None).await,
            shown(http("401 Unauthorized", json, ""), Some("hunter2")).await,
            shown(http("404 Not Found", json, ""), None).await,
            shown(http("503 Service Unavailable", json, "busy"), None).await,
            shown("SSH-2.0-OpenSSH\r\n\r\n".to_owned(), None).await,
            shown(String::new(), None).await,
        ];
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[tokio::test]
    async fn answer_larger_than_the_limit_is_rejected() {
        let body = " ".repeat(BODY_BYTES_MAX + 1);
        let error = health(http("200 OK", "application/json", &body), None).await;
        assert!(matches!(error.unwrap_err().failure, Failure::TooLong));
    }

    #[tokio::test]
    async fn password_is_sent_only_to_the_server_process() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let login = Login {
            user: DEFAULT_USER.to_owned(),
            password: "hunter2".to_owned().into(),
        };
        // The process that listens is this one, not the other one or a child of it.
        let mut other = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = i32::try_from(other.id()).unwrap();
        let client = Client::new(Address::parse(&address).unwrap(), Some(login), Some(pid));
        let error = client.health(Duration::from_millis(500)).await.unwrap_err();
        other.kill().unwrap();
        other.wait().unwrap();
        if cfg!(target_os = "linux") {
            assert!(
                matches!(error.failure, Failure::OtherListener { .. }),
                "{error:?}"
            );
        }
    }
}
