//! Shared by `diff` and `rollback`: finds a loop and its snapshots in git, and runs git in the terminal.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use tachikoma_core::{LoopId, Phase, Timestamp};
use tachikoma_loop_runner::git::snapshots::{self as git_snapshots, KeptSnapshot, Moment};
use tachikoma_loop_runner::git::worktree_tree::{Bounds, Rules};
use tachikoma_loop_runner::git::{
    self, CancelToken, ChangeOwner, Git, Repository, TrackerOptions, WorkTracker,
};
use tachikoma_loop_runner::store::layout;
use tachikoma_loop_runner::store::layout::ARCHIVED;
use tachikoma_loop_runner::store::lock::WorkLock;
use tachikoma_loop_runner::store::recover::{self, Loss};

use crate::failure::{Failure, chain};
use crate::out;
use crate::workspace::{Current, Workspace};

/// A loop with its git snapshots.
#[derive(Debug)]
pub struct LoopSnapshots {
    /// The loop and its directories.
    pub current: Current,
    /// The git repository of the loop.
    pub repository: Repository,
    /// The git snapshots of the loop.
    pub kept: Vec<KeptSnapshot>,
    /// Number of the last iteration.
    pub last: u32,
    /// Whether changes since the last survey were made by the loop.
    needs_survey: bool,
    /// Time of the last record of the loop.
    until: Timestamp,
}

/// Finds a loop, by default the current one, and its snapshots.
pub fn find(workspace: &Workspace, wanted: Option<LoopId>) -> Result<LoopSnapshots, Failure> {
    let current = match wanted {
        None => workspace.current_loop()?,
        Some(loop_id) => named(workspace, loop_id)?,
    };
    let archived = current.dir.join(ARCHIVED);
    let store_config = workspace.store_config_for_reading(&current.working_dir, &current.root);
    let mut copies = store_config.copies();
    if archived.exists() {
        copies.snapshot = archived;
    }
    let found = recover::read(&current.dir, &copies, current.loop_id, Loss::Accept)?;
    let repository = repository(workspace, &current)?;
    let kept = git_snapshots::list(&repository.git, current.loop_id, &CancelToken::new())
        .map_err(|error| failed("snapshots cannot be listed", &error))?;
    Ok(LoopSnapshots {
        current,
        repository,
        kept,
        last: found.state.iteration,
        // A runner that died during an iteration has not recorded the survey of that iteration.
        needs_survey: found.state.needs_survey()
            || matches!(found.state.phase, Phase::Working { .. }),
        until: found.state.time,
    })
}

fn repository(workspace: &Workspace, current: &Current) -> Result<Repository, Failure> {
    let search_path = workspace.search_path();
    let dir = &current.working_dir;
    let reason = match Repository::find(dir, search_path.as_deref(), &CancelToken::new()) {
        Ok(Some(repository)) => return Ok(repository),
        Ok(None) => "it is not in a git repository".to_owned(),
        Err(reason) => reason,
    };
    Err(
        Failure::new(format!("no snapshots of {}: {reason}", dir.display()))
            .hint("snapshots are made only for loops that run in a git repository"),
    )
}

/// Finds a loop of this working directory, archived or not.
fn named(workspace: &Workspace, loop_id: LoopId) -> Result<Current, Failure> {
    let working_dir = workspace
        .working_dir()?
        .ok_or_else(|| workspace.no_loop())?;
    let dir = layout::loop_dir(&working_dir, loop_id);
    if !dir.is_dir() {
        let what = format!("no {loop_id} in {}", working_dir.display());
        return Err(Failure::new(what).hint("`.ralph/loops` lists the stored loops"));
    }
    Ok(Current {
        encryption: workspace
            .store_config_for_reading(&working_dir, &working_dir)
            .encryption,
        loop_id,
        dir,
        root: working_dir.clone(),
        working_dir,
        is_kept: true,
    })
}

impl LoopSnapshots {
    /// Finds a snapshot, and prints a note if it belongs to an earlier iteration.
    pub fn at(&self, moment: Moment) -> Result<&KeptSnapshot, Failure> {
        let found = git_snapshots::resolve(&self.kept, moment);
        let found = found.ok_or_else(|| self.no_snapshot(moment))?;
        if found.moment != moment {
            out::note(&format!(
                "note: iteration {moment} has no snapshot; using that of iteration {}, the last one before it",
                found.moment
            ));
        }
        Ok(found)
    }

    fn no_snapshot(&self, moment: Moment) -> Failure {
        let failure = Failure::new(format!(
            "there is no snapshot {moment} of {}",
            self.current.loop_id
        ));
        let iterations = self.kept.iter().filter_map(|kept| match kept.moment {
            Moment::Iteration(number) => Some(number),
            Moment::Rollback(_) => None,
        });
        let (first, last) = (iterations.clone().min(), iterations.max());
        match first.zip(last) {
            None => failure
                .hint("no iteration has one: the loop probably did not run in a git repository"),
            Some((first, last)) if first == last => {
                failure.hint(format!("iteration {first} has one"))
            }
            Some((first, last)) => {
                failure.hint(format!("iterations from {first} to {last} have one"))
            }
        }
    }

    /// Checks that an iteration exists.
    pub fn check(&self, iteration: u32) -> Result<(), Failure> {
        if iteration <= self.last {
            return Ok(());
        }
        let what = format!(
            "{} has not reached iteration {iteration}",
            self.current.loop_id
        );
        Err(Failure::usage(what).hint(match self.last {
            0 => "it has not started an iteration yet".to_owned(),
            last => format!("the last one is {last}"),
        }))
    }

    /// Returns the rules for protected files from the configuration of the directory.
    pub fn rules(&self, workspace: &Workspace) -> Result<Rules, Failure> {
        let dir = &self.current.working_dir;
        let settings = workspace.layers_of(dir)?.load()?.settings;
        let rules = Bounds::of(&settings, dir).rules();
        // This does not fail, because the settings were validated.
        rules.map_err(|error| Failure::usage(error.to_string()))
    }

    /// Surveys the work tree for the loop before a command changes it. Returns `None` if that is not possible: then
    /// the changes have no recorded owner.
    pub fn tracker(
        &self,
        workspace: &Workspace,
        rules: &Rules,
        lock: &WorkLock,
    ) -> Option<Box<WorkTracker>> {
        let options = TrackerOptions {
            hidden: Vec::new(),
            working_dir: self.current.working_dir.clone(),
            loop_dir: self.current.dir.clone(),
            loop_id: self.current.loop_id,
            search_path: workspace.search_path(),
            rules: rules.clone(),
        };
        let owner = ChangeOwner::since_last_survey(self.needs_survey, lock.died, self.until);
        let opened = git::open(options, owner, &CancelToken::new()).ok()?;
        opened.map(|(tracker, _)| tracker)
    }
}

/// Returns the command for git's `diff` of two trees. The repository can configure programs for it, which an agent may have
/// written, so only the operator's own pager is used.
pub fn diff(git: &Git, pager: bool, how: Option<&str>, from: &str, to: &str) -> Command {
    let mut command = git.terminal_command();
    let settings = operators_pager(git).filter(|_| pager);
    match settings {
        Some((program, when)) => {
            command.args(["-c", &format!("pager.diff={when}")]);
            command.env("GIT_PAGER", program);
        }
        None => _ = command.arg("--no-pager"),
    }
    command.args(["-c", "core.fsmonitor=false"]);
    // `--submodule=diff` would start git in the nested repository, with that repository's configuration.
    command.args([
        "diff",
        "--no-ext-diff",
        "--no-textconv",
        "--submodule=short",
    ]);
    command.args(how).args([from, to, "--"]);
    command
}

/// Returns the pager from the environment and from settings outside of the repository, and when to use it. `None` if git cannot be
/// run.
fn operators_pager(git: &Git) -> Option<(OsString, String)> {
    // Git runs outside of the repository, so that the repository's configuration is not used.
    let elsewhere = git.clone().in_dir(Path::new("/"));
    let setting = |words: &'static str| {
        let answer = elsewhere.command(words).run(&CancelToken::new()).ok()?;
        let text = String::from_utf8_lossy(&answer.stdout)
            .trim_end()
            .to_owned();
        Some(text).filter(|_| answer.code == Some(0))
    };
    setting("version")?;
    let when = setting("config --type=bool --get pager.diff");
    let own = setting("config --get pager.diff").filter(|_| when.is_none());
    let named = || {
        let program = own.or_else(|| setting("config --get core.pager"));
        program.map(OsString::from)
    };
    let program = std::env::var_os("GIT_PAGER")
        .or_else(named)
        .or_else(|| std::env::var_os("PAGER"));
    Some((
        program.unwrap_or_else(|| "less".into()),
        when.unwrap_or_else(|| "true".to_owned()),
    ))
}

/// Returns the failure of a git command.
pub fn failed(what: &str, error: &dyn std::error::Error) -> Failure {
    Failure::new(format!("{what}: {}", chain(error)))
}
