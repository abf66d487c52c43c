//! The configuration of a runner. The library reads neither the environment nor the command line: the program that embeds it does, and
//! passes everything here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tachikoma_agents::opencode::{ServerAt, Way};
use tachikoma_agents::{
    Agent, ClaudeAgent, CommandAgent, DemoAgent, Lifetime, OpenCodeAgent, Permission, PromptVia,
    ZoneOffset,
};
use tachikoma_core::policy::budget::Budgets;
use tachikoma_core::policy::context::hard_limit_percent;
use tachikoma_core::policy::{AutocommitRules, RebootRules, Timeouts};
use tachikoma_core::{HookPoint, Launch, LoopId, Permitted, Policy, microusd};
use tachikoma_fs::RALPH_DIR;

use crate::cloud::{Cloud, CloudEnvironment};
use crate::gates;
use crate::git::bundle::BundleSource;
use crate::git::worktree_tree::Bounds;
use crate::hooks::Registry;
use crate::opencode::client::{Address, Login};
use crate::opencode::server_file::{Condition, ServerFile};
use crate::opencode::supervisor::{DIR, command_line};
use crate::process::Adoption;
use crate::settings::{
    self, AgentName, HumanDuration, PromptChannel, RebootMode, Secret, Settings,
};
use crate::store::backup::Backups;
use crate::store::encryption::Encryption;
use crate::store::recover::{Copies, Loss};
use crate::store::snapshot::Packing;
use crate::store::temporary;
use tachikoma_core::error_chain as chain;

/// How long a loop waits for space on a full disk. A person or a cleanup job that has not made space by then will not do it soon.
pub const DISK_FULL_TIMEOUT: Duration = Duration::from_secs(600);

/// How long an iteration waits for the snapshot before it. A large tree on a slow disk takes seconds. Without a snapshot the loop
/// is still worth running.
pub(crate) const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the first iteration waits for the survey at the start of a run: changes that an agent makes during the survey would be
/// attributed to others. Longer than it takes to read a gigabyte from a slow disk.
pub(crate) const OPENING_TIMEOUT: Duration = Duration::from_secs(300);

/// The whole configuration of a [`LoopRunner`](crate::LoopRunner).
#[derive(Clone, Debug)]
pub struct LoopConfig {
    /// The effective settings.
    pub settings: Settings,
    /// Absolute path of the working directory.
    pub working_dir: PathBuf,
    /// The recorded part of the configuration: agent, prompt and settings.
    pub launch: Launch,
    /// Whether to begin a new loop even if the last one could continue.
    pub new_loop: bool,
    /// The id for a new loop; `None` = a random id. Not used if this run continues a loop.
    pub new_loop_id: Option<LoopId>,
    /// The program that runs [`serve`](crate::process::serve), with its arguments.
    pub guard: Vec<OsString>,
    /// The program that acts as the `demo` agent, with its arguments.
    pub demo: Vec<OsString>,
    /// The program that connects to OpenCode's server ([`bridge::run`](crate::opencode::bridge::run)), with its
    /// arguments.
    pub bridge: Vec<OsString>,
    /// User and password for OpenCode's server; `None` if the environment sets neither.
    pub opencode_login: Option<Login>,
    /// The directory of the control socket. Only the user may write to it.
    pub runtime_dir: PathBuf,
    /// The directory for the files of a loop that is not stored (`state.enabled = false`). Only the user may write to it.
    pub temporary_dir: PathBuf,
    /// The `PATH` variable that is searched for agents; `None` if it is not set.
    pub search_path: Option<OsString>,
    /// Function that returns the UTC offset of a time zone that an agent names, and of the local time zone.
    pub zone_offset: ZoneOffset,
    /// Which children of this process are ended with the loop if the guard is killed.
    pub adoption: Adoption,
    /// Whether a loop with lost records may continue.
    pub loss: Loss,
    /// Whether to put the agent's processes into a cgroup if possible.
    pub cgroup: bool,
    /// Values of the environment variables that the notification settings name. Only notifications get them.
    pub secrets: BTreeMap<String, Secret>,
    /// Where the credentials of the object store are searched.
    pub cloud_environment: CloudEnvironment,
    /// Encrypts and decrypts the files of the loop.
    pub encryption: Encryption,
    /// How long the loop waits for space on a full disk; usually [`DISK_FULL_TIMEOUT`].
    pub disk_full_timeout: Duration,
}

/// Directory of the supervisor of a loop's own OpenCode server, next to the directory of the shared server.
const OWN_DIR: &str = "opencode-agent";

/// The OpenCode server that a loop uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenCodeServer {
    /// A server at this address that the loop does not supervise.
    Attached(String),
    /// The server of `tachikoma opencode up`, with the directory of its supervisor.
    Shared(PathBuf),
    /// A server that only this loop uses, with the directory of its supervisor.
    Own(PathBuf),
    /// No server: every turn runs its own OpenCode process.
    None,
}

/// Why the configured agent cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// This version does not support the agent yet.
    #[error("agent `{0}` is not supported yet")]
    NotSupported(AgentName),
    /// The `command` agent has no program.
    #[error("agent `command` has no program")]
    NoProgram,
    /// OpenCode cannot be started or found with this configuration.
    #[error("agent `opencode`: {0}")]
    OpenCode(String),
}

impl LoopConfig {
    /// Returns a configuration without programs, secrets, encryption and directories outside of the working directory.
    #[must_use]
    pub fn new(settings: Settings, working_dir: PathBuf, launch: Launch) -> Self {
        Self {
            settings,
            launch,
            new_loop: false,
            new_loop_id: None,
            guard: Vec::new(),
            demo: Vec::new(),
            bridge: Vec::new(),
            opencode_login: None,
            runtime_dir: PathBuf::new(),
            temporary_dir: PathBuf::new(),
            working_dir,
            search_path: None,
            zone_offset: |_| None,
            // Other child processes of the embedding program must not be ended with the loop.
            adoption: Adoption::Marked,
            loss: Loss::Refuse,
            cgroup: true,
            secrets: BTreeMap::new(),
            cloud_environment: CloudEnvironment::default(),
            encryption: Encryption::plain(),
            disk_full_timeout: DISK_FULL_TIMEOUT,
        }
    }

    /// Returns the agent that the settings name.
    ///
    /// # Errors
    /// The agent cannot be run.
    pub fn agent(&self) -> Result<Agent, AgentError> {
        match self.settings.agent.name {
            AgentName::Command => self.command_agent(),
            AgentName::Demo => Ok(Agent::Demo(DemoAgent {
                program: self.demo.clone(),
            })),
            AgentName::Claude => Ok(Agent::Claude(Box::new(self.claude_agent()))),
            AgentName::OpenCode => Ok(Agent::OpenCode(Box::new(self.opencode_agent()?))),
            name @ (AgentName::Codex | AgentName::Gemini | AgentName::Acp) => {
                Err(AgentError::NotSupported(name))
            }
        }
    }

    fn claude_agent(&self) -> ClaudeAgent {
        let own = &self.settings.agents.claude;
        let session = &self.settings.session;
        ClaudeAgent {
            program: vec![session.claude_command.clone().into()],
            args: own.args.iter().map(Into::into).collect(),
            env: exposed(&own.env),
            model: own.model.clone(),
            permission: permission(own.permission),
            allow: own.allow.clone(),
            root: rustix::process::geteuid().is_root(),
            lifetime: if session.fresh_each_iteration || session.process_each_iteration {
                Lifetime::Turn
            } else {
                Lifetime::Session
            },
            context_is_managed: self.reboot_rules().manages_context(),
            window_tokens: Some(self.settings.context.window_tokens).filter(|tokens| *tokens > 0),
        }
    }

    fn command_agent(&self) -> Result<Agent, AgentError> {
        let command = &self.settings.agents.command;
        if command.program.first().is_none_or(String::is_empty) {
            return Err(AgentError::NoProgram);
        }
        Ok(Agent::Command(CommandAgent {
            program: command.program.iter().map(Into::into).collect(),
            prompt: match command.prompt {
                PromptChannel::Stdin => PromptVia::Stdin,
                PromptChannel::Argument => PromptVia::Argument,
            },
            env: exposed(&command.env),
        }))
    }

    /// Returns which OpenCode server an agent uses. The choice was made when the agent was created, because the server of
    /// `tachikoma opencode up` may start
    /// and stop in the meantime.
    #[must_use]
    pub fn opencode_server(&self, agent: &Agent) -> OpenCodeServer {
        let way = match agent {
            Agent::OpenCode(agent) => &agent.way,
            Agent::Command(_) | Agent::Demo(_) | Agent::Claude(_) => return OpenCodeServer::None,
        };
        let own = self.working_dir.join(RALPH_DIR).join(OWN_DIR);
        match way {
            Way::Once { .. } => OpenCodeServer::None,
            Way::Server { at, .. } => match at {
                ServerAt::Url(url) => OpenCodeServer::Attached(url.clone()),
                ServerAt::Supervised(dir) if *dir == own => OpenCodeServer::Own(own),
                ServerAt::Supervised(dir) => OpenCodeServer::Shared(dir.into()),
            },
        }
    }

    fn choose_server(&self) -> OpenCodeServer {
        let settings = &self.settings.opencode;
        let ralph = self.working_dir.join(RALPH_DIR);
        if self.settings.session.process_each_iteration {
            return OpenCodeServer::None;
        }
        if let Some(url) = settings.attach.as_ref().filter(|url| !url.is_empty()) {
            return OpenCodeServer::Attached(url.clone());
        }
        let shared = ralph.join(DIR);
        if settings.enabled
            && let Ok(Some(file)) = ServerFile::read(&shared)
            && file.state != Condition::Stopped
        {
            return OpenCodeServer::Shared(shared);
        }
        OpenCodeServer::Own(ralph.join(OWN_DIR))
    }

    fn opencode_agent(&self) -> Result<OpenCodeAgent, AgentError> {
        let own = &self.settings.agents.opencode;
        let session = &self.settings.session;
        let refused = |why: String| AgentError::OpenCode(why);
        if let Some(model) = own.model.as_ref().filter(|model| !model.contains('/')) {
            return Err(refused(format!(
                "model `{model}` is not of the form provider/model; `opencode models` lists them"
            )));
        }
        let served = |at: ServerAt| Way::Server {
            bridge: self.bridge.clone(),
            at,
            directory: self.working_dir.clone().into_os_string(),
            lifetime: match session.fresh_each_iteration {
                true => Lifetime::Turn,
                false => Lifetime::Session,
            },
        };
        let way = match self.choose_server() {
            OpenCodeServer::Attached(url) => {
                let address = Address::parse(&url).map_err(|error| refused(chain(&error)))?;
                if !address.is_loopback() && !self.has_password() {
                    return Err(refused(format!(
                        "{address} is not on this machine: set OPENCODE_SERVER_PASSWORD, there and here"
                    )));
                }
                served(ServerAt::Url(url))
            }
            OpenCodeServer::Shared(dir) | OpenCodeServer::Own(dir) => {
                served(ServerAt::Supervised(dir.into_os_string()))
            }
            OpenCodeServer::None => Way::Once {
                program: self.opencode_program()?,
                args: own.args.iter().map(Into::into).collect(),
            },
        };
        Ok(OpenCodeAgent {
            way,
            env: exposed(&own.env),
            model: own.model.clone(),
            permission: permission(own.permission),
            allow: own.allow.clone(),
            context_is_managed: self.reboot_rules().manages_context(),
            window_tokens: Some(self.settings.context.window_tokens).filter(|tokens| *tokens > 0),
        })
    }

    /// Returns the program that starts OpenCode, with its first arguments.
    ///
    /// # Errors
    /// The configured command line is not valid.
    pub(crate) fn opencode_program(&self) -> Result<Vec<OsString>, AgentError> {
        let words = command_line(&self.settings.opencode).map_err(AgentError::OpenCode)?;
        let own = words.into_iter().take_while(|word| word != "serve");
        Ok(own.map(Into::into).collect())
    }

    fn has_password(&self) -> bool {
        let own = &self.settings.agents.opencode.env;
        self.opencode_login.is_some() || own.contains_key("OPENCODE_SERVER_PASSWORD")
    }

    /// Returns the permissions that the configuration gives to an agent.
    #[must_use]
    pub fn permitted(&self, agent: &str) -> Permitted {
        let agents = &self.settings.agents;
        let own = match agent {
            "claude" => &agents.claude,
            "opencode" => &agents.opencode,
            _ => return Permitted::default(),
        };
        Permitted {
            commands: own.allow.clone(),
            args: own.args.clone(),
        }
    }

    /// Returns the rules of the loop for an agent.
    #[must_use]
    pub fn policy(&self, agent: &Agent) -> Policy {
        let settings = &self.settings;
        let session = &settings.session;
        let stop = &settings.stop_conditions;
        let time = |duration: &HumanDuration| -> Duration { duration.get() };
        Policy {
            max_iterations: settings.max_iterations,
            iteration_delay: time(&settings.iteration_delay),
            max_consecutive_failures: settings.stop_conditions.max_consecutive_failures,
            max_test_failure_streak: settings.stop_conditions.max_test_failure_streak,
            max_no_progress_iterations: settings.stop_conditions.max_no_progress_iterations,
            stop_patterns: u32::try_from(stop.stop_on_patterns.len()).unwrap_or(u32::MAX),
            permitted: self.permitted(&self.launch.agent),
            budgets: Budgets {
                cost_microusd: budget_microusd(stop.max_cost_usd.get()),
                tokens: stop.max_tokens,
                duration: time(&stop.max_duration),
                quota_percent: stop.max_quota_percent.get(),
            },
            max_outage: time(&stop.max_outage),
            completion: gates::rules(settings),
            agent: agent.traits(),
            timeouts: Timeouts {
                session: time(&session.session_timeout),
                first_output: time(&session.first_output_timeout),
                silence: time(&session.silence_timeout),
                tool: time(&session.tool_timeout),
                result_grace: time(&session.result_grace),
                graceful: time(&session.graceful_timeout),
                ..Timeouts::default()
            },
            reboot: self.reboot_rules(),
            hooks: Registry::default().limits(settings),
            persist_sessions: session.persist_sessions,
            fresh_each_iteration: session.fresh_each_iteration,
            attended: settings.attended_mode,
            question_timeout: time(&settings.question_timeout),
            ..Policy::default()
        }
    }

    /// Returns the rules for commits, or for surveys of the work tree if there is no repository.
    pub(crate) fn autocommit_rules(&self, repository: bool) -> AutocommitRules {
        let git = &self.settings.git;
        AutocommitRules {
            repository,
            commit: repository && git.auto_commit,
            on_failure: git.commit_on_failure,
            timeout: git.commit_timeout.get(),
        }
    }

    /// Returns the rules of the loop for an agent. `repository` says whether the working directory is in a git repository.
    pub(crate) fn policy_in(&self, agent: &Agent, repository: bool) -> Policy {
        let mut policy = self.policy(agent);
        set_autocommit_rules(&mut policy, Some(self.autocommit_rules(repository)));
        policy
    }

    /// Returns the directory that has the journal of a loop in its `.ralph/`: the working directory, or a temporary one.
    #[must_use]
    pub fn store_root(&self, loop_id: LoopId) -> PathBuf {
        if self.settings.state.enabled {
            self.working_dir.clone()
        } else {
            temporary::root(&self.temporary_dir, loop_id)
        }
    }

    fn reboot_rules(&self) -> RebootRules {
        let settings = &self.settings;
        let reboot = &settings.reboot;
        let context = &settings.context;
        let hooks = |point: HookPoint| Registry::default().limit(point, settings);
        RebootRules {
            enabled: reboot.enabled,
            on_redline: reboot.triggers.on_redline,
            redline_percent: settings.context_redline_percent.get(),
            redline_tokens: reboot.context_redline_tokens,
            warning_percent: context.warning_percent.get(),
            hard_limit_percent: context.hard_limit_percent.get(),
            tool_call_threshold: context.tool_call_threshold,
            on_degradation: reboot.triggers.on_degradation,
            after_iterations: reboot.triggers.after_iterations,
            after_duration: reboot.triggers.after_duration.map(HumanDuration::get),
            max_reboots: reboot.max_restarts,
            immediate: reboot.mode == RebootMode::Immediate,
            min_interval: reboot.min_reboot_interval.get(),
            max_per_hour: reboot.max_reboots_per_hour,
            failure_cooldown: reboot.failure_cooldown.get(),
            max_failures: reboot.max_consecutive_failures,
            graceful_delay: reboot.graceful_delay.get(),
            ask_hand_off: reboot.preserve_summary,
            confirm: (reboot.mode == RebootMode::Confirm).then(|| reboot.confirm_timeout.get()),
            hooks_before: hooks(HookPoint::BeforeReboot),
            hooks_after: hooks(HookPoint::AfterReboot),
            ..RebootRules::default()
        }
    }

    /// Returns why the configured redline can never be reached; `None` if that is not known before the agent runs.
    #[must_use]
    pub fn redline_problem(&self, agent: &Agent) -> Option<String> {
        let window = agent.window_tokens()?;
        let policy = self.policy(agent);
        let configured = policy.reboot.redline_percent;
        let possible = hard_limit_percent(&policy, window);
        (policy.reboot.manages_context() && configured > possible).then(|| {
            format!(
                "context_redline_percent = {configured} cannot be reached: with {window} tokens agent {} takes no prompt above \
                 {possible:.1} %, and sessions are replaced there",
                agent.name()
            )
        })
    }

    /// Returns a warning for each budget that has no effect with the agent.
    #[must_use]
    pub fn budget_problems(&self, agent: &Agent) -> Vec<String> {
        let stop = &self.settings.stop_conditions;
        let traits = agent.traits();
        let name = agent.name();
        let set = [
            ("max_cost_usd", stop.max_cost_usd.get() > 0.0),
            ("max_tokens", stop.max_tokens > 0),
            ("max_quota_percent", stop.max_quota_percent.get() > 0.0),
        ];
        let blind = set
            .into_iter()
            .filter(|(_, set)| *set && !traits.tells_cost);
        blind
            .map(|(key, _)| {
                format!(
                    "agent {name} does not report its usage: {key} has no effect; use max_duration"
                )
            })
            .collect()
    }

    /// Returns the path of the snapshot, without the suffixes for compression and encryption.
    #[must_use]
    pub fn snapshot_path(&self) -> PathBuf {
        self.resolve(&self.settings.state.state_path)
    }

    /// Returns whether snapshot and backups are compressed.
    #[must_use]
    pub fn packing(&self) -> Packing {
        Packing::of(self.settings.state.compress)
    }

    /// Returns the directory of the backups and how many of them are kept.
    #[must_use]
    pub fn backups(&self) -> Backups {
        Backups {
            dir: self.resolve(&self.settings.state.backup_dir),
            max: self.settings.state.max_backups,
            packing: self.packing(),
            encryption: self.encryption.clone(),
        }
    }

    /// Returns the object store for backups; `None` if backups are not uploaded.
    pub(crate) fn cloud(&self) -> Option<Cloud> {
        let state = &self.settings.state;
        let url = state.cloud_url.clone().filter(|_| state.enabled)?;
        Some(Cloud {
            url,
            cloud_environment: self.cloud_environment.clone(),
            max: state.max_backups,
        })
    }

    /// Returns the description of the work tree and the loop that a backup packs into its bundle.
    pub(crate) fn work_of(&self, loop_id: LoopId) -> BundleSource {
        BundleSource {
            working_dir: self.working_dir.clone(),
            loop_id,
            search_path: self.search_path.clone(),
            hidden: self.secrets.keys().map(Into::into).collect(),
            bounds: Bounds::of(&self.settings, &self.working_dir),
        }
    }

    /// Returns the other files from which the state of the loop can be recovered.
    pub(crate) fn copies(&self) -> Copies {
        Copies {
            snapshot: self.snapshot_path(),
            backups: self.backups().dir,
            encryption: self.encryption.clone(),
        }
    }

    /// Returns the path of the snapshot, with the suffixes of its configured format.
    pub(crate) fn packed_snapshot_path(&self) -> PathBuf {
        self.packing().path(&self.snapshot_path(), &self.encryption)
    }

    /// Returns where the transcripts of a loop are kept.
    #[must_use]
    pub fn transcripts_dir(&self, loop_id: LoopId) -> PathBuf {
        self.sessions_dir(loop_id).join(loop_id.to_string())
    }

    /// Returns the directory with the transcripts of all loops in the same store.
    pub(crate) fn sessions_dir(&self, loop_id: LoopId) -> PathBuf {
        if self.settings.state.enabled {
            self.resolve(&self.settings.session.state_dir)
        } else {
            self.store_root(loop_id).join(RALPH_DIR).join("sessions")
        }
    }

    /// Resolves a path of the settings: relative ones are relative to the working directory.
    #[must_use]
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.working_dir.join(path)
    }
}

/// Sets the rules for commits. The launch timeout is longer then, because a launch waits for the git snapshot before it.
pub(crate) fn set_autocommit_rules(policy: &mut Policy, rules: Option<AutocommitRules>) {
    let waits = rules.map_or(Duration::ZERO, |_| OPENING_TIMEOUT + SNAPSHOT_TIMEOUT);
    policy.timeouts.launch = Timeouts::default().launch + waits;
    policy.autocommit = rules;
}

/// Converts a budget from dollars to millionths of a dollar. The result is at least 1 if a budget is set.
fn budget_microusd(usd: f64) -> u64 {
    microusd(usd).max(u64::from(usd > 0.0))
}

/// Returns environment variables with their secret values in plain text.
pub(crate) fn exposed(env: &BTreeMap<String, Secret>) -> Vec<(OsString, OsString)> {
    env.iter()
        .map(|(name, value)| (name.into(), value.expose().into()))
        .collect()
}

fn permission(permission: settings::Permission) -> Permission {
    match permission {
        settings::Permission::Safe => Permission::Safe,
        settings::Permission::Bypass => Permission::Bypass,
    }
}
