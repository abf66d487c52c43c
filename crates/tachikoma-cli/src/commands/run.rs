//! `tachikoma run`: runs the loop.

use std::path::Path;
use std::process::ExitCode;

use tachikoma_agents::{Agent, Turn};
use tachikoma_core::{Outcome, PromptSource, Seq, State, remedies};
use tachikoma_loop_runner::config::OpenCodeServer;
use tachikoma_loop_runner::git::tracked;
use tachikoma_loop_runner::offline;
use tachikoma_loop_runner::settings::{AgentName, AgentSettings, Origin, Permission, Settings};
use tachikoma_loop_runner::store::layout;
use tachikoma_loop_runner::worktree::may_be_in_a_repository;
use tachikoma_loop_runner::{
    FoundLoop, LoopConfig, LoopRunner, OpenError, ReloadedSettings, SettingsReader,
};

use super::config::warn_not_built;
use super::detach;
use super::launch::{Base, Plan, plan};
use super::repository::Repository;
use crate::args::RunArgs;
use crate::diagnostics;
use crate::failure::Failure;
use crate::keys::{self, Keys};
use crate::out;
use crate::report::changes::change_lines;
use crate::report::line::{Lines, denied_call, ending, files};
use crate::report::{Reporter, Style, found};
use crate::runtime::{block_on, runtime};
use crate::sanitize::sanitize;
use crate::secrets;
use crate::signals::{Signals, Terminal};
use crate::trust::{Trust, Untrusted};
use crate::view::text::{Text, Tone};
use crate::workspace::Workspace;

/// Runs the loop, or shows how it would run.
pub fn run(workspace: &Workspace, args: &RunArgs) -> Result<ExitCode, Failure> {
    refuse_text_as_file(workspace, args)?;
    let runs_here = !args.detach && !args.dry_run;
    if runs_here {
        // The passphrase is removed from the environment before it is used, because checking it takes a second.
        secrets::remove_passphrase()?;
    }
    let trust = Trust::new(workspace, untrusted(args));
    let base = Base::trusted(workspace, &trust)?;
    refuse_tracked_state(workspace, &base.working_dir)?;
    if !args.dry_run {
        runtime()?.block_on(offline::settle(&base.working_dir))?;
    }
    let plan = plan(workspace, args, &trust, base)?;
    // The foreground process prints no notes: the background process plans the run again and prints them.
    if args.detach && !args.dry_run {
        return detach::detach("tachikoma status");
    }
    if !args.dry_run {
        let names = secrets::secret_names(&plan.loaded.settings);
        secrets::remove_from_environment(&names, &plan.config.secrets)?;
    }
    for note in &plan.notes {
        out::note(&format!("note: {note}"));
    }
    LoopRunner::check(&plan.config)?;
    if !args.nested {
        not_inside_an_agent()?;
    }
    let inputs = [
        plan.config
            .working_dir
            .join(&plan.config.settings.prompt_path),
        workspace
            .directory
            .join(workspace.config_file().unwrap_or("tachikoma.toml".into())),
    ];
    let repository = Repository::of(&plan.config, &inputs);
    repository.check(plan.is_first, args.allow_dirty)?;
    if args.dry_run {
        let agent = plan.config.agent().map_err(OpenError::from)?;
        dry_run(&plan, &agent, &repository);
        return Ok(ExitCode::SUCCESS);
    }
    repository.warn(&plan.config.working_dir);
    warn_not_built(&plan.loaded);
    let (style, terminal) = match (args.detached, args.json, args.quiet) {
        // A background process prints nothing, because the foreground process only reads one line.
        (true, _, _) => (Style::Quiet, Terminal::Detached),
        (false, true, _) => (Style::Json, Terminal::Foreground),
        (false, false, true) => (Style::Quiet, Terminal::Foreground),
        (false, false, false) => (Style::Lines, Terminal::Foreground),
    };
    let reader = reader(workspace, args, &trust);
    let registered = match plan.config.settings.state.enabled {
        true => {
            let overrides = &plan.config.launch.overrides;
            let dir = &plan.config.working_dir;
            trust.register(dir, plan.loop_id, overrides, plan.is_first)?
        }
        false => None,
    };
    let ended = block_on(run_here(plan.config, style, terminal, Some(reader)))?;
    // A panic of the thread has already been printed.
    let _ = registered.map(std::thread::JoinHandle::join);
    ended
}

/// Refuses a prompt that is not a file and looks like text: `tachikoma run "fix the tests"`.
fn refuse_text_as_file(workspace: &Workspace, args: &RunArgs) -> Result<(), Failure> {
    let Some(prompt) = &args.prompt else {
        return Ok(());
    };
    let text = prompt.to_string_lossy();
    if !text.contains(char::is_whitespace) || workspace.directory.join(prompt).exists() {
        return Ok(());
    }
    let text = sanitize(&text);
    let what = format!("no file is named `{text}`");
    Err(Failure::usage(what).hint(format!(
        "to use these words as the prompt: `tachikoma run -p {}`",
        quoted(&text)
    )))
}

/// Refuses to use the state of a loop that git tracks: it may come from a clone or a pull.
fn refuse_tracked_state(workspace: &Workspace, working_dir: &Path) -> Result<(), Failure> {
    let search_path = workspace.search_path();
    let Some(path) = tracked::state_file(working_dir, search_path.as_deref()) else {
        return Ok(());
    };
    let path = sanitize(&path.to_string()).into_owned();
    let what = format!("git tracks `{path}`: the state of a loop must not come from a repository");
    Err(Failure::usage(what).hint(
        "`git rm -r --cached .ralph` removes it from the repository and keeps the files; if the loop is not yours, delete `.ralph` too",
    ))
}

/// Returns how to handle programs and permissions that the user has not agreed to.
fn untrusted(args: &RunArgs) -> Untrusted {
    match (args.trust, args.dry_run) {
        (true, _) => Untrusted::Accept,
        (false, true) => Untrusted::Warn,
        (false, false) => Untrusted::Ask,
    }
}

/// Returns a function that reads the settings again for a reload. It ignores `--new`.
fn reader(workspace: &Workspace, args: &RunArgs, trust: &Trust) -> SettingsReader {
    let workspace = workspace.clone();
    let args = args.clone();
    let trust = trust.for_reload();
    SettingsReader::new(move || {
        let base = Base::trusted(&workspace, &trust);
        let plan = base.and_then(|base| plan(&workspace, &args, &trust, base));
        let plan = plan.map_err(|failure| failure.what)?;
        Ok(ReloadedSettings {
            settings: plan.config.settings,
            launch: plan.config.launch,
        })
    })
}

/// Refuses a start from inside an agent, because nested loops could start agents without end.
fn not_inside_an_agent() -> Result<(), Failure> {
    let (Ok(session), Some(dir)) = (
        std::env::var("TACHIKOMA_SESSION"),
        std::env::var_os("TACHIKOMA_DIR"),
    ) else {
        return Ok(());
    };
    // Gates, hooks and stop scripts have the variable of an iteration but not of an attempt. Agents have both, or
    // neither if their process runs for a whole session.
    let is_set = |name: &str| std::env::var_os(name).is_some();
    if is_set("TACHIKOMA_ITERATION") && !is_set("TACHIKOMA_ATTEMPT") {
        return Ok(());
    }
    let words = format!(
        "this is session {} of the loop in {}: an agent must not start another loop",
        sanitize(&session),
        sanitize(&dir.to_string_lossy()),
    );
    Err(Failure::usage(words).hint(
        "use --nested to allow it; the nested loop has its own budget and is ended with the iteration that started it",
    ))
}

/// Runs a loop in this process and reports on it.
pub async fn run_here(
    config: LoopConfig,
    style: Style,
    terminal: Terminal,
    reader: Option<SettingsReader>,
) -> Result<ExitCode, Failure> {
    let mut runner = LoopRunner::open(config.clone()).await?;
    if config.settings.state.enabled {
        diagnostics::open_file(&config.working_dir);
    }
    if let Some(reader) = reader {
        runner.reads_settings_with(reader);
    }
    answer(&config, &runner, style);
    if style == Style::Lines {
        print_start(&config, runner.agent());
    }
    let handle = runner.handle();
    let state = runner.state();
    let dir = layout::loop_dir(&config.store_root(state.loop_id), state.loop_id);
    // The temporary files are kept until the reporter has read them.
    let temporary = runner.temporary();
    // The journal of a new loop already has a first record.
    let seen = match runner.found() {
        FoundLoop::Nothing => Seq(0),
        FoundLoop::Interrupted { .. } | FoundLoop::Ended { .. } => runner.found_up_to(),
    };
    let keys = terminal == Terminal::Foreground && keys::can_ask();
    let lines = Lines::new(out::columns())
        .with_redline(state.session.redline_tokens)
        .with_keys(keys);
    let spent = state.stats.cost_microusd;
    let reporter = Reporter::start(
        style,
        handle.subscribe(),
        (dir, config.encryption.clone()),
        (seen, state.seq),
        (lines, spent),
    );
    // Signals are listened to before anything runs, so that none is missed.
    let signals = Signals::listen()
        .map_err(|error| Failure::new(format!("signals cannot be listened to: {error}")))?;
    let watcher = signals.watch(handle.clone(), reporter.clone(), terminal);
    let keys = match terminal {
        Terminal::Foreground => Keys::watch(handle.clone(), &config, style != Style::Lines),
        Terminal::Detached => None,
    };
    let announcer = (terminal == Terminal::Detached).then(|| {
        let notices = handle.subscribe();
        tokio::spawn(detach::report_start(handle, notices))
    });
    let result = runner.run().await;
    watcher.abort();
    if let Some(keys) = keys {
        keys.finish();
    }
    if let Some(announcer) = announcer {
        announcer.abort();
    }
    let stats = runner.state().stats;
    let uncommitted = runner.state().tracked_work.uncommitted;
    let denials = denial_notes(&config, runner.state());
    let unwritten = runner.is_unwritten();
    let unreported = runner.unreported();
    runner.close().await;
    reporter.finish();
    for trouble in unreported {
        out::note(&format!("warning: {}", sanitize(&trouble)));
    }
    drop(temporary);
    let kept = config.settings.state.enabled;
    let outcome = result.map_err(|error| {
        let failure = Failure::from(error);
        if kept {
            failure
        } else {
            failure.hint(NOT_KEPT)
        }
    })?;
    if unwritten {
        out::note(
            "note: the disk is full: the end of this run was not recorded, and `tachikoma run` continues where the journal ends",
        );
    }
    if style == Style::Quiet {
        out::report(&ending(&outcome, &stats));
    }
    for note in denials {
        out::note(&note);
    }
    if uncommitted > 0 && config.settings.git.auto_commit {
        let files = files(uncommitted);
        out::note(&format!(
            "note: {files} that the loop changed stay uncommitted in the work tree; `tachikoma events` says why"
        ));
    }
    if let Some(hint) = next_step(&outcome).map(|hint| if kept { hint } else { NOT_KEPT }) {
        out::note(&format!("hint: {hint}"));
    }
    Ok(ExitCode::from(exit_code(&outcome)))
}

/// Lists at the end of a run which tool calls were denied and which settings permit them.
fn denial_notes(config: &LoopConfig, state: &State) -> Vec<String> {
    if state.denials.is_empty() {
        return Vec::new();
    }
    let mut calls: Vec<String> = state.denials.iter().map(denied_call).collect();
    if state.other_denials > 0 {
        calls.push(format!("and {} more", state.other_denials));
    }
    let no_progress = state.completion.idle || state.stats.no_progress_count > 0;
    let ended = if no_progress {
        "the loop ended without progress after tool calls were denied"
    } else {
        "tool calls were denied"
    };
    let permitted = config.permitted(&state.launch.agent);
    let remedies = remedies(&state.launch.agent, &state.denials, &permitted);
    let remedies = remedies
        .iter()
        .map(|line| format!("  to allow them, set in tachikoma.toml: {}", sanitize(line)));
    let first = format!("note: {ended}: {}", calls.join(", "));
    std::iter::once(first).chain(remedies).collect()
}

/// Hint after the end of a loop that is not stored.
const NOT_KEPT: &str =
    "this loop is not saved (`state.enabled = false`); `tachikoma run` starts a new one";

/// Prints which loop was found and what happens next. In the report for people, recorded events show this.
fn answer(config: &LoopConfig, runner: &LoopRunner, style: Style) {
    let (state, origin) = (runner.state(), runner.origin());
    let limit = config.settings.max_iterations;
    if let Some(text) = found::resuming(runner.found(), state, origin, limit) {
        out::note(&text);
        let changes = config.launch.changes_since(&state.launch);
        let changes = changes.filter(|_| style != Style::Lines);
        for line in changes.iter().flat_map(|changes| change_lines(changes)) {
            out::note(&format!("note: {line}"));
        }
    }
    if let Some(done) = runner.follows() {
        out::note(&format!(
            "note: {done} is done: this is a new loop, with the agent, prompt and flags that are given now"
        ));
    }
    for trouble in origin.warnings.iter().filter(|_| style != Style::Lines) {
        out::note(&format!("warning: {}", sanitize(trouble)));
    }
    if let Some(store) = runner.temporary() {
        out::note(&format!(
            "note: `state.enabled` is false: this loop cannot be resumed; its journal is in {}, and gone at its end",
            store.root().display()
        ));
    }
}

/// Returns a hint for an outcome other than completion; `None` if there is none.
fn next_step(outcome: &Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::LimitReached { .. } => {
            Some("raise `--max-iterations` to continue, or use `--new` to start over")
        }
        Outcome::Error { .. } => Some(
            "`tachikoma logs` has what the agent wrote; fix the cause, then `tachikoma run` continues",
        ),
        Outcome::Budget { .. } => {
            Some("raise the budget to continue, or use `--new` to start over")
        }
        Outcome::Condition { .. } | Outcome::Operator | Outcome::Signal { .. } => {
            Some("`tachikoma run` continues where it stopped")
        }
        Outcome::Done => None,
    }
}

/// The exit codes of `run`, as docs/exit-codes.md lists them.
fn exit_code(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Done => 0,
        Outcome::Error { .. } => 1,
        Outcome::LimitReached { .. } => 3,
        Outcome::Condition { .. } | Outcome::Budget { .. } => 4,
        Outcome::Operator => 5,
        Outcome::Signal { signal } => 128_u8.saturating_add(u8::try_from(*signal).unwrap_or(0)),
    }
}

/// Prints the settings of the run before the first iteration.
fn print_start(config: &LoopConfig, agent: &Agent) {
    let (name, rights) = agent_text(config, agent);
    let version = format!("tachikoma {}", env!("CARGO_PKG_VERSION"));
    let directory = format!("  in {}", config.working_dir.display());
    let first = Text::new(Tone::Strong, version).and("  ");
    let first = first.with(Tone::Agent, name).with(Tone::Detail, directory);
    out::report_text(&first);
    if let Some(problem) = config.redline_problem(agent) {
        out::note(&format!("note: {problem}"));
    }
    for problem in config.budget_problems(agent) {
        out::note(&format!("note: {problem}"));
    }
    let setting = |label: &str, text: &str| {
        let label = Text::new(Tone::Detail, format!("  {label:<12}"));
        out::report_text(&label.and(text));
    };
    setting("permission", &rights);
    setting("limits", &limits_text(&config.settings));
    setting("completion", &completion_text(&config.settings));
    if !may_be_in_a_repository(&config.working_dir) {
        setting(
            "git",
            "no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only",
        );
    }
    setting(
        "stop",
        "Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state",
    );
}

/// Lists the limits that end the loop even if its work is not complete.
fn limits_text(settings: &Settings) -> String {
    let stop = &settings.stop_conditions;
    let limits = [
        match settings.max_iterations {
            0 => None,
            1 => Some("1 iteration".to_owned()),
            count => Some(format!("{count} iterations")),
        },
        stop.max_duration
            .limit()
            .map(|_| format!("{} of work", stop.max_duration)),
        (stop.max_cost_usd.get() > 0.0).then(|| format!("${:.2}", stop.max_cost_usd.get())),
        (stop.max_tokens > 0).then(|| format!("{} tokens", stop.max_tokens)),
        (stop.max_quota_percent.get() > 0.0)
            .then(|| format!("{} % of the subscription's quota", stop.max_quota_percent)),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    match limits.as_slice() {
        [] => "none; set `--max-iterations`, `--max-duration` or `--max-cost` to bound the loop"
            .to_owned(),
        limits => limits.join(", "),
    }
}

/// Describes who may claim completion and how it is proven.
fn completion_text(settings: &Settings) -> String {
    let conditions = &settings.stop_conditions;
    let promise = &conditions.completion_promise;
    let file = conditions.objectives.as_ref().map(|file| file.display());
    let mut claims = Vec::new();
    if !promise.is_empty() {
        claims.push(format!("{} on a line of its own", sanitize(promise)));
    }
    claims.push("`tachikoma done`".to_owned());
    if let Some(file) = &file {
        claims.push(format!("the last box ticked in {file}"));
    }
    if !conditions.custom_scripts.is_empty() {
        claims.push("exit 10 of a stop script".to_owned());
    }
    let claims = claims.join(" or ");
    let objectives = file.map(|file| format!("all objectives of {file} to be ticked"));
    let names = settings.gate.iter().map(|gate| sanitize(&gate.name));
    let names: Vec<_> = names.collect();
    let gates = (!names.is_empty()).then(|| format!("these gates to pass: {}", names.join(", ")));
    let needs: Vec<String> = objectives.into_iter().chain(gates).collect();
    let first = if settings.gate.is_empty() {
        "no gate is configured: "
    } else {
        ""
    };
    let times = match conditions.confirmations {
        0 | 1 => String::new(),
        times => format!(", {times} times in a row,"),
    };
    match needs.as_slice() {
        [] => format!("{first}{claims}{times} ends the loop"),
        needs => format!(
            "{first}a claim of completion ({claims}){times} needs {}",
            needs.join(" and ")
        ),
    }
}

/// Describes the permission `safe` of an agent.
const SAFE: &str = "safe: it may change files in the work tree, the rest is denied";

/// Returns the agent, and what it is permitted to do.
fn agent_text(config: &LoopConfig, agent: &Agent) -> (String, String) {
    match config.settings.agent.name {
        AgentName::Command => {
            let program = config.settings.agents.command.program.join(" ");
            let rights = "your own rights: nothing it does is denied".to_owned();
            (format!("agent command (`{program}`)"), rights)
        }
        AgentName::Claude => {
            let program = &config.settings.session.claude_command;
            let own = &config.settings.agents.claude;
            let rights = match own.permission {
                Permission::Safe => SAFE,
                Permission::Bypass => "bypass: nothing it does is denied",
            };
            let rights = format!("{rights}{}", allowed(own));
            (format!("agent claude (`{program}`)"), rights)
        }
        AgentName::OpenCode => {
            let server = match config.opencode_server(agent) {
                OpenCodeServer::Attached(url) => format!("in the server at {url}"),
                OpenCodeServer::Shared(_) => "in the server of `tachikoma opencode up`".to_owned(),
                OpenCodeServer::Own(_) => "in a server of its own".to_owned(),
                OpenCodeServer::None => "a process for every iteration".to_owned(),
            };
            let own = &config.settings.agents.opencode;
            let rights = match own.permission {
                Permission::Safe => SAFE,
                Permission::Bypass => {
                    "bypass: nothing is denied but what its own configuration denies"
                }
            };
            let rights = format!("{rights}{}", allowed(own));
            (format!("agent opencode ({server})"), rights)
        }
        name => (
            format!("agent {name}"),
            "nothing it does is denied".to_owned(),
        ),
    }
}

/// Lists the commands that `allow` adds to the permission `safe`.
fn allowed(own: &AgentSettings) -> String {
    match (own.permission, own.allow.as_slice()) {
        (Permission::Bypass, _) | (_, []) => String::new(),
        (Permission::Safe, commands) => format!("; allowed: {}", sanitize(&commands.join(", "))),
    }
}

fn dry_run(plan: &Plan, agent: &Agent, repository: &Repository) {
    let config = &plan.config;
    let (name, rights) = agent_text(config, agent);
    out::line(&format!("would run {name}"));
    out::line(&format!("permission {rights}"));
    out::line(&format!("in {}", config.working_dir.display()));
    match &config.launch.prompt {
        PromptSource::File { path } => out::line(&format!("prompt {path}")),
        PromptSource::Text { text } => out::line(&format!("prompt text, {} bytes", text.len())),
    }
    if let Agent::Claude(_) = agent {
        let usd = config.settings.stop_conditions.max_cost_usd.get();
        launch_lines(agent, Some(usd).filter(|usd| *usd > 0.0));
    }
    out::line(&repository.purpose());
    for entry in plan
        .loaded
        .entries()
        .filter(|entry| *entry.origin != Origin::Default)
    {
        let value = entry.value.unwrap_or_default();
        out::line(&format!("{} = {value}  # {}", entry.key, entry.origin));
    }
}

/// Describes how the agent is started. Values of environment variables may be secrets, so only those set by the adapter are shown.
fn launch_lines(agent: &Agent, budget_usd: Option<f64>) {
    let plan = agent.plan(&Turn {
        budget_usd,
        ..Turn::default()
    });
    let words = std::iter::once(&plan.program).chain(&plan.args);
    let words: Vec<String> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    out::line(&format!("command {}", words.join(" ")));
    if let Agent::Claude(claude) = agent {
        let own = claude.own_variables();
        for (name, value) in own {
            out::line(&format!("with {name}={value}"));
        }
        for (name, _) in &claude.env {
            out::line(&format!("with {}=***", name.to_string_lossy()));
        }
    }
    for name in &plan.env_remove {
        out::line(&format!("without {}", name.to_string_lossy()));
    }
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}
