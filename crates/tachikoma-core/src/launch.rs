//! What a run has to do, which process runs it, and the loop that it found.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Outcome, Timestamp};

/// What a run has to do: recorded, so that a bare `run` can do it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Name of the agent in the configuration.
    pub agent: String,
    /// Where the prompt comes from.
    pub prompt: PromptSource,
    /// The hash of its words when the run began; none where they could not be read, and in journals that were written before
    /// this was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_hash: Option<String>,
    /// Settings that were given as flags, by dotted key.
    pub overrides: BTreeMap<String, Override>,
    /// The hash of the effective settings, to notice that they changed.
    pub config_hash: String,
    /// The effective settings that are not defaults, by dotted key, as TOML with secrets masked; none in journals that
    /// were written before this was recorded.
    #[serde(default)]
    pub settings: Option<BTreeMap<String, String>>,
    /// The commit that the work tree stood on when the loop was first started; none without a repository, and in journals
    /// that were written before this was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_commit: Option<String>,
}

impl Launch {
    /// Returns which settings are other than those of an earlier launch; none if all are the same.
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
    /// Returns the settings that files or variables say otherwise since an earlier launch, and that a flag of it hides. They stay
    /// edited for the run that follows, in which they win.
    pub(crate) fn keep_under(&mut self, before: &Self) -> Vec<String> {
        let mut hidden = Vec::new();
        for (key, now) in &mut self.overrides {
            if let Some(then) = before.overrides.get(key).filter(|it| it.under != now.under) {
                now.under.clone_from(&then.under);
                hidden.push(key.clone());
            }
        }
        hidden
    }

    /// Returns why what was claimed of an earlier launch says nothing about this one, if it is so.
    #[must_use]
    pub fn other_work_than(&self, before: &Self) -> Option<&'static str> {
        let hashes = self.prompt_hash.as_ref().zip(before.prompt_hash.as_ref());
        let edited = hashes.is_some_and(|(now, then)| now != then);
        if self.prompt != before.prompt || edited {
            Some("the prompt is another one since")
        } else if self.agent != before.agent {
            Some("the agent is another one since")
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
    /// What it was, as TOML; none for its default.
    pub from: Option<String>,
    /// What it is, as TOML; none for its default.
    pub to: Option<String>,
}

/// A setting that was given as a flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// The flag's value, as TOML.
    pub value: String,
    /// What files and variables said at that time, as TOML: when they are edited since, they win.
    pub under: String,
}

/// Where the prompt comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PromptSource {
    /// A file, read again at every iteration.
    File {
        /// Its path, relative to the working directory.
        path: String,
    },
    /// Words given on the command line.
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
    /// When it took up the loop.
    pub since: Timestamp,
    /// What holds the agent's processes together: `cgroup`, `guard` or `group`.
    pub containment: String,
    /// Until when the runner before it was alive, if that died and it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows_until: Option<Timestamp>,
    /// Whether the working directory is in a git repository. `None` in journals of versions that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<bool>,
}

/// What a runner found when it took up a loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Resumption {
    /// Nothing: the loop is new.
    New,
    /// An earlier runner died.
    AfterCrash,
    /// The loop had ended and goes on.
    AfterEnd {
        /// How the loop had ended.
        outcome: Outcome,
    },
}
