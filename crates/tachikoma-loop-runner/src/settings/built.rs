//! Which keys are known but stand for something that does not exist yet.

use super::Moment;

/// Keys, and tables with all their keys, that have no effect yet. A feature takes its keys off this list.
pub(super) const NOT_BUILT: &[&str] = &[
    "attended_mode",
    "reboot.confirm_timeout",
    "state.encrypt",
    "state.encrypt_passphrase_file",
    "state.encrypt_recipients",
    "state.cloud_url",
    "agent.fallback",
    "agents.opencode",
    "agents.codex",
    "agents.gemini",
    "agents.acp",
    "agents.demo",
    "opencode",
    "notify",
];

/// Returns whether what `key` stands for exists.
pub(super) fn is_built(key: &str) -> bool {
    !NOT_BUILT.iter().any(|entry| {
        key.strip_prefix(entry)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Returns whether hooks run at a moment.
pub(super) fn has_hooks(moment: Moment) -> bool {
    match moment {
        Moment::BeforeReboot | Moment::AfterReboot => true,
        Moment::LoopStart
        | Moment::LoopEnd
        | Moment::IterationStart
        | Moment::IterationEnd
        | Moment::SessionStart
        | Moment::SessionEnd
        | Moment::TestsChanged
        | Moment::NoProgress
        | Moment::Error
        | Moment::Question
        | Moment::LimitWait => false,
    }
}
