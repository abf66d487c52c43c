//! `opencode up`: runs the supervisor, in the foreground or the background, for people and for systemd.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use tachikoma_core::LoopId;
use tachikoma_core::supervise::{Level, ServerRecord, StartedBy, StopSignals, messages};
use tachikoma_fs::RALPH_DIR;
use tachikoma_loop_runner::opencode::server_file::{Condition, ServerFile};
use tachikoma_loop_runner::opencode::supervisor::{
    DIR, SettingsReader, Supervisor, SupervisorError, SupervisorSettings,
};
use tachikoma_loop_runner::process::Adoption;
use tachikoma_loop_runner::settings::{Loaded, Origin, Secret};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use crate::args::UpArgs;
use crate::commands::launch::Base;
use crate::commands::{GUARD, detach};
use crate::failure::{Failure, chain};
use crate::out;
use crate::runtime::runtime;
use crate::sanitize::sanitize;
use crate::sd_notify::Notifier;
use crate::secrets;
use crate::signals::{Asked, Requests};
use crate::trust::{Trust, Untrusted};
use crate::workspace::Workspace;

/// Command that shows the state of a supervisor in the background.
const SHOWN_BY: &str = "tachikoma opencode status";

/// Runs the supervisor, which keeps the server running until it is stopped.
pub fn up(workspace: &Workspace, args: &UpArgs) -> Result<ExitCode, Failure> {
    let settings = settings(workspace, args)?;
    if args.detach {
        return detach::detach(SHOWN_BY);
    }
    // The secrets are removed, because neither this process nor the server's tools need them.
    secrets::remove_from_environment(&settings.hidden, &BTreeMap::new())?;
    runtime()?.block_on(supervise(args, settings))
}

/// Fails if the configuration disables a shared server. It is allowed by default.
fn check_enabled(loaded: &Loaded) -> Result<(), String> {
    let is_said = *loaded.origin_of("opencode.enabled") != Origin::Default;
    match loaded.settings.opencode.enabled || !is_said {
        true => Ok(()),
        false => Err("`opencode.enabled` is false: the shared server is turned off".to_owned()),
    }
}

fn settings(workspace: &Workspace, args: &UpArgs) -> Result<SupervisorSettings, Failure> {
    let trust = Trust::new(workspace, Untrusted::Ask);
    let Base {
        loaded,
        working_dir,
    } = Base::trusted(workspace, &trust)?;
    check_enabled(&loaded).map_err(|what| {
        Failure::usage(what)
            .hint("set `enabled = true` in `[opencode]`, or TACHIKOMA_OPENCODE__ENABLED=true")
    })?;
    let hidden = secrets::secret_names(&loaded.settings);
    let (again, trust) = (workspace.clone(), trust.for_reload());
    Ok(SupervisorSettings {
        opencode: loaded.settings.opencode.clone(),
        dir: working_dir.join(RALPH_DIR).join(DIR),
        working_dir,
        runtime_dir: workspace.runtime_dir(),
        guard: workspace.ourselves(GUARD)?,
        cgroup: true,
        adoption: Adoption::All,
        id: LoopId::new(uuid::Uuid::new_v4()),
        env: Vec::new(),
        password: workspace
            .variable("OPENCODE_SERVER_PASSWORD")
            .map(Secret::from),
        user: workspace.variable("OPENCODE_SERVER_USERNAME"),
        signals: StopSignals::Obeyed,
        by: match args.service {
            true => StartedBy::Service,
            false => StartedBy::Command,
        },
        idle_is_reported: false,
        hidden,
        keeps_log: !loaded.settings.state.encrypt,
        reader: Some(SettingsReader::new(move || {
            let base = Base::trusted(&again, &trust).map_err(|failure| failure.what)?;
            check_enabled(&base.loaded)
                .map_err(|what| format!("{what}; `tachikoma opencode stop` stops it"))?;
            Ok(base.loaded.settings.opencode)
        })),
    })
}

async fn supervise(args: &UpArgs, settings: SupervisorSettings) -> Result<ExitCode, Failure> {
    // Signals are listened to before anything runs, so that none is missed.
    let requests = Requests::listen(args.detached)
        .map_err(|error| Failure::new(format!("signals cannot be listened to: {error}")))?;
    let notifier = Notifier::from_env();
    let supervisor = Supervisor::open(settings).await.map_err(refused)?;
    for warning in supervisor.warnings() {
        out::note(&format!("warning: {}", sanitize(warning)));
    }
    if let Some(earlier) = supervisor.earlier()
        && !args.detached
        && !args.json
    {
        let before = super::status::sentence(earlier);
        out::report(&format!("before this supervisor: {}", sanitize(&before)));
    }
    let handle = supervisor.handle();
    let mut requests = requests.of(handle.clone());
    let mut records = handle.records();
    let mut changes = handle.watch();
    let mut running = tokio::spawn(supervisor.run());
    let mut audience = Audience {
        announced: !args.detached,
        quiet: args.detached,
        json: args.json,
        notifier,
    };
    let mut signal = None;
    let ended = loop {
        tokio::select! {
            biased;
            record = records.recv() => audience.record_received(record),
            Ok(()) = changes.changed() => audience.state_changed(&changes),
            Some(asked) = requests.recv() => match asked {
                Asked::Reload => match handle.reread().await {
                    Ok(text) => out::report(&text),
                    Err(text) => out::note(&format!("error: {text}")),
                },
                Asked::Stop(number) => {
                    if signal.replace(number).is_some() {
                        // After the second signal this process exits at once, and the guard ends all processes.
                        return Ok(code(Some(number)));
                    }
                    audience.notifier.stopping();
                    // The stop fails if the supervisor has already ended, which does not matter.
                    let _ = handle.stop().await;
                }
            },
            () = audience.notifier.alive() => {}
            ended = &mut running => break ended,
        }
    };
    while let Ok(record) = records.try_recv() {
        audience.record_received(Ok(record));
    }
    match ended {
        Ok(Ok(())) => Ok(code(signal)),
        Ok(Err(error)) => Err(refused(error)),
        Err(error) => Err(Failure::new(format!("the supervisor failed: {error}"))),
    }
}

/// Returns the exit code: 0 after `opencode stop`, otherwise 128 plus the signal, as in shells.
fn code(signal: Option<i32>) -> ExitCode {
    let number = signal.and_then(|signal| u8::try_from(signal).ok());
    ExitCode::from(number.map_or(0, |number| 128_u8.saturating_add(number)))
}

/// Reports the state to the process that started this one, and to systemd.
struct Audience {
    /// Whether the start was already reported to the waiting process.
    announced: bool,
    /// Whether nothing is printed, because the foreground process only reads one line of a background process.
    quiet: bool,
    json: bool,
    notifier: Notifier,
}

impl Audience {
    fn record_received(&self, record: Result<Arc<ServerRecord>, RecvError>) {
        // Missed notices are skipped. Their records are in the journal.
        let Ok(record) = record else {
            return;
        };
        if self.quiet {
            return;
        }
        if self.json {
            out::report(&serde_json::to_string(&*record).unwrap_or_default());
            return;
        }
        for (level, text) in messages(&record.event) {
            let text = sanitize(&text);
            match level {
                Level::Debug => {}
                Level::Info => out::report(&text),
                Level::Warning => out::report(&format!("warning: {text}")),
                Level::Error => out::report(&format!("error: {text}")),
            }
        }
    }

    fn state_changed(&mut self, changes: &watch::Receiver<ServerFile>) {
        let file = changes.borrow().clone();
        let is_settled = match file.state {
            Condition::Starting | Condition::Restarting => false,
            Condition::Ready | Condition::Stopped | Condition::GaveUp => true,
        };
        self.notifier.status(&super::status::sentence(&file));
        if file.state == Condition::Ready {
            self.notifier.ready();
        }
        if is_settled && !self.announced {
            self.announced = true;
            match file.state {
                Condition::Ready => detach::ready(),
                Condition::Starting
                | Condition::Restarting
                | Condition::Stopped
                | Condition::GaveUp => {
                    out::note(&format!("error: {}", super::status::sentence(&file)));
                    detach::report_unhealthy();
                }
            }
        }
    }
}

fn refused(error: SupervisorError) -> Failure {
    let what = chain(&error);
    match error {
        SupervisorError::Held { .. } => Failure::new(what).hint(
            "`tachikoma opencode status` shows what it does, `tachikoma opencode stop` ends it",
        ),
        SupervisorError::Settings(_) => Failure::usage(what),
        SupervisorError::Store(error) => error.into(),
        SupervisorError::Guard(_) | SupervisorError::Broken(_) => Failure::new(what),
        SupervisorError::Control(_) => Failure::new(what)
            .hint("set XDG_RUNTIME_DIR to a short path that only you can write to"),
    }
}
