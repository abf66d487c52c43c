//! `tachikoma doctor`: each problem is found, and nothing that is not trusted runs.

use std::net::TcpListener;

use serde_json::Value;
use tachikoma_testkit::{Ran, Scratch};

use crate::init::{SHAPES, init, program, project, tool};

/// A Rust project after `init`.
fn ready() -> Scratch {
    let scratch = project(&SHAPES[0]);
    init(&scratch);
    scratch
}

/// Returns the status and the message of the checks with this subject.
#[track_caller]
fn checks(ran: &Ran, subject: &str) -> Vec<(String, String)> {
    let report = ran.json();
    let all = report["checks"].as_array().unwrap();
    let text = |check: &Value, key: &str| check[key].as_str().unwrap().to_owned();
    let found = all.iter().filter(|check| check["subject"] == subject);
    found
        .map(|check| (text(check, "status"), text(check, "message")))
        .collect()
}

/// Runs `doctor --json` and checks the result of one subject.
#[track_caller]
fn finds(scratch: &Scratch, subject: &str, status: &str, message: &str) {
    let ran = tool(scratch).run(["doctor", "--json"]);
    assert_found(&ran, subject, status, message);
}

#[track_caller]
fn assert_found(ran: &Ran, subject: &str, status: &str, message: &str) {
    let found = checks(ran, subject);
    let is_found = |(is, says): &(String, String)| is == status && says.contains(message);
    assert!(
        found.iter().any(is_found),
        "{message}: {found:?}\n{}",
        ran.stdout
    );
    let code = i32::from(ran.json()["errors"].as_u64().unwrap() > 0);
    assert_eq!(ran.code(), Some(code));
}

fn edit(scratch: &Scratch, from: &str, to: &str) {
    let config = scratch.read("tachikoma.toml");
    assert!(config.contains(from), "{from}: {config}");
    scratch.write("tachikoma.toml", config.replacen(from, to, 1));
    let trusted = tool(scratch).run(["trust"]);
    assert_eq!(trusted.code(), Some(0), "{}", trusted.snapshot());
}

#[test]
fn doctor_prints_a_line_for_each_check_and_a_fix_below_problems() {
    let scratch = ready();
    std::fs::remove_file(scratch.path().join("prompt.md")).unwrap();
    let ran = tool(&scratch).run(["doctor"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    for line in [
        "✓ configuration    valid\n",
        "✓ trust            the configuration is trusted\n",
        "✓ claude           2.1.325, tested with 2.1.197 to 2.1.325\n",
        "✓ login            ANTHROPIC_API_KEY is set\n",
        "✗ prompt           read prompt.md: No such file or directory (os error 2)\n                   fix: write it, or run `tachikoma init`\n",
        "✓ gate tests       `cargo test` passes now (",
        "1 error, 0 warnings\n",
    ] {
        assert!(ran.stdout.contains(line), "{line}: {}", ran.stdout);
    }
}

#[test]
fn doctor_json_is_one_object_with_counts_and_checks() {
    let scratch = ready();
    let ran = tool(&scratch).run(["doctor", "--json"]);
    let report = ran.json();
    assert_eq!(
        (&report["errors"], &report["warnings"]),
        (&0.into(), &0.into()),
        "{report}"
    );
    for check in report["checks"].as_array().unwrap() {
        let mut keys: Vec<&String> = check.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(keys, ["fix", "message", "status", "subject"]);
    }
    for subject in [
        "git",
        "disk",
        "containment",
        "clock",
        "permission safe",
        "opencode",
    ] {
        assert_eq!(checks(&ran, subject).len(), 1, "{subject}: {report}");
    }
}

#[test]
fn doctor_reports_a_broken_configuration_and_continues() {
    let scratch = ready();
    scratch.write("tachikoma.toml", "max_iteration = 3\n");
    let ran = tool(&scratch).run(["doctor", "--json"]);
    assert_found(&ran, "configuration", "error", "max_iteration");
    assert_eq!(checks(&ran, "clock").len(), 1);
    assert_eq!(checks(&ran, "claude").len(), 1);
}

#[test]
fn doctor_finds_known_mistakes_in_the_configuration() {
    let gate = "command = \"cargo test\"";
    for (from, to, subject, message) in [
        (
            "[[gate]]\nname = \"tests\"\ncommand = \"cargo test\"\ntimeout = \"10m\"\n",
            "",
            "gates",
            "no gate",
        ),
        (gate, "command = \"exit 0\"", "gates", "always passes"),
        (
            gate,
            "command = \"make test\"",
            "permission",
            "may not run `make test`",
        ),
        (
            "max_cost_usd = 20.0",
            "max_cost_usd = 0",
            "cost limit",
            "no limit",
        ),
        (
            "[agent]\n",
            "[session]\nsilence_timeout = '2h'\n[agent]\n",
            "timeouts",
            "has no effect",
        ),
        (
            "[agent]\n",
            "[context]\nhard_limit_percent = 80\n[agent]\n",
            "context",
            "is above",
        ),
    ] {
        let scratch = ready();
        edit(&scratch, from, to);
        finds(&scratch, subject, "warning", message);
    }
    let scratch = ready();
    edit(&scratch, "max_iterations = 50", "max_iterations = 0");
    edit(&scratch, "max_cost_usd = 20.0", "max_cost_usd = 0");
    edit(&scratch, "max_duration = \"8h\"", "max_duration = \"0s\"");
    finds(&scratch, "limits", "warning", "have no limit");
}

#[test]
fn doctor_finds_problems_of_the_agent() {
    let scratch = ready();
    program(&scratch, "claude", "echo '3.0.0 (Claude Code)'");
    finds(&scratch, "claude", "warning", "\"3.0.0\" is not tested");
    program(&scratch, "claude", "exit 4");
    finds(&scratch, "claude", "error", "--version` fails");
    std::fs::remove_file(scratch.home().join("bin/claude")).unwrap();
    finds(&scratch, "claude", "error", "not installed");
    program(&scratch, "claude", "echo 2.1.325");
    let ran = tool(&scratch)
        .env("ANTHROPIC_API_KEY", "")
        .run(["doctor", "--json"]);
    assert_found(&ran, "login", "warning", "no credentials of claude");
    std::fs::create_dir(scratch.home().join(".claude")).unwrap();
    std::fs::write(scratch.home().join(".claude/.credentials.json"), "{}").unwrap();
    let ran = tool(&scratch)
        .env("ANTHROPIC_API_KEY", "")
        .run(["doctor", "--json"]);
    assert_found(&ran, "login", "ok", "has credentials");
    scratch.write("prompt.md", "Commit, then `git push`.\n");
    finds(
        &scratch,
        "permission safe",
        "warning",
        "`git push`, which will be denied",
    );
}

#[test]
fn doctor_finds_problems_of_the_repository() {
    let scratch = ready();
    scratch.write("tracked", "1");
    scratch.git(&["add", "tracked"]);
    scratch.git(&["commit", "--quiet", "-m", "a file"]);
    scratch.write("tracked", "2");
    finds(&scratch, "uncommitted", "warning", "such as tracked");
    scratch.git(&["config", "user.useConfigOnly", "true"]);
    for key in ["user.name", "user.email"] {
        scratch.git(&["config", key, ""]);
    }
    finds(&scratch, "git identity", "error", "commits will fail");
    std::fs::rename(scratch.path().join(".git"), scratch.home().join("git")).unwrap();
    finds(&scratch, "git", "warning", "no repository");
}

#[test]
fn doctor_runs_gates_once_with_their_timeout() {
    let scratch = ready();
    program(&scratch, "cargo", "exit 3");
    finds(&scratch, "gate tests", "warning", "fails now");
    edit(
        &scratch,
        "command = \"cargo test\"\ntimeout = \"10m\"",
        "command = \"sleep 600\"\ntimeout = \"100ms\"",
    );
    finds(&scratch, "gate tests", "error", "timeout");
    edit(&scratch, "sleep 600", "no-such-program");
    finds(&scratch, "gate tests", "error", "cannot run");
}

#[test]
fn doctor_runs_no_program_of_an_untrusted_configuration() {
    let scratch = ready();
    edit(
        &scratch,
        "[agent]\n",
        "[session]\nclaude_command = './evil'\n[agent]\n",
    );
    scratch.write_script("evil", "#!/bin/sh\ntouch ran-agent\necho 2.1.325\n");
    edit(
        &scratch,
        "command = \"cargo test\"",
        "command = \"touch ran-gate\"",
    );
    let revoked = tool(&scratch).run(["trust", "--revoke"]);
    assert_eq!(revoked.code(), Some(0));
    finds(&scratch, "trust", "warning", "is not trusted");
    for name in ["ran-agent", "ran-gate"] {
        assert!(!scratch.path().join(name).exists(), "{name}");
    }
}

#[test]
fn doctor_connects_to_notification_targets_and_sends_nothing() {
    let scratch = ready();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let target =
        format!("[[notify]]\nto = 'webhook'\nurl = 'http://127.0.0.1:{port}/secret'\n\n[[gate]]");
    edit(&scratch, "[[gate]]", &target);
    let ran = tool(&scratch).run(["doctor", "--json"]);
    assert_found(&ran, "notify 1", "ok", "can be reached");
    assert!(!ran.stdout.contains("secret"), "{}", ran.stdout);
    let (mut connection, _) = listener.accept().unwrap();
    let mut sent = Vec::new();
    std::io::Read::read_to_end(&mut connection, &mut sent).unwrap();
    assert_eq!(sent, b"");
    drop(listener);
    finds(&scratch, "notify 1", "warning", "cannot be reached");
}
