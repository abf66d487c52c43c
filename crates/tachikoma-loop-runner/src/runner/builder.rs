//! Builder of a loop for programs that embed this library. Only the directory and the prompt are required.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tachikoma_core::{Launch, PromptSource};
use tachikoma_fs::RALPH_DIR;

use crate::config::LoopConfig;
use crate::process;
use crate::settings::{AgentName, Secret, Settings};
use crate::store::encryption::{Encryption, IDENTITY, KeySource, Passphrase};

use super::LoopRunner;
use super::open::OpenError;

/// Argument with which the embedding program is started again as the guard of its agents.
const GUARD_ARGUMENT: &str = "__tachikoma-guard";

/// Runs the guard if this process was started as a guard. Returns `None` in every other process.
///
/// The runner starts the embedding program a second time, as the guard that is the parent of all agents. Call this function first in
/// `main`, before a thread is started, and return its exit code. A program that names another guard ([`LoopBuilder::guard`]) does not need it.
///
/// ```no_run
/// # use std::process::ExitCode;
/// fn main() -> ExitCode {
///     if let Some(code) = tachikoma_loop_runner::run_guard(std::env::args_os()) {
///         return code;
///     }
///     // The program itself.
///     ExitCode::SUCCESS
/// }
/// ```
#[must_use]
pub fn run_guard(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let is_guard = args.into_iter().nth(1)? == GUARD_ARGUMENT;
    is_guard.then(process::serve)
}

/// Builds a [`LoopRunner`]. [`LoopRunner::builder`] returns one.
#[derive(Clone, Debug)]
#[must_use]
pub struct LoopBuilder {
    working_dir: PathBuf,
    prompt: PromptSource,
    settings: Settings,
    guard: Option<Vec<OsString>>,
    search_path: Option<OsString>,
    runtime_dir: PathBuf,
    secrets: BTreeMap<String, Secret>,
    new_loop: bool,
}

impl LoopBuilder {
    pub(crate) fn new(working_dir: PathBuf, prompt: PromptSource) -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self {
            working_dir,
            prompt,
            settings: Settings::default(),
            guard: None,
            search_path: std::env::var_os("PATH"),
            runtime_dir: std::env::temp_dir().join(format!("tachikoma-{user}")),
            secrets: BTreeMap::new(),
            new_loop: false,
        }
    }

    /// Sets all settings. The defaults are in docs/config.md. It overrides earlier calls of [`LoopBuilder::agent`],
    /// [`LoopBuilder::command`] and [`LoopBuilder::max_iterations`].
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the agent. The default is Claude Code. OpenCode needs [`LoopConfig::bridge`], or `session.process_each_iteration`.
    pub fn agent(mut self, agent: AgentName) -> Self {
        self.settings.agent.name = agent;
        self
    }

    /// Uses a program as the agent: it is started once in each iteration, with the prompt on its standard input.
    pub fn command<T: Into<String>>(mut self, program: impl IntoIterator<Item = T>) -> Self {
        self.settings.agents.command.program = program.into_iter().map(Into::into).collect();
        self.agent(AgentName::Command)
    }

    /// Sets the number of iterations after which the loop ends; zero means unlimited.
    pub fn max_iterations(mut self, limit: u32) -> Self {
        self.settings.max_iterations = limit;
        self
    }

    /// Begins a new loop even if the last loop of the directory could continue.
    pub fn new_loop(mut self, new_loop: bool) -> Self {
        self.new_loop = new_loop;
        self
    }

    /// Sets the program that runs [`process::serve`], with its arguments. The default is the running program, which has to call
    /// [`run_guard`].
    pub fn guard<T: Into<OsString>>(mut self, program: impl IntoIterator<Item = T>) -> Self {
        self.guard = Some(program.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the directories in which programs are searched, separated by colons. The default is the variable `PATH`.
    pub fn search_path(mut self, search_path: impl Into<OsString>) -> Self {
        self.search_path = Some(search_path.into());
        self
    }

    /// Sets the directory of the control socket. Only the user may write to it. The default is below the directory for temporary files.
    pub fn runtime_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.runtime_dir = dir.into();
        self
    }

    /// Sets the values of the environment variables that the `[[notify]]` settings name. The default is empty.
    pub fn secrets(mut self, secrets: BTreeMap<String, Secret>) -> Self {
        self.secrets = secrets;
        self
    }

    /// Returns the whole configuration, for values that this builder has no method for.
    ///
    /// # Errors
    /// The working directory does not exist, or the path of the running program is unknown.
    pub fn config(self) -> Result<LoopConfig, OpenError> {
        let working_dir = self.working_dir.canonicalize();
        let working_dir = working_dir.map_err(|source| OpenError::WorkingDir {
            path: self.working_dir,
            source,
        })?;
        let guard = match self.guard {
            Some(guard) => guard,
            None => {
                let program = std::env::current_exe().map_err(OpenError::OwnProgram)?;
                vec![program.into_os_string(), GUARD_ARGUMENT.into()]
            }
        };
        let launch = Launch {
            agent: self.settings.agent.name.to_string(),
            prompt: self.prompt,
            ..Launch::default()
        };
        Ok(LoopConfig {
            encryption: encryption(&working_dir, &self.settings),
            new_loop: self.new_loop,
            guard,
            temporary_dir: self.runtime_dir.clone(),
            runtime_dir: self.runtime_dir,
            search_path: self.search_path,
            secrets: self.secrets,
            ..LoopConfig::new(self.settings, working_dir, launch)
        })
    }

    /// Opens the loop of the directory, or begins a new one, without running it.
    ///
    /// # Errors
    /// The loop cannot be run; see [`LoopRunner::open`].
    pub async fn open(self) -> Result<LoopRunner, OpenError> {
        LoopRunner::open(self.config()?).await
    }
}

/// Returns the configured encryption. A passphrase is only read from its file.
fn encryption(working_dir: &Path, settings: &Settings) -> Encryption {
    let state = &settings.state;
    let resolve = |path: &PathBuf| working_dir.join(path);
    Encryption::new(KeySource {
        encrypt: state.encrypt,
        recipients: state.encrypt_recipients.clone(),
        identity_file: state.encrypt_identity_file.as_ref().map(resolve),
        passphrase: state
            .encrypt_passphrase_file
            .as_ref()
            .map(|path| Passphrase::File(resolve(path))),
        generated: working_dir.join(RALPH_DIR).join(IDENTITY),
    })
}
