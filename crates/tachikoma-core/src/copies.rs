//! How the copies of backups fare.

use serde::{Deserialize, Serialize};

use crate::incident::Incident;
use crate::time::Timestamp;

/// Whether copies arrive where they go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// The last that arrived.
    pub last: Option<Copied>,
    /// What went wrong since.
    pub failed: Option<CopyFailures>,
}

/// A backup that was copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// When.
    pub time: Timestamp,
}

/// Failures in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyFailures {
    /// How many.
    pub in_a_row: u32,
    /// Why, the last time.
    pub error: String,
    /// When that was.
    pub time: Timestamp,
}

impl Copies {
    pub(crate) fn take(&mut self, incident: &Incident, time: Timestamp) {
        match incident {
            Incident::CloudCopied { name, bytes } => {
                let (name, bytes) = (name.clone(), *bytes);
                self.last = Some(Copied { name, bytes, time });
                self.failed = None;
            }
            Incident::CloudFailed { error, .. } => {
                let before = self.failed.as_ref().map_or(0, |failed| failed.in_a_row);
                self.failed = Some(CopyFailures {
                    in_a_row: before.saturating_add(1),
                    error: error.clone(),
                    time,
                });
            }
            Incident::NotifyFailed { .. } | Incident::AccessRefused { .. } => {}
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
