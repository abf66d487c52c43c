//! Which keys are known but stand for something that does not exist yet.

/// Keys, and tables with all their keys, that have no effect yet. A feature takes its keys off this list.
pub(super) const NOT_BUILT: &[&str] = &[
    "agent.fallback",
    "agents.codex",
    "agents.gemini",
    "agents.acp",
    "agents.demo",
];

/// Agents that have a name and settings already, but cannot be run yet.
pub(super) const AGENTS_NOT_BUILT: &[&str] = &["codex", "gemini", "acp"];

/// Returns whether the feature that `key` configures exists.
pub(super) fn is_built(key: &str) -> bool {
    !NOT_BUILT.iter().any(|entry| {
        key.strip_prefix(entry)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}
