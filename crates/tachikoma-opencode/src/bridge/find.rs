//! Finds the server and waits until it answers.

use std::path::Path;
use std::time::{Duration, Instant};

use tachikoma_agents::opencode::{Order, Own};
use tokio::io::AsyncWrite;

use super::{Bridge, End, Server};
use crate::client::{Address, Client, Login};
use crate::login_file;
use crate::server_file::{Condition, ServerFile};
use tachikoma_core::error_chain as chain;
use tachikoma_runtime::clock::monotonic;

/// Timeout of a health request. A starting server never answers requests of its first second, so the next request has to follow soon.
pub(super) const HEALTH_TIMEOUT: Duration = Duration::from_millis(500);

/// Time between two attempts to find the server.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Time between two reports that the bridge is waiting, so that the runner does not consider it silent.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// How long the bridge waits for a server that is not supervised, so that the user can restart it.
const ATTACHED_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the bridge waits for the server file. A new supervisor writes it at its start, and restores a deleted one with its
/// next health request.
const SUPERVISOR_TIMEOUT: Duration = Duration::from_secs(15);

/// How long the bridge waits for a supervisor to notice that its server does not answer.
const UNREADY_TIMEOUT: Duration = Duration::from_secs(60);

/// A server that answered a health request.
pub(super) struct Found {
    pub client: Client,
    pub version: Option<String>,
}

/// Why no server was found.
enum Absent {
    /// The server may appear later.
    Later(String, Absence),
    /// The server will not appear, so waiting does not help.
    Never(String),
}

/// Why a server that may appear later does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    /// A server that is not supervised does not answer.
    Attached,
    /// The supervisor has not written the server file yet.
    NoFile,
    /// The server file says that the server was stopped. An earlier supervisor may have written it.
    Stopped,
    /// The supervisor is starting the server.
    Coming,
    /// The server file says that the server is ready, but it does not answer.
    Unready,
}

impl Absence {
    /// Returns how long the bridge waits in this case; `None` if the supervisor decides.
    fn timeout(self) -> Option<Duration> {
        match self {
            Self::Attached => Some(ATTACHED_TIMEOUT),
            Self::NoFile | Self::Stopped => Some(SUPERVISOR_TIMEOUT),
            Self::Unready => Some(UNREADY_TIMEOUT),
            Self::Coming => None,
        }
    }
}

/// Since when the server has been absent for the same reason; `None` before the first attempt.
#[derive(Debug, Default)]
struct Wait(Option<(Absence, Instant)>);

impl Wait {
    /// Updates the reason. Returns whether the time limit for this reason has passed.
    fn is_over(&mut self, absence: Absence, now: Instant) -> bool {
        let since = match self.0 {
            Some((before, since)) if before == absence => since,
            Some(_) | None => now,
        };
        self.0 = Some((absence, since));
        let waited = now.saturating_duration_since(since);
        absence.timeout().is_some_and(|timeout| waited > timeout)
    }
}

impl<O: AsyncWrite + Unpin> Bridge<O> {
    /// Waits until a server answers, and returns it.
    pub(super) async fn find(&mut self) -> Result<Found, End> {
        let mut wait = Wait::default();
        let mut reported = monotonic();
        loop {
            let absent = match self.options.server.clone() {
                Server::At(text) => {
                    let login = self.options.login.clone();
                    self.at(&text, login, None, Absence::Attached).await
                }
                Server::Supervised(dir) => self.supervised(&dir).await,
            };
            let (why, absence) = match absent {
                Ok(found) => {
                    tracing::info!(version = found.version.as_deref(), "connected to OpenCode");
                    return Ok(found);
                }
                Err(Absent::Never(why)) => return Err(End::GaveUp(why)),
                Err(Absent::Later(why, absence)) => (why, absence),
            };
            if wait.is_over(absence, monotonic()) {
                return Err(End::GaveUp(why));
            }
            if reported.elapsed() > REPORT_INTERVAL {
                reported = monotonic();
                self.report(&Own::Waiting { why }).await?;
            }
            self.pause(POLL_INTERVAL).await?;
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
                "{address} is not on this machine, and without a password any user there could control the agent: set \
                 OPENCODE_SERVER_PASSWORD, there and here"
            )));
        }
        let directory = self.options.directory.to_string_lossy().into_owned();
        let client = Client::new(address, login, server).in_directory(directory);
        match client.health(HEALTH_TIMEOUT).await {
            Ok(version) => Ok(Found { client, version }),
            Err(error) if error.is_absence() => Err(Absent::Later(chain(&error), absence)),
            Err(error) => Err(never(&error)),
        }
    }

    async fn supervised(&self, dir: &Path) -> Result<Found, Absent> {
        let later = |why: &str| Absent::Later(why.to_owned(), Absence::NoFile);
        let file = match ServerFile::read(dir) {
            Ok(Some(file)) => file,
            Ok(None) => return Err(later("the supervisor has not written the server file yet")),
            Err(error) => return Err(later(&chain(&error))),
        };
        let cause = file.why.as_ref().map(|why| format!(": {why}"));
        let cause = cause.unwrap_or_default();
        let why = file.why.unwrap_or_default();
        match (file.state, file.url) {
            (Condition::Ready, Some(url)) => {
                // If there is no login file, the password is the one that the user configured.
                let kept = login_file::read(dir).map_err(|error| later(&chain(&error)))?;
                let login = kept.or_else(|| self.options.login.clone());
                self.at(&url, login, file.pid, Absence::Unready).await
            }
            (Condition::Ready | Condition::Starting, _) => {
                let why = format!("the server is being started{cause}");
                Err(Absent::Later(why, Absence::Coming))
            }
            (Condition::Restarting, _) => {
                let when = file.until.map(|until| format!(" at {until}"));
                let why = format!("the server is restarted{}{cause}", when.unwrap_or_default());
                Err(Absent::Later(why, Absence::Coming))
            }
            (Condition::Stopped, _) => Err(Absent::Later(why, Absence::Stopped)),
            (Condition::GaveUp, _) => Err(Absent::Never(why)),
        }
    }

    /// Waits for `time` and reads orders meanwhile.
    pub(super) async fn pause(&mut self, time: Duration) -> Result<(), End> {
        let until = tokio::time::Instant::from_std(monotonic() + time);
        loop {
            let order = tokio::select! {
                () = tokio::time::sleep_until(until) => return Ok(()),
                order = self.orders.recv() => order,
            };
            match order {
                None => return Err(End::InputEnded),
                Some(Order::Interrupt) => self.cancel_waiting().await?,
                Some(order) => self.waiting.push_back(order),
            }
        }
    }

    /// Drops the prompts that wait for a server. If there were any, reports one interrupted turn.
    async fn cancel_waiting(&mut self) -> Result<(), End> {
        let before = self.waiting.len();
        self.waiting
            .retain(|order| !matches!(order, Order::Prompt { .. } | Order::Aside { .. }));
        if self.waiting.len() == before {
            return Ok(());
        }
        let message = "interrupted before the server received the prompt".to_owned();
        self.report(&Own::Failed {
            message,
            lost: false,
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridge_has_a_separate_timeout_for_each_reason_why_the_server_is_absent() {
        let start = monotonic();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut wait = Wait::default();
        for (second, absence, over) in [
            (0, Absence::Coming, false),
            // While the supervisor starts the server, the bridge waits without a time limit.
            (600, Absence::Coming, false),
            (601, Absence::Unready, false),
            (661, Absence::Unready, false),
            (662, Absence::Unready, true),
            (663, Absence::Stopped, false),
            (668, Absence::Stopped, false),
            (669, Absence::Coming, false),
            (670, Absence::Stopped, false),
            (686, Absence::Stopped, true),
            (687, Absence::NoFile, false),
            (703, Absence::NoFile, true),
        ] {
            assert_eq!(wait.is_over(absence, at(second)), over, "{second} s");
        }
    }
}
