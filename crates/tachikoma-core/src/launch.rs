//! Launches: the agent, prompt and settings of a run, and the process that runs it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Outcome, Timestamp};

/// The agent, prompt and settings of a run. Recorded, so that `tachikoma run` without arguments repeats them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Name of the agent in the configuration.
    pub agent: String,
    /// Where the prompt comes from.
    pub prompt: PromptSource,
    /// Hash of the prompt when the run began; `None` if it could not be read, and in older journals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_hash: Option<String>,
    /// Settings that were given as flags, by dotted key.
    pub overrides: BTreeMap<String, Override>,
    /// The hash of the effective settings, to notice that they changed.
    pub config_hash: String,
    /// The effective settings that are not defaults, by dotted key, as TOML with secrets masked. `None` in journals of
    /// versions that did not record them.
    #[serde(default)]
    pub settings: Option<BTreeMap<String, String>>,
    /// The commit that was checked out when the loop was first started. `None` without a repository, and in journals
    /// of versions that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_commit: Option<String>,
}

impl Launch {
    /// Returns the settings that changed since an earlier launch; `None` if none did.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Option<Vec<Change>> {
        if self.config_hash == before.config_hash {
            return None;
        }
        let (Some(from), Some(to)) = (&before.settings, &self.settings) else {
            return Some(Vec::new());
        };
        let keys: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
        let changes = keys.into_iter().map(|key| Change {
            key: key.clone(),
            from: from.get(key).cloned(),
            to: to.get(key).cloned(),
        });
        Some(changes.filter(|change| change.from != change.to).collect())
    }
}

impl Launch {
    /// Returns the keys that changed in files or variables since an earlier launch, but that a flag overrides. Those changes apply to
    /// the next run.
    pub(crate) fn keep_recorded_values(&mut self, before: &Self) -> Vec<String> {
        let mut hidden = Vec::new();
        for (key, now) in &mut self.overrides {
            if let Some(then) = before.overrides.get(key).filter(|it| it.under != now.under) {
                now.under.clone_from(&then.under);
                hidden.push(key.clone());
            }
        }
        hidden
    }

    /// Returns why claims about an earlier launch do not apply to this one; `None` if they do.
    #[must_use]
    pub fn other_work_than(&self, before: &Self) -> Option<&'static str> {
        let hashes = self.prompt_hash.as_ref().zip(before.prompt_hash.as_ref());
        let edited = hashes.is_some_and(|(now, then)| now != then);
        if self.prompt != before.prompt || edited {
            Some("the prompt has changed since")
        } else if self.agent != before.agent {
            Some("the agent has changed since")
        } else {
            None
        }
    }
}

/// A setting that changed between two runs of a loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Dotted configuration key.
    pub key: String,
    /// Old value as TOML; `None` for the default.
    pub from: Option<String>,
    /// New value as TOML; `None` for the default.
    pub to: Option<String>,
}

/// A setting that was given as a flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// The flag's value, as TOML.
    pub value: String,
    /// Value of the key in files and variables at that time, as TOML. If it is edited later, the edit overrides the flag.
    pub under: String,
}

/// Where the prompt comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PromptSource {
    /// A file, read again at every iteration.
    File {
        /// Path of the prompt file, relative to the working directory.
        path: String,
    },
    /// The text was given on the command line.
    Text {
        /// Text of the prompt.
        text: String,
    },
}

impl From<&str> for PromptSource {
    fn from(text: &str) -> Self {
        Self::Text { text: text.into() }
    }
}

impl From<String> for PromptSource {
    fn from(text: String) -> Self {
        Self::Text { text }
    }
}

impl Default for PromptSource {
    fn default() -> Self {
        Self::File {
            path: "prompt.md".to_owned(),
        }
    }
}

/// The process that runs a loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runner {
    /// Process id of the runner.
    pub pid: u32,
    /// When the process started or resumed the loop.
    pub since: Timestamp,
    /// How the agent's processes are contained: `cgroup`, `guard` or `group`.
    pub containment: String,
    /// Time of the last sign of life of the runner before, if it died; `None` if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows_until: Option<Timestamp>,
    /// Whether the working directory is in a git repository. `None` in journals of versions that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<bool>,
}

/// State of the loop when a runner started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Resumption {
    /// The loop is new.
    New,
    /// An earlier runner died.
    AfterCrash,
    /// The loop had ended, and is continued.
    AfterEnd {
        /// How the loop had ended.
        outcome: Outcome,
    },
}
