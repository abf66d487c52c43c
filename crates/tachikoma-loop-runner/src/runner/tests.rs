//! Tests that a panic of a runner's task ends the loop with an error that names the task, and that records are synced before notifications.

use crate::store::encryption::Encryption;
use std::path::Path;
use std::time::Duration;

use tachikoma_core::{Input, Launch, LoopEvent, Outcome, PromptSource, Runner, Seq};

use super::LoopRunner;
use crate::config::LoopConfig;
use crate::session::process::LiveLaunch;
use crate::settings::{AgentName, Settings};
use crate::store::{journal, layout};

const SOON: Duration = Duration::from_secs(30);

fn config(dir: &Path) -> LoopConfig {
    let mut settings = Settings::default();
    settings.agent.name = AgentName::Command;
    settings.agents.command.program = vec!["true".to_owned()];
    let text = "work".to_owned();
    let launch = Launch {
        prompt: PromptSource::Text { text },
        ..Launch::default()
    };
    LoopConfig {
        runtime_dir: dir.join("r"),
        temporary_dir: dir.join("t"),
        search_path: std::env::var_os("PATH"),
        cgroup: false,
        ..LoopConfig::new(settings, dir.to_owned(), launch)
    }
}

#[tokio::test]
async fn panic_of_the_output_reader_ends_the_loop_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut runner = LoopRunner::open(config(dir.path())).await.unwrap();
    let launch = LiveLaunch::with_reader(async { panic!("out of ink") });
    runner.actor.features.session.set_launch(launch);
    let input = tokio::time::timeout(SOON, runner.actor.next_input()).await;
    let input = input
        .expect("the loop must not wait for the reader")
        .unwrap();
    assert!(matches!(input, Input::Broken { .. }), "{input:?}");
    runner.actor.take(input).await.unwrap();
    let reason = match runner.state().outcome() {
        Some(Outcome::Error { reason }) => reason.clone(),
        other => panic!("{other:?}"),
    };
    assert!(
        reason.starts_with("the task `reader of the agent's output` panicked (out of ink)"),
        "{reason}"
    );

    // The error is recorded in the journal, so that a new runner finds it.
    let loop_id = runner.state().loop_id;
    runner.close().await;
    let mut ends = 0;
    journal::read_records(
        &layout::loop_dir(dir.path(), loop_id),
        &Encryption::plain(),
        Seq(0),
        |record| {
            ends += usize::from(matches!(record.event, LoopEvent::Error { .. }));
        },
    )
    .unwrap();
    assert_eq!(ends, 1);
}

/// In a debug build, a notification that is sent before its record is synced panics.
#[tokio::test]
async fn notified_records_are_synced_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.settings.attended_mode = true;
    let table = "[[notify]]\nto = 'command'\ncommand = 'true'\non = ['question']";
    config.settings.notify = toml::from_str::<Settings>(table).unwrap().notify;
    let mut runner = LoopRunner::open(config).await.unwrap();
    let input = Input::Start {
        launch: runner.actor.config.launch.clone(),
        runner: Runner {
            pid: 1,
            since: runner.actor.clock.now(),
            containment: "none".to_owned(),
            follows_until: None,
            repository: None,
        },
    };
    runner.actor.take(input).await.unwrap();
    assert!(
        runner.state().question().is_some(),
        "the loop only waits for the answer to its question"
    );
    assert!(
        !runner.actor.features.notifier.is_idle(),
        "a notification is sent"
    );
    runner.close().await;
}
