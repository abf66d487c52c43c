//! A client of OpenCode's server: one request at a time, each on a connection of its own, bounded in time and size.
//!
//! A request on a connection that was kept may meet the moment at which the server dies or was restarted, and then nobody
//! knows whether it arrived; and a request that the server takes in its first second is never answered, nor are those
//! behind it on the same connection.

mod address;
mod stream;

pub use address::{Address, AddressError};
pub use stream::{EventStream, StreamEnd};

use std::time::Duration;

use reqwest::{Method, Response, StatusCode, header};
use serde_json::Value;

use tachikoma_config::Secret;
use tachikoma_process::{Owner, verify};

/// On one machine a connection is there at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A whole conversation's last message, or the list of all providers with their models: some megabytes.
const BODY_BYTES_MAX: usize = 32 << 20;

/// What is quoted of an answer that was not expected.
const QUOTED_BYTES_MAX: usize = 300;

/// The user that the server expects unless it is told otherwise.
pub const DEFAULT_USER: &str = "opencode";

/// Who we are to the server.
#[derive(Clone, Debug)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: Secret,
}

/// A server, and the directory that we work in there.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    address: Address,
    directory: String,
    login: Option<Login>,
    /// Which process may have the password.
    owner: Owner,
}

/// Why a request did not come to its answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answered, or not to the end.
    #[error("{what}: no answer from {address}")]
    NoAnswer {
        /// What was asked.
        what: String,
        /// Whom.
        address: Address,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// Another process listens there, or none: the password was not sent.
    #[error("{what}: {address}")]
    NotTheServer {
        /// What was asked.
        what: String,
        /// Whom.
        address: Address,
        /// Why nothing was sent.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Whether its supervisor starts it again, perhaps elsewhere.
        supervised: bool,
    },
    /// The password is missing or wrong.
    #[error("{what}: {address} wants {}", match given { true => "another password", false => "a password" })]
    Unauthorized {
        /// What was asked.
        what: String,
        /// Whom.
        address: Address,
        /// Whether one was given.
        given: bool,
    },
    /// The server refused.
    #[error("{what}: {address} answered {status}: {message}")]
    Refused {
        /// What was asked.
        what: String,
        /// Whom.
        address: Address,
        /// The status.
        status: StatusCode,
        /// What it said.
        message: String,
    },
    /// It is something else than what was asked for.
    #[error(
        "{what}: {address} answered with {answer}: this is not an OpenCode server, or one of another kind"
    )]
    NotOurs {
        /// What was asked.
        what: String,
        /// Whom.
        address: Address,
        /// What came.
        answer: String,
    },
    /// The answer is longer than is read.
    #[error("{what}: the answer of {address} is longer than {} MiB", BODY_BYTES_MAX >> 20)]
    TooLong {
        /// What was asked.
        what: String,
        /// Whom.
        address: Address,
    },
}

impl ClientError {
    /// Returns whether nobody knows what became of the request: it may have arrived.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::NoAnswer { source, .. } if !source.is_connect())
    }

    /// Returns whether the server is not there, or does not answer: it may come back.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        match self {
            Self::NoAnswer { .. } => true,
            Self::NotTheServer { supervised, .. } => *supervised,
            Self::Refused { status, .. } => *status == StatusCode::SERVICE_UNAVAILABLE,
            Self::Unauthorized { .. } | Self::NotOurs { .. } | Self::TooLong { .. } => false,
        }
    }

    /// Returns whether what was asked for is not there.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::NOT_FOUND)
    }
}

/// Which request, with what.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// How.
    pub method: Method,
    /// The path, with a slash at its beginning.
    pub path: &'a str,
    /// More of the query than the directory.
    pub query: &'a [(&'a str, &'a str)],
    /// What is sent.
    pub body: Option<&'a Value>,
    /// How long the whole may take.
    pub patience: Duration,
}

impl<'a> Request<'a> {
    /// Asks for something.
    #[must_use]
    pub fn get(path: &'a str, patience: Duration) -> Self {
        Self {
            method: Method::GET,
            path,
            query: &[],
            body: None,
            patience,
        }
    }

    /// Sends something.
    #[must_use]
    pub fn post(path: &'a str, body: Option<&'a Value>, patience: Duration) -> Self {
        Self {
            method: Method::POST,
            body,
            ..Self::get(path, patience)
        }
    }
}

impl Client {
    /// Returns a client for a directory of a server. `server` is the process that has to listen there, where that is known: the
    /// password is sent to no other.
    ///
    /// # Errors
    /// The library does not work here.
    pub fn new(
        address: Address,
        directory: String,
        login: Option<Login>,
        server: Option<i32>,
    ) -> Result<Self, reqwest::Error> {
        let http = tachikoma_cloud::plain_http(reqwest::Client::builder())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(0)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        Ok(Self {
            http,
            address,
            directory,
            login,
            owner: server.map_or(Owner::User, Owner::Server),
        })
    }

    /// Returns where the server is.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Asks, and returns the answer as JSON; null where there is nothing to say.
    ///
    /// # Errors
    /// There is no answer, or not the one that was asked for.
    pub async fn ask(&self, request: Request<'_>) -> Result<Value, ClientError> {
        let what = format!("{} {}", request.method, request.path);
        let patience = request.patience;
        let response = self.send(request, &what, Some(patience)).await?;
        let status = response.status();
        // Without the query, which may hold paths and texts.
        let path = what.split('?').next();
        tracing::debug!(
            request = path,
            status = status.as_u16(),
            "OpenCode answered"
        );
        let kind = kind_of(&response);
        let body = self.body(response, &what).await?;
        let json = serde_json::from_slice::<Value>(&body);
        if !status.is_success() {
            let message = match &json {
                Ok(json) => message_of(json),
                Err(_) => quoted(&body),
            };
            return Err(self.refused(what, status, message));
        }
        if body.is_empty() {
            return Ok(Value::Null);
        }
        json.map_err(|_| ClientError::NotOurs {
            what,
            address: self.address.clone(),
            answer: match kind.starts_with("text/html") {
                true => "a web page".to_owned(),
                false => format!("{kind} ({})", quoted(&body)),
            },
        })
    }

    /// Opens the stream of events of the directory.
    ///
    /// # Errors
    /// There is no answer, or no stream.
    pub async fn events(&self, patience: Duration) -> Result<EventStream, ClientError> {
        let what = "GET /event".to_owned();
        let request = Request::get("/event", patience);
        // Only its beginning is bounded in time: the stream itself goes on for as long as there is something to hear.
        let answered = tokio::time::timeout(patience, self.send(request, &what, None));
        let response = match answered.await {
            Ok(response) => response?,
            Err(_) => return Err(self.silent(what).await),
        };
        let kind = kind_of(&response);
        if !response.status().is_success() {
            let status = response.status();
            return Err(self.refused(what, status, kind));
        }
        if !kind.starts_with("text/event-stream") {
            return Err(ClientError::NotOurs {
                what,
                address: self.address.clone(),
                answer: kind,
            });
        }
        Ok(EventStream::new(response))
    }

    async fn send(
        &self,
        request: Request<'_>,
        what: &str,
        timeout: Option<Duration>,
    ) -> Result<Response, ClientError> {
        let url = self
            .address
            .url(request.path, &self.directory, request.query);
        let mut builder = self.http.request(request.method, url);
        if let Some(timeout) = timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(login) = &self.login {
            self.verify(what)?;
            builder = builder.basic_auth(&login.user, Some(login.password.expose()));
        }
        if let Some(body) = request.body {
            builder = builder
                .header(header::CONTENT_TYPE, "application/json")
                .body(body.to_string());
        }
        let response = builder
            .send()
            .await
            .map_err(|error| self.no_answer(what, error))?;
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(ClientError::Unauthorized {
                what: what.to_owned(),
                address: self.address.clone(),
                given: self.login.is_some(),
            });
        }
        Ok(response)
    }

    /// Checks which process listens there, right before a password is sent: a server that died leaves its port to anyone.
    fn verify(&self, what: &str) -> Result<(), ClientError> {
        let Some(address) = self.address.loopback() else {
            return Ok(());
        };
        let verified = verify(address, self.owner);
        verified
            .map(drop)
            .map_err(|source| ClientError::NotTheServer {
                what: what.to_owned(),
                address: self.address.clone(),
                source: source.into(),
                supervised: self.owner != Owner::User,
            })
    }

    async fn body(&self, mut response: Response, what: &str) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        loop {
            let chunk = response.chunk().await;
            let Some(chunk) = chunk.map_err(|error| self.no_answer(what, error))? else {
                return Ok(body);
            };
            if body.len() + chunk.len() > BODY_BYTES_MAX {
                return Err(ClientError::TooLong {
                    what: what.to_owned(),
                    address: self.address.clone(),
                });
            }
            body.extend_from_slice(&chunk);
        }
    }

    fn no_answer(&self, what: &str, source: reqwest::Error) -> ClientError {
        ClientError::NoAnswer {
            what: what.to_owned(),
            address: self.address.clone(),
            // The address is said already, and a query has nothing that anyone wants to read.
            source: source.without_url(),
        }
    }

    fn refused(&self, what: String, status: StatusCode, message: String) -> ClientError {
        ClientError::Refused {
            what,
            address: self.address.clone(),
            status,
            message,
        }
    }

    /// A stream that does not begin is an answer that did not come.
    async fn silent(&self, what: String) -> ClientError {
        let asked = self.ask(Request::get("/global/health", Duration::from_millis(500)));
        match asked.await {
            Err(error) => error,
            Ok(_) => ClientError::NotOurs {
                what,
                address: self.address.clone(),
                answer: "nothing at all".to_owned(),
            },
        }
    }
}

fn kind_of(response: &Response) -> String {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok());
    kind.unwrap_or("something of no known kind").to_owned()
}

/// What an error says: `{"name":...,"data":{"message":...}}`.
fn message_of(json: &Value) -> String {
    let message = json["data"]["message"].as_str();
    let name = json["name"].as_str();
    let words = message.or(json["message"].as_str()).or(name);
    let text = words.map_or_else(|| json.to_string(), str::to_owned);
    quoted(text.as_bytes())
}

fn quoted(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.trim().lines().next().unwrap_or_default();
    let end = line.floor_char_boundary(QUOTED_BYTES_MAX);
    line.get(..end).unwrap_or_default().to_owned()
}
