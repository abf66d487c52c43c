//! `tachikoma init`: looks at the project, asks a few questions, and writes the configuration, the prompt and the plan. Existing files are kept.

mod detect;
mod template;

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, ErrorKind, Write as _};
use std::process::ExitCode;

use tachikoma_loop_runner::settings::AgentName;
use tachikoma_loop_runner::store::trust::Agreement;

use super::config::warn_not_built;
use super::known_agents::{KNOWN_AGENTS, find_program};
use super::launch::Base;
use crate::confirm::can_ask;
use crate::failure::Failure;
use crate::out;
use crate::trust::{Trust, Untrusted};
use crate::view::text::{Text, Tone};
use crate::workspace::Workspace;
use detect::{Project, RALPH_TASKS};
use template::Choices;

const CONFIGURATION: &str = "tachikoma.toml";

/// Iteration limit if the user gives none. It is enough for a night of work.
const ITERATIONS_MAX: u32 = 50;

/// Cost limit in US dollars if the user gives none. A runaway loop costs no more than this.
const COST_MAX_USD: f64 = 20.0;

/// Looks at the project and writes the files that do not exist yet.
pub fn init(workspace: &Workspace, yes: bool) -> Result<ExitCode, Failure> {
    let dir = &workspace.directory;
    let project = Project::detect(dir);
    let installed = KNOWN_AGENTS
        .iter()
        .filter(|agent| find_program(workspace, agent.program).is_some());
    let installed: Vec<AgentName> = installed.map(|agent| agent.name).collect();
    print_found(&project, &installed);
    // An existing configuration is kept, so answers would have no effect.
    let asks = !yes && can_ask() && !dir.join(CONFIGURATION).exists();
    let choices = choose(workspace, &project, &installed, asks)?;
    let is_new = write(workspace, CONFIGURATION, &template::configuration(&choices))?;
    write(workspace, &choices.prompt, &template::prompt(&choices))?;
    write(workspace, &choices.plan, template::PLAN)?;
    let base = Base::read(workspace)?;
    warn_not_built(&base.loaded);
    if is_new {
        trust(workspace, &base);
    }
    print_next(&project, &installed, &choices);
    Ok(ExitCode::SUCCESS)
}

fn print_found(project: &Project, installed: &[AgentName]) {
    let found = |name: &str, value: &str| {
        out::text(&Text::new(Tone::Detail, format!("{name:<10}")).and(value));
    };
    let names: Vec<&str> = installed.iter().map(|name| name.as_str()).collect();
    let names = match &names[..] {
        [] => "none installed".to_owned(),
        names => names.join(", "),
    };
    found("agents", &names);
    found("language", project.language.unwrap_or("not recognized"));
    found(
        "tests",
        project.test.as_deref().unwrap_or("no test command found"),
    );
    if let Some(prompt) = project.prompt {
        found("prompt", &format!("{prompt} exists"));
    }
    if let Some(plan) = project.plan {
        found("plan", &format!("{plan} exists"));
    }
    if project.has_ralph_tasks {
        found(
            "ralph",
            &format!(
                "{RALPH_TASKS} exists; Tachikoma does not read it: move its tasks to the plan, or name it in the prompt"
            ),
        );
    }
}

/// Asks the questions, or takes all defaults.
fn choose(
    workspace: &Workspace,
    project: &Project,
    installed: &[AgentName],
    asks: bool,
) -> Result<Choices, Failure> {
    let agent = installed.first().copied().unwrap_or_default();
    let agent = ask(asks, "agent (claude or opencode)", agent.as_str(), |name| {
        let mut known = KNOWN_AGENTS.iter().map(|agent| agent.name);
        known
            .find(|known| known.as_str() == name)
            .ok_or("it must be claude or opencode")
    })?;
    let test = project.test.as_deref().unwrap_or("none");
    let test = ask(asks, "test command (or none)", test, |text| {
        Ok(text.to_owned())
    })?;
    let plan = ask(
        asks,
        "plan file",
        project.plan.unwrap_or("plan.md"),
        |text| match text.contains(char::is_control) {
            true => Err("it must be a path"),
            false => Ok(text.to_owned()),
        },
    )?;
    let iterations = ITERATIONS_MAX.to_string();
    let max_iterations = ask(
        asks,
        "maximum number of iterations (0 = no limit)",
        &iterations,
        |text| text.parse().map_err(|_| "it must be a whole number"),
    )?;
    let cost = COST_MAX_USD.to_string();
    let max_cost_usd = ask(
        asks,
        "maximum cost in US dollars (0 = no limit)",
        &cost,
        |text| {
            let usd: Option<f64> = text.trim_start_matches('$').parse().ok();
            usd.filter(|usd| usd.is_finite() && *usd >= 0.0)
                .ok_or("it must be an amount such as 20 or 7.50")
        },
    )?;
    let existing = fs::read_to_string(workspace.directory.join(&plan));
    Ok(Choices {
        agent,
        test: Some(test).filter(|test| test != "none"),
        allow: project.allow.clone(),
        plan_has_boxes: existing.map_or(true, |text| {
            ["[ ]", "[x]", "[X]"].iter().any(|sign| text.contains(sign))
        }),
        plan,
        prompt: project.prompt.unwrap_or("prompt.md").to_owned(),
        max_iterations,
        max_cost_usd,
    })
}

/// Asks a question until the answer is valid. Enter and the end of input take the default.
fn ask<T>(
    asks: bool,
    question: &str,
    default: &str,
    parse: impl Fn(&str) -> Result<T, &'static str>,
) -> Result<T, Failure> {
    loop {
        let mut answer = String::new();
        if asks {
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "{question} [{default}]: ").and_then(|()| stderr.flush());
            let read = std::io::stdin().lock().read_line(&mut answer);
            read.map_err(|error| Failure::new(format!("the answer cannot be read: {error}")))?;
        }
        let given = answer.trim();
        let is_default = given.is_empty();
        match parse(if is_default { default } else { given }) {
            Ok(value) => return Ok(value),
            // Another question would get the same answer.
            Err(problem) if is_default => {
                return Err(Failure::new(format!("{question}: {problem}")));
            }
            Err(problem) => out::note(problem),
        }
    }
}

/// Writes a file unless one exists. Returns whether it was written.
fn write(workspace: &Workspace, name: &str, text: &str) -> Result<bool, Failure> {
    let path = workspace.directory.join(name);
    let mut options = OpenOptions::new();
    let created = options.write(true).create_new(true).open(&path);
    let written = created.and_then(|mut file| file.write_all(text.as_bytes()));
    match written {
        Ok(()) => {
            out::text(&Text::new(Tone::Done, "wrote     ").and(name));
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            out::text(&Text::new(Tone::Detail, "kept      ").and(name));
            Ok(false)
        }
        Err(error) => {
            let what = format!("write {}: {error}", path.display());
            Err(Failure::new(what)
                .hint("check that the directory exists and that you may write to it"))
        }
    }
}

/// Records that the user trusts the new configuration. If that is not possible, `run` asks.
fn trust(workspace: &Workspace, base: &Base) {
    let guarded = &base.loaded.guarded;
    if guarded.is_empty() {
        return;
    }
    let trust = Trust::new(workspace, Untrusted::Refuse);
    let agreement = Agreement::Configuration(guarded.digest());
    if let Err(failure) = trust.record(&base.working_dir, &[agreement]) {
        out::note(&format!(
            "note: {CONFIGURATION} is not trusted yet: {}",
            failure.what
        ));
    }
}

fn print_next(project: &Project, installed: &[AgentName], choices: &Choices) {
    let next = |step: &str| out::text(&Text::new(Tone::Strong, "next      ").and(step));
    let selected = KNOWN_AGENTS
        .iter()
        .find(|known| known.name == choices.agent);
    if let Some(missing) = selected.filter(|known| !installed.contains(&known.name)) {
        next(&format!("install {}: {}", missing.name, missing.install));
    }
    if project.plan.is_none() {
        next(&format!("write your tasks into {}", choices.plan));
    }
    next("tachikoma run");
}
