//! The server file: address and state of a supervised server, for its clients. Only the supervisor writes it. The lock in the same
//! directory shows whether the supervisor is alive.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tachikoma_core::supervise::{ServerEnd, ServerPhase, ServerState};
use tachikoma_core::{Generation, Timestamp};
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::{is_missing, safe_read};

use tachikoma_store::{StoreError, lock};

/// Name of the server file.
pub const NAME: &str = "server.json";

/// Maximum size of the file in bytes. It has a few hundred, so a larger one is foreign.
const BYTES_MAX: u64 = 64 << 10;

/// The state of a supervised server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The server is being started.
    Starting,
    /// The server answers at its address.
    Ready,
    /// The server is being stopped, or is down and will be started again.
    Restarting,
    /// The server is down until a command starts it.
    Stopped,
    /// The server crashed too often. It is down until a command starts it.
    GaveUp,
}

/// Content of the server file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFile {
    /// State of the server.
    pub state: Condition,
    /// Address of the server; `None` unless it is ready.
    pub url: Option<String>,
    /// Process id of the server; `None` if it is not running.
    pub pid: Option<i32>,
    /// Number of starts of the server so far.
    pub generation: u64,
    /// Why the server is not ready; `None` if it is ready.
    pub why: Option<String>,
    /// Time of the next restart while the server is down, or the deadline of a start that is in progress; `None` otherwise.
    pub until: Option<Timestamp>,
    /// Version that the server reported; `None` before that.
    #[serde(default)]
    pub version: Option<String>,
}

impl Default for ServerFile {
    fn default() -> Self {
        Self {
            state: Condition::Stopped,
            url: None,
            pid: None,
            generation: 0,
            why: Some("the server was not started".to_owned()),
            until: None,
            version: None,
        }
    }
}

impl ServerFile {
    /// Reads the server file in a supervisor's directory; `None` if there is no file. If the supervisor is dead, the server counts
    /// as stopped.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn read(dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(NAME);
        let own = safe_read::open_own(&path);
        let bytes = match own.and_then(|file| safe_read::read_all(file, BYTES_MAX)) {
            Ok(bytes) => bytes,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(StoreError::io("read", &path)(error)),
        };
        let file: Self = serde_json::from_slice(&bytes)
            .map_err(|error| StoreError::io("read", &path)(error.into()))?;
        if file.state == Condition::Stopped || lock::is_held_in(dir) {
            return Ok(Some(file));
        }
        Ok(Some(Self {
            generation: file.generation,
            why: Some("the supervisor of the server is no longer running".to_owned()),
            ..Self::default()
        }))
    }

    /// Returns the number of starts in the file, even if its supervisor is dead; 0 if there is no file.
    pub fn last_generation(dir: &Path) -> Generation {
        let bytes = safe_read::read(&dir.join(NAME), BYTES_MAX).unwrap_or_default();
        let file = serde_json::from_slice::<Self>(&bytes).unwrap_or_default();
        Generation(file.generation)
    }

    /// Replaces the server file atomically.
    pub fn write(&self, dir: &Path) -> Result<(), StoreError> {
        let mut text = serde_json::to_vec(self).expect("plain data");
        text.push(b'\n');
        // The file is not synced: after a crash of the machine there is no server.
        write_whole(&dir.join(NAME), &text, Durability::Lazy)?;
        Ok(())
    }
}

impl From<&ServerState> for ServerFile {
    fn from(state: &ServerState) -> Self {
        let last_end = || state.last_end.as_ref().map(ToString::to_string);
        let (condition, why) = match &state.phase {
            ServerPhase::Idle => (
                Condition::Stopped,
                Some("the supervisor was stopped".to_owned()),
            ),
            ServerPhase::Starting { .. } => (Condition::Starting, last_end()),
            ServerPhase::Ready { .. } => (Condition::Ready, None),
            ServerPhase::Ending { purpose, .. } => {
                let purpose = purpose.clone();
                let end = ServerEnd::Ended { purpose };
                (Condition::Restarting, Some(end.to_string()))
            }
            ServerPhase::Gone | ServerPhase::Waiting { .. } => (Condition::Restarting, last_end()),
            ServerPhase::Down { reason } => (Condition::Stopped, Some(reason.to_string())),
            ServerPhase::GaveUp { why } => (Condition::GaveUp, Some(why.clone())),
        };
        let until = match &state.phase {
            ServerPhase::Starting { until, .. } | ServerPhase::Waiting { until } => Some(*until),
            _ => None,
        };
        let (url, version) = match &state.phase {
            ServerPhase::Ready { url, version, .. } => (Some(url.clone()), version.clone()),
            _ => (None, None),
        };
        Self {
            state: condition,
            url,
            pid: state.phase.pid(),
            generation: state.generation.0,
            why,
            until,
            version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_of_a_dead_supervisor_counts_as_stopped() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ServerFile::read(dir.path()).unwrap(), None);
        let file = ServerFile {
            state: Condition::Ready,
            url: Some("http://127.0.0.1:1".to_owned()),
            generation: 4,
            ..ServerFile::default()
        };
        file.write(dir.path()).unwrap();
        let read = || ServerFile::read(dir.path()).unwrap().unwrap();
        assert_eq!((read().state, read().url), (Condition::Stopped, None));
        assert_eq!(read().generation, 4);
        let held = lock::WorkLock::try_acquire(&dir.path().join("lock")).unwrap();
        assert!(held.is_some());
        assert_eq!(read(), file);
    }

    #[test]
    fn invalid_server_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), "{\"state\":\"fine\"}").unwrap();
        let error = ServerFile::read(dir.path()).unwrap_err();
        assert!(error.to_string().starts_with("read "), "{error}");
    }
}
