//! The log file of a run contains events of the program, but neither output of the agent nor secrets.

use std::fs;

use crate::git_support::repository;
use crate::support::{CLAIMS, tachikoma};

#[test]
fn log_has_events_but_neither_agent_output_nor_secrets() {
    let scratch = repository();
    let script = format!("echo canary-output; {CLAIMS}");
    let ran = tachikoma(&scratch)
        .env("TACHIKOMA_LOG", "trace")
        .env("MY_TOKEN", "canary-secret")
        .run(["run", "-p", "canary-prompt", "--", "sh", "-c", &script]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let logs = fs::read_dir(scratch.path().join(".ralph/log")).unwrap();
    let logs: Vec<_> = logs.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(logs.len(), 1, "{logs:?}");
    let text = fs::read_to_string(&logs[0]).unwrap();
    for expected in ["guard started", "git ended", "input taken", "run ended"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    for canary in ["canary-output", "canary-secret", "canary-prompt"] {
        assert!(!text.contains(canary), "{text}");
    }
}
