//! `cargo xtask attack`: tries each known attack against the release binary, with two local users, and prints whether the product
//! withstood it. To add one, write a function below `attack/` and a row in [`HOLES`], then break the product once and check that
//! the attack reports "not held".

mod control;
mod found;
mod git;
mod kill;
mod opencode;
mod scene;
mod terminal;
mod trust;

use std::path::{Path, PathBuf};

use scene::Scene;

use crate::product;

/// Why an attack did not pass.
#[derive(Debug)]
pub enum Failure {
    /// The attack succeeded. Describes what it reached.
    NotHeld(String),
    /// The attack could not be tried, or its control check shows that a success would not have been noticed.
    Untried(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Untried(why)
    }
}

impl From<&str> for Failure {
    fn from(why: &str) -> Self {
        Self::Untried(why.to_owned())
    }
}

/// Fails if the attack reached its target.
pub fn must_not(reached: bool, what: &str) -> Result<(), Failure> {
    match reached {
        true => Err(Failure::NotHeld(what.to_owned())),
        false => Ok(()),
    }
}

/// Fails if the control check of an attack did not work, because then the attack proves nothing.
pub fn control(worked: bool, what: &str) -> Result<(), Failure> {
    match worked {
        true => Ok(()),
        false => Err(Failure::Untried(format!("the control failed: {what}"))),
    }
}

/// An attack. Each one also has a control check, which shows that a success would be noticed.
type Attack = fn(&Scene) -> Result<(), Failure>;

/// A security hole: its name, the property that must hold, and the attack.
struct Hole(&'static str, &'static str, Attack);

/// All attacks, in the order in which they are tried.
const HOLES: &[Hole] = &[
    Hole(
        "cloned-configuration",
        "programs of a cloned tachikoma.toml do not run",
        trust::cloned_configuration,
    ),
    Hole(
        "agent-trusts",
        "an agent that edits tachikoma.toml cannot trust it in the user's place",
        trust::agent_trusts,
    ),
    Hole(
        "edited-configuration",
        "a reload does not use programs that the user did not trust",
        trust::edited_configuration,
    ),
    Hole(
        "planted-loop",
        "the program of a planted .ralph does not run",
        trust::planted_loop,
    ),
    Hole(
        "planted-program",
        "a program that was put into the state of a known loop does not run",
        trust::planted_program,
    ),
    Hole(
        "second-loop",
        "a second loop directory that appears is not taken for the current loop",
        trust::second_loop,
    ),
    Hole(
        "tracked-loop",
        "a .ralph that comes with a clone is refused",
        trust::tracked_loop,
    ),
    Hole(
        "ralph-above",
        "a .ralph of another user above the directory is not used",
        found::ralph_above,
    ),
    Hole(
        "configuration-of-another-user",
        "a tachikoma.toml of another user is not used, trusted or not",
        found::configuration,
    ),
    Hole(
        "lock-of-another-user",
        "a lock of another user does not lead to that user's runner",
        found::lock,
    ),
    Hole(
        "server-without-password",
        "another user cannot create sessions in the server of `opencode up`, or read its password",
        opencode::without_password,
    ),
    Hole(
        "port-of-a-server",
        "the password of a server is not sent to another process that has its port",
        opencode::port,
    ),
    Hole(
        "nested-diff",
        "diff does not run an external diff of a nested repository",
        git::nested_diff,
    ),
    Hole(
        "control-characters",
        "control characters of the agent do not reach the terminal",
        terminal::control_characters,
    ),
    Hole(
        "runtime-directory",
        "a runtime directory that other users can write to is refused",
        found::runtime_directory,
    ),
    Hole(
        "reused-process-id",
        "a request of the agent is refused, also if the process id of its caller is an operator's by now",
        control::reused_process_id,
    ),
    Hole(
        "idle-connections",
        "connections of the agent that stay idle do not keep the operator from stopping the loop",
        control::idle_connections,
    ),
    Hole(
        "forged-signals",
        "signals with a forged sender (sigqueue, F_SETSIG) are refused",
        control::forged_signals,
    ),
    Hole(
        "guard-killed",
        "no process of the agent survives when runner and guard are killed together",
        kill::runner_and_guard,
    ),
    Hole(
        "killed-by-name",
        "no process of the agent survives when all processes called tachikoma are killed",
        kill::by_name,
    ),
    Hole(
        "guard-stopped",
        "no process of the agent survives when the guard is stopped and the runner killed",
        kill::stopped_guard,
    ),
    Hole(
        "standby-killed",
        "no process of the agent survives when the standby and then the runner are killed",
        kill::standby_and_runner,
    ),
];

/// Tries the named attacks, or all of them.
pub fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    let (binary, names) = match words {
        ["--binary", path, names @ ..] => (Some(PathBuf::from(path)), names),
        names => (None, names),
    };
    if let Some(unknown) = names
        .iter()
        .find(|name| !HOLES.iter().any(|hole| hole.0 == **name))
    {
        let known: Vec<&str> = HOLES.iter().map(|hole| hole.0).collect();
        return Err(format!(
            "there is no hole `{unknown}`; there are {}",
            known.join(", ")
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return Err("attacks need root: they run as two other users".to_owned());
    }
    let binary = binary.map_or_else(|| product::build(root), Ok)?;
    let mut open = 0;
    for Hole(name, promise, attack) in HOLES {
        if !names.is_empty() && !names.contains(name) {
            continue;
        }
        let attempt = || {
            let scene = Scene::new(&binary).map_err(Failure::Untried);
            scene.and_then(|scene| attack(&scene))
        };
        // An attack that could not be tried is tried once more. One that succeeded is not.
        let tried = match attempt() {
            Err(Failure::Untried(why)) => {
                println!("retried   {name}: {why}");
                attempt()
            }
            tried => tried,
        };
        let (word, detail) = match tried {
            Ok(()) => ("held", String::new()),
            Err(Failure::NotHeld(what)) => ("not held", what),
            Err(Failure::Untried(why)) => ("not held", format!("it could not be tried: {why}")),
        };
        open += usize::from(word != "held");
        println!("{word:<9} {name}: {promise}");
        for line in detail.lines() {
            println!("{:9} | {line}", "");
        }
    }
    match open {
        0 => Ok(()),
        open => Err(format!("{open} of the attacks did not fail")),
    }
}
