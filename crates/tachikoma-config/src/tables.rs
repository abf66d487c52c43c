//! The plain tables of the configuration, in the order of `tachikoma.toml`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::scalars::{HumanDuration, Percent, Usd};

/// When the loop ends by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StopConditions {
    /// Failing runs of gates in a row that stop the loop. 0 = no limit.
    pub max_test_failure_streak: u32,
    /// Iterations in a row without progress that stop the loop. 0 = no limit.
    pub max_no_progress_iterations: u32,
    /// Failed iterations in a row that end the loop with an error. 0 = no limit.
    pub max_consecutive_failures: u32,
    /// Regular expressions over the agent's final text that stop the loop; what it quotes from the prompt does not count. `^` and `$` are the ends of a line. A claim that is believed comes first.
    pub stop_on_patterns: Vec<String>,
    /// Programs asked after every iteration, all at once, with the status as JSON on their standard input: exit 0 = go on, 10 =
    /// the work is complete, which the gates have to prove, 11 = stop.
    pub custom_scripts: Vec<PathBuf>,
    /// What the loop may cost over all its runs, by the agent's own figures; looked at while it works, too. 0 = no limit.
    pub max_cost_usd: Usd,
    /// Tokens the loop may use, those from the cache included; looked at while it works, too. 0 = no limit.
    pub max_tokens: u64,
    /// How long the loop may work. Pauses, suspends, and waits for a usage limit, an outage or the operator do not count. 0 = no limit.
    pub max_duration: HumanDuration,
    /// How long the model's service may be unreachable before the loop ends with an error. 0 = no limit, except for a loop in which no request ever succeeded: that one ends after 10 minutes.
    pub max_outage: HumanDuration,
    /// Share of the subscription's window the loop may use, where the agent reports it. 0 = no limit.
    pub max_quota_percent: Percent,
    /// The line by which the agent claims completion. Empty = no line does.
    pub completion_promise: String,
    /// Claims in a row that are needed, at least 1.
    pub confirmations: u32,
    /// A Markdown file with check boxes, all of which must be ticked before a claim is believed; all ticked is a claim itself.
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

/// The agent's conversation: its program, its time-outs, its transcripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// The program of the `claude` agent.
    pub claude_command: String,
    /// How long one iteration may take. 0 = no limit.
    pub session_timeout: HumanDuration,
    /// After a restart of Tachikoma the conversation goes on; else a fresh one starts from the checkpoint.
    pub persist_sessions: bool,
    /// Where the transcripts lie.
    pub state_dir: PathBuf,
    /// Every iteration gets a conversation of its own.
    pub fresh_each_iteration: bool,
    /// Every iteration gets a process of its own, in the same conversation. Else one process serves the whole conversation.
    pub process_each_iteration: bool,
    /// How long the agent may take to its first output, unless its processes are at work. Not for `command`, which reports nothing. 0 = no limit.
    pub first_output_timeout: HumanDuration,
    /// How long the agent may be silent; not counted while a tool runs or its processes are at work. Not for `command`. 0 = no limit.
    pub silence_timeout: HumanDuration,
    /// How long one tool may run, or an agent be silently at work. Not for `command`. 0 = no limit.
    pub tool_timeout: HumanDuration,
    /// How long the agent may take to exit after its final result. Not for `command`. 0 = none.
    pub result_grace: HumanDuration,
    /// How long a stop waits for the running tool before the agent is ended. 0 = none.
    pub graceful_timeout: HumanDuration,
    /// What is kept of one iteration's output: its head and its tail. 0 = no limit.
    pub transcript_max_bytes: u64,
    /// Number of iterations to keep transcripts of. 0 = no limit.
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

/// How the context's fill is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContextSettings {
    /// A warning is given from here. 100 = off.
    pub warning_percent: Percent,
    /// From here no prompt is sent before a reboot. 100 = off.
    pub hard_limit_percent: Percent,
    /// The size of the context window. 0 = ask the agent.
    pub window_tokens: u64,
    /// Tool calls after which a session is rebooted, only when the agent reports no usage. 0 = off.
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
    /// Sessions are rebooted at all.
    pub enabled: bool,
    /// How a session is replaced.
    pub mode: RebootMode,
    /// The context is too full to go on well from so many tokens, or from `context_redline_percent` if that comes first. 0 = off.
    pub context_redline_tokens: u64,
    /// The least time between two reboots. 0 = none.
    pub min_reboot_interval: HumanDuration,
    /// Successful reboots in any hour. 0 = no limit.
    pub max_reboots_per_hour: u32,
    /// The wait after a reboot that failed. 0 = none.
    pub failure_cooldown: HumanDuration,
    /// Failed reboots in a row that end the loop with an error. 0 = no limit.
    pub max_consecutive_failures: u32,
    /// How long late output of the old session is waited for. 0 = none.
    pub graceful_delay: HumanDuration,
    /// How long the operator is waited for in mode `confirm`; then the loop pauses. 0 = no limit.
    pub confirm_timeout: HumanDuration,
    /// Hooks run before a reboot.
    pub enable_pre_hooks: bool,
    /// Hooks run after a reboot.
    pub enable_post_hooks: bool,
    /// The old session is asked for its hand-off.
    pub preserve_summary: bool,
    /// Reboots of the loop. Absent = no limit; 0 = never reboot.
    pub max_restarts: Option<u32>,
    /// The most a hand-off may take of the new session's prompt. 0 = no limit.
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
    /// The agent's work got worse.
    pub on_degradation: bool,
    /// The session lived this many iterations. Absent or 0 = off.
    pub after_iterations: Option<u32>,
    /// The session lived this long. Absent or 0 = off.
    pub after_duration: Option<HumanDuration>,
    /// Regular expressions over the agent's final text.
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
    /// The loop survives the end of its process. false = its journal and transcripts are in a temporary directory, and gone at its end.
    pub enabled: bool,
    /// The snapshot's file.
    pub state_path: PathBuf,
    /// Where backups lie.
    pub backup_dir: PathBuf,
    /// How often the snapshot is written besides at iteration ends. 0 = off.
    pub auto_save_interval: HumanDuration,
    /// How often the loop is backed up besides at starts and reboots. 0 = off.
    pub backup_interval: HumanDuration,
    /// Backups of a loop that are kept. 0 = no limit.
    pub max_backups: u32,
    /// Snapshot and backups are compressed (zstd). Closed segments and transcripts always are.
    pub compress: bool,
    /// Everything that is kept of a loop is encrypted (age); needs a key: `encrypt_identity_file`, `encrypt_passphrase_file`, or the variable `TACHIKOMA_STATE_PASSPHRASE`.
    pub encrypt: bool,
    /// The file with the passphrase of a key that was made here. Absent = none.
    pub encrypt_passphrase_file: Option<PathBuf>,
    /// The public keys (`age1...`) that can decrypt. Empty = that of the identity.
    pub encrypt_recipients: Vec<String>,
    /// The file with the private key (`AGE-SECRET-KEY-1...`) that the loop reads its own state with. Absent = none.
    pub encrypt_identity_file: Option<PathBuf>,
    /// Where copies of backups go: `s3://bucket/prefix` or `file:///directory`. Credentials are never part of it. Absent = nowhere.
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

/// What is committed, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GitSettings {
    /// The files the loop changed are committed after every iteration.
    pub auto_commit: bool,
    /// Also after an iteration that failed.
    pub commit_on_failure: bool,
    /// The commit's message. `{iteration}`, `{status}`, `{context}`, `{session}` and `{loop}` are filled in; `{{` and `}}` are plain braces.
    pub commit_message: String,
    /// Files that are never committed, kept or taken back. A pattern without a slash is a name anywhere, one with a slash is a path from any directory.
    pub protected: Vec<String>,
    /// New files above this size are neither committed nor kept. 0 = no limit.
    pub max_file_bytes: u64,
    /// How long a commit may take, the repository's own hooks included. 0 = no limit.
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
    /// `tachikoma opencode up` runs it.
    pub enabled: bool,
    /// Its port. 0 = any free one.
    pub serve_port: u16,
    /// The name it listens on. `localhost` is 127.0.0.1; one that others reach needs a password.
    pub serve_hostname: String,
    /// It asks for a password: OPENCODE_SERVER_PASSWORD, or one that is made at each start. With false, every user of the machine can run commands as you.
    pub require_password: bool,
    /// It is restarted when it dies.
    pub auto_restart: bool,
    /// The first wait before a restart, doubled with each in a row up to a minute.
    pub restart_delay_ms: u64,
    /// Restarts without a healthy minute between them before giving up. 0 = no limit.
    pub max_restart_attempts: u32,
    /// The command line that starts it; `serve`, port and hostname are appended. Absent = `opencode`.
    pub serve_command: Option<String>,
    /// It is also restarted when it exits with 0 unasked.
    pub restart_on_normal_exit: bool,
    /// How often its health is asked. 0 = off.
    pub health_interval: HumanDuration,
    /// Missed answers in a row that count as a hang. 0 = no limit.
    pub health_failures: u32,
    /// Memory above which it is replaced once no session is busy. 0 = no limit.
    pub max_rss_bytes: u64,
    /// The address of a server that someone else runs: a loop uses it and never restarts it. Absent or empty = a server of its own.
    #[serde(serialize_with = "without_password")]
    pub attach: Option<String>,
}

/// An address has no place for a password; one that has it all the same is not written anywhere.
#[expect(clippy::ref_option, reason = "serde wants it so")]
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
