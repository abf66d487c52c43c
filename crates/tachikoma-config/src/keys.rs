//! The keys of the configuration: which keys exist, suggestions for misspelled ones, and the environment variables that set them.

use std::fmt;
use std::sync::LazyLock;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Settings;

/// Alternative names of keys, as (alias, key).
pub(super) const ALIASES: &[(&str, &str)] = &[("context_threshold", "context_redline_percent")];

/// Keys, and tables with all their keys, that have no effect yet. A new feature removes its keys from this list.
pub(super) const NOT_BUILT: &[&str] = &[
    "agent.fallback",
    "agents.codex",
    "agents.gemini",
    "agents.acp",
    "agents.demo",
];

/// Agents that have a name and settings but cannot be run yet.
pub(super) const AGENTS_NOT_BUILT: &[&str] = &["codex", "gemini", "acp"];

/// Keys, and tables with all their keys, that neither name a program nor loosen a permission. All other keys need the user's agreement. So
/// a new key needs agreement until it is listed here.
pub(super) const HARMLESS: &[&str] = &[
    "prompt_path",
    "max_iterations",
    "iteration_delay",
    "context_redline_percent",
    "attended_mode",
    "question_timeout",
    "stop_conditions.max_test_failure_streak",
    "stop_conditions.max_no_progress_iterations",
    "stop_conditions.max_consecutive_failures",
    "stop_conditions.stop_on_patterns",
    "stop_conditions.max_cost_usd",
    "stop_conditions.max_tokens",
    "stop_conditions.max_duration",
    "stop_conditions.max_quota_percent",
    "stop_conditions.max_outage",
    "stop_conditions.completion_promise",
    "stop_conditions.confirmations",
    "stop_conditions.objectives",
    "session.session_timeout",
    "session.persist_sessions",
    "session.fresh_each_iteration",
    "session.process_each_iteration",
    "session.first_output_timeout",
    "session.silence_timeout",
    "session.tool_timeout",
    "session.result_grace",
    "session.graceful_timeout",
    "session.transcript_max_bytes",
    "session.transcripts_kept",
    "context",
    "reboot",
    "state.enabled",
    "state.auto_save_interval",
    "state.backup_interval",
    "state.max_backups",
    "state.compress",
    "git.auto_commit",
    "git.commit_on_failure",
    "git.commit_message",
    "git.max_file_bytes",
    "git.commit_timeout",
    "agent.name",
    "agent.fallback",
    "opencode.enabled",
    "opencode.serve_port",
    "opencode.auto_restart",
    "opencode.restart_delay_ms",
    "opencode.max_restart_attempts",
    "opencode.restart_on_normal_exit",
    "opencode.health_interval",
    "opencode.health_failures",
    "opencode.max_rss_bytes",
];

/// Prefix of every environment variable that sets a key.
pub(super) const VARIABLE_PREFIX: &str = "TACHIKOMA_";

/// Every key that can have a value, with its default. An empty table means that any key is accepted below it.
pub(super) static LEAVES: LazyLock<Vec<(String, Value)>> =
    LazyLock::new(|| leaves(&Settings::default()));

/// A key: the path to a value, with one segment per table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Key(pub(super) Vec<String>);

impl Key {
    /// Parses a dotted key. A segment that contains a dot cannot be written this way.
    pub(super) fn dotted(text: &str) -> Self {
        Self(text.split('.').map(Into::into).collect())
    }

    pub(super) fn child(&self, segment: &str) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment.into());
        Self(segments)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            if segment.is_empty() || !segment.chars().all(is_bare) {
                write!(f, "{segment:?}")?;
            } else {
                f.write_str(segment)?;
            }
        }
        Ok(())
    }
}

/// Returns whether TOML allows a character in a key without quotes.
fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// What exists at a key in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A table of known keys.
    Table,
    /// A table in which the user chooses the names of the keys, such as `env`.
    OpenTable,
    /// A single value.
    Value,
    /// No setting has this key.
    Unknown,
}

/// Returns what exists at `key` in the configuration.
pub(super) fn place(key: &Key) -> Place {
    let text = key.to_string();
    for (leaf, default) in LEAVES.iter() {
        let open = is_open(default);
        if *leaf == text {
            return if open { Place::OpenTable } else { Place::Value };
        }
        if is_below(leaf, &text) {
            return Place::Table;
        }
        if open && is_below(&text, leaf) {
            return Place::Value;
        }
    }
    Place::Unknown
}

fn is_open(default: &Value) -> bool {
    default.as_object().is_some_and(serde_json::Map::is_empty)
}

fn is_below(key: &str, table: &str) -> bool {
    key.strip_prefix(table)
        .is_some_and(|rest| rest.starts_with('.'))
}

fn is_listed(key: &str, list: &[&str]) -> bool {
    list.iter()
        .any(|entry| key == *entry || is_below(key, entry))
}

/// Returns whether the feature that `key` configures is implemented.
pub(super) fn is_built(key: &str) -> bool {
    !is_listed(key, NOT_BUILT)
}

/// Returns whether a dotted key may name a program or loosen a permission.
#[must_use]
pub fn is_guarded(key: &str) -> bool {
    let of_agent = key.strip_prefix("agents.");
    let is_model = of_agent
        .is_some_and(|rest| last_segment(rest) == "model" && rest.matches('.').count() == 1);
    !is_model && !is_listed(key, HARMLESS)
}

/// Returns the key that an alias refers to. Other keys are returned unchanged.
pub(super) fn canonical(key: &Key) -> Key {
    let text = key.to_string();
    match ALIASES.iter().find(|(alias, _)| *alias == text) {
        Some((_, meant)) => Key::dotted(meant),
        None => key.clone(),
    }
}

/// Returns the environment variable that sets `key`.
pub(super) fn variable(key: &str) -> String {
    format!(
        "{VARIABLE_PREFIX}{}",
        key.replace('.', "__").to_ascii_uppercase()
    )
}

/// Returns the key that the environment variable `name` sets; `None` if it sets none.
pub(super) fn of_variable(name: &str) -> Option<Key> {
    if let Some((alias, _)) = ALIASES.iter().find(|(alias, _)| variable(alias) == name) {
        return Some(Key::dotted(alias));
    }
    LEAVES.iter().find_map(|(leaf, default)| {
        let rest = name.strip_prefix(&variable(leaf))?;
        match rest.strip_prefix("__") {
            _ if rest.is_empty() => Some(Key::dotted(leaf)),
            Some(segment) if is_open(default) && !segment.is_empty() => {
                Some(Key::dotted(leaf).child(segment))
            }
            Some(_) | None => None,
        }
    })
}

/// Returns a hint for an unknown key: the same name in another table, or the most similar key of its table, or of all tables.
pub(super) fn hint_for_key(key: &Key) -> String {
    let (Some(name), text) = (key.0.last(), key.to_string()) else {
        return FALLBACK_HINT.into();
    };
    let table = text.len() - Key(vec![name.clone()]).to_string().len();
    let own = siblings(&text[..table]);
    let near = nearest(&text, own.iter().map(|sibling| (*sibling, *sibling)));
    let all = || nearest(name, names().map(|known| (last_segment(known), known)));
    let same: Vec<&str> = names()
        .filter(|known| last_segment(known) == name)
        .collect();
    did_you_mean(&match (same.is_empty(), near.is_empty()) {
        (false, _) => same,
        (true, true) => all(),
        (true, false) => near,
    })
}

/// Returns a hint for an unknown environment variable: one with the same last part, or the most similar one.
pub(super) fn hint_for_variable(name: &str) -> String {
    let name = name.strip_prefix(VARIABLE_PREFIX).unwrap_or(name);
    let key = name.to_lowercase().replace("__", ".");
    let mut near: Vec<&str> = names().filter(|known| last_segment(known) == key).collect();
    if near.is_empty() {
        near = nearest(&key, names().map(|known| (known, known)));
    }
    let near: Vec<String> = near.into_iter().map(variable).collect();
    did_you_mean(&near)
}

/// Returns a hint for a name that is not in `known`.
pub(super) fn hint_for_name(name: &str, known: &[&str]) -> Option<String> {
    let near = nearest(name, known.iter().map(|known| (*known, *known)));
    (!near.is_empty()).then(|| did_you_mean(&near))
}

const FALLBACK_HINT: &str = "`tachikoma config show` lists every key";

fn names() -> impl Iterator<Item = &'static str> {
    LEAVES
        .iter()
        .map(|(leaf, _)| leaf.as_str())
        .chain(ALIASES.iter().map(|(alias, _)| *alias))
}

fn last_segment(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// Returns the keys directly in `table`, which is empty or ends with a dot.
fn siblings(table: &str) -> Vec<&'static str> {
    let mut siblings: Vec<&str> = names()
        .filter(|name| name.starts_with(table))
        .map(|name| {
            let end = name[table.len()..].find('.');
            end.map_or(name, |end| &name[..table.len() + end])
        })
        .collect();
    siblings.dedup();
    siblings
}

/// Returns the known names with the smallest edit distance to `name`, if it is small enough.
fn nearest<'a>(name: &str, known: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<&'a str> {
    let name = name.to_lowercase();
    let mut least = last_segment(&name).len() / 3;
    let mut near = Vec::new();
    for (theirs, known) in known {
        let distance = strsim::damerau_levenshtein(&name, &theirs.to_lowercase());
        if distance < least {
            near.clear();
        }
        if distance <= least {
            least = distance;
            near.push(known);
        }
    }
    near
}

/// Maximum number of suggestions. A longer list does not help the user.
const NEAR_MAX: usize = 3;

fn did_you_mean(near: &[impl fmt::Display]) -> String {
    let quoted: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [one] => format!("did you mean {one}?"),
        [first @ .., last] if quoted.len() <= NEAR_MAX => {
            format!("did you mean {} or {last}?", first.join(", "))
        }
        [] | [..] => FALLBACK_HINT.into(),
    }
}

/// Returns every value below `value` with its dotted key, in the order in which it is declared.
pub(super) fn leaves(value: &impl Serialize) -> Vec<(String, Value)> {
    let text = serde_json::to_string(value).expect("settings can be serialized");
    let node = serde_json::from_str(&text).expect("serialized settings are valid JSON");
    let mut leaves = Vec::new();
    flatten(String::new(), node, &mut leaves);
    leaves
}

fn flatten(key: String, node: Node, leaves: &mut Vec<(String, Value)>) {
    match node {
        Node::Leaf(value) => leaves.push((key, value)),
        Node::Table(children) if children.is_empty() => {
            leaves.push((key, Value::Object(serde_json::Map::new())));
        }
        Node::Table(children) => {
            for (segment, child) in children {
                flatten(below(&key, segment), child, leaves);
            }
        }
    }
}

/// Returns the dotted key of `segment` in `table`.
fn below(table: &str, segment: String) -> String {
    let segment = Key(vec![segment]);
    match table {
        "" => segment.to_string(),
        table => format!("{table}.{segment}"),
    }
}

/// A JSON value with tables that keep their order.
#[derive(Deserialize)]
#[serde(untagged)]
enum Node {
    Table(IndexMap<String, Self>),
    Leaf(Value),
}
