//! `.ralph/state.json`: the state of a loop as one file, for people, other tools and a quick resumption. The journal is
//! the truth; a snapshot says at which record of it it stands, so that the two cannot disagree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tachikoma_core::policy::stop::conditions_for;
use tachikoma_core::{
    LoopId, LoopState, Objectives, ObjectivesSeen, PastSession, PromptSource, Seq, State, Timestamp,
};
use tachikoma_fs::atomic_file::{FileMark, write_whole};
use tachikoma_fs::{is_missing, safe_read};

use tachikoma_fs::relative_to;

use super::migrate::{self, Chain};
use super::vault::Vault;
use super::{StoreError, compressed, is_damage};
pub use tachikoma_fs::atomic_file::Durability;

mod form;

pub use form::all_places;
pub use form::{Packing, place};
pub use form::{older_versions, older_versions_of};

/// The version that this program writes, and the newest it reads.
pub const VERSION: u32 = migrate::SNAPSHOT.latest();

/// No snapshot of ours comes near it (all that is in one has bounds), and what someone else put there must not take all memory.
pub const BYTES_MAX: u64 = 64 << 20;

/// What stands for the checksum while it is computed.
const NO_CHECKSUM: &str = "00000000";

/// The file's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The version of the format.
    pub version: u32,
    /// CRC-32C of the file's bytes, with zeros in its own place.
    pub checksum: String,
    /// The last record that is part of it.
    pub seq: Seq,
    /// When it was written.
    pub saved_at: Timestamp,
    /// The loop.
    pub loop_id: LoopId,
    /// The loop as such.
    pub core: Core,
    /// Its session.
    pub session: Session,
    /// Whether the work comes forward.
    pub progress: Progress,
    /// What the tests say.
    pub tests: Tests,
    /// How near the stop conditions are.
    pub stop_conditions: StopConditions,
    /// What was done.
    pub metrics: Metrics,
    /// What hooks and the operator wrote down.
    pub custom: BTreeMap<String, serde_json::Value>,
    /// The exact state, from which the loop goes on.
    pub state: State,
}

/// The loop as such.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// Its public state.
    pub status: LoopState,
    /// The iteration last started.
    pub iteration: u32,
    /// When the loop was first started.
    pub started: Option<Timestamp>,
    /// When it last did something.
    pub last_activity: Timestamp,
    /// Where it works.
    pub working_dir: PathBuf,
    /// Where its prompt is; none where the prompt was given as words.
    pub prompt_path: Option<String>,
    /// The hash of the settings it was started with.
    pub config_hash: String,
}

/// The session of a loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The agent's own name for it, where it has one.
    pub current_id: Option<String>,
    /// When it began.
    pub started: Option<Timestamp>,
    /// How many iterations it has finished.
    pub iterations: u32,
    /// The fill of its context in percent, once it is known.
    pub context_usage: Option<u8>,
    /// The sessions before it.
    pub history: Vec<PastSession>,
}

/// Whether the work comes forward.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Iterations in a row without progress.
    pub iterations_since_progress: u32,
    /// The last iteration that brought some.
    pub last_progress_iteration: Option<u32>,
    /// The latest scores, from 0 to 100, oldest first.
    pub recent_scores: Vec<u32>,
    /// Files that the loop changed, relative to the working directory; the latest of them, as far as they are known.
    pub modified_files: Vec<String>,
    /// Objectives that are reached, the first of them.
    pub completed_objectives: Vec<String>,
    /// Objectives that are not, the first of them.
    pub pending_objectives: Vec<String>,
}

/// What the tests said when they last ran; the first of each kind by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tests {
    /// Failing runs in a row.
    pub failure_streak: u32,
    /// Names of those that pass.
    pub passing: Vec<String>,
    /// Names of those that fail.
    pub failing: Vec<String>,
    /// Names of those that do both.
    pub flaky: Vec<String>,
    /// Names of those that passed again lately.
    pub recently_fixed: Vec<String>,
}

impl Progress {
    fn of(state: &State, working_dir: &Path) -> Self {
        let known = &state.progress;
        let told = state.checkpoint.files.iter().chain(&state.session.files);
        let told = told.map(|file| relative_to(working_dir, Path::new(file)));
        let mut modified_files: Vec<String> = Vec::new();
        for file in told.chain(known.files.iter().cloned()) {
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

/// How near the stop conditions are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopConditions {
    /// Progress by name, in percent.
    pub progress: BTreeMap<String, u8>,
    /// The last evaluation, in words.
    pub last_evaluation: Option<String>,
}

impl StopConditions {
    fn of(state: &State) -> Self {
        let looked_at = conditions_for(&state.limits, state, state.time);
        let words: Vec<&str> = looked_at.iter().map(|row| row.words.as_str()).collect();
        Self {
            last_evaluation: (!words.is_empty()).then(|| words.join("; ")),
            progress: looked_at
                .iter()
                .map(|row| (row.name.to_owned(), row.percent))
                .collect(),
        }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// Finished iterations.
    pub total_iterations: u64,
    /// Those that succeeded.
    pub successful_iterations: u64,
    /// Those that failed.
    pub failed_iterations: u64,
    /// Reboots.
    pub reboots: u64,
    /// Time spent in iterations.
    pub execution_ms: u64,
}

impl Snapshot {
    /// Takes a snapshot of a state.
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

    /// Writes the file: whole or not at all, and never through a symbolic link. What a snapshot of another form left is
    /// removed.
    ///
    /// # Errors
    /// It cannot be written; the file that was there stays.
    pub fn write(
        &self,
        path: &Path,
        packing: Packing,
        durability: Durability,
        vault: &Vault,
    ) -> Result<(), StoreError> {
        self.write_marked(path, packing, durability, vault)
            .map(drop)
    }

    /// Writes the file, and returns by what it is known again.
    pub fn write_marked(
        &self,
        path: &Path,
        packing: Packing,
        durability: Durability,
        vault: &Vault,
    ) -> Result<FileMark, StoreError> {
        let begun = tachikoma_runtime::clock::monotonic();
        let path_of = packing.path(path, vault);
        let bytes = packing.pack(self.encode().into_bytes());
        let bytes = vault
            .seal(&bytes)
            .map_err(StoreError::io("seal", &path_of))?;
        let mark = write_whole(&path_of, &bytes, durability)?;
        form::remove_other(path, packing, vault)?;
        tracing::debug!(bytes = bytes.len(), elapsed = ?begun.elapsed(), "snapshot written");
        Ok(mark)
    }

    /// Writes the snapshot as text, with its checksum.
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

/// Reads a snapshot, plain or compressed; none where there is no file.
///
/// # Errors
/// It cannot be read, is damaged, or is newer than this version.
pub fn read(path: &Path, vault: &Vault) -> Result<Option<Snapshot>, StoreError> {
    read_as(migrate::SNAPSHOT, path, vault)
}

/// Reads a snapshot of any version up to the newest; its version stays what it was.
pub fn read_as(formats: Chain, path: &Path, vault: &Vault) -> Result<Option<Snapshot>, StoreError> {
    read_at(formats, &place(path, vault), vault)
}

/// Reads the snapshot in just that file.
fn read_at(formats: Chain, path: &Path, vault: &Vault) -> Result<Option<Snapshot>, StoreError> {
    let text = match content(path, vault) {
        Ok(text) => text,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) if is_damage(&error) => {
            return Err(StoreError::DamagedSnapshot {
                path: path.to_owned(),
                what: error.to_string(),
            });
        }
        Err(error) => return Err(StoreError::io("read", path)(error)),
    };
    from_bytes_as(formats, path, &text).map(Some)
}

/// Reads a snapshot from its bytes; `path` is named in errors.
pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Snapshot, StoreError> {
    from_bytes_as(migrate::SNAPSHOT, path, bytes)
}

fn from_bytes_as(formats: Chain, path: &Path, bytes: &[u8]) -> Result<Snapshot, StoreError> {
    decode(formats, bytes).map_err(|problem| match problem {
        Problem::Newer(found) => StoreError::NewerSnapshot {
            path: path.to_owned(),
            found,
            supported: formats.latest(),
        },
        Problem::Damaged(what) => StoreError::DamagedSnapshot {
            path: path.to_owned(),
            what,
        },
    })
}

/// Reads the text of the snapshot, whatever it says.
pub fn bytes(path: &Path, vault: &Vault) -> Result<Vec<u8>, StoreError> {
    let path = &place(path, vault);
    content(path, vault).map_err(StoreError::io("read", path))
}

/// Reads the text in a file, plain or compressed.
fn content(path: &Path, vault: &Vault) -> std::io::Result<Vec<u8>> {
    let content = compressed::content_of(safe_read::open(path)?, vault)?;
    safe_read::read_all(content, BYTES_MAX)
}

/// Returns whether the file at `path` is a snapshot of ours, of whatever version: its checksum vouches for it.
pub fn is_ours(path: &Path, vault: &Vault) -> bool {
    let bytes = content(path, vault).unwrap_or_default();
    let text = std::str::from_utf8(&bytes);
    text.is_ok_and(|text| version_of(text).is_ok() && check(text).is_ok())
}

enum Problem {
    Newer(u32),
    Damaged(String),
}

fn decode(formats: Chain, bytes: &[u8]) -> Result<Snapshot, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not UTF-8"))?;
    let version = version_of(text)?;
    if version > formats.latest() {
        return Err(Problem::Newer(version));
    }
    check(text)?;
    let shapeless = |error: serde_json::Error| Problem::Damaged(error.to_string());
    if version == formats.latest() {
        return serde_json::from_str(text).map_err(shapeless);
    }
    let value = serde_json::from_str(text).map_err(shapeless)?;
    let value = formats.upgrade(version, value).map_err(Problem::Damaged)?;
    serde_json::from_value(value).map_err(shapeless)
}

fn damaged(what: &str) -> Problem {
    Problem::Damaged(what.to_owned())
}

fn version_of(text: &str) -> Result<u32, Problem> {
    // Another version may write other white space.
    let rest = text.trim_start().strip_prefix('{').map(str::trim_start);
    let rest = rest.and_then(|rest| rest.strip_prefix("\"version\""));
    let rest = rest.and_then(|rest| rest.trim_start().strip_prefix(':'));
    let rest = rest
        .map(str::trim_start)
        .ok_or_else(|| damaged("it does not begin with its version"))?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .map_or(rest, |end| &rest[..end]);
    digits
        .parse()
        .map_err(|_| damaged("its version is no number"))
}

/// Checks the text against its checksum.
fn check(text: &str) -> Result<(), Problem> {
    let mark = "\"checksum\": \"";
    let at = text
        .find(mark)
        .ok_or_else(|| damaged("it has no checksum"))?
        + mark.len();
    let found = text
        .get(at..at + NO_CHECKSUM.len())
        .ok_or_else(|| damaged("its checksum is cut"))?;
    let blank = format!(
        "{}{NO_CHECKSUM}{}",
        &text[..at],
        &text[at + NO_CHECKSUM.len()..]
    );
    if found != format!("{:08x}", crc32c::crc32c(blank.as_bytes())) {
        return Err(damaged("its checksum does not match"));
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
