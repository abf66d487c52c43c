//! The plain tables of the configuration, in the order of `tachikoma.toml`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::scalars::{HumanDuration, Percent, Usd};

/// When the loop ends by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StopConditions {
    /// Stop after this many failing gate runs in a row. 0 = no limit.
    pub max_test_failure_streak: u32,
    /// Stop after this many iterations in a row without progress. 0 = no limit.
    pub max_no_progress_iterations: u32,
    /// End with an error after this many failed iterations in a row. 0 = no limit.
    pub max_consecutive_failures: u32,
    /// Stop when the agent's final text matches one of these regular expressions. Quotes of the prompt do not count. `^` and `$` match at line ends. An accepted claim of completion takes precedence.
    pub stop_on_patterns: Vec<String>,
    /// Programs that run after every iteration, all at once, with the status as JSON on stdin. Exit 0 = continue, 10 = claim that
    /// the work is complete (the gates have to confirm it), 11 = stop.
    pub custom_scripts: Vec<PathBuf>,
    /// Maximum cost of the loop over all its runs, as reported by the agent. Also checked during a turn. 0 = no limit.
    pub max_cost_usd: Usd,
    /// Maximum number of tokens, including cached ones. Also checked during a turn. 0 = no limit.
    pub max_tokens: u64,
    /// Maximum working time of the loop. Pauses, suspends, and waits for a usage limit, an outage or the operator do not count. 0 = no limit.
    pub max_duration: HumanDuration,
    /// End with an error when the model's service is unreachable for this long. 0 = no limit, but a loop in which no request has succeeded yet ends after 10 minutes.
    pub max_outage: HumanDuration,
    /// Stop at this percentage of the subscription's quota, if the agent reports it. 0 = no limit.
    pub max_quota_percent: Percent,
    /// The line with which the agent claims completion. Empty = disabled.
    pub completion_promise: String,
    /// Number of claims in a row that are needed, at least 1.
    pub confirmations: u32,
    /// Markdown file with check boxes. All of them must be ticked before a claim is accepted, and ticking the last one is a claim.
    /// Absent = none.
    pub objectives: Option<PathBuf>,
}

impl Default for StopConditions {
    fn default() -> Self {
        Self {
            max_test_failure_streak: 3,
            max_no_progress_iterations: 5,
            max_consecutive_failures: 10,
            stop_on_patterns: Vec::new(),
            custom_scripts: Vec::new(),
            max_cost_usd: Usd::default(),
            max_tokens: 0,
            max_duration: HumanDuration::from_secs(12 * 60 * 60),
            max_outage: HumanDuration::default(),
            max_quota_percent: Percent::whole(0),
            completion_promise: "<promise>COMPLETE</promise>".into(),
            confirmations: 1,
            objectives: None,
        }
    }
}

/// The agent's conversation: its program, its timeouts, its transcripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// The program of the `claude` agent.
    pub claude_command: String,
    /// Maximum duration of one iteration. 0 = no limit.
    pub session_timeout: HumanDuration,
    /// Continue the conversation after a restart of Tachikoma. If false, a new one starts with the hand-off.
    pub persist_sessions: bool,
    /// Directory of the transcripts.
    pub state_dir: PathBuf,
    /// Start a new conversation for every iteration.
    pub fresh_each_iteration: bool,
    /// Start a new process for every iteration, in the same conversation. If false, one process serves the whole conversation.
    pub process_each_iteration: bool,
    /// Maximum time until the agent's first output, unless its processes are busy. Not used for `command`. 0 = no limit.
    pub first_output_timeout: HumanDuration,
    /// Maximum time without output. Time in which a tool runs or the agent's processes are busy does not count. Not used for `command`. 0 = no limit.
    pub silence_timeout: HumanDuration,
    /// Maximum duration of one tool call, and of silence with busy processes. Not used for `command`. 0 = no limit.
    pub tool_timeout: HumanDuration,
    /// Time for the agent to exit after its final result. Not used for `command`. 0 = none.
    pub result_grace: HumanDuration,
    /// Time that a stop waits for the running tool call before the agent is interrupted. 0 = none.
    pub graceful_timeout: HumanDuration,
    /// Maximum size of the transcript of one iteration. Beginning and end are kept. 0 = no limit.
    pub transcript_max_bytes: u64,
    /// Number of iterations with kept transcripts. 0 = no limit.
    pub transcripts_kept: u32,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            claude_command: "claude".into(),
            session_timeout: HumanDuration::from_secs(60 * 60),
            persist_sessions: true,
            state_dir: ".ralph/sessions".into(),
            fresh_each_iteration: false,
            process_each_iteration: false,
            first_output_timeout: HumanDuration::from_secs(2 * 60),
            silence_timeout: HumanDuration::from_secs(10 * 60),
            tool_timeout: HumanDuration::from_secs(60 * 60),
            result_grace: HumanDuration::from_secs(30),
            graceful_timeout: HumanDuration::from_secs(30),
            transcript_max_bytes: 64 * 1024 * 1024,
            transcripts_kept: 100,
        }
    }
}

/// Thresholds for the context usage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContextSettings {
    /// Ask the agent to finish at this context usage. 100 = off.
    pub warning_percent: Percent,
    /// Send no further prompt before a reboot at this context usage. 100 = off.
    pub hard_limit_percent: Percent,
    /// Size of the context window in tokens. 0 = as reported by the agent.
    pub window_tokens: u64,
    /// Reboot after this many tool calls. Used only if the agent reports no context usage. 0 = off.
    pub tool_call_threshold: u32,
}

impl Default for ContextSettings {
    fn default() -> Self {
        Self {
            warning_percent: Percent::whole(70),
            hard_limit_percent: Percent::whole(95),
            window_tokens: 0,
            tool_call_threshold: 100,
        }
    }
}

/// The planned replacement of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RebootSettings {
    /// Whether sessions are rebooted.
    pub enabled: bool,
    /// How a session is replaced.
    pub mode: RebootMode,
    /// Reboot at this many tokens of context, or at `context_redline_percent` if that comes first. 0 = off.
    pub context_redline_tokens: u64,
    /// Minimum time between two reboots. 0 = none.
    pub min_reboot_interval: HumanDuration,
    /// Maximum number of successful reboots per hour. 0 = no limit.
    pub max_reboots_per_hour: u32,
    /// Wait after a failed reboot. 0 = none.
    pub failure_cooldown: HumanDuration,
    /// End with an error after this many failed reboots in a row. 0 = no limit.
    pub max_consecutive_failures: u32,
    /// Time to wait for late output of the old session. 0 = none.
    pub graceful_delay: HumanDuration,
    /// Time to wait for the operator in mode `confirm`. The loop pauses after it. 0 = no limit.
    pub confirm_timeout: HumanDuration,
    /// Hooks run before a reboot.
    pub enable_pre_hooks: bool,
    /// Hooks run after a reboot.
    pub enable_post_hooks: bool,
    /// Ask the old session for a hand-off.
    pub preserve_summary: bool,
    /// Maximum number of reboots. Absent = no limit; 0 = never reboot.
    pub max_restarts: Option<u32>,
    /// Maximum size of a hand-off. 0 = no limit.
    pub handoff_max_bytes: u64,
    /// What causes a reboot.
    pub triggers: RebootTriggers,
}

impl Default for RebootSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            mode: RebootMode::default(),
            context_redline_tokens: 200_000,
            min_reboot_interval: HumanDuration::from_secs(5 * 60),
            max_reboots_per_hour: 10,
            failure_cooldown: HumanDuration::from_secs(60),
            max_consecutive_failures: 3,
            graceful_delay: HumanDuration::from_secs(5),
            confirm_timeout: HumanDuration::from_secs(10 * 60),
            enable_pre_hooks: true,
            enable_post_hooks: true,
            preserve_summary: true,
            max_restarts: None,
            handoff_max_bytes: 50_000,
            triggers: RebootTriggers::default(),
        }
    }
}

/// How a session is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RebootMode {
    /// At the next tool boundary, with a hand-off.
    #[default]
    Graceful,
    /// At once.
    Immediate,
    /// When the operator agrees.
    Confirm,
}

/// What causes a reboot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RebootTriggers {
    /// The context reached `context_redline_percent` or `reboot.context_redline_tokens`.
    pub on_redline: bool,
    /// The quality of the agent's work dropped.
    pub on_degradation: bool,
    /// The session has lasted this many iterations. Absent or 0 = off.
    pub after_iterations: Option<u32>,
    /// The session has lasted this long. Absent or 0 = off.
    pub after_duration: Option<HumanDuration>,
    /// The agent's final text matches one of these regular expressions.
    pub on_patterns: Vec<String>,
}

impl Default for RebootTriggers {
    fn default() -> Self {
        Self {
            on_redline: true,
            on_degradation: true,
            after_iterations: None,
            after_duration: None,
            on_patterns: Vec::new(),
        }
    }
}

/// The snapshot of the loop and its backups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StateSettings {
    /// Save the loop, so that it can be resumed. If false, its journal and transcripts are in a temporary directory that is deleted at its end.
    pub enabled: bool,
    /// File of the snapshot.
    pub state_path: PathBuf,
    /// Directory of the backups.
    pub backup_dir: PathBuf,
    /// Write the snapshot at this interval, in addition to the end of each iteration. 0 = off.
    pub auto_save_interval: HumanDuration,
    /// Back up the loop at this interval, in addition to starts and reboots. 0 = off.
    pub backup_interval: HumanDuration,
    /// Number of backups to keep for each loop. 0 = no limit.
    pub max_backups: u32,
    /// Compress snapshot and backups (zstd). Closed journal segments and transcripts are always compressed.
    pub compress: bool,
    /// Encrypt all files of the loop (age). Needs a key: `encrypt_identity_file`, `encrypt_passphrase_file`, or the variable `TACHIKOMA_STATE_PASSPHRASE`.
    pub encrypt: bool,
    /// File with the passphrase that protects a generated key. Absent = none.
    pub encrypt_passphrase_file: Option<PathBuf>,
    /// Public keys (`age1...`) that can decrypt the files. Empty = the key of the identity file.
    pub encrypt_recipients: Vec<String>,
    /// File with the private key (`AGE-SECRET-KEY-1...`) with which the loop reads its own state. Absent = none.
    pub encrypt_identity_file: Option<PathBuf>,
    /// Upload backups to this address: `s3://bucket/prefix` or `file:///directory`. It must not contain credentials. Absent = no upload.
    pub cloud_url: Option<String>,
}

impl Default for StateSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            state_path: ".ralph/state.json".into(),
            backup_dir: ".ralph/backups".into(),
            auto_save_interval: HumanDuration::from_secs(30),
            backup_interval: HumanDuration::from_secs(15 * 60),
            max_backups: 10,
            compress: false,
            encrypt: false,
            encrypt_passphrase_file: None,
            encrypt_recipients: Vec::new(),
            encrypt_identity_file: None,
            cloud_url: None,
        }
    }
}

/// Automatic commits, and the files that are never committed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GitSettings {
    /// Commit the files that the loop changed after every iteration.
    pub auto_commit: bool,
    /// Commit also after a failed iteration.
    pub commit_on_failure: bool,
    /// Commit message. `{iteration}`, `{status}`, `{context}`, `{session}` and `{loop}` are replaced; `{{` and `}}` are literal braces.
    pub commit_message: String,
    /// Files never committed, stored in snapshots or rolled back. A pattern matches in any directory unless it begins with a slash.
    pub protected: Vec<String>,
    /// Do not commit or store new files above this size. 0 = no limit.
    pub max_file_bytes: u64,
    /// Maximum duration of a commit, including the repository's git hooks. 0 = no limit.
    pub commit_timeout: HumanDuration,
}

impl Default for GitSettings {
    fn default() -> Self {
        Self {
            auto_commit: true,
            commit_on_failure: false,
            commit_message: "tachikoma: iteration {iteration} {status}".into(),
            protected: [".env*", "*.pem", "*.key", "secrets/**"]
                .map(Into::into)
                .into(),
            max_file_bytes: 50 << 20,
            commit_timeout: HumanDuration::from_secs(5 * 60),
        }
    }
}

/// The shared `opencode serve`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenCodeSettings {
    /// Allow `tachikoma opencode up` to run it.
    pub enabled: bool,
    /// Port. 0 = any free port.
    pub serve_port: u16,
    /// Address to listen on. `localhost` is 127.0.0.1. An address that other machines can reach needs a password.
    pub serve_hostname: String,
    /// Require a password: OPENCODE_SERVER_PASSWORD, or a new one at each start. If false, every user of the machine can run commands as you.
    pub require_password: bool,
    /// Restart the server when it dies.
    pub auto_restart: bool,
    /// Wait before the first restart. Doubled for each further restart in a row, up to one minute.
    pub restart_delay_ms: u64,
    /// Give up after this many restarts without a healthy minute in between. 0 = no limit.
    pub max_restart_attempts: u32,
    /// Command line that starts the server. `serve`, port and hostname are appended. Absent = `opencode`.
    pub serve_command: Option<String>,
    /// Restart the server also when it exits with 0 by itself.
    pub restart_on_normal_exit: bool,
    /// Interval of health checks. 0 = off.
    pub health_interval: HumanDuration,
    /// Restart the server after this many failed health checks in a row. 0 = no limit.
    pub health_failures: u32,
    /// Restart the server above this memory use, when no session is busy. 0 = no limit.
    pub max_rss_bytes: u64,
    /// Address of a running server to use. The loop never restarts it. Absent or empty = the loop starts its own server.
    #[serde(serialize_with = "without_password")]
    pub attach: Option<String>,
}

/// An address must not contain a password. If it does, the password is removed here, so that it is not written anywhere.
#[expect(clippy::ref_option, reason = "serde passes a reference")]
fn without_password<S: Serializer>(attach: &Option<String>, to: S) -> Result<S::Ok, S::Error> {
    attach.as_deref().map(crate::without_password).serialize(to)
}

impl Default for OpenCodeSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            serve_port: 4096,
            serve_hostname: "localhost".into(),
            require_password: true,
            auto_restart: true,
            restart_delay_ms: 1000,
            max_restart_attempts: 5,
            serve_command: None,
            restart_on_normal_exit: true,
            health_interval: HumanDuration::from_secs(5),
            health_failures: 3,
            max_rss_bytes: 0,
            attach: None,
        }
    }
}
