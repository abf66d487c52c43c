//! State that the fake agent stores between processes: its conversations, how often it was started, and its position in the scenario.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::scenario::Usage;

/// Name of the file with all prompts, one JSON object per line.
const PROMPTS_FILE: &str = "prompts.jsonl";

/// Prices in dollars of a million tokens, about those of a medium model.
const INPUT_PRICE: f64 = 3.0;
const CACHE_WRITE_PRICE: f64 = 3.75;
const CACHE_READ_PRICE: f64 = 0.3;
const OUTPUT_PRICE: f64 = 15.0;

/// One conversation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Session {
    pub id: String,
    pub tool_results: u64,
    pub prompts: u64,
    /// Tokens of all processes of the conversation, as the real agent reports them.
    pub total: Usage,
    pub cost_usd: f64,
    /// Tokens of the last message.
    pub context: Usage,
}

impl Session {
    pub(super) fn add(&mut self, usage: Usage) {
        self.context = usage;
        self.total = sum(self.total, usage);
        self.cost_usd += cost(usage);
    }
}

pub(super) const fn sum(one: Usage, other: Usage) -> Usage {
    Usage {
        input: one.input + other.input,
        cache_read: one.cache_read + other.cache_read,
        cache_creation: one.cache_creation + other.cache_creation,
        output: one.output + other.output,
        per_tool_result: 0,
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "no test has 2^52 tokens, and it is an estimate"
)]
pub(super) fn cost(usage: Usage) -> f64 {
    let priced = [
        (usage.input, INPUT_PRICE),
        (usage.cache_creation, CACHE_WRITE_PRICE),
        (usage.cache_read, CACHE_READ_PRICE),
        (usage.output, OUTPUT_PRICE),
    ];
    let dollars: f64 = priced
        .iter()
        .map(|(tokens, price)| *tokens as f64 * price)
        .sum();
    dollars / 1e6
}

/// Converts dollars to millionths of a dollar.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "no test spends that much, or less than nothing"
)]
pub(super) fn microusd(usd: f64) -> u64 {
    (usd * 1e6).round() as u64
}

/// Directory of the stored state; `None` if no state is stored.
#[derive(Debug)]
pub(super) struct State(Option<PathBuf>);

impl State {
    pub(super) fn open(dir: Option<&Path>) -> Result<Self, String> {
        if let Some(dir) = dir {
            let sessions = dir.join("sessions");
            fs::create_dir_all(&sessions)
                .map_err(|error| format!("make {}: {error}", sessions.display()))?;
        }
        Ok(Self(dir.map(Path::to_path_buf)))
    }

    /// Increments a counter in the state directory and returns its old value; `None` without a state directory.
    pub(super) fn count(&self, name: &str) -> Result<Option<usize>, String> {
        let Some(dir) = &self.0 else { return Ok(None) };
        let path = dir.join(name);
        let failed = |error: std::io::Error| format!("count in {}: {error}", path.display());
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        // The file is locked, because two agents may play one scenario.
        flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let before: usize = text.trim().parse().unwrap_or(0);
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        writeln!(file, "{}", before + 1).map_err(failed)?;
        Ok(Some(before))
    }

    pub(super) fn session(&self, id: &str) -> Option<Session> {
        read(&self.session_file(id)?)
    }

    pub(super) fn save(&self, session: &Session) -> Result<(), String> {
        let Some(path) = self.session_file(&session.id) else {
            return Ok(());
        };
        let failed = |error: std::io::Error| format!("write {}: {error}", path.display());
        let text = serde_json::to_string(session).map_err(|error| error.to_string())?;
        // The file is replaced atomically, because a runner may kill the agent at any time.
        let new = path.with_extension("new");
        fs::write(&new, text).map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)
    }

    /// Appends a prompt to the file that tests read.
    pub(super) fn note_prompt(&self, session: &str, prompt: &str) -> Result<(), String> {
        let Some(dir) = &self.0 else { return Ok(()) };
        let line = serde_json::json!({"session": session, "prompt": prompt});
        File::options()
            .append(true)
            .create(true)
            .open(dir.join(PROMPTS_FILE))
            .and_then(|mut file| writeln!(file, "{line}"))
            .map_err(|error| format!("write {PROMPTS_FILE}: {error}"))
    }

    /// Returns the file of a session; `None` if the id contains a slash.
    fn session_file(&self, id: &str) -> Option<PathBuf> {
        let dir = self.0.as_ref()?;
        (!id.contains('/')).then(|| dir.join("sessions").join(format!("{id}.json")))
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Returns a unique id.
pub(super) fn new_uuid() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid");
    text.map_or_else(|_| crate::unique(), |text| text.trim().to_owned())
}
