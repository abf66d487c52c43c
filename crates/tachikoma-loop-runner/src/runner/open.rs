//! Opens a working directory: takes the lock, ends processes that an earlier runner left, and opens or creates the journal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tachikoma_agents::{Agent, Turn};
use tachikoma_core::{Input, Leftover, LoopId, Outcome, Record, State, Timestamp};
use tachikoma_fs::{RALPH_DIR, atomic_file, check_dir, owner};

use super::actor::Actor;
use super::autocommit::Autocommit;
use super::backup_schedule::{BackupSchedule, before_migration, lost_loop_warning};
use super::checks::Checks;
use super::context::{InputQueue, warning_input};
use super::control::Control;
use super::features::Features;
use super::hook_runner::HookRunner;
use super::maintenance::Maintenance;
use super::opencode_server::OwnServer;
use super::program::{find_program, search_path};
use super::reload::Reload;
use super::session::Session;
use super::snapshots::{SavedSnapshot, Snapshots};
use super::storage::Storage;
use crate::admin::reencrypt::{Reencrypted, StoredFiles};
use crate::admin::restore;
use crate::clock::Clock;
use crate::config::{AgentError, LoopConfig, OpenCodeServer};
use crate::control::ControlServer;
use crate::git::snapshots;
use crate::handle;
use crate::notify::{Address, Notifier};
use crate::process::control_socket::ListenError;
use crate::process::{Family, orphans};
use crate::prompt::{self, PromptError};
use crate::settings::AgentName;
use crate::store::epochs::Epochs;
use crate::store::journal::Journal;
use crate::store::lock::{Holder, LockError, WorkLock};
use crate::store::recover::{self, Loss, Source, Taken};
use crate::store::temporary::{self, TemporaryStore};
use crate::store::{StoreError, archive, backup, checkpoints, key_check, layout, loops, snapshot};

/// The loop that was found in the working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FoundLoop {
    /// No loop was found that could continue.
    #[default]
    Nothing,
    /// A loop that was interrupted, because its runner died.
    Interrupted {
        /// Number of the iteration that was running.
        iteration: u32,
        /// How many processes of the dead runner were ended.
        leftovers: usize,
    },
    /// A loop that had ended and continues.
    Ended {
        /// Outcome with which the loop had ended.
        outcome: Outcome,
    },
}

/// The file from which the state of a loop was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateOrigin {
    /// The kind of file; `None` for a new loop.
    pub source: Option<Source>,
    /// Number of journal records that were read.
    pub records: u64,
    /// Files that could not be used, and the consequences. For a loop that continues, they are already recorded as warnings.
    pub warnings: Vec<String>,
}

/// Why a loop cannot be opened. No record of the loop is lost. If the error happened after the lock was taken, processes of a dead runner may
/// have been
/// ended, and an incomplete last line of its journal may have been removed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The working directory is not a directory.
    #[error("working directory {}", path.display())]
    WorkingDir {
        /// Path of the working directory.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The path of the running program, which would be the guard, is unknown.
    #[error("the path of this program is unknown")]
    OwnProgram(#[source] std::io::Error),
    /// Another runner uses the directory, or the lock cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The journal or another file of the loop cannot be read or created.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The configured agent cannot be run.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The agent's program cannot be run.
    #[error("{problem}")]
    Program {
        /// The agent that needs the program.
        agent: AgentName,
        /// Description of the problem.
        problem: String,
    },
    /// The prompt cannot be used.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The control socket cannot be created.
    #[error(transparent)]
    Control(#[from] ListenError),
}

/// The result of opening a loop, without the loop itself. The default is the result for a new loop.
#[derive(Debug, Default)]
pub(super) struct Opening {
    pub found: FoundLoop,
    /// The earlier loop, which is complete; `None` if there was none.
    pub follows: Option<LoopId>,
    pub origin: StateOrigin,
    /// The temporary directory of a loop that is not stored; `None` for a stored loop.
    pub temporary: Option<Arc<TemporaryStore>>,
    /// Records about problems with the files. The run publishes them first.
    pub recorded: Vec<Record>,
    /// Processes that an earlier runner left and that were ended now.
    pub leftovers: Vec<Leftover>,
    /// The warning about files that were re-encrypted for other recipients.
    pub reencrypted: Option<Input>,
}

/// Opens the loop of a working directory, or begins a new one.
///
/// # Errors
/// A run would fail.
pub(super) async fn open(config: LoopConfig) -> Result<(Actor, Opening), OpenError> {
    let agent = config.agent()?;
    preflight(&config, &agent)?;
    owner::check_ralph(&config.working_dir).map_err(StoreError::from)?;
    let mut lock = WorkLock::acquire(&config.working_dir).await?;
    if check_dir(&config.working_dir, &layout::loops_dir(&config.working_dir)).is_ok() {
        restore::settle(&config.working_dir)?;
    }
    let leftovers = lock.crashed.as_ref().map_or_else(Vec::new, |dead| {
        orphans::end_leftovers(&dead.loop_id.to_string())
    });
    if let Some(dead) = &lock.crashed {
        temporary::clear(&config.temporary_dir, dead.loop_id);
        if !layout::loop_dir(&config.working_dir, dead.loop_id).exists() {
            // A loop without a directory was not to be stored, so its git snapshots are deleted too.
            let _ = snapshots::delete_all_in(&config.working_dir, dead.loop_id);
        }
    }
    config.encryption.prepare()?;
    let Opened {
        journal,
        state,
        mut clock,
        before,
        mut opening,
    } = if config.settings.state.enabled {
        let current = loops::current(
            &config.working_dir,
            &config.snapshot_path(),
            &config.encryption,
        )?;
        check_dirs(&config, current)?;
        open_journal(&config, current, leftovers.len())?
    } else {
        begin_temporary(&config)?
    };
    let is_new = opening.found == FoundLoop::Nothing;
    let (handle, channels) = handle::channel(&state, Family::new(config.adoption));
    let bound = ControlServer::bind(&config.runtime_dir, state.loop_id, handle.clone());
    // A new loop that cannot run must not replace the loop before it.
    let discard = || {
        if is_new {
            let root = config.store_root(state.loop_id);
            Journal::discard(&layout::loop_dir(&root, state.loop_id));
        }
    };
    let server = bound.inspect_err(|_| discard())?;
    let holder = Holder {
        pid: std::process::id(),
        since: clock.now(),
        loop_id: state.loop_id,
        socket: server.path().to_owned(),
    };
    lock.sign(&holder)
        .inspect_err(|_| discard())
        .map_err(StoreError::io("write", Path::new(".ralph/lock")))?;
    opening.reencrypted = reencrypt(&config, &journal).inspect_err(|_| discard())?;
    let saved =
        prepare_snapshot(&config, is_new, before, state.loop_id).inspect_err(|_| discard())?;
    opening.follows = before.filter(|_| is_new && !config.new_loop);
    opening.leftovers = leftovers;
    let addresses = Address::all(
        &config.settings.notify,
        &config.secrets,
        &config.cloud_environment.proxies(),
    );
    let features = Features {
        session: Session::new(&config.settings, channels.notices.clone()),
        autocommit: Autocommit::new(state.time),
        hooks: HookRunner::default(),
        checks: Checks::default(),
        notifier: Notifier::new(addresses, state.progress.tests.clone()),
        maintenance: Maintenance::default(),
        backups: BackupSchedule::new(),
        snapshots: Snapshots::new(saved),
        control: Control::new(server),
        server: OwnServer::default(),
        reload: Reload::default(),
    };
    let actor = Actor {
        policy: config.policy(&agent),
        config,
        agent,
        state,
        clock,
        storage: Storage {
            journal,
            lock,
            failed: false,
        },
        queue: InputQueue::default(),
        channels,
        handle,
        features,
        suspended: None,
    };
    Ok((actor, opening))
}

/// Checks that existing files can be decrypted now, and new files later.
///
/// # Errors
/// A key is missing or wrong.
fn check_keys(config: &LoopConfig) -> Result<(), StoreError> {
    config.encryption.check_apart(&config.working_dir)?;
    if config.settings.state.enabled {
        key_check::check_keys(
            &config.encryption,
            &config.working_dir,
            &config.snapshot_path(),
        )?;
    }
    config.encryption.check(&[])
}

/// Checks everything that can be checked before a file is changed.
///
/// # Errors
/// A run would fail.
pub(super) fn preflight(config: &LoopConfig, agent: &Agent) -> Result<(), OpenError> {
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
    check_keys(config)?;
    check_server(config, agent)
}

/// Encrypts or decrypts existing files as configured. Returns a warning if files were converted.
fn reencrypt(config: &LoopConfig, journal: &Journal) -> Result<Option<Input>, StoreError> {
    if !config.settings.state.enabled {
        return Ok(None);
    }
    let reencrypted = StoredFiles {
        working_dir: &config.working_dir,
        snapshot: &config.snapshot_path(),
        state_dir: &config.resolve(&config.settings.session.state_dir),
        backups: &config.backups().dir,
        written: &journal.part().path,
        encryption: &config.encryption,
    }
    .reencrypt()?;
    let now = match config.encryption.encrypts() {
        true => "encrypted now, to the keys of today",
        false => "in clear text now",
    };
    let Reencrypted {
        done,
        salvaged,
        locked,
        odd,
    } = reencrypted;
    let mut notes = Vec::new();
    if done > 0 {
        notes.push(format!(
            "{done} files of loops here were rewritten: they are {now}"
        ));
    }
    if salvaged > 0 {
        notes.push(format!(
            "{salvaged} damaged files could be decrypted in part: the readable part was rewritten, and the originals are in .ralph/quarantine/, for \
             which the old key is needed"
        ));
    }
    if odd > 0 {
        notes.push(format!("{odd} backups are damaged, and stay as they are"));
    }
    if locked > 0 {
        notes.push(format!(
            "{locked} files of loops here are encrypted to keys that are not here, and stay so"
        ));
    }
    Ok((!notes.is_empty()).then(|| warning_input(notes.join("; "))))
}

/// Checks that the OpenCode server of the loop could be started.
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

/// Checks that the loop's existing directories are not symbolic links, and makes them accessible only to the owner.
fn check_dirs(config: &LoopConfig, current: Option<LoopId>) -> Result<(), StoreError> {
    let working_dir = &config.working_dir;
    check_dir(working_dir, &layout::loops_dir(working_dir))?;
    check_dir(
        working_dir,
        &config.resolve(&config.settings.session.state_dir),
    )?;
    check_dir(working_dir, &config.backups().dir)?;
    if let Some(loop_id) = current {
        check_dir(working_dir, &layout::loop_dir(working_dir, loop_id))?;
        check_dir(working_dir, &config.transcripts_dir(loop_id))?;
    }
    Ok(())
}

/// An opened journal.
struct Opened {
    journal: Journal,
    state: State,
    clock: Clock,
    /// The loop that was current before this one was opened.
    before: Option<LoopId>,
    opening: Opening,
}

/// Archives the snapshot of an earlier loop. Returns the snapshot of a loop that continues.
fn prepare_snapshot(
    config: &LoopConfig,
    is_new: bool,
    before: Option<LoopId>,
    loop_id: LoopId,
) -> Result<Option<SavedSnapshot>, StoreError> {
    // A loop that is not stored does not change files of other loops.
    if !config.settings.state.enabled {
        return Ok(None);
    }
    let path = config.snapshot_path();
    if is_new {
        archive::make_way(&config.working_dir, before, &path, &config.encryption)?;
    }
    archive::archive_others(&config.working_dir, loop_id, &path, &config.encryption)?;
    atomic_file::remove_remains(&path);
    let backups = config.backups().dir;
    if backups.starts_with(config.working_dir.join(RALPH_DIR)) {
        atomic_file::remove_remains(&backups.join("any"));
    } else {
        // Other loops may write to this directory.
        let dir = layout::loop_dir(&config.working_dir, loop_id);
        backup::remove_remains(
            &backups,
            Epochs::of(&dir, &config.encryption).current().as_ref(),
        );
    }
    Ok(SavedSnapshot::find(
        &config.packed_snapshot_path(),
        loop_id,
        &config.encryption,
    ))
}

/// Begins a loop that is not stored. Other loops in the working directory are not changed.
fn begin_temporary(config: &LoopConfig) -> Result<Opened, OpenError> {
    let loop_id = new_loop_id(config);
    let temporary = TemporaryStore::create(&config.temporary_dir, loop_id)?;
    let mut clock = Clock::starting_after(Timestamp::default());
    let dir = layout::loop_dir(temporary.root(), loop_id);
    let (journal, state) = Journal::create(&dir, loop_id, clock.now(), &config.encryption)?;
    Ok(Opened {
        journal,
        state,
        clock,
        before: None,
        opening: Opening {
            temporary: Some(Arc::new(temporary)),
            ..Opening::default()
        },
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
    let mut origin = StateOrigin::default();
    let before = match current {
        Some(loop_id) if !config.new_loop => {
            let dir = layout::loop_dir(&config.working_dir, loop_id);
            let mut found = recover::read(&dir, &config.copies(), loop_id, config.loss)?;
            if found.is_older() {
                found
                    .troubles
                    .extend(before_migration(config, &dir, &found));
            }
            origin = StateOrigin {
                source: Some(found.source),
                records: found.records,
                warnings: found.troubles.clone(),
            };
            Some(found.open(&dir, &config.working_dir)?)
        }
        // A file that a newer version wrote is never overwritten.
        None if !config.new_loop => {
            match snapshot::read(&config.snapshot_path(), &config.encryption) {
                Err(error @ StoreError::NewerSnapshot { .. }) => return Err(error.into()),
                Err(_) | Ok(_) => None,
            }
        }
        Some(_) | None => None,
    };
    if let Some(taken) = before {
        let Taken {
            journal,
            state,
            warned: recorded,
        } = taken;
        let found = match state.outcome() {
            Some(Outcome::Done) => None,
            Some(outcome) => Some(FoundLoop::Ended {
                outcome: outcome.clone(),
            }),
            None => Some(FoundLoop::Interrupted {
                iteration: state.iteration,
                leftovers,
            }),
        };
        if let Some(found) = found {
            checkpoints::forget_after(
                &layout::loop_dir(&config.working_dir, state.loop_id),
                state.session.number,
            );
            let clock = Clock::starting_after(state.time);
            return Ok(Opened {
                journal,
                state,
                clock,
                before: current,
                opening: Opening {
                    found,
                    origin,
                    recorded,
                    ..Opening::default()
                },
            });
        }
    }
    // The time of a new loop starts after the last record of the old loop, even if the wall clock was set back.
    let last = current.and_then(|loop_id| {
        let dir = layout::loop_dir(&config.working_dir, loop_id);
        recover::read(&dir, &config.copies(), loop_id, Loss::Accept).ok()
    });
    let mut clock = Clock::starting_after(last.map(|found| found.state.time).unwrap_or_default());
    let loop_id = new_loop_id(config);
    let dir = layout::loop_dir(&config.working_dir, loop_id);
    let (journal, state) = Journal::create(&dir, loop_id, clock.now(), &config.encryption)?;
    Ok(Opened {
        journal,
        state,
        clock,
        before: current,
        opening: Opening {
            // Problems of the old loop are not reported for the new one. They are recorded in the old journal.
            origin: StateOrigin {
                warnings: lost_loop_warning(config, current).into_iter().collect(),
                ..StateOrigin::default()
            },
            ..Opening::default()
        },
    })
}
