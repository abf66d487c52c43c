//! `tachikoma demo`: a scripted agent that works, crashes once, is rebooted once and finishes. No network, no keys.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use tachikoma_core::{Launch, PromptSource};
use tachikoma_loop_runner::LoopConfig;
use tachikoma_loop_runner::config::DISK_FULL_TIMEOUT;
use tachikoma_loop_runner::process::Adoption;
use tachikoma_loop_runner::settings::{Layers, Origin};
use tachikoma_loop_runner::store::encryption::Encryption;
use tachikoma_loop_runner::store::recover::Loss;
use toml::Value;

use super::run::{quoted, run_here};
use super::{BRIDGE, DEMO_AGENT, GUARD};
use crate::args::DemoArgs;
use crate::demo_agent::FAST;
use crate::failure::{Failure, chain};
use crate::out;
use crate::report::Style;
use crate::runtime::runtime;
use crate::signals::Terminal;
use crate::view::text::Text;
use crate::workspace::Workspace;
use crate::zone;

/// The prompt of the demo agent.
const PROMPT: &str = "Work through plan.md: do the next open item, tick it, and say so.\n\
    When every item is ticked, print <promise>COMPLETE</promise> on a line of its own.\n";

/// The initial content of `plan.md`.
pub const PLAN: &str = "# Plan\n\n- [ ] write the greeting\n- [ ] write the parser\n- [ ] write the tests\n\
    - [ ] write the manual\n- [ ] polish\n";

/// Commands to try in the directory of the demo.
const NEXT_COMMANDS: &str = "  tachikoma history              # each iteration and its result
  tachikoma explain 2            # why iteration 2 was repeated
  tachikoma checkpoint show      # the hand-off that the second session got
  git log --oneline              # a commit per iteration";

/// Runs the demo.
pub fn demo(workspace: &Workspace, args: &DemoArgs) -> Result<ExitCode, Failure> {
    let dir = match &args.dir {
        Some(dir) => workspace.directory.join(dir),
        None => new_directory()?,
    };
    check_empty(&dir)?;
    prepare(&dir)?;
    let config = config(workspace, &dir, args.fast)?;
    let style = if args.json { Style::Json } else { Style::Lines };
    if style == Style::Lines {
        out::report(&format!(
            "a scripted agent works through a plan in {}",
            dir.display()
        ));
    }
    let code = runtime()?.block_on(run_here(config, style, Terminal::Foreground, None))?;
    if style == Style::Lines && code == ExitCode::SUCCESS {
        out::report_text(&Text::plain(
            "The demo showed a crash with a backoff, a reboot at the redline with a hand-off, and a completed plan.",
        ));
        out::report(&format!(
            "Its directory is kept. Try next:\n  cd {}\n{NEXT_COMMANDS}",
            quoted(&dir.to_string_lossy())
        ));
    }
    Ok(code)
}

/// Creates a directory below the system's temporary directory. It is kept, so that the user can look at the loop.
fn new_directory() -> Result<PathBuf, Failure> {
    let created = tempfile::Builder::new().prefix("tachikoma-demo-").tempdir();
    created
        .map(tempfile::TempDir::keep)
        .map_err(|error| Failure::new(format!("no temporary directory: {error}")))
}

/// Checks that the directory is empty or does not exist, because the demo writes files and creates a repository.
fn check_empty(dir: &Path) -> Result<(), Failure> {
    let entry = match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next(),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::usage(format!("{}: {error}", dir.display()))),
    };
    match entry {
        None => Ok(()),
        Some(_) => Err(
            Failure::usage(format!("{} is not empty", dir.display())).hint(
                "name a directory that is empty or does not exist; without `--dir` a temporary one is used",
            ),
        ),
    }
}

fn prepare(dir: &Path) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::new(format!("prepare {}: {error}", dir.display()));
    std::fs::create_dir_all(dir).map_err(failed)?;
    std::fs::write(dir.join("prompt.md"), PROMPT).map_err(failed)?;
    std::fs::write(dir.join("plan.md"), PLAN).map_err(failed)?;
    // Without git, the demo runs without a repository.
    let _ = begin_repository(dir);
    Ok(())
}

/// Creates a repository with a first commit. The author is set, because the user may not have configured one.
fn begin_repository(dir: &Path) -> std::io::Result<()> {
    let orders: [&[&str]; 6] = [
        &["init", "--quiet"],
        &["config", "user.name", "tachikoma demo"],
        &["config", "user.email", "demo@localhost"],
        &["config", "commit.gpgsign", "false"],
        &["add", "prompt.md", "plan.md"],
        &["commit", "--quiet", "--message", "the plan"],
    ];
    for words in orders {
        Command::new("git")
            .args(words)
            .current_dir(dir)
            .env("GIT_NO_LAZY_FETCH", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
    }
    Ok(())
}

fn config(workspace: &Workspace, dir: &Path, fast: bool) -> Result<LoopConfig, Failure> {
    let flag = || Origin::Flag("demo".to_owned());
    let mut layers = Layers::new();
    layers.set("agent.name", Value::from("demo"), flag());
    let mut agent = workspace.ourselves(DEMO_AGENT)?;
    if fast {
        agent.push(FAST.into());
    }
    let delay = if fast { "0s" } else { "500ms" };
    layers.set("iteration_delay", Value::from(delay), flag());
    let loaded = layers.load().map_err(|error| Failure::new(chain(&error)))?;
    Ok(LoopConfig {
        settings: loaded.settings.clone(),
        working_dir: dir.to_owned(),
        launch: Launch {
            agent: "demo".to_owned(),
            prompt: PromptSource::default(),
            config_hash: format!("{:08x}", loaded.hash()),
            settings: Some(loaded.not_defaults()),
            ..Launch::default()
        },
        new_loop: true,
        new_loop_id: None,
        guard: workspace.ourselves(GUARD)?,
        demo: agent,
        bridge: workspace.ourselves(BRIDGE)?,
        opencode_login: None,
        runtime_dir: workspace.runtime_dir(),
        temporary_dir: workspace.temporary_dir(),
        search_path: workspace.search_path(),
        zone_offset: zone::seconds_east,
        adoption: Adoption::All,
        loss: Loss::Refuse,
        cgroup: true,
        secrets: BTreeMap::new(),
        cloud_environment: tachikoma_loop_runner::cloud::CloudEnvironment::default(),
        encryption: Encryption::plain(),
        disk_full_timeout: DISK_FULL_TIMEOUT,
    })
}
