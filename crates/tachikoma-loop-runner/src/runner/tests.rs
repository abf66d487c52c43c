//! A part of the runner that breaks: the loop ends with an error that names it, instead of waiting for its word.

use crate::store::vault::Vault;
use std::path::Path;
use std::time::Duration;

use tachikoma_core::{Input, Launch, LoopEvent, Outcome, PromptSource, Runner, Seq};

use super::LoopRunner;
use crate::config::{DISK_FULL_TIMEOUT, LoopConfig};
use crate::process::Adoption;
use crate::session::process::LiveLaunch;
use crate::settings::{AgentName, Settings};
use crate::store::recover::Loss;
use crate::store::{journal, loops};

const SOON: Duration = Duration::from_secs(30);

fn config(dir: &Path) -> LoopConfig {
    let mut settings = Settings::default();
    settings.agent.name = AgentName::Command;
    settings.agents.command.program = vec!["true".to_owned()];
    let text = "work".to_owned();
    LoopConfig {
        vault: Vault::plain(),
        settings,
        working_dir: dir.to_owned(),
        launch: Launch {
            prompt: PromptSource::Text { text },
            ..Launch::default()
        },
        new_loop: false,
        new_loop_id: None,
        guard: Vec::new(),
        demo: Vec::new(),
        bridge: Vec::new(),
        opencode_login: None,
        runtime_dir: dir.join("r"),
        temporary_dir: dir.join("t"),
        search_path: std::env::var_os("PATH"),
        zone_offset: |_| Some(0),
        adoption: Adoption::Marked,
        loss: Loss::Refuse,
        cgroup: false,
        secrets: std::collections::BTreeMap::new(),
        surroundings: crate::cloud::Surroundings::default(),
        disk_full_timeout: DISK_FULL_TIMEOUT,
    }
}

#[tokio::test]
async fn a_reader_that_panics_ends_the_loop_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut runner = LoopRunner::open(config(dir.path())).await.unwrap();
    runner.launch = Some(LiveLaunch::with_reader(async { panic!("out of ink") }));
    let input = tokio::time::timeout(SOON, runner.next_input()).await;
    let input = input.expect("nobody waits for its word").unwrap();
    assert!(matches!(input, Input::Broken { .. }), "{input:?}");
    runner.take(input).await.unwrap();
    let reason = match runner.state().outcome() {
        Some(Outcome::Error { reason }) => reason.clone(),
        other => panic!("{other:?}"),
    };
    assert!(
        reason.starts_with("the runner's reader of the agent's output panicked (out of ink)"),
        "{reason}"
    );

    // It is written down, and a new runner finds it.
    let loop_id = runner.state().loop_id;
    runner.close().await;
    let mut ends = 0;
    journal::read_records(
        &loops::dir(dir.path(), loop_id),
        &Vault::plain(),
        Seq(0),
        |record| {
            ends += usize::from(matches!(record.event, LoopEvent::Error { .. }));
        },
    )
    .unwrap();
    assert_eq!(ends, 1);
}

/// A message that would leave before its record is on disk is a panic here.
#[tokio::test]
async fn what_somebody_is_told_of_is_synced_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.settings.attended_mode = true;
    let table = "[[notify]]\nto = 'command'\ncommand = 'true'\non = ['question']";
    config.settings.notify = toml::from_str::<Settings>(table).unwrap().notify;
    let mut runner = LoopRunner::open(config).await.unwrap();
    let input = Input::Start {
        launch: runner.config.launch.clone(),
        runner: Runner {
            pid: 1,
            since: runner.clock.now(),
            containment: "none".to_owned(),
            follows_until: None,
            repository: None,
        },
    };
    runner.take(input).await.unwrap();
    assert!(runner.state().question().is_some(), "nothing else is done");
    assert!(!runner.notices.is_idle(), "somebody is told");
    runner.close().await;
}
