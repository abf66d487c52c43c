//! The public interface for programs that embed the runner.

use std::fs;
use std::process::Command;

use tachikoma_loop_runner::settings::AgentName;
use tachikoma_loop_runner::{LoopRunner, OpenError, Settings};

use crate::support::example;

#[test]
fn example_program_pauses_resumes_and_stops_its_loop() {
    let dir = tempfile::tempdir().unwrap();
    let run = Command::new(example("embed")).arg(dir.path()).output();
    let run = run.unwrap();
    let printed = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success(), "{printed}");
    let first = "agent: iteration 1\n";
    assert!(printed.contains(first), "{printed}");
    assert!(printed.contains("running: Accepted"), "{printed}");
    let last = printed.lines().last().unwrap();
    assert!(last.starts_with("Operator after "), "{printed}");
    let work = fs::read_to_string(dir.path().join("work.txt")).unwrap();
    assert!(work.starts_with("iteration 1\niteration 2\niteration 3\n"));
}

#[test]
fn builder_uses_default_settings_and_its_own_program_as_guard() {
    let dir = tempfile::tempdir().unwrap();
    let config = LoopRunner::builder(dir.path(), "work").config().unwrap();
    assert_eq!(config.settings, Settings::default());
    assert_eq!(config.launch.agent, AgentName::Claude.to_string());
    let own = std::env::current_exe().unwrap();
    assert_eq!(config.guard.first().unwrap(), own.as_os_str());
}

#[test]
fn builder_refuses_a_directory_that_does_not_exist() {
    let dir = tempfile::tempdir().unwrap();
    let built = LoopRunner::builder(dir.path().join("missing"), "work").config();
    assert!(matches!(built, Err(OpenError::WorkingDir { .. })));
}
