//! The server file: where a supervised server is and how it is, for whoever wants to use it. Written whole by its
//! supervisor and by nobody else; a lock beside it tells whether that one lives.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tachikoma_core::supervise::{ServerPhase, ServerState};
use tachikoma_core::{Generation, Timestamp};
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::{is_missing, safe_read};

use tachikoma_store::{StoreError, lock};

/// What the file is called.
pub const NAME: &str = "server.json";

/// A few hundred bytes; what someone else put there must not take all memory.
const BYTES_MAX: u64 = 64 << 10;

/// How a supervised server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// It is being started.
    Starting,
    /// It answers at its address.
    Ready,
    /// It is being ended, is gone and will be started again, or both.
    Restarting,
    /// It is down, and stays so until someone commands otherwise.
    Stopped,
    /// It is down because restarts do not help, and stays so until someone commands otherwise.
    GaveUp,
}

/// What a supervisor tells of its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFile {
    /// How it is.
    pub state: Condition,
    /// Where it answers; none unless it is ready.
    pub url: Option<String>,
    /// Its process, if there is one.
    pub pid: Option<i32>,
    /// The number of its start; rises with each.
    pub generation: u64,
    /// Why it is not ready.
    pub why: Option<String>,
    /// Until when at most: a restart comes then, a start has failed then.
    pub until: Option<Timestamp>,
    /// Its version, as it tells.
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
            why: Some("it was not started".to_owned()),
            until: None,
            version: None,
        }
    }
}

impl ServerFile {
    /// Reads the file in a supervisor's directory; none where there is none. What a dead supervisor wrote holds no more: its
    /// server is stopped.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
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
            why: Some("its supervisor is gone".to_owned()),
            ..Self::default()
        }))
    }

    /// Returns the generation that the file has, also one of a dead supervisor; 0 where there is none.
    pub fn last_generation(dir: &Path) -> Generation {
        let bytes = safe_read::read(&dir.join(NAME), BYTES_MAX).unwrap_or_default();
        let file = serde_json::from_slice::<Self>(&bytes).unwrap_or_default();
        Generation(file.generation)
    }

    /// Writes the file: whole or not at all.
    pub fn write(&self, dir: &Path) -> Result<(), StoreError> {
        let mut text = serde_json::to_vec(self).expect("plain data");
        text.push(b'\n');
        // Not synced: nothing is decided by it, and a machine that went down has no server.
        write_whole(&dir.join(NAME), &text, Durability::Lazy)?;
        Ok(())
    }
}

impl From<&ServerState> for ServerFile {
    fn from(state: &ServerState) -> Self {
        let last_end = || state.last_end.as_ref().map(ToString::to_string);
        let file = Self {
            state: Condition::Stopped,
            url: None,
            pid: state.phase.pid(),
            generation: state.generation.0,
            why: None,
            until: None,
            version: None,
        };
        match &state.phase {
            ServerPhase::Idle => Self {
                why: Some("its supervisor was told to stop".to_owned()),
                ..file
            },
            ServerPhase::Starting { until, .. } => Self {
                state: Condition::Starting,
                until: Some(*until),
                why: last_end(),
                ..file
            },
            ServerPhase::Ready { url, version, .. } => Self {
                state: Condition::Ready,
                url: Some(url.clone()),
                version: version.clone(),
                ..file
            },
            ServerPhase::Ending { purpose, .. } => {
                let end = tachikoma_core::supervise::ServerEnd::Ended {
                    purpose: purpose.clone(),
                };
                Self {
                    state: Condition::Restarting,
                    why: Some(end.to_string()),
                    ..file
                }
            }
            ServerPhase::Gone => Self {
                state: Condition::Restarting,
                why: last_end(),
                ..file
            },
            ServerPhase::Waiting { until } => Self {
                state: Condition::Restarting,
                until: Some(*until),
                why: last_end(),
                ..file
            },
            ServerPhase::Down { reason } => Self {
                why: Some(reason.to_string()),
                ..file
            },
            ServerPhase::GaveUp { why } => Self {
                state: Condition::GaveUp,
                why: Some(why.clone()),
                ..file
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_supervisor_wrote_holds_no_more() {
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
    fn a_file_that_makes_no_sense_is_an_error_and_not_a_server() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), "{\"state\":\"fine\"}").unwrap();
        let error = ServerFile::read(dir.path()).unwrap_err();
        assert!(error.to_string().starts_with("read "), "{error}");
    }
}
