//! `.ralph/state.json`: the state of a loop in one file, for users, other tools and a quick start. The journal is the source of
//! truth, and a snapshot names its last record.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tachikoma_core::policy::stop::conditions_for;
use tachikoma_core::{
    LoopId, LoopState, Objectives, ObjectivesSeen, PastSession, PromptSource, Seq, State, Timestamp,
};
use tachikoma_fs::atomic_file::FileMark;
use tachikoma_fs::{is_missing, safe_read};

use tachikoma_fs::relative_to;

use super::encryption::Encryption;
use super::migrate::{self, Chain};
use super::{StoreError, compressed, is_damage};
pub use tachikoma_fs::atomic_file::Durability;

mod form;

pub use form::{Packing, all_places, older_versions, older_versions_of, place};

/// Format version of the snapshot that this program writes, and the newest one that it reads.
pub const VERSION: u32 = migrate::SNAPSHOT.latest();

/// Maximum size of a snapshot in bytes, so that a foreign file cannot use up the memory. All parts of a snapshot are bounded.
pub const BYTES_MAX: u64 = 64 << 20;

/// Text in place of the checksum while the checksum is computed.
const NO_CHECKSUM: &str = "00000000";

/// The content of `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Format version of the file.
    pub version: u32,
    /// CRC-32C of the file, computed with zeros in place of the checksum.
    pub checksum: String,
    /// Number of the last record in the snapshot.
    pub seq: Seq,
    /// When the snapshot was written.
    pub saved_at: Timestamp,
    /// Id of the loop.
    pub loop_id: LoopId,
    /// General data of the loop.
    pub core: Core,
    /// The current session of the loop.
    pub session: Session,
    /// Progress of the work of the agent.
    pub progress: Progress,
    /// Results of the last test run.
    pub tests: Tests,
    /// Progress of the stop conditions.
    pub stop_conditions: StopConditions,
    /// Counters of the loop.
    pub metrics: Metrics,
    /// Values that hooks and the operator set, by key.
    pub custom: BTreeMap<String, serde_json::Value>,
    /// The full state, from which the loop continues.
    pub state: State,
}

/// General data of a loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// State of the loop as `status` shows it.
    pub status: LoopState,
    /// Number of the iteration that was started last.
    pub iteration: u32,
    /// When the loop was first started; `None` before that.
    pub started: Option<Timestamp>,
    /// Time of the last record.
    pub last_activity: Timestamp,
    /// Working directory of the loop.
    pub working_dir: PathBuf,
    /// Path of the prompt of the loop; `None` if the prompt was given as text.
    pub prompt_path: Option<String>,
    /// Hash of the settings that the loop was started with.
    pub config_hash: String,
}

/// The session of a loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The agent's session id; `None` if it has none.
    pub current_id: Option<String>,
    /// When the session began; `None` before the first session.
    pub started: Option<Timestamp>,
    /// Number of finished iterations of this session.
    pub iterations: u32,
    /// Context usage in percent; `None` before the first reading.
    pub context_usage: Option<u8>,
    /// The earlier sessions, oldest first.
    pub history: Vec<PastSession>,
}

/// Progress of the work of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of consecutive iterations without progress.
    pub iterations_since_progress: u32,
    /// Number of the last iteration with progress; `None` if there was none.
    pub last_progress_iteration: Option<u32>,
    /// The latest progress scores, from 0 to 100, oldest first.
    pub recent_scores: Vec<u32>,
    /// Files that the loop changed recently, relative to the working directory.
    pub modified_files: Vec<String>,
    /// The first completed objectives of the objectives file.
    pub completed_objectives: Vec<String>,
    /// The first open objectives of the objectives file.
    pub pending_objectives: Vec<String>,
}

/// Results of the last test run. Each list has only its first tests, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tests {
    /// Number of consecutive failed test runs.
    pub failure_streak: u32,
    /// Names of passing tests.
    pub passing: Vec<String>,
    /// Names of failing tests.
    pub failing: Vec<String>,
    /// Names of tests that sometimes pass and sometimes fail.
    pub flaky: Vec<String>,
    /// Names of tests that failed before and pass again.
    pub recently_fixed: Vec<String>,
}

impl Progress {
    fn of(state: &State, working_dir: &Path) -> Self {
        let known = &state.progress;
        let reported = state.checkpoint.files.iter().chain(&state.session.files);
        let reported = reported.map(|file| relative_to(working_dir, Path::new(file)));
        let mut modified_files: Vec<String> = Vec::new();
        for file in reported.chain(known.files.iter().cloned()) {
            if !modified_files.contains(&file) {
                modified_files.push(file);
            }
        }
        let objectives = match &state.completion.objectives {
            Some(ObjectivesSeen::Read { objectives }) => objectives.clone(),
            Some(ObjectivesSeen::Unknown { .. }) | None => Objectives::default(),
        };
        Self {
            iterations_since_progress: state.stats.no_progress_count,
            last_progress_iteration: known.last,
            recent_scores: known.recent.iter().map(|score| score.score).collect(),
            modified_files,
            completed_objectives: objectives.done,
            pending_objectives: objectives.open,
        }
    }
}

impl Tests {
    fn of(state: &State) -> Self {
        let latest = state.progress.tests.clone().unwrap_or_default();
        Self {
            failure_streak: state.stats.test_failure_streak,
            passing: latest.passing,
            failing: latest.failing,
            flaky: latest.flaky,
            recently_fixed: state
                .progress
                .fixed
                .iter()
                .map(|test| test.name.clone())
                .collect(),
        }
    }
}

/// Progress of the stop conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopConditions {
    /// Progress of each stop condition in percent, by the name of the condition.
    pub progress: BTreeMap<String, u8>,
    /// Result of the last check of the stop conditions, as text; `None` before the first one.
    pub last_evaluation: Option<String>,
}

impl StopConditions {
    fn of(state: &State) -> Self {
        let conditions = conditions_for(&state.limits, state, state.time);
        let texts: Vec<&str> = conditions.iter().map(|row| row.words.as_str()).collect();
        Self {
            last_evaluation: (!texts.is_empty()).then(|| texts.join("; ")),
            progress: conditions
                .iter()
                .map(|row| (row.name.to_owned(), row.percent))
                .collect(),
        }
    }
}

/// Counters of the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// Number of finished iterations.
    pub total_iterations: u64,
    /// Number of successful iterations.
    pub successful_iterations: u64,
    /// Number of failed iterations.
    pub failed_iterations: u64,
    /// Number of reboots.
    pub reboots: u64,
    /// Time spent in iterations, in milliseconds.
    pub execution_ms: u64,
}

impl Snapshot {
    /// Builds the snapshot of a state.
    #[must_use]
    pub fn of(state: &State, working_dir: &Path, saved_at: Timestamp) -> Self {
        let stats = &state.stats;
        Self {
            version: VERSION,
            checksum: NO_CHECKSUM.to_owned(),
            seq: state.seq,
            saved_at,
            loop_id: state.loop_id,
            core: Core {
                status: state.public(),
                iteration: state.iteration,
                started: state.started_at,
                last_activity: state.time,
                working_dir: working_dir.to_owned(),
                prompt_path: match &state.launch.prompt {
                    PromptSource::File { path } => Some(path.clone()),
                    PromptSource::Text { .. } => None,
                },
                config_hash: state.launch.config_hash.clone(),
            },
            session: Session {
                current_id: state.session.agent_id.clone(),
                started: state.session.started,
                iterations: state.session.iterations,
                context_usage: state
                    .session
                    .context
                    .map(|context| whole(context.percent())),
                history: state.history.clone(),
            },
            progress: Progress::of(state, working_dir),
            tests: Tests::of(state),
            stop_conditions: StopConditions::of(state),
            metrics: Metrics {
                total_iterations: stats.iterations.into(),
                successful_iterations: stats.successful.into(),
                failed_iterations: stats.failed.into(),
                reboots: stats.reboots.into(),
                execution_ms: stats.execution_ms,
            },
            custom: state.custom.clone(),
            state: state.clone(),
        }
    }

    /// Replaces the snapshot file atomically, without following symbolic links. Files of the snapshot in other forms are removed.
    /// Returns the identity of the new file.
    ///
    /// # Errors
    /// The snapshot cannot be written. The existing file is unchanged.
    pub fn write(
        &self,
        path: &Path,
        packing: Packing,
        durability: Durability,
        encryption: &Encryption,
    ) -> Result<FileMark, StoreError> {
        let begun = tachikoma_runtime::clock::monotonic();
        let path_of = packing.path(path, encryption);
        let bytes = packing.pack(self.encode().into_bytes());
        let mark = encryption.write(&path_of, &bytes, durability)?;
        form::remove_other(path, packing, encryption)?;
        tracing::debug!(bytes = bytes.len(), elapsed = ?begun.elapsed(), "snapshot written");
        Ok(mark)
    }

    /// Returns the JSON text of the snapshot with its checksum.
    #[must_use]
    pub fn encode(&self) -> String {
        let blank = Self {
            checksum: NO_CHECKSUM.to_owned(),
            ..self.clone()
        };
        let mut text = serde_json::to_string_pretty(&blank).expect("a snapshot is plain data");
        text.push('\n');
        let crc = crc32c::crc32c(text.as_bytes());
        text.replacen(NO_CHECKSUM, &format!("{crc:08x}"), 1)
    }
}

/// Reads a snapshot in any form; `None` if there is no file.
///
/// # Errors
/// The snapshot cannot be read, is damaged, or was written by a newer version.
pub fn read(path: &Path, encryption: &Encryption) -> Result<Option<Snapshot>, StoreError> {
    read_as(migrate::SNAPSHOT, path, encryption)
}

/// Reads a snapshot of any supported version. The field `version` has the version of the file.
pub fn read_as(
    formats: Chain,
    path: &Path,
    encryption: &Encryption,
) -> Result<Option<Snapshot>, StoreError> {
    read_at(formats, &place(path, encryption), encryption)
}

/// Reads the snapshot at exactly this path, without looking for files in other forms.
fn read_at(
    formats: Chain,
    path: &Path,
    encryption: &Encryption,
) -> Result<Option<Snapshot>, StoreError> {
    let text = match content(path, encryption) {
        Ok(text) => text,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) if is_damage(&error) => return Err(damaged(path, error.to_string())),
        Err(error) => return Err(StoreError::io("read", path)(error)),
    };
    decode(formats, path, &text).map(Some)
}

/// Parses a snapshot. `path` is used in errors.
pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Snapshot, StoreError> {
    decode(migrate::SNAPSHOT, path, bytes)
}

/// Reads the text of a snapshot without checking it.
pub fn bytes(path: &Path, encryption: &Encryption) -> Result<Vec<u8>, StoreError> {
    let path = &place(path, encryption);
    content(path, encryption).map_err(StoreError::io("read", path))
}

/// Reads the decrypted and decompressed text of a file.
fn content(path: &Path, encryption: &Encryption) -> std::io::Result<Vec<u8>> {
    let content = compressed::content_of(safe_read::open(path)?, encryption)?;
    safe_read::read_all(content, BYTES_MAX)
}

/// Returns whether a file is a snapshot of any version: it must have a correct checksum.
pub fn is_ours(path: &Path, encryption: &Encryption) -> bool {
    let bytes = content(path, encryption).unwrap_or_default();
    let text = std::str::from_utf8(&bytes);
    text.is_ok_and(|text| version_of(text).is_ok() && check(text).is_ok())
}

fn decode(formats: Chain, path: &Path, bytes: &[u8]) -> Result<Snapshot, StoreError> {
    let damaged = |what| damaged(path, what);
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not UTF-8".to_owned()))?;
    let version = version_of(text).map_err(damaged)?;
    if version > formats.latest() {
        return Err(StoreError::NewerSnapshot {
            path: path.to_owned(),
            found: version,
            supported: formats.latest(),
        });
    }
    check(text).map_err(damaged)?;
    let shapeless = |error: serde_json::Error| damaged(error.to_string());
    if version == formats.latest() {
        return serde_json::from_str(text).map_err(shapeless);
    }
    let value = serde_json::from_str(text).map_err(shapeless)?;
    let value = formats.upgrade(version, value).map_err(damaged)?;
    serde_json::from_value(value).map_err(shapeless)
}

fn damaged(path: &Path, what: String) -> StoreError {
    let path = path.to_owned();
    StoreError::DamagedSnapshot { path, what }
}

fn version_of(text: &str) -> Result<u32, String> {
    // Another version may have written different white space.
    let rest = text.trim_start().strip_prefix('{').map(str::trim_start);
    let rest = rest.and_then(|rest| rest.strip_prefix("\"version\""));
    let rest = rest.and_then(|rest| rest.trim_start().strip_prefix(':'));
    let rest = rest
        .map(str::trim_start)
        .ok_or("it does not begin with its version")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .map_or(rest, |end| &rest[..end]);
    digits
        .parse()
        .map_err(|_| "its version is not a number".to_owned())
}

/// Checks the checksum of the text.
fn check(text: &str) -> Result<(), String> {
    let mark = "\"checksum\": \"";
    let at = text.find(mark).ok_or("it has no checksum")? + mark.len();
    let found = text.get(at..at + NO_CHECKSUM.len());
    let found = found.ok_or("its checksum is incomplete")?;
    let blank = format!(
        "{}{NO_CHECKSUM}{}",
        &text[..at],
        &text[at + NO_CHECKSUM.len()..]
    );
    if found != format!("{:08x}", crc32c::crc32c(blank.as_bytes())) {
        return Err("its checksum does not match".to_owned());
    }
    Ok(())
}

fn whole(percent: f64) -> u8 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to what fits"
    )]
    let whole = percent.clamp(0.0, 255.0) as u8;
    whole
}

#[cfg(test)]
mod tests;
