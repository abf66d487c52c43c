//! The one task of a supervisor: takes news, asks the core, writes its facts down, and then does what it wishes.

mod effects;
mod events;
mod repair;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tachikoma_core::supervise::{
    Jitter, Level, ServerInput, ServerPhase, ServerPolicy, ServerRecord, ServerState, step, words,
};
use tachikoma_core::{Ticket, Timestamp};
use tachikoma_fs::{atomic_file, make_dir, private};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};

use super::control::Control;
use super::handle::{Answer, COMMANDS_MAX, Command, Ended, RECORDS_MAX};
use super::http::Target;
use super::journal::ServerJournal;
use super::log::ServerLog;
use super::{
    SupervisorError, SupervisorEvent, SupervisorHandle, SupervisorSettings, check, output, policy,
};
use crate::client::{DEFAULT_USER, Login};
use crate::login_file;
use crate::server_file::{self, ServerFile};
use tachikoma_process::{Adoption, Family, Guard, is_alive, orphans};
use tachikoma_runtime::clock::{self, Clock};
use tachikoma_runtime::task::{self, Task};
use tachikoma_store::StoreError;
use tachikoma_store::lock::{self, Holder, LockError, WorkLock};

/// News of tasks that may wait: each task has one thing to say.
const NEWS_MAX: usize = 64;

/// Refusals that are recorded: an agent that asks again and again must not fill the journal.
const REFUSALS_MAX: u32 = 100;

/// A disk that is full is waited for, while the server goes on.
const ROOM_TRIES: u32 = 600;
const ROOM_TICK: Duration = Duration::from_secs(1);

/// A supervisor that has its directory and has not begun yet.
#[derive(Debug)]
pub struct Supervisor {
    settings: SupervisorSettings,
    policy: ServerPolicy,
    lock: WorkLock,
    journal: ServerJournal,
    state: ServerState,
    clock: Clock,
    control: Control,
    guard: Option<Guard>,
    handle: SupervisorHandle,
    commands: mpsc::Receiver<Command>,
    published: watch::Sender<ServerFile>,
    ended: watch::Sender<Option<Ended>>,
    news: (
        mpsc::Sender<SupervisorEvent>,
        mpsc::Receiver<SupervisorEvent>,
    ),
    /// What is to be taken in before anything else is waited for.
    at_once: VecDeque<ServerInput>,
    tasks: JoinSet<()>,
    probing: Option<AbortHandle>,
    log: mpsc::Sender<Vec<u8>>,
    log_task: Task,
    /// What the server asks its clients for; none if it asks for nothing.
    login: Option<Login>,
    /// Whether the login was made here, so that our own clients find it in a file.
    login_is_kept: bool,
    /// What the supervisor before left, where that was not an end in order.
    earlier: Option<ServerFile>,
    damage: Option<String>,
    /// Where the current server is asked.
    target: Option<Target>,
    /// Tells the reader of the current server's output that it is gone.
    reader: Option<oneshot::Sender<()>>,
    replies: BTreeMap<u64, oneshot::Sender<Answer>>,
    ticket: u64,
    finished: bool,
    /// How many were refused what only the operator may ask.
    refusals: u32,
}

impl Supervisor {
    /// Takes the directory and reads what an earlier supervisor wrote there.
    ///
    /// # Errors
    /// Another one has it, the settings cannot be used, or something on disk cannot.
    pub async fn open(settings: SupervisorSettings) -> Result<Self, SupervisorError> {
        check(&settings.opencode, settings.password.is_some())?;
        let dir = &settings.dir;
        make_dir(dir).map_err(StoreError::from)?;
        ignore(dir);
        if let Some(holder) = living_holder(dir) {
            // Only the guard of a supervisor that was killed lets go soon. Waiting for a living one would take over after `stop`.
            return Err(SupervisorError::Held {
                dir: dir.clone(),
                holder: Some(holder),
            });
        }
        let mut lock = WorkLock::acquire_in(dir)
            .await
            .map_err(|error| match error {
                LockError::Held { holder, .. } => SupervisorError::Held {
                    dir: dir.clone(),
                    holder,
                },
                LockError::Store(error) => SupervisorError::Store(error),
            })?;
        if let Some(crashed) = lock.crashed() {
            // Its guard has seen to them, unless that was killed too.
            let _ = orphans::end_leftovers(&crashed.loop_id.to_string());
        }
        atomic_file::remove_remains(&dir.join(server_file::NAME));
        let mut opened = ServerJournal::open(dir)?;
        if opened.damage.is_some() {
            // Clients tell servers apart by it.
            let known = ServerFile::last_generation(dir);
            opened.state.generation = opened.state.generation.max(known);
            opened.journal.renew(&mut opened.state)?;
        }
        let (login, login_is_kept) = login_of(&settings);
        match login.as_ref().filter(|_| login_is_kept) {
            Some(login) => login_file::write(dir, login)?,
            None => login_file::remove(dir),
        }
        let clock = Clock::starting_after(opened.state.time);
        let (commands_in, commands) = mpsc::channel(COMMANDS_MAX);
        let (published, watched) = watch::channel(ServerFile::default());
        let (ended, ended_out) = watch::channel(None);
        let (records, _) = broadcast::channel(RECORDS_MAX);
        let handle = SupervisorHandle {
            commands: commands_in,
            published: watched,
            records,
            ended: ended_out,
            // Tools of the server and agents of all loops stand below a guard; this process may be that of a loop, with others below it.
            family: Arc::new(Family::new(Adoption::Marked)),
            reader: settings.reader.clone(),
        };
        let id = settings.id.to_string();
        let control = Control::bind(&settings.runtime_dir, &id, handle.clone())?;
        let (log, chunks) = mpsc::channel(output::CHUNKS_MAX);
        let log_task = Task::spawn(
            "log of the server",
            output::write(ServerLog::new(dir, settings.keeps_log), chunks),
        );
        let mut clock = clock;
        lock.sign(&Holder {
            pid: std::process::id(),
            since: clock.now(),
            loop_id: settings.id,
            socket: control.path().to_owned(),
        })
        .map_err(StoreError::io("sign", &dir.join("lock")))?;
        let supervisor = Self {
            policy: policy(&settings.opencode, settings.signals),
            login,
            login_is_kept,
            earlier: earlier(&opened.state),
            damage: opened.damage.map(|damage| {
                format!(
                    "the supervisor's journal was damaged ({damage}): it is kept as journal.damaged.jsonl, and what it said \
                     from there on is lost"
                )
            }),
            settings,
            lock,
            journal: opened.journal,
            state: opened.state,
            clock,
            control,
            guard: None,
            handle,
            commands,
            published,
            ended,
            news: mpsc::channel(NEWS_MAX),
            at_once: VecDeque::new(),
            tasks: JoinSet::new(),
            probing: None,
            log,
            log_task,
            target: None,
            reader: None,
            replies: BTreeMap::new(),
            ticket: 0,
            finished: false,
            refusals: 0,
        };
        for warning in supervisor.warnings() {
            supervisor.note(&warning);
        }
        Ok(supervisor)
    }

    /// Returns what the user has to know before it begins.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let open = "the OpenCode server asks for no password, so every user of this machine can run commands as you: set \
                    `opencode.require_password = true`";
        let open = self.login.is_none().then(|| open.to_owned());
        self.damage.iter().cloned().chain(open).collect()
    }

    /// Returns how the supervisor before left the server; none if it ended in order.
    #[must_use]
    pub fn earlier(&self) -> Option<&ServerFile> {
        self.earlier.as_ref()
    }

    /// Opens a supervisor and lets it run beside everything else of this process.
    ///
    /// # Errors
    /// As [`Supervisor::open`].
    pub async fn start(settings: SupervisorSettings) -> Result<SupervisorHandle, SupervisorError> {
        let supervisor = Self::open(settings).await?;
        let handle = supervisor.handle();
        tokio::spawn(async move {
            // Whoever waits for its end hears of an error.
            let _ = supervisor.run().await;
        });
        Ok(handle)
    }

    /// Returns a way to it.
    #[must_use]
    pub fn handle(&self) -> SupervisorHandle {
        self.handle.clone()
    }

    /// Keeps the server alive until it is told to stop.
    ///
    /// # Errors
    /// What happens cannot be written down, or nothing can be started. The server is ended then.
    pub async fn run(mut self) -> Result<(), SupervisorError> {
        let result = self.supervise().await;
        self.put_away(&result).await;
        result
    }

    async fn supervise(&mut self) -> Result<(), SupervisorError> {
        let pid = std::process::id();
        let by = self.settings.by;
        self.take(ServerInput::Supervise { pid, by }).await?;
        while !self.finished {
            let input = match self.at_once.pop_front() {
                Some(input) => Some(input),
                None => self.next().await?,
            };
            if let Some(jump) = self.clock.jumped() {
                self.take(ServerInput::Suspended { duration: jump }).await?;
            }
            if let Some(input) = input {
                self.take(input).await?;
            }
        }
        Ok(())
    }

    /// Waits for the next thing that the core has to know.
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
        let guard = async {
            match &mut self.guard {
                Some(guard) => guard.next().await,
                None => std::future::pending().await,
            }
        };
        Ok(tokio::select! {
            news = guard => self.guard_news(news),
            Some(command) = self.commands.recv() => self.command(command),
            Some(news) = self.news.1.recv() => self.news(news),
            reason = self.control.broken() => return Err(SupervisorError::Broken(reason)),
            reason = self.log_task.broken() => return Err(SupervisorError::Broken(reason)),
            () = sleep => {
                if let Some(duration) = due.and_then(|due| clock::overslept(since, due)) {
                    self.at_once.push_back(ServerInput::Suspended { duration });
                }
                self.at_once.push_back(ServerInput::Wake);
                None
            }
            Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                panicked("task of the supervisor", ended)?;
                None
            }
        })
    }

    /// Decide, write down, do, publish.
    async fn take(&mut self, input: ServerInput) -> Result<(), SupervisorError> {
        let now = self.clock.now();
        let jitter = Jitter(
            uuid::Uuid::new_v4()
                .as_bytes()
                .first()
                .copied()
                .unwrap_or(0),
        );
        self.repair().await?;
        let stepped = step(&self.policy, &mut self.state, now, jitter, input);
        for record in &stepped.records {
            tracing::info!(seq = record.seq.0, "OpenCode supervisor recorded an event");
        }
        self.write_down(&stepped.records).await?;
        for effect in stepped.effects {
            self.carry_out(effect)?;
        }
        for record in stepped.records {
            for (level, text) in words(&record.event) {
                if level >= Level::Info {
                    self.note(&text);
                }
            }
            // Nobody may listen.
            let _ = self.handle.records.send(Arc::new(record));
        }
        self.publish();
        self.journal.rotate(&mut self.state)?;
        Ok(())
    }

    async fn write_down(&mut self, records: &[ServerRecord]) -> Result<(), SupervisorError> {
        for _ in 1..ROOM_TRIES {
            match self.journal.append(records) {
                Err(error) if error.is_full_disk() => tokio::time::sleep(ROOM_TICK).await,
                written => return Ok(written?),
            }
        }
        Ok(self.journal.append(records)?)
    }

    fn publish(&mut self) {
        let file = ServerFile::from(&self.state);
        let dir = &self.settings.dir;
        self.published.send_if_modified(|published| {
            let changed = *published != file;
            if changed {
                // Who reads it finds the one before; the next change writes it anew.
                let _ = file.write(dir);
                *published = file;
            }
            changed
        });
    }

    /// Adds a line of our own to the server's log.
    fn note(&self, text: &str) {
        let time = Timestamp::from_millis(clock::file_time() / 1_000_000);
        let line = format!("{time} [tachikoma] {text}\n");
        // A log that is that far behind has enough to say.
        let _ = self.log.try_send(line.into_bytes());
    }

    fn command(&mut self, command: Command) -> Option<ServerInput> {
        match command {
            Command::Restart(reply) => {
                let ticket = Some(self.ticket(reply));
                Some(ServerInput::Restart { ticket })
            }
            Command::Stop(reply) => {
                let ticket = Some(self.ticket(reply));
                Some(ServerInput::Stop { ticket })
            }
            Command::Refused(..) if self.refusals >= REFUSALS_MAX => None,
            Command::Refused(request, pid) => {
                self.refusals += 1;
                Some(ServerInput::Refused { request, pid })
            }
            Command::Boundary => Some(ServerInput::Boundary {
                generation: self.state.generation,
            }),
            Command::Reload(settings, reply) => {
                let answer = match check(&settings, self.settings.password.is_some()) {
                    Ok(()) => {
                        self.policy = policy(&settings, self.settings.signals);
                        self.settings.opencode = *settings;
                        self.at_once.push_back(ServerInput::Reloaded);
                        Ok("the settings were read again; the command line and the address hold from the next start on"
                            .to_owned())
                    }
                    Err(error) => Err(format!("{error}; the settings before hold")),
                };
                let (Ok(text) | Err(text)) = &answer;
                self.note(text);
                // Whoever asked may have gone.
                let _ = reply.send(answer);
                None
            }
        }
    }

    fn ticket(&mut self, reply: oneshot::Sender<Answer>) -> Ticket {
        self.ticket += 1;
        self.replies.insert(self.ticket, reply);
        Ticket(self.ticket)
    }

    /// Ends whatever is left, and gives the directory back.
    async fn put_away(mut self, result: &Result<(), SupervisorError>) {
        if let Some(guard) = self.guard.take() {
            guard.finish().await;
        }
        self.tasks.shutdown().await;
        let ended = match result {
            Ok(()) => Ended::InOrder,
            Err(error) => {
                let text = tachikoma_core::error_chain(error);
                self.note(&format!("the supervisor ends: {text}"));
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
        drop(self.log);
        let _ = self.log_task.ended().await;
        self.lock.release();
        drop(self.lock);
        // Only now: whoever waits may start the next one at once.
        self.ended.send_replace(Some(ended));
    }
}

/// A panic of a task is one of the whole: whoever waited for its word would wait for ever.
fn panicked(name: &str, ended: Result<(), JoinError>) -> Result<(), SupervisorError> {
    let panic = ended.err().filter(JoinError::is_panic);
    panic.map_or(Ok(()), |error| {
        let reason = task::panicked(name, error.into_panic().as_ref());
        Err(SupervisorError::Broken(reason))
    })
}

/// Returns what the server asks its clients for, and whether it was made here.
fn login_of(settings: &SupervisorSettings) -> (Option<Login>, bool) {
    let user = settings.user.clone();
    let user = user.unwrap_or_else(|| DEFAULT_USER.to_owned());
    match settings.password.clone() {
        Some(password) => (Some(Login { user, password }), false),
        None if settings.opencode.require_password => (Some(login_file::generate(user)), true),
        None => (None, false),
    }
}

/// Returns how a supervisor left its server that did not end in order.
fn earlier(state: &ServerState) -> Option<ServerFile> {
    match state.phase {
        ServerPhase::Waiting { .. } | ServerPhase::Down { .. } | ServerPhase::GaveUp { .. } => {
            Some(ServerFile::from(state))
        }
        ServerPhase::Idle
        | ServerPhase::Starting { .. }
        | ServerPhase::Ready { .. }
        | ServerPhase::Ending { .. }
        | ServerPhase::Gone => None,
    }
}

/// Returns who has the directory, if that process lives.
fn living_holder(dir: &std::path::Path) -> Option<Holder> {
    let holder = lock::is_held_in(dir).then(|| lock::holder_in(dir))??;
    let pid = i32::try_from(holder.pid).ok()?;
    is_alive(pid).then_some(holder)
}

/// What is kept here is not for the repository of the work.
fn ignore(dir: &std::path::Path) {
    let path = dir.join(".gitignore");
    if let Ok(mut file) = private().write(true).create_new(true).open(path) {
        // Without it git shows files that it need not.
        let _ = std::io::Write::write_all(&mut file, b"*\n");
    }
}
