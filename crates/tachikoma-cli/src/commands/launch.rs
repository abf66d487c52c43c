//! Plans a run: flags override the recorded launch of the last run, which overrides files and environment variables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tachikoma_core::{Launch, LoopId, Outcome, Override, PromptSource, State};
use tachikoma_fs::owner;
use tachikoma_loop_runner::LoopConfig;
use tachikoma_loop_runner::config::DISK_FULL_TIMEOUT;
use tachikoma_loop_runner::process::Adoption;
use tachikoma_loop_runner::settings::{Entry, Loaded, Origin, Secret, Settings};
use tachikoma_loop_runner::store::recover::{self, Loss};
use tachikoma_loop_runner::store::{StoreError, layout, loops};
use toml::Value;

use super::{BRIDGE, DEMO_AGENT, GUARD};
use crate::args::RunArgs;
use crate::bridge;
use crate::failure::{Failure, is_run};
use crate::sanitize::sanitize;
use crate::secrets;
use crate::trust::Trust;
use crate::workspace::Workspace;
use crate::zone;

/// A planned run.
#[derive(Debug)]
pub struct Plan {
    /// The configuration for the library.
    pub config: LoopConfig,
    /// The settings with their origins.
    pub loaded: Loaded,
    /// Notes for the user about the plan.
    pub notes: Vec<String>,
    /// Whether the run starts a new loop.
    pub is_first: bool,
    /// Id of the new or resumed loop.
    pub loop_id: LoopId,
}

/// Key of the setting that `--prompt-text` replaces.
const PROMPT_PATH: &str = "prompt_path";

/// The settings from files and variables, and the working directory.
#[derive(Debug)]
pub struct Base {
    /// The settings with their origins.
    pub loaded: Loaded,
    /// Canonical path of the working directory.
    pub working_dir: PathBuf,
}

impl Base {
    /// Reads the settings from files and variables.
    pub fn read(workspace: &Workspace) -> Result<Self, Failure> {
        let loaded = workspace.layers()?.load()?;
        let working_dir = working_dir(workspace, &loaded.settings.working_dir)?;
        owner::check_ralph(&working_dir)?;
        Ok(Self {
            loaded,
            working_dir,
        })
    }

    /// Reads the settings from files and variables for a command that runs configured programs. Checks that the user trusts them.
    pub fn trusted(workspace: &Workspace, trust: &Trust) -> Result<Self, Failure> {
        let base = Self::read(workspace)?;
        trust.check_configuration(&base.working_dir, &base.loaded)?;
        Ok(base)
    }
}

/// Plans a run.
pub fn plan(
    workspace: &Workspace,
    args: &RunArgs,
    trust: &Trust,
    base: Base,
) -> Result<Plan, Failure> {
    let Base {
        loaded: base,
        working_dir,
    } = base;
    let loss = if args.accept_loss {
        Loss::Accept
    } else {
        Loss::Refuse
    };
    // A loop that is not stored does not resume another loop.
    let before = if args.new || !base.settings.state.enabled {
        None
    } else {
        last(workspace, &working_dir, loss)?
    };
    let mut flags = flags(args)?;
    let mut notes = Vec::new();
    let mut loop_id = LoopId::new(uuid::Uuid::new_v4());
    let recorded = match before {
        Some(Before::GoesOn(found, launch)) => {
            trust.check_loop(&working_dir, found, &launch.overrides)?;
            loop_id = found;
            Some(*launch)
        }
        Some(Before::Done(launch)) => {
            notes.extend(not_taken_over(&launch, &flags));
            None
        }
        None => None,
    };
    if let Some(model) = &args.model {
        let key = model_key(&flags, recorded.as_ref(), &base.settings)?;
        flags.insert(key, ("--model", Value::from(model.as_str())));
    }
    let mut overrides = BTreeMap::new();
    let mut layers = workspace.layers()?;
    let base_entries: Vec<Entry<'_>> = base.entries().collect();
    let said = |key: &str| value_text(&base_entries, key);
    for (key, before) in recorded.iter().flat_map(|launch| &launch.overrides) {
        let given = flags.contains_key(key.as_str());
        if given || (key == PROMPT_PATH && args.prompt_text.is_some()) {
            continue;
        }
        let words = key == PROMPT_PATH && recorded.as_ref().is_some_and(is_in_words);
        if said(key) != before.under {
            let (value, origin) = (said(key), base.origin_of(key));
            if value == before.value && !words {
                // The configuration already has the recorded value.
                continue;
            }
            let instead = if words {
                "`--prompt-text`"
            } else {
                &before.value
            };
            notes.push(format!(
                "`{key}` is {value} ({origin}), edited since the last run was given {instead}"
            ));
            continue;
        }
        if !words {
            layers.set(key, parse(&before.value)?, Origin::Recorded);
        }
        overrides.insert(key.clone(), before.clone());
    }
    if args.prompt_text.is_some() {
        let (value, under) = (said(PROMPT_PATH), said(PROMPT_PATH));
        overrides.insert(PROMPT_PATH.to_owned(), Override { value, under });
    }
    for (key, (flag, value)) in &flags {
        layers.set(key, value.clone(), Origin::Flag((*flag).to_owned()));
        overrides.insert(
            (*key).to_owned(),
            Override {
                value: value.to_string(),
                under: said(key),
            },
        );
    }
    let loaded = layers.load()?;
    let launch = Launch {
        agent: loaded.settings.agent.name.to_string(),
        prompt: prompt(args, recorded.as_ref(), &overrides, &loaded),
        overrides,
        config_hash: format!("{:08x}", loaded.hash()),
        settings: Some(loaded.not_defaults()),
        ..Launch::default()
    };
    let config = LoopConfig {
        encryption: workspace.encryption(&working_dir, &loaded.settings),
        settings: loaded.settings.clone(),
        working_dir,
        launch,
        new_loop: args.new,
        new_loop_id: recorded.is_none().then_some(loop_id),
        guard: workspace.ourselves(GUARD)?,
        demo: workspace.ourselves(DEMO_AGENT)?,
        bridge: workspace.ourselves(BRIDGE)?,
        opencode_login: bridge::login(),
        runtime_dir: workspace.runtime_dir(),
        temporary_dir: workspace.temporary_dir(),
        search_path: workspace.search_path(),
        zone_offset: zone::seconds_east,
        adoption: Adoption::All,
        loss,
        cgroup: true,
        secrets: secrets_of(&loaded.settings, None)?,
        cloud_environment: workspace.cloud_environment(),
        disk_full_timeout: DISK_FULL_TIMEOUT,
    };
    Ok(Plan {
        config,
        loaded,
        notes,
        is_first: recorded.is_none(),
        loop_id,
    })
}

/// Returns the values of the environment variables that the notification settings name.
pub(super) fn secrets_of(
    settings: &Settings,
    only: Option<usize>,
) -> Result<BTreeMap<String, Secret>, Failure> {
    let mut found = BTreeMap::new();
    let all = settings.notify.iter().zip(1..);
    let wanted = all.filter(|(_, number)| only.is_none_or(|only| only == *number));
    for (notify, number) in wanted {
        for name in notify.variables() {
            let value = secrets::value(name).ok_or_else(|| {
                Failure::usage(format!(
                    "notify {number} ({}): the variable `{name}` is not set, or is not UTF-8",
                    notify.to.word()
                ))
            })?;
            if notify.url_env.as_ref() == Some(name) && !notify.to.accepts(&value) {
                return Err(Failure::usage(format!(
                    "notify {number} ({}): the value of the variable `{name}` is not a valid address for it",
                    notify.to.word()
                )));
            }
            found.insert(name.clone(), value);
        }
    }
    Ok(found)
}

/// Settings from flags: for each key, the flag and its value.
type Flags = BTreeMap<&'static str, (&'static str, Value)>;

fn flags(args: &RunArgs) -> Result<Flags, Failure> {
    let other_agent = |than: &str| args.agent.as_deref().is_some_and(|agent| agent != than);
    if args.attach.is_some() && other_agent("opencode") {
        let what = "`--attach` is for `--agent opencode`, and another agent was named";
        return Err(Failure::usage(what).hint("leave out `--agent` or `--attach`"));
    }
    if !args.program.is_empty() && other_agent("command") {
        let what = "`-- PROGRAM` is for `--agent command`, and another agent was named";
        return Err(Failure::usage(what).hint("leave out `--agent` or the program"));
    }
    let prompt = args.prompt.as_ref().map(|path| {
        path.to_str()
            .ok_or_else(|| Failure::usage("the prompt's path is not UTF-8"))
    });
    let text = |text: &Option<String>| text.as_deref().map(Value::from);
    let program = Some(&args.program).filter(|program| !program.is_empty());
    let url = args.attach.as_deref();
    let url = url.map(|url| if url == "own" { "" } else { url });
    let on = |given: bool| given.then_some(Value::from(true));
    let off = |given: bool| given.then_some(Value::from(false));
    // If two flags set one key, the later entry wins.
    let given = [
        (
            "prompt_path",
            "PROMPT",
            prompt.transpose()?.map(Value::from),
        ),
        ("agent.name", "--agent", text(&args.agent)),
        (
            "agent.name",
            "--attach",
            url.map(|_| Value::from("opencode")),
        ),
        ("opencode.attach", "--attach", url.map(Value::from)),
        (
            "max_iterations",
            "--max-iterations",
            args.max_iterations.map(Value::from),
        ),
        (
            "stop_conditions.max_cost_usd",
            "--max-cost",
            args.max_cost.map(Value::from),
        ),
        (
            "stop_conditions.max_duration",
            "--max-duration",
            text(&args.max_duration),
        ),
        (
            "context_redline_percent",
            "--context-threshold",
            args.context_threshold.map(Value::from),
        ),
        (
            "reboot.context_redline_tokens",
            "--context-tokens",
            args.context_tokens.map(Value::from),
        ),
        (
            "reboot.max_restarts",
            "--max-restarts",
            args.max_restarts.map(Value::from),
        ),
        (
            "session.fresh_each_iteration",
            "--fresh-session",
            on(args.fresh_session),
        ),
        ("iteration_delay", "--delay", text(&args.delay)),
        ("attended_mode", "--attended", on(args.attended)),
        ("attended_mode", "--unattended", off(args.unattended)),
        (
            "git.auto_commit",
            "--no-auto-commit",
            off(args.no_auto_commit),
        ),
        ("git.auto_commit", "--auto-commit", on(args.auto_commit)),
        (
            "agent.name",
            "-- PROGRAM",
            program.map(|_| Value::from("command")),
        ),
        (
            "agents.command.program",
            "-- PROGRAM",
            program.cloned().map(Value::from),
        ),
    ];
    let given = given.into_iter();
    let given = given.filter_map(|(key, flag, value)| Some((key, (flag, value?))));
    Ok(given.collect())
}

/// Returns the key that `--model` sets: the model of the agent of this run.
fn model_key(
    flags: &Flags,
    recorded: Option<&Launch>,
    base: &Settings,
) -> Result<&'static str, Failure> {
    let flag = flags
        .get("agent.name")
        .and_then(|(_, value)| value.as_str());
    let recorded = recorded.map(|launch| launch.agent.as_str());
    let agent = flag.or(recorded).unwrap_or(base.agent.name.as_str());
    match agent {
        "claude" => Ok("agents.claude.model"),
        "opencode" => Ok("agents.opencode.model"),
        other => Err(Failure::usage(format!(
            "`--model` cannot be set for agent `{}`: only claude and opencode take a model",
            sanitize(other)
        ))
        .hint("name the model in the arguments of the program itself")),
    }
}

/// Returns whether the prompt of a launch was given on the command line.
fn is_in_words(launch: &Launch) -> bool {
    matches!(launch.prompt, PromptSource::Text { .. })
}

/// Returns the prompt: the given text, or the text of the recorded launch unless a file was named since, or the file.
fn prompt(
    args: &RunArgs,
    recorded: Option<&Launch>,
    overrides: &BTreeMap<String, Override>,
    loaded: &Loaded,
) -> PromptSource {
    if let Some(text) = &args.prompt_text {
        return PromptSource::Text { text: text.clone() };
    }
    let edited = |launch: &Launch| {
        launch.overrides.contains_key(PROMPT_PATH) && !overrides.contains_key(PROMPT_PATH)
    };
    let before = recorded.filter(|launch| args.prompt.is_none() && !edited(launch));
    if let Some(launch) = before.filter(|launch| is_in_words(launch)) {
        return launch.prompt.clone();
    }
    PromptSource::File {
        path: loaded.settings.prompt_path.to_string_lossy().into_owned(),
    }
}

pub fn working_dir(workspace: &Workspace, configured: &Path) -> Result<PathBuf, Failure> {
    let path = workspace.directory.join(configured);
    path.canonicalize().map_err(|error| {
        Failure::usage(format!("working directory {}: {error}", path.display())).hint(
            "create it, or change `working_dir`; `tachikoma config show` shows where it is set",
        )
    })
}

/// The last launch of the loop before this run.
enum Before {
    /// The loop is not complete. This run continues it with the arguments of its last launch.
    GoesOn(LoopId, Box<Launch>),
    /// The loop is complete, and a new one begins.
    Done(Box<Launch>),
}

/// Lists the flags of a completed loop that are not used for the next one.
fn not_taken_over(launch: &Launch, flags: &Flags) -> Option<String> {
    let given = launch.overrides.iter();
    let given = given.filter(|(key, _)| !flags.contains_key(key.as_str()));
    let given: Vec<String> = given
        .map(|(key, before)| format!("{key} = {}", before.value))
        .collect();
    (!given.is_empty()).then(|| {
        format!(
            "the last loop is done; the new loop does not use its flags: {}",
            given.join(", ")
        )
    })
}

/// Returns the last launch of the existing loop; `None` if there is no loop.
fn last(workspace: &Workspace, working_dir: &Path, loss: Loss) -> Result<Option<Before>, Failure> {
    let copies = workspace.copies(working_dir);
    let Some(loop_id) = loops::current(working_dir, &copies.snapshot, &copies.encryption)? else {
        return Ok(None);
    };
    let dir = layout::loop_dir(working_dir, loop_id);
    let read = |loss| recover::read(&dir, &copies, loop_id, loss).map(|found| found.state);
    let state = read(loss).map_err(|error| refused(error, || read(Loss::Accept).ok()))?;
    if state.started_at.is_none() {
        return Ok(None);
    }
    let is_done = state.outcome() == Some(&Outcome::Done);
    let launch = Box::new(state.launch);
    Ok(Some(match is_done {
        true => Before::Done(launch),
        false => Before::GoesOn(loop_id, launch),
    }))
}

/// Explains why a loop is not resumed, and what would be lost.
fn refused(error: StoreError, accepted: impl FnOnce() -> Option<State>) -> Failure {
    // `--accept-loss` is never suggested while a runner is running.
    let is_damage = matches!(&error, StoreError::Damaged { path, .. } if !is_run(path));
    let failure = match error {
        StoreError::File(_) => return error.into(),
        _ => Failure::from(error),
    };
    let failure = Failure {
        what: format!("refusing to resume: {}", failure.what),
        ..failure
    };
    if !is_damage {
        return failure;
    }
    match accepted() {
        Some(state) => failure.hint(format!(
            "nothing was changed; `tachikoma run --accept-loss` continues from record {} (iteration {}) and keeps what \
             follows in `.ralph/quarantine/`, `--new` starts a new loop beside it",
            state.seq, state.iteration
        )),
        None => failure.hint(
            "nothing was changed; no state before that line can be used: restore the file, or \
             `tachikoma run --new` starts a new loop beside it",
        ),
    }
}

fn value_text(entries: &[Entry<'_>], key: &str) -> String {
    entries
        .iter()
        .find(|entry| entry.key == key)
        .and_then(|entry| entry.value.clone())
        .unwrap_or_default()
}

fn parse(value: &str) -> Result<Value, Failure> {
    let table: toml::Table = format!("value = {value}").parse().map_err(|_| {
        Failure::new(format!(
            "the recorded launch has a value that cannot be read: {value}"
        ))
    })?;
    Ok(table.get("value").cloned().unwrap_or(Value::Boolean(false)))
}
