//! Runs an OpenCode supervisor in the test process. It starts the fake server as a real child process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tachikoma_core::LoopId;
use tachikoma_core::supervise::{ServerEvent, ServerRecord, StartedBy, StopSignals};
use tachikoma_loop_runner::opencode::server_file::{Condition, ServerFile};
use tachikoma_loop_runner::opencode::supervisor::{
    Ended, Supervisor, SupervisorError, SupervisorHandle, SupervisorSettings, log_files,
    read_records,
};
use tachikoma_loop_runner::process::Adoption;
use tachikoma_loop_runner::settings::OpenCodeSettings;
use tachikoma_testkit::Scratch;
use tachikoma_testkit::fake_opencode::{Misbehavior, SCRIPT_VAR, STATE_VAR, Script};

use crate::support::{PATIENCE, example};

/// Temporary directory and supervisor settings of one test.
pub(crate) struct Bed {
    pub(crate) scratch: Scratch,
    pub(crate) settings: SupervisorSettings,
}

impl Bed {
    /// The first servers misbehave as `starts` says, later ones work. All use a free port and a short restart delay.
    pub(crate) fn new(starts: Vec<Misbehavior>) -> Self {
        let always = Misbehavior::default();
        Self::scripted(&Script {
            starts,
            always,
            ..Script::default()
        })
    }

    /// All servers misbehave in the same way.
    pub(crate) fn always(always: Misbehavior) -> Self {
        let starts = Vec::new();
        Self::scripted(&Script {
            starts,
            always,
            ..Script::default()
        })
    }

    fn scripted(script: &Script) -> Self {
        let scratch = Scratch::new();
        let text = serde_json::to_string(script).unwrap();
        let script = scratch.write("script.json", text);
        let fake = example("fake-server");
        let opencode = OpenCodeSettings {
            serve_command: Some(fake.display().to_string()),
            serve_port: 0,
            restart_delay_ms: 20,
            ..OpenCodeSettings::default()
        };
        let state = scratch.home().join("fake");
        let settings = SupervisorSettings {
            opencode,
            working_dir: scratch.path(),
            dir: scratch.path().join(".ralph/opencode"),
            runtime_dir: scratch.runtime_dir(),
            guard: vec![example("guard").into()],
            cgroup: false,
            adoption: Adoption::Marked,
            id: LoopId::new(uuid::Uuid::new_v4()),
            env: vec![
                (SCRIPT_VAR.into(), script.into()),
                (STATE_VAR.into(), state.into()),
            ],
            password: None,
            user: None,
            signals: StopSignals::Obeyed,
            by: StartedBy::Command,
            idle_is_reported: false,
            hidden: Vec::new(),
            keeps_log: true,
            reader: None,
        };
        Self { scratch, settings }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut OpenCodeSettings)) -> Self {
        change(&mut self.settings.opencode);
        self
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.scratch.home().join("fake")
    }

    pub(crate) async fn start(&self) -> SupervisorHandle {
        self.try_start().await.unwrap()
    }

    pub(crate) async fn try_start(&self) -> Result<SupervisorHandle, SupervisorError> {
        Supervisor::start(self.settings.clone()).await
    }

    /// The records that the fake servers wrote when they started, one per start.
    pub(crate) fn starts(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.state().join("starts.jsonl")).unwrap_or_default();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Returns the whole log of the servers and the supervisor.
    pub(crate) fn log(&self) -> String {
        let files = log_files(&self.settings.dir);
        let texts = files.iter().map(|file| std::fs::read(file).unwrap());
        let bytes: Vec<u8> = texts.flatten().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn records(&self) -> Vec<ServerRecord> {
        read_records(&self.settings.dir).unwrap()
    }

    /// Returns the recorded restart delays in milliseconds.
    pub(crate) fn delays(&self) -> Vec<u64> {
        let records = self.records().into_iter();
        let delays = records.filter_map(|record| match record.event {
            ServerEvent::Restarting { delay_ms, .. } => Some(delay_ms),
            _ => None,
        });
        delays.collect()
    }

    /// Stops the supervisor and returns the whole log.
    pub(crate) async fn stop(&self, handle: &SupervisorHandle) -> String {
        handle.stop().await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, handle.ended()).await;
        assert_eq!(ended.expect("the supervisor ends in time"), Ended::InOrder);
        self.log()
    }
}

/// Waits until the server file meets a condition.
pub(crate) async fn until(
    handle: &SupervisorHandle,
    what: &str,
    wanted: impl FnMut(&ServerFile) -> bool,
) -> ServerFile {
    let mut watch = handle.watch();
    let waited = tokio::time::timeout(PATIENCE, watch.wait_for(wanted)).await;
    let Ok(found) = waited else {
        panic!(
            "timed out waiting for {what}: {:?}",
            *handle.watch().borrow()
        );
    };
    found.unwrap().clone()
}

/// Waits until the server with this start number, or a later one, is ready.
pub(crate) async fn ready(handle: &SupervisorHandle, generation: u64) -> ServerFile {
    until(handle, "a server that is ready", |file| {
        file.state == Condition::Ready && file.generation >= generation
    })
    .await
}

/// Waits for the next record with a wanted event.
pub(crate) async fn record(
    records: &mut tokio::sync::broadcast::Receiver<Arc<ServerRecord>>,
    wanted: impl Fn(&ServerEvent) -> bool,
) -> Arc<ServerRecord> {
    let search = async {
        loop {
            let record = records.recv().await.unwrap();
            if wanted(&record.event) {
                return record;
            }
        }
    };
    let found = tokio::time::timeout(PATIENCE, search).await;
    found.expect("the record arrives in time")
}

/// Returns whether a connection to the server's port succeeds.
pub(crate) fn is_listening(url: &str) -> bool {
    let address = url.strip_prefix("http://").unwrap();
    let address = address.parse().unwrap();
    std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok()
}
