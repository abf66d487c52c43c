//! Uploads of backups: the last one that succeeded, and the failures since.

use serde::{Deserialize, Serialize};

use crate::{Incident, Timestamp};

/// State of the uploads of backups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploads {
    /// The last successful upload; `None` before the first.
    pub last: Option<UploadedBackup>,
    /// The failures since the last successful upload; `None` without one.
    pub failed: Option<UploadFailures>,
}

/// A backup that was uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadedBackup {
    /// File name of the backup.
    pub name: String,
    /// Size of the backup in bytes.
    pub bytes: u64,
    /// When the upload finished.
    pub time: Timestamp,
}

/// Failed uploads in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadFailures {
    /// Number of failed uploads since the last success.
    pub in_a_row: u32,
    /// Error of the last failed upload.
    pub error: String,
    /// When the last upload failed.
    pub time: Timestamp,
}

impl Uploads {
    pub(crate) fn take(&mut self, incident: &Incident, time: Timestamp) {
        match incident {
            Incident::CloudCopied { name, bytes } => {
                let (name, bytes) = (name.clone(), *bytes);
                self.last = Some(UploadedBackup { name, bytes, time });
                self.failed = None;
            }
            Incident::CloudFailed { error, .. } => {
                let before = self.failed.as_ref().map_or(0, |failed| failed.in_a_row);
                self.failed = Some(UploadFailures {
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
