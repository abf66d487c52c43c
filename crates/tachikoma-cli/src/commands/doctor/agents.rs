//! Checks of the agents: whether they are installed, tested and logged in, and what the prompt needs that they may not do.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tachikoma_agents::TestedAgent;
use tachikoma_loop_runner::settings::{AgentName, Settings};

use super::check::Check;
use super::limited;
use super::mistakes::{allow_line, is_allowed, restricted_agent};
use crate::commands::known_agents::{KNOWN_AGENTS, KnownAgent, find_program};
use crate::workspace::Workspace;

/// Time limit for printing a version. It takes a second on an idle machine.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);

/// Commands that prompts often ask for, and that an agent may only run if `allow` has them.
const COMMANDS: [&str; 20] = [
    "cargo test",
    "cargo build",
    "cargo clippy",
    "cargo fmt",
    "npm test",
    "npm run",
    "npm install",
    "pnpm test",
    "yarn test",
    "bun test",
    "pytest",
    "python -m unittest",
    "python3 -m unittest",
    "pip install",
    "go test",
    "go build",
    "make",
    "git commit",
    "git push",
    "docker",
];

/// Checks all known agents, and the program of the selected agent if it is another one. The configured program is only started if `is_trusted`.
pub fn agents(workspace: &Workspace, settings: &Settings, is_trusted: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    for agent in &KNOWN_AGENTS {
        let is_selected = settings.agent.name == agent.name;
        let program = match agent.name {
            AgentName::Claude if is_trusted => settings.session.claude_command.as_str(),
            _ => agent.program,
        };
        let Some(path) = find_program(workspace, program) else {
            checks.push(missing(agent, program, is_selected));
            continue;
        };
        checks.push(version(agent, &path));
        if is_selected {
            checks.push(login(workspace, settings, agent));
        }
    }
    if settings.agent.name == AgentName::Command {
        let program = settings.agents.command.program.first();
        let found = program.and_then(|program| find_program(workspace, program));
        checks.push(match (program, found) {
            (Some(program), Some(_)) => Check::ok("command", format!("`{program}` is installed")),
            (Some(program), None) => {
                let fix = "install it, or change agents.command.program";
                Check::error("command", format!("`{program}` was not found"), fix)
            }
            (None, _) => {
                let fix = "program = [\"PROGRAM\", \"ARGUMENT\"] in [agents.command]";
                Check::error("command", "no program is configured", fix)
            }
        });
    }
    checks
}

fn missing(agent: &KnownAgent, program: &str, is_selected: bool) -> Check {
    match is_selected {
        true => {
            let message = format!("not installed: `{program}` was not found in PATH");
            Check::error(agent.name.as_str(), message, agent.install)
        }
        false => Check::ok(agent.name.as_str(), "not installed, and not used here"),
    }
}

fn version(agent: &KnownAgent, path: &Path) -> Check {
    let name = agent.name.as_str();
    let mut command = Command::new(path);
    command.arg("--version");
    let printed = limited::run(command, Some(VERSION_TIMEOUT));
    let printed = printed.and_then(|(status, text)| match status.success() {
        true => Ok(text),
        false => Err(status.to_string()),
    });
    let text = match printed {
        Ok(text) => text,
        Err(error) => {
            let message = format!("`{} --version` fails: {error}", path.display());
            return Check::error(
                name,
                message,
                format!("install it again: {}", agent.install),
            );
        }
    };
    let version = text.split_whitespace().next().unwrap_or_default();
    let Some(tested) = TestedAgent::of(name) else {
        return Check::ok(name, version);
    };
    let range = tested.range();
    match tested.is_tested(version) {
        true => Check::ok(name, format!("{version}, tested with {range}")),
        false => Check::warning(
            name,
            format!("version {version:?} is not tested; tested with {range}"),
            format!(
                "watch the first iterations, or install a tested version: {}",
                agent.install
            ),
        ),
    }
}

/// Looks for credentials in the environment and in the agent's file. No request is sent, so expired credentials are not found.
fn login(workspace: &Workspace, settings: &Settings, agent: &KnownAgent) -> Check {
    let own = match agent.name {
        AgentName::OpenCode => &settings.agents.opencode.env,
        _ => &settings.agents.claude.env,
    };
    let is_set = |name: &&&str| workspace.variable(name).is_some() || own.contains_key(**name);
    if let Some(name) = agent.credentials.iter().find(is_set) {
        return Check::ok("login", format!("{name} is set"));
    }
    let (variable, below_home, file) = agent.credentials_file;
    let dir = workspace.variable(variable).map(Into::into).or_else(|| {
        let home = workspace.variable("HOME")?;
        Some(Path::new(&home).join(below_home))
    });
    let path = dir.map(|dir: std::path::PathBuf| dir.join(file));
    match path {
        Some(path) if path.is_file() => Check::ok(
            "login",
            format!("{} has credentials; not tried", path.display()),
        ),
        _ => {
            let message = format!("no credentials of {} found", agent.name);
            let advice = TestedAgent::of(agent.name.as_str());
            let advice = advice.map_or("log in", |tested| tested.login_advice());
            Check::warning("login", message, advice)
        }
    }
}

/// Checks that the prompt exists, and finds commands in it that the agent may not run.
pub fn prompt(working_dir: &Path, settings: &Settings) -> Check {
    let shown = settings.prompt_path.display();
    let text = match std::fs::read_to_string(working_dir.join(&settings.prompt_path)) {
        Ok(text) => text,
        Err(error) => {
            let fix = "write it, or run `tachikoma init`";
            return Check::error("prompt", format!("read {shown}: {error}"), fix);
        }
    };
    let Some(agent) = restricted_agent(settings) else {
        return Check::ok("prompt", format!("{shown}; the agent needs no permissions"));
    };
    let mut denied = COMMANDS.iter().filter(|command| mentions(&text, command));
    match denied.find(|command| !is_allowed(agent, command)) {
        Some(command) => Check::warning(
            "permission safe",
            format!("{shown} mentions `{command}`, which will be denied"),
            allow_line(settings, agent, command),
        ),
        None => Check::ok(
            "permission safe",
            format!("{shown} mentions no command that will be denied"),
        ),
    }
}

/// Returns whether a text mentions a command. A single word counts only after a backtick, because `make` is also an English word.
fn mentions(text: &str, command: &str) -> bool {
    text.match_indices(command).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + command.len()..].chars().next();
        let starts = match command.contains(' ') {
            true => before.is_none_or(|letter| !letter.is_alphanumeric()),
            false => before == Some('`'),
        };
        starts && after.is_none_or(|letter| !letter.is_alphanumeric() && letter != '-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_prompts_and_english_words_are_not() {
        for (text, command) in [
            ("Run cargo test.", "cargo test"),
            ("run `make` first", "make"),
            ("`make all`", "make"),
            ("then git push", "git push"),
        ] {
            assert!(mentions(text, command), "{text}");
        }
        for (text, command) in [
            ("make sure that it works", "make"),
            ("`makefile`", "make"),
            ("cargo tests", "cargo test"),
            ("mygit push", "git push"),
        ] {
            assert!(!mentions(text, command), "{text}");
        }
    }
}
