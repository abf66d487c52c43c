//! Finding the server: where it is, whether it is one, and whether it is worth waiting for.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tachikoma_agents::opencode::{Order, Own};
use tokio::io::AsyncWrite;

use super::{Bridge, End, Server};
use crate::clock::monotonic;
use crate::error::chain;
use crate::opencode::client::{Address, Client, ClientError, Request};
use crate::opencode::server_file::{Condition, ServerFile};

/// How long a server may take to say that it is well. A request that comes in its first second is never answered.
const HEALTH_PATIENCE: Duration = Duration::from_millis(500);

/// How often a server that is not there is looked for.
const POLL: Duration = Duration::from_millis(25);

/// How often the runner is told that we wait, so that nobody takes it for silence.
const SAY: Duration = Duration::from_secs(5);

/// Who restarts a server by hand does it in this time.
const ATTACHED_PATIENCE: Duration = Duration::from_secs(60);

/// A supervisor that was just started has said something by then, and one whose files were deleted has made them anew: it notices
/// when it next asks for the server's health.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(15);

/// A server that is said to be ready and does not answer is noticed by its supervisor in this time.
const UNREADY_PATIENCE: Duration = Duration::from_secs(60);

/// A server that answers.
pub(super) struct Found {
    pub client: Client,
    pub version: Option<String>,
}

/// Why there is none.
enum Absent {
    /// It may come by itself, if not for longer than this.
    Later(String, Option<Duration>),
    /// It will not.
    Never(String),
}

impl<O: AsyncWrite + Unpin> Bridge<O> {
    /// Waits for a server that answers.
    pub(super) async fn find(&mut self) -> Result<Found, End> {
        let began = monotonic();
        let mut said = began;
        loop {
            let absent = match self.options.server.clone() {
                Server::At(text) => self.at(&text, ATTACHED_PATIENCE).await,
                Server::Supervised(dir) => self.supervised(&dir).await,
            };
            let (why, patience) = match absent {
                Ok(found) => return Ok(found),
                Err(Absent::Never(why)) => return Err(End::GaveUp(why)),
                Err(Absent::Later(why, patience)) => (why, patience),
            };
            if patience.is_some_and(|patience| began.elapsed() > patience) {
                return Err(End::GaveUp(why));
            }
            if said.elapsed() > SAY {
                said = monotonic();
                self.say(&Own::Waiting { why }).await?;
            }
            self.pause(POLL).await?;
        }
    }

    async fn at(&self, text: &str, patience: Duration) -> Result<Found, Absent> {
        let never = |error: &dyn std::error::Error| Absent::Never(chain(error));
        let address = Address::parse(text).map_err(|error| never(&error))?;
        let login = self.options.login.clone();
        if !address.is_loopback() && login.is_none() {
            return Err(Absent::Never(format!(
                "{address} is not on this machine, and without a password anyone there could give orders: set \
                 OPENCODE_SERVER_PASSWORD, there and here"
            )));
        }
        let directory = self.options.directory.to_string_lossy().into_owned();
        let client = Client::new(address, directory, login).map_err(|error| never(&error))?;
        match health(&client).await {
            Ok(version) => Ok(Found { client, version }),
            Err(error) if error.is_absence() => Err(Absent::Later(chain(&error), Some(patience))),
            Err(error @ ClientError::Unauthorized { .. }) => {
                let why = chain(&error);
                Err(Absent::Never(format!(
                    "{why}: set OPENCODE_SERVER_PASSWORD"
                )))
            }
            Err(error) => Err(never(&error)),
        }
    }

    async fn supervised(&self, dir: &Path) -> Result<Found, Absent> {
        let later = |why: &str| Absent::Later(why.to_owned(), Some(SUPERVISOR_PATIENCE));
        let file = match ServerFile::read(dir) {
            Ok(Some(file)) => file,
            Ok(None) => return Err(later("its supervisor has not said anything yet")),
            Err(error) => return Err(later(&chain(&error))),
        };
        let why = file.why.unwrap_or_default();
        match (file.state, file.url) {
            (Condition::Ready, Some(url)) => self.at(&url, UNREADY_PATIENCE).await,
            (Condition::Ready | Condition::Starting, _) => {
                Err(Absent::Later(format!("it is being started: {why}"), None))
            }
            (Condition::Restarting, _) => {
                Err(Absent::Later(format!("it is restarted: {why}"), None))
            }
            // That may be of an earlier supervisor.
            (Condition::Stopped, _) => Err(later(&why)),
            (Condition::GaveUp, _) => Err(Absent::Never(why)),
        }
    }

    /// Waits a little, and takes orders meanwhile.
    pub(super) async fn pause(&mut self, time: Duration) -> Result<(), End> {
        let until = tokio::time::Instant::from_std(monotonic() + time);
        loop {
            let order = tokio::select! {
                () = tokio::time::sleep_until(until) => return Ok(()),
                order = self.orders.recv() => order,
            };
            match order {
                None => return Err(End::InputEnded),
                Some(Order::Interrupt) => self.call_off().await?,
                Some(order) => self.waiting.push_back(order),
            }
        }
    }

    /// A turn that has not begun is over when it is interrupted.
    async fn call_off(&mut self) -> Result<(), End> {
        let before = self.waiting.len();
        self.waiting
            .retain(|order| !matches!(order, Order::Prompt { .. } | Order::Aside { .. }));
        if self.waiting.len() == before {
            return Ok(());
        }
        let message = "interrupted before the server had the prompt".to_owned();
        self.say(&Own::Failed {
            message,
            lost: false,
        })
        .await
    }
}

/// Asks a server whether it is one and well, and returns its version.
pub(super) async fn health(client: &Client) -> Result<Option<String>, ClientError> {
    let path = "/global/health";
    let answer = client.ask(Request::get(path, HEALTH_PATIENCE)).await?;
    // Any path answers with a page for people; only the body tells.
    if answer["healthy"] == true {
        return Ok(answer["version"].as_str().map(str::to_owned));
    }
    let answer = match answer {
        Value::Object(_) => format!("JSON ({answer})"),
        other => format!("{other}"),
    };
    let end = answer.floor_char_boundary(200);
    Err(ClientError::NotOurs {
        what: format!("GET {path}"),
        address: client.address().clone(),
        answer: answer.get(..end).unwrap_or_default().to_owned(),
    })
}
