//! Taking up a working directory: the lock, what an earlier runner left, the journal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tachikoma_agents::{Agent, Turn};
use tachikoma_core::{Input, LoopId, Outcome, Record, State, Status, Ticket, Timestamp};
use tachikoma_fs::{RALPH_DIR, check_dir, owner, whole};

use super::LoopRunner;
use super::backing::{Backing, backup_first, beginning_again};
use super::effects::{find_program, search_path};
use super::patterns;
use super::save::{Saved, Saving};
use super::upkeep::Upkeep;
use crate::clock::Clock;
use crate::config::{AgentError, LoopConfig, OpenCodeServer};
use crate::control::{Server, ServerError};
use crate::git::snapshots;
use crate::handle;
use crate::hooks::Registry;
use crate::notify::{Address, Notices};
use crate::process::{Family, orphans};
use crate::prompt::{self, PromptError};
use crate::settings::AgentName;
use crate::store::journal::Journal;
use crate::store::lives::Lives;
use crate::store::lock::{Holder, LockError, WorkLock};
use crate::store::recover::{self, Loss, Source, Taken};
use crate::store::reseal::{Kept, Resealed};
use crate::store::temporary::{self, TemporaryStore};
use crate::store::{StoreError, archive, backup, checkpoints, loops, restore, snapshot, vault};

/// What was found in the working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No loop that could go on.
    Nothing,
    /// A loop whose runner died.
    Interrupted {
        /// The iteration it was at.
        iteration: u32,
        /// Processes that the dead runner left, now ended.
        leftovers: usize,
    },
    /// A loop that had ended and goes on.
    Ended {
        /// How.
        outcome: Outcome,
    },
}

/// What the state of a loop that was found was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// Where it was found; none for a new loop.
    pub source: Option<Source>,
    /// How many records of the journal were read for it.
    pub records: u64,
    /// What could not be used, and what that costs. Of a loop that goes on it is recorded as warnings already.
    pub troubles: Vec<String>,
}

/// Why a loop cannot be taken up. It has not gone on, and no record of it is lost. What needs the lock fails after the
/// lock was taken: then processes that a dead runner left may have been ended, and the torn last line of its journal cut.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The working directory is no directory.
    #[error("working directory {}", path.display())]
    WorkingDir {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Another runner works there, or the lock cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The journal cannot be read or made.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no agent to run.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The agent's program cannot be run.
    #[error("{problem}")]
    Program {
        /// The agent that needs it.
        agent: AgentName,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no prompt.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The control socket cannot be made.
    #[error(transparent)]
    Control(#[from] ServerError),
}

impl LoopRunner {
    /// Takes up the loop of a working directory, or begins one, without running it yet.
    ///
    /// # Errors
    /// Something that a run needs is missing. What can be looked at without the lock is looked at first, and then nothing
    /// was changed.
    pub async fn open(config: LoopConfig) -> Result<Self, OpenError> {
        let agent = config.agent()?;
        preflight(&config, &agent)?;
        owner::check_ralph(&config.working_dir).map_err(StoreError::from)?;
        let mut lock = WorkLock::acquire(&config.working_dir).await?;
        if check_dir(&config.working_dir, &loops::all(&config.working_dir)).is_ok() {
            restore::settle(&config.working_dir)?;
        }
        let leftovers = lock.crashed().map_or_else(Vec::new, |dead| {
            orphans::end_leftovers(&dead.loop_id.to_string())
        });
        if let Some(dead) = lock.crashed() {
            temporary::clear(&config.temporary_dir, dead.loop_id);
            if !loops::dir(&config.working_dir, dead.loop_id).exists() {
                // Nothing of it was to be left.
                let _ = snapshots::delete_all_around(&config.working_dir, dead.loop_id);
            }
        }
        config.vault.prepare()?;
        let Opened {
            journal,
            state,
            mut clock,
            found,
            basis,
            warned,
            before,
            temporary,
        } = if config.settings.state.enabled {
            let current =
                loops::current(&config.working_dir, &config.snapshot_path(), &config.vault)?;
            check_dirs(&config, current)?;
            open_journal(&config, current, leftovers.len())?
        } else {
            begin_temporary(&config)?
        };
        let ran_until = state.time;
        let (handle, ends) =
            handle::channel(Status::of(&state, true), Family::new(config.adoption));
        let bound = Server::bind(&config.runtime_dir, state.loop_id, handle.clone());
        // What never ran must not stand in the way of the loop before it.
        let discard = || {
            if found == Found::Nothing {
                let root = config.store_root(state.loop_id);
                Journal::discard(&loops::dir(&root, state.loop_id));
            }
        };
        let control = bound.inspect_err(|_| discard())?;
        let holder = Holder {
            pid: std::process::id(),
            since: clock.now(),
            loop_id: state.loop_id,
            socket: control.path().to_owned(),
        };
        lock.sign(&holder)
            .inspect_err(|_| discard())
            .map_err(StoreError::io("write", Path::new(".ralph/lock")))?;
        let resealed = reseal(&config, &journal).inspect_err(|_| discard())?;
        let saved = make_way(&config, &found, before, state.loop_id).inspect_err(|_| discard())?;
        let done = found == Found::Nothing && !config.new_loop;
        let policy = config.policy(&agent);
        let patterns = patterns::compiled(&config.settings.reboot.triggers.on_patterns);
        let mut notices = Notices::new(Address::all(&config.settings.notify, &config.secrets));
        notices.tests.clone_from(&state.progress.tests);
        let stop_patterns = patterns::compiled(&config.settings.stop_conditions.stop_on_patterns);
        Ok(Self {
            config,
            agent,
            policy,
            patterns,
            stop_patterns,
            cost_unsaid: false,
            unmeant: None,
            agent_version: None,
            state,
            clock,
            journal,
            lock,
            found,
            ran_until,
            follows: before.filter(|_| done),
            handle,
            ends,
            control: Some(control),
            guard: None,
            server: None,
            launch: None,
            hooks: None,
            beside: super::hooks::Beside::default(),
            notices,
            looking: None,
            registry: Registry::default(),
            check: None,
            checks: super::check::ChecksKnown::default(),
            keeping: super::keep::Keeping::default(),
            resealed,
            queue: std::collections::VecDeque::new(),
            tickets: std::collections::HashMap::new(),
            last_ticket: Ticket(0),
            unwritten: false,
            warned,
            basis,
            temporary: temporary.map(Arc::new),
            leftovers,
            saving: Saving::new(saved),
            deaf: false,
            suspended: None,
            reader: None,
            reread: None,
            rereads: super::reread::Rereads::default(),
            upkeep: Upkeep::default(),
            backing: Backing::new(),
            asked: String::new(),
            given: None,
        })
    }
}

impl LoopConfig {
    /// Checks that what is kept can be opened, and that what will be written could be read again.
    ///
    /// # Errors
    /// A key is missing, or is the wrong one.
    fn check_keys(&self) -> Result<(), StoreError> {
        self.vault.check_apart(&self.working_dir)?;
        if self.settings.state.enabled {
            vault::check_keys(&self.vault, &self.working_dir, &self.snapshot_path())?;
        }
        self.vault.check(&[])
    }

    /// Checks what can be checked before anything is touched.
    ///
    /// # Errors
    /// Something that a run needs is missing.
    pub fn check(&self) -> Result<(), OpenError> {
        preflight(self, &self.agent()?)
    }
}

/// Checks what can be checked before anything is touched.
fn preflight(config: &LoopConfig, agent: &Agent) -> Result<(), OpenError> {
    let working_dir = &config.working_dir;
    let is_dir = std::fs::metadata(working_dir).and_then(|metadata| {
        metadata
            .is_dir()
            .then_some(())
            .ok_or_else(|| std::io::ErrorKind::NotADirectory.into())
    });
    is_dir.map_err(|source| OpenError::WorkingDir {
        path: working_dir.clone(),
        source,
    })?;
    prompt::read(&config.launch.prompt, working_dir)?;
    let plan = agent.plan(&Turn::default());
    let searched = search_path(&plan, config.search_path.as_ref());
    find_program(Path::new(&plan.program), working_dir, searched)
        .map_err(|problem| missing_program(config, problem))?;
    config.check_keys()?;
    check_server(config, agent)
}

/// Brings what is kept into the form that is wanted. Returns what is to be said of it.
fn reseal(config: &LoopConfig, journal: &Journal) -> Result<Option<Input>, StoreError> {
    if !config.settings.state.enabled {
        return Ok(None);
    }
    let resealed = Kept {
        working_dir: &config.working_dir,
        snapshot: &config.snapshot_path(),
        state_dir: &config.resolve(&config.settings.session.state_dir),
        backups: &config.backups().dir,
        written: &journal.part().path,
        vault: &config.vault,
    }
    .reseal()?;
    let now = match config.vault.seals() {
        true => "encrypted now, to the keys of today",
        false => "in clear text now",
    };
    let Resealed {
        done,
        salvaged,
        locked,
        odd,
    } = resealed;
    let mut said = Vec::new();
    if done > 0 {
        said.push(format!(
            "{done} files of loops here were rewritten: they are {now}"
        ));
    }
    if salvaged > 0 {
        said.push(format!(
            "{salvaged} files did not open whole: what opens of them was rewritten, and they are in .ralph/quarantine/ as they were, for \
             which the old key is needed"
        ));
    }
    if odd > 0 {
        said.push(format!("{odd} backups are damaged, and stay as they are"));
    }
    if locked > 0 {
        said.push(format!(
            "{locked} files of loops here are encrypted to keys that are not here, and stay so"
        ));
    }
    let warning = said.join("; ");
    Ok((!said.is_empty()).then_some(Input::Warning { warning }))
}

/// Checks that a server of the loop's own could be started.
fn check_server(config: &LoopConfig, agent: &Agent) -> Result<(), OpenError> {
    match config.opencode_server(agent) {
        OpenCodeServer::Own(_) => {}
        OpenCodeServer::Attached(_) | OpenCodeServer::Shared(_) | OpenCodeServer::None => {
            return Ok(());
        }
    }
    let words = config.opencode_program()?;
    let program = words.first().map(Path::new).unwrap_or(Path::new(""));
    find_program(program, &config.working_dir, config.search_path.as_ref())
        .map_err(|problem| missing_program(config, problem))
}

fn missing_program(config: &LoopConfig, problem: String) -> OpenError {
    let agent = config.settings.agent.name;
    OpenError::Program { agent, problem }
}

/// Checks the directories that are there already and will be written to.
fn check_dirs(config: &LoopConfig, current: Option<LoopId>) -> Result<(), StoreError> {
    let working_dir = &config.working_dir;
    check_dir(working_dir, &loops::all(working_dir))?;
    check_dir(
        working_dir,
        &config.resolve(&config.settings.session.state_dir),
    )?;
    check_dir(working_dir, &config.backups().dir)?;
    if let Some(loop_id) = current {
        check_dir(working_dir, &loops::dir(working_dir, loop_id))?;
        check_dir(working_dir, &config.transcripts_dir(loop_id))?;
    }
    Ok(())
}

/// A journal to go on with.
struct Opened {
    journal: Journal,
    state: State,
    clock: Clock,
    found: Found,
    basis: Basis,
    /// What was recorded of the troubles on the way.
    warned: Vec<Record>,
    /// The loop that was the current one.
    before: Option<LoopId>,
    temporary: Option<TemporaryStore>,
}

/// Makes way for the snapshot of a new loop, and returns what is there of the one that goes on.
fn make_way(
    config: &LoopConfig,
    found: &Found,
    before: Option<LoopId>,
    loop_id: LoopId,
) -> Result<Option<Saved>, StoreError> {
    // One that is not kept touches nothing that is.
    if !config.settings.state.enabled {
        return Ok(None);
    }
    let path = config.snapshot_path();
    if *found == Found::Nothing {
        archive::make_way(&config.working_dir, before, &path, &config.vault)?;
    }
    archive::archive_others(&config.working_dir, loop_id, &path, &config.vault)?;
    whole::remove_remains(&path);
    let backups = config.backups().dir;
    if backups.starts_with(config.working_dir.join(RALPH_DIR)) {
        whole::remove_remains(&backups.join("any"));
    } else {
        // Others may be at it there.
        let dir = loops::dir(&config.working_dir, loop_id);
        backup::remove_remains(&backups, Lives::of(&dir, &config.vault).current().as_ref());
    }
    Ok(Saved::found(
        &config.packed_snapshot_path(),
        loop_id,
        &config.vault,
    ))
}

/// Begins a loop that is not kept: whatever else is in the working directory stays as it is.
fn begin_temporary(config: &LoopConfig) -> Result<Opened, OpenError> {
    let loop_id = new_loop_id(config);
    let temporary = TemporaryStore::create(&config.temporary_dir, loop_id)?;
    let mut clock = Clock::starting_after(Timestamp::default());
    let dir = loops::dir(temporary.root(), loop_id);
    let (journal, state) = Journal::create(&dir, loop_id, clock.now(), &config.vault)?;
    Ok(Opened {
        journal,
        state,
        clock,
        found: Found::Nothing,
        basis: Basis::default(),
        warned: Vec::new(),
        before: None,
        temporary: Some(temporary),
    })
}

fn new_loop_id(config: &LoopConfig) -> LoopId {
    let random = || LoopId::new(uuid::Uuid::new_v4());
    config.new_loop_id.unwrap_or_else(random)
}

fn open_journal(
    config: &LoopConfig,
    current: Option<LoopId>,
    leftovers: usize,
) -> Result<Opened, OpenError> {
    let mut basis = Basis::default();
    let before = match current {
        Some(loop_id) if !config.new_loop => {
            let dir = loops::dir(&config.working_dir, loop_id);
            let mut found = recover::read(&dir, &config.copies(), loop_id, config.loss)?;
            if found.is_older() {
                found.troubles.extend(backup_first(config, &dir, &found));
            }
            basis = Basis {
                source: Some(found.source),
                records: found.records,
                troubles: found.troubles.clone(),
            };
            Some(found.open(&dir, &config.working_dir)?)
        }
        // A file of a newer version is not written over, whoever it belongs to.
        None if !config.new_loop => match snapshot::read(&config.snapshot_path(), &config.vault) {
            Err(error @ StoreError::NewerSnapshot { .. }) => return Err(error.into()),
            Err(_) | Ok(_) => None,
        },
        Some(_) | None => None,
    };
    if let Some(taken) = before {
        let Taken {
            journal,
            state,
            warned,
        } = taken;
        let found = match state.outcome() {
            Some(Outcome::Done) => None,
            Some(outcome) => Some(Found::Ended {
                outcome: outcome.clone(),
            }),
            None => Some(Found::Interrupted {
                iteration: state.iteration,
                leftovers,
            }),
        };
        if let Some(found) = found {
            checkpoints::forget_after(
                &loops::dir(&config.working_dir, state.loop_id),
                state.session.number,
            );
            let clock = Clock::starting_after(state.time);
            return Ok(Opened {
                journal,
                state,
                clock,
                found,
                basis,
                warned,
                before: current,
                temporary: None,
            });
        }
    }
    // A new loop begins after everything the old one has seen, whatever the wall clock says.
    let last = current.and_then(|loop_id| {
        let dir = loops::dir(&config.working_dir, loop_id);
        recover::read(&dir, &config.copies(), loop_id, Loss::Accept).ok()
    });
    let mut clock = Clock::starting_after(last.map(|found| found.state.time).unwrap_or_default());
    let loop_id = new_loop_id(config);
    let dir = loops::dir(&config.working_dir, loop_id);
    let (journal, state) = Journal::create(&dir, loop_id, clock.now(), &config.vault)?;
    Ok(Opened {
        journal,
        state,
        clock,
        found: Found::Nothing,
        // What was wrong with the old loop is recorded there, and no concern of this one.
        basis: Basis {
            troubles: beginning_again(config, current).into_iter().collect(),
            ..Basis::default()
        },
        warned: Vec::new(),
        before: current,
        temporary: None,
    })
}
