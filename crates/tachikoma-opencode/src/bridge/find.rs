//! Finding the server: where it is, whether it is one, and whether it is worth waiting for.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tachikoma_agents::opencode::{Order, Own};
use tokio::io::AsyncWrite;

use super::{Bridge, End, Server};
use crate::client::{Address, Client, ClientError, Login, Request};
use crate::login_file;
use crate::server_file::{Condition, ServerFile};
use tachikoma_core::error_chain as chain;
use tachikoma_runtime::clock::monotonic;

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
    /// It may come by itself.
    Later(String, Absence),
    /// It will not.
    Never(String),
}

/// What is the matter with a server that may come by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    /// One that someone else runs does not answer.
    Attached,
    /// Its supervisor says nothing.
    Unsaid,
    /// Its supervisor says that it was stopped, which may be of an earlier supervisor.
    Stopped,
    /// Its supervisor sees to it.
    Coming,
    /// It is said to be ready, and does not answer.
    Unready,
}

impl Absence {
    /// How long it is waited for.
    fn patience(self) -> Option<Duration> {
        match self {
            Self::Attached => Some(ATTACHED_PATIENCE),
            Self::Unsaid | Self::Stopped => Some(SUPERVISOR_PATIENCE),
            Self::Unready => Some(UNREADY_PATIENCE),
            // Its supervisor gives up.
            Self::Coming => None,
        }
    }
}

/// Since when a server is absent in the same way.
#[derive(Debug, Default)]
struct Wait(Option<(Absence, Instant)>);

impl Wait {
    /// Takes how a server is absent now, and returns whether that has been so for too long.
    fn is_over(&mut self, absence: Absence, now: Instant) -> bool {
        let since = match self.0 {
            Some((before, since)) if before == absence => since,
            Some(_) | None => now,
        };
        self.0 = Some((absence, since));
        let waited = now.saturating_duration_since(since);
        absence.patience().is_some_and(|patience| waited > patience)
    }
}

impl<O: AsyncWrite + Unpin> Bridge<O> {
    /// Waits for a server that answers.
    pub(super) async fn find(&mut self) -> Result<Found, End> {
        let mut wait = Wait::default();
        let mut said = monotonic();
        loop {
            let absent = match self.options.server.clone() {
                Server::At(text) => {
                    let login = self.options.login.clone();
                    self.at(&text, login, None, Absence::Attached).await
                }
                Server::Supervised(dir) => self.supervised(&dir).await,
            };
            let (why, absence) = match absent {
                Ok(found) => return Ok(found),
                Err(Absent::Never(why)) => return Err(End::GaveUp(why)),
                Err(Absent::Later(why, absence)) => (why, absence),
            };
            if wait.is_over(absence, monotonic()) {
                return Err(End::GaveUp(why));
            }
            if said.elapsed() > SAY {
                said = monotonic();
                self.say(&Own::Waiting { why }).await?;
            }
            self.pause(POLL).await?;
        }
    }

    async fn at(
        &self,
        text: &str,
        login: Option<Login>,
        server: Option<i32>,
        absence: Absence,
    ) -> Result<Found, Absent> {
        let never = |error: &dyn std::error::Error| Absent::Never(chain(error));
        let address = Address::parse(text).map_err(|error| never(&error))?;
        if !address.is_loopback() && login.is_none() {
            return Err(Absent::Never(format!(
                "{address} is not on this machine, and without a password anyone there could give orders: set \
                 OPENCODE_SERVER_PASSWORD, there and here"
            )));
        }
        let directory = self.options.directory.to_string_lossy().into_owned();
        let client =
            Client::new(address, directory, login, server).map_err(|error| never(&error))?;
        match health(&client).await {
            Ok(version) => Ok(Found { client, version }),
            Err(error) if error.is_absence() => Err(Absent::Later(chain(&error), absence)),
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
        let later = |why: &str| Absent::Later(why.to_owned(), Absence::Unsaid);
        let file = match ServerFile::read(dir) {
            Ok(Some(file)) => file,
            Ok(None) => return Err(later("its supervisor has not said anything yet")),
            Err(error) => return Err(later(&chain(&error))),
        };
        let why = file.why.unwrap_or_default();
        match (file.state, file.url) {
            (Condition::Ready, Some(url)) => {
                // Without a file the password is the user's own.
                let kept = login_file::read(dir).map_err(|error| later(&chain(&error)))?;
                let login = kept.or_else(|| self.options.login.clone());
                self.at(&url, login, file.pid, Absence::Unready).await
            }
            (Condition::Ready | Condition::Starting, _) => {
                let why = format!("it is being started: {why}");
                Err(Absent::Later(why, Absence::Coming))
            }
            (Condition::Restarting, _) => {
                let when = file.until.map(|until| format!(" at {until}"));
                let why = format!("it is restarted{}: {why}", when.unwrap_or_default());
                Err(Absent::Later(why, Absence::Coming))
            }
            (Condition::Stopped, _) => Err(Absent::Later(why, Absence::Stopped)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_absence_has_its_patience_from_its_own_beginning() {
        let start = monotonic();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut wait = Wait::default();
        for (second, absence, over) in [
            (0, Absence::Coming, false),
            // However long its supervisor sees to it.
            (600, Absence::Coming, false),
            (601, Absence::Unready, false),
            (661, Absence::Unready, false),
            (662, Absence::Unready, true),
            (663, Absence::Stopped, false),
            (668, Absence::Stopped, false),
            (669, Absence::Coming, false),
            (670, Absence::Stopped, false),
            (686, Absence::Stopped, true),
            (687, Absence::Unsaid, false),
            (703, Absence::Unsaid, true),
        ] {
            assert_eq!(wait.is_over(absence, at(second)), over, "{second} s");
        }
    }
}
