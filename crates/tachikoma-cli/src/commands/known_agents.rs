//! The agents that `init` and `doctor` look for, and where their programs are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use tachikoma_loop_runner::settings::AgentName;

use crate::workspace::Workspace;

/// An agent that can be installed.
#[derive(Debug)]
pub struct KnownAgent {
    /// Name in the configuration.
    pub name: AgentName,
    /// Program that is searched in `PATH`.
    pub program: &'static str,
    /// Command that installs the agent.
    pub install: &'static str,
    /// Environment variables that hold credentials of the agent.
    pub credentials: &'static [&'static str],
    /// Environment variable with the directory of the credentials file, the directory below `HOME` if it is not set, and the path of the
    /// file in that directory.
    pub credentials_file: (&'static str, &'static str, &'static str),
}

/// All agents that can be installed, the preferred one first.
pub const KNOWN_AGENTS: [KnownAgent; 2] = [
    KnownAgent {
        name: AgentName::Claude,
        program: "claude",
        install: "npm install -g @anthropic-ai/claude-code",
        credentials: &[
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
        ],
        credentials_file: ("CLAUDE_CONFIG_DIR", ".claude", ".credentials.json"),
    },
    KnownAgent {
        name: AgentName::OpenCode,
        program: "opencode",
        install: "npm install -g opencode-ai",
        credentials: &[
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "GEMINI_API_KEY",
            "OPENROUTER_API_KEY",
        ],
        credentials_file: ("XDG_DATA_HOME", ".local/share", "opencode/auth.json"),
    },
];

/// Returns the path of a program: searched in `PATH`, or relative to the working directory if its name has a slash. `None` if there is no
/// such executable file.
pub fn find_program(workspace: &Workspace, program: &str) -> Option<PathBuf> {
    let is_executable = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if program.contains('/') {
        return Some(workspace.directory.join(program)).filter(is_executable);
    }
    let search_path = workspace.search_path()?;
    let mut candidates = std::env::split_paths(&search_path).map(|dir| dir.join(program));
    candidates.find(is_executable)
}

/// Returns whether a directory has a file with this name.
pub fn has_file(dir: &Path, name: impl AsRef<OsStr>) -> bool {
    dir.join(name.as_ref()).is_file()
}
