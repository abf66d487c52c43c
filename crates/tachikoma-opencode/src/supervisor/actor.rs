//! The task that supervises the server. For each input it asks the core for a decision, writes the records to the journal, and
//! then performs the effects.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tachikoma_core::supervise::{
    Jitter, Level, ServerEffect, ServerInput, ServerPhase, ServerRecord, ServerState, messages,
    step,
};
use tachikoma_core::{Ticket, error_chain};
use tachikoma_fs::{atomic_file, make_dir, private};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::control::Control;
use super::handle::{Answer, COMMANDS_MAX, Command, Ended, RECORDS_MAX};
use super::journal::ServerJournal;
use super::log::LogWriter;
use super::server_process::ServerProcess;
use super::{SupervisorError, SupervisorHandle, SupervisorSettings, check, policy};
use crate::client::{DEFAULT_USER, Login};
use crate::login_file;
use crate::server_file::{self, ServerFile};
use tachikoma_process::{Adoption, Family, is_alive, orphans};
use tachikoma_runtime::clock::{self, Clock};
use tachikoma_store::StoreError;
use tachikoma_store::lock::{self, Holder, LockError, WorkLock};

/// Maximum number of refused requests that are recorded, so that an agent cannot fill the journal.
const REFUSALS_MAX: u32 = 100;

/// How often, and at which interval, the supervisor retries to write on a full disk. The server keeps running meanwhile.
const DISK_FULL_TRIES: u32 = 600;
const DISK_FULL_INTERVAL: Duration = Duration::from_secs(1);

/// A supervisor. It holds the lock of its directory.
#[derive(Debug)]
pub struct Supervisor {
    settings: SupervisorSettings,
    lock: WorkLock,
    journal: ServerJournal,
    state: ServerState,
    clock: Clock,
    control: Control,
    log: LogWriter,
    server: ServerProcess,
    inbox: Inbox,
    handle: SupervisorHandle,
    /// Channel with the state of the server, for handles.
    published: watch::Sender<ServerFile>,
    /// Channel with the end of the supervisor, for handles; `None` until it has ended.
    ended: watch::Sender<Option<Ended>>,
    /// Login that this supervisor generated, which clients read from the login file; `None` if the user set a password or none is needed.
    generated_login: Option<Login>,
    /// State of a server that was down or waiting for a restart when the previous supervisor ended; otherwise `None`.
    earlier: Option<ServerFile>,
    /// Warnings for the user, found when the supervisor started.
    warnings: Vec<String>,
}

/// Commands and inputs that are not handled yet.
#[derive(Debug)]
struct Inbox {
    commands: mpsc::Receiver<Command>,
    /// Inputs that are handled before any other event.
    pending: VecDeque<ServerInput>,
    /// Channels to callers that wait for an answer, by ticket.
    replies: BTreeMap<u64, oneshot::Sender<Answer>>,
    last_ticket: u64,
    /// Number of refused requests so far.
    refusals: u32,
    /// Whether the core has ended the supervision.
    finished: bool,
}

impl Inbox {
    fn add_caller(&mut self, reply: oneshot::Sender<Answer>) -> Option<Ticket> {
        self.last_ticket += 1;
        self.replies.insert(self.last_ticket, reply);
        Some(Ticket(self.last_ticket))
    }
}

impl Supervisor {
    /// Locks the directory and reads the journal of an earlier supervisor.
    ///
    /// # Errors
    /// Another supervisor holds the lock, the settings are not valid, or a file cannot be read or written.
    pub async fn open(settings: SupervisorSettings) -> Result<Self, SupervisorError> {
        check(&settings.opencode, settings.password.is_some())?;
        let dir = &settings.dir;
        make_dir(dir).map_err(StoreError::from)?;
        write_gitignore(dir);
        if let Some(holder) = living_holder(dir) {
            // The guard of a killed supervisor releases the lock soon. But this supervisor must not wait for a living one, because
            // it would take over after that one is stopped.
            return Err(SupervisorError::Held {
                dir: dir.clone(),
                holder: Some(holder),
            });
        }
        let acquired = WorkLock::acquire_in(dir).await;
        let mut lock = acquired.map_err(|error| lock_error(dir, error))?;
        if let Some(crashed) = &lock.crashed {
            // Processes of the crashed supervisor are left only if its guard was killed, too.
            let _ = orphans::end_leftovers(&crashed.loop_id.to_string());
        }
        atomic_file::remove_remains(&dir.join(server_file::NAME));
        let mut opened = ServerJournal::open(dir)?;
        if opened.damage.is_some() {
            // Clients distinguish servers by this number, so it must not start at 0 again.
            let known = ServerFile::last_generation(dir);
            opened.state.generation = opened.state.generation.max(known);
            opened.journal.renew(&mut opened.state)?;
        }
        let (login, generated_login) = logins(&settings);
        match &generated_login {
            Some(login) => login_file::write(dir, login)?,
            None => login_file::remove(dir),
        }
        let mut clock = Clock::starting_after(opened.state.time);
        let (commands_in, commands) = mpsc::channel(COMMANDS_MAX);
        let (published, published_out) = watch::channel(ServerFile::default());
        let (ended, ended_out) = watch::channel(None);
        let (records, _) = broadcast::channel(RECORDS_MAX);
        let handle = SupervisorHandle {
            commands: commands_in,
            published: published_out,
            records,
            ended: ended_out,
            // This process may be the runner of a loop, which has other children as well.
            family: Arc::new(Family::new(Adoption::Marked)),
            reader: settings.reader.clone(),
        };
        let id = settings.id.to_string();
        let control = Control::bind(&settings.runtime_dir, &id, handle.clone())?;
        lock.sign(&Holder {
            pid: std::process::id(),
            since: clock.now(),
            loop_id: settings.id,
            socket: control.path().to_owned(),
        })
        .map_err(StoreError::io("sign", &dir.join("lock")))?;
        let log = LogWriter::start(dir, settings.keeps_log);
        let warnings = warnings(opened.damage, login.is_some());
        for warning in &warnings {
            log.note(warning);
        }
        Ok(Self {
            earlier: earlier(&opened.state),
            settings,
            lock,
            journal: opened.journal,
            state: opened.state,
            clock,
            control,
            log,
            server: ServerProcess::new(login),
            inbox: Inbox {
                commands,
                pending: VecDeque::new(),
                replies: BTreeMap::new(),
                last_ticket: 0,
                refusals: 0,
                finished: false,
            },
            handle,
            published,
            ended,
            generated_login,
            warnings,
        })
    }

    /// Returns warnings for the user.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the state of a server that was down or waiting for a restart when the previous supervisor ended; otherwise `None`.
    #[must_use]
    pub fn earlier(&self) -> Option<&ServerFile> {
        self.earlier.as_ref()
    }

    /// Opens a supervisor and runs it in a background task.
    ///
    /// # Errors
    /// The same errors as [`Supervisor::open`].
    pub async fn start(settings: SupervisorSettings) -> Result<SupervisorHandle, SupervisorError> {
        let supervisor = Self::open(settings).await?;
        let handle = supervisor.handle();
        tokio::spawn(async move {
            // `SupervisorHandle::ended` returns the error.
            let _ = supervisor.run().await;
        });
        Ok(handle)
    }

    /// Returns a handle to this supervisor.
    #[must_use]
    pub fn handle(&self) -> SupervisorHandle {
        self.handle.clone()
    }

    /// Keeps the server running until a stop is requested.
    ///
    /// # Errors
    /// The journal cannot be written, or a guard cannot be started. The server is ended first.
    pub async fn run(mut self) -> Result<(), SupervisorError> {
        let result = self.supervise().await;
        self.shutdown(&result).await;
        result
    }

    async fn supervise(&mut self) -> Result<(), SupervisorError> {
        let pid = std::process::id();
        let by = self.settings.by;
        self.step(ServerInput::Supervise { pid, by }).await?;
        while !self.inbox.finished {
            let input = match self.inbox.pending.pop_front() {
                Some(input) => Some(input),
                None => self.next().await?,
            };
            if let Some(jump) = self.clock.jumped() {
                self.step(ServerInput::Suspended { duration: jump }).await?;
            }
            if let Some(input) = input {
                self.step(input).await?;
            }
        }
        Ok(())
    }

    /// Waits for the next input of the state machine in the core.
    async fn next(&mut self) -> Result<Option<ServerInput>, SupervisorError> {
        let deadline = self.state.next_deadline();
        let due = deadline.map(|deadline| self.clock.instant_of(deadline));
        let since = clock::monotonic();
        let sleep = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            input = self.server.next(&self.settings) => input,
            Some(command) = self.inbox.commands.recv() => Ok(self.command(command)),
            reason = self.control.broken() => Err(SupervisorError::Broken(reason)),
            reason = self.log.broken() => Err(SupervisorError::Broken(reason)),
            () = sleep => {
                if let Some(duration) = due.and_then(|due| clock::overslept(since, due)) {
                    self.inbox.pending.push_back(ServerInput::Suspended { duration });
                }
                self.inbox.pending.push_back(ServerInput::Wake);
                Ok(None)
            }
        }
    }

    /// Asks the core for a decision, writes the records, performs the effects, and publishes the new state.
    async fn step(&mut self, input: ServerInput) -> Result<(), SupervisorError> {
        let now = self.clock.now();
        let [random, ..] = uuid::Uuid::new_v4().into_bytes();
        self.repair().await?;
        let policy = policy(&self.settings.opencode, self.settings.signals);
        let stepped = step(&policy, &mut self.state, now, Jitter(random), input);
        for record in &stepped.records {
            tracing::info!(seq = record.seq.0, "OpenCode supervisor recorded an event");
        }
        self.append(&stepped.records).await?;
        for effect in stepped.effects {
            self.perform(effect)?;
        }
        for record in stepped.records {
            for (level, text) in messages(&record.event) {
                if level >= Level::Info {
                    self.log.note(&text);
                }
            }
            // Sending fails if there is no subscriber, which is not an error.
            let _ = self.handle.records.send(Arc::new(record));
        }
        self.publish();
        self.journal.rotate(&mut self.state)?;
        Ok(())
    }

    async fn append(&mut self, records: &[ServerRecord]) -> Result<(), SupervisorError> {
        for _ in 1..DISK_FULL_TRIES {
            match self.journal.append(records) {
                Err(error) if error.is_full_disk() => tokio::time::sleep(DISK_FULL_INTERVAL).await,
                written => return Ok(written?),
            }
        }
        Ok(self.journal.append(records)?)
    }

    fn perform(&mut self, effect: ServerEffect) -> Result<(), SupervisorError> {
        let phase = &self.state.phase;
        match effect {
            ServerEffect::Start { generation } => {
                let log = self.log.sender();
                let started = self
                    .server
                    .start(&self.settings, generation, &self.lock, log)?;
                self.inbox.pending.extend(started);
            }
            ServerEffect::Probe { generation } => {
                let answered = self.server.probe(generation, phase);
                self.inbox.pending.extend(answered);
            }
            ServerEffect::Measure { generation } => self.server.measure(generation),
            // The loop reports when no session is busy. The server is not asked, because a turn could start after its answer.
            ServerEffect::AskIdle { .. } if self.settings.idle_is_reported => {}
            ServerEffect::AskIdle { generation } => self.server.ask_idle(generation, phase),
            ServerEffect::Release { generation } => self.server.release(generation, phase),
            ServerEffect::Signal { generation, signal } => self.server.signal(generation, signal),
            ServerEffect::Reply { ticket, answer } => {
                if let Some(reply) = self.inbox.replies.remove(&ticket.0) {
                    // The caller may have closed its connection.
                    let _ = reply.send(answer);
                }
            }
            ServerEffect::Finish => self.inbox.finished = true,
        }
        Ok(())
    }

    fn publish(&mut self) {
        let file = ServerFile::from(&self.state);
        let dir = &self.settings.dir;
        self.published.send_if_modified(|published| {
            let changed = *published != file;
            if changed {
                // If this fails, clients read the old file until the next change.
                let _ = file.write(dir);
                *published = file;
            }
            changed
        });
    }

    fn command(&mut self, command: Command) -> Option<ServerInput> {
        match command {
            Command::Restart(reply) => Some(ServerInput::Restart {
                ticket: self.inbox.add_caller(reply),
            }),
            Command::Stop(reply) => Some(ServerInput::Stop {
                ticket: self.inbox.add_caller(reply),
            }),
            Command::Refused(..) if self.inbox.refusals >= REFUSALS_MAX => None,
            Command::Refused(request, pid) => {
                self.inbox.refusals += 1;
                Some(ServerInput::Refused { request, pid })
            }
            Command::Idle => Some(ServerInput::Boundary {
                generation: self.state.generation,
            }),
            Command::Reload(settings, reply) => {
                let checked = check(&settings, self.settings.password.is_some());
                let answer = match checked {
                    Ok(()) => {
                        self.settings.opencode = *settings;
                        self.inbox.pending.push_back(ServerInput::Reloaded);
                        Ok("the settings were read again; a changed command line or address is used at the next start of the server"
                            .to_owned())
                    }
                    Err(error) => Err(format!("{error}; the earlier settings stay in effect")),
                };
                let (Ok(text) | Err(text)) = &answer;
                self.log.note(text);
                // The caller may have closed its connection.
                let _ = reply.send(answer);
                None
            }
        }
    }

    /// Restores the lock, the journal, the login file and the server file if they were deleted. Without the lock, the supervisor
    /// seems to be dead. Without the server file, clients do not find the server.
    async fn repair(&mut self) -> Result<(), SupervisorError> {
        let dir = self.settings.dir.clone();
        let is_locked = self.lock.is_in_place_in(&dir);
        let has_login = self.generated_login.is_none() || dir.join(login_file::NAME).exists();
        let published = self.published.borrow().clone();
        let is_published =
            published == ServerFile::default() || dir.join(server_file::NAME).exists();
        if is_locked && has_login && is_published {
            return Ok(());
        }
        // If the working directory is missing, nothing can be restored. The next start of the server reports that.
        if !self.settings.working_dir.is_dir() {
            return Ok(());
        }
        make_dir(&dir).map_err(StoreError::from)?;
        write_gitignore(&dir);
        if !is_locked {
            let taken = self.lock.retake_in(&dir).await;
            taken.map_err(|error| lock_error(&dir, error))?;
            self.server.hold(&self.lock);
            self.journal.renew(&mut self.state)?;
        }
        if let Some(login) = &self.generated_login {
            login_file::write(&dir, login)?;
        }
        // If this fails, the next change of the state writes the file.
        let _ = published.write(&dir);
        self.log
            .note("files in the supervisor's directory were missing and have been restored");
        Ok(())
    }

    /// Ends all processes of the server and releases the lock.
    async fn shutdown(mut self, result: &Result<(), SupervisorError>) {
        self.server.shutdown().await;
        let ended = match result {
            Ok(()) => Ended::InOrder,
            Err(error) => {
                let text = error_chain(error);
                self.log
                    .note(&format!("the supervisor failed and ends: {text}"));
                let file = ServerFile {
                    generation: self.state.generation.0,
                    why: Some(text.clone()),
                    ..ServerFile::default()
                };
                let _ = file.write(&self.settings.dir);
                Ended::Failed(text)
            }
        };
        login_file::remove(&self.settings.dir);
        drop(self.control);
        self.log.finish().await;
        self.lock.release();
        drop(self.lock);
        // This is the last step, because a waiting process may start the next supervisor at once.
        self.ended.send_replace(Some(ended));
    }
}

fn lock_error(dir: &Path, error: LockError) -> SupervisorError {
    match error {
        LockError::Held { holder, .. } => SupervisorError::Held {
            dir: dir.to_owned(),
            holder,
        },
        LockError::Store(error) => SupervisorError::Store(error),
    }
}

fn warnings(damage: Option<String>, has_password: bool) -> Vec<String> {
    let damage = damage.map(|damage| {
        format!(
            "the supervisor's journal was damaged ({damage}); it was renamed to journal.damaged.jsonl, and the records after \
             the damage are lost"
        )
    });
    let open = "the OpenCode server has no password, so every user of this machine can run commands as you: set \
                `opencode.require_password = true`";
    let open = (!has_password).then(|| open.to_owned());
    damage.into_iter().chain(open).collect()
}

/// Returns the login of the server, and the same login again if this supervisor generated it.
fn logins(settings: &SupervisorSettings) -> (Option<Login>, Option<Login>) {
    let user = settings.user.clone();
    let user = user.unwrap_or_else(|| DEFAULT_USER.to_owned());
    match settings.password.clone() {
        Some(password) => (Some(Login { user, password }), None),
        None if settings.opencode.require_password => {
            let login = login_file::generate(user);
            (Some(login.clone()), Some(login))
        }
        None => (None, None),
    }
}

/// Returns the state of a server that is down or waiting for a restart; otherwise `None`.
fn earlier(state: &ServerState) -> Option<ServerFile> {
    match state.phase {
        ServerPhase::Waiting { .. } | ServerPhase::Down { .. } | ServerPhase::GaveUp { .. } => {
            Some(ServerFile::from(state))
        }
        _ => None,
    }
}

/// Returns the holder of the directory's lock if its process is alive; otherwise `None`.
fn living_holder(dir: &Path) -> Option<Holder> {
    let holder = lock::is_held_in(dir).then(|| lock::holder_in(dir))??;
    let pid = i32::try_from(holder.pid).ok()?;
    is_alive(pid).then_some(holder)
}

/// Writes a `.gitignore` file that keeps the directory out of the project's repository.
fn write_gitignore(dir: &Path) {
    let path = dir.join(".gitignore");
    if let Ok(mut file) = private().write(true).create_new(true).open(path) {
        // If this fails, git only shows the files as untracked.
        let _ = std::io::Write::write_all(&mut file, b"*\n");
    }
}
