//! Tests with fake `git` programs that hang, flood their output or fail.

use super::*;
use tachikoma_runtime::clock;
use tachikoma_testkit::{Scratch, await_until};

const PATIENCE: Duration = Duration::from_secs(20);

fn git_that(scratch: &Scratch, text: &str) -> Git {
    let dir = scratch.path().join("bin");
    scratch.write_script("bin/git", format!("#!/bin/sh\n{text}\n"));
    Git::new(&scratch.path(), Some(dir.as_os_str()))
}

#[test]
fn large_stdin_and_stdout_are_passed_completely() {
    let scratch = Scratch::new();
    let git = git_that(&scratch, "exec cat");
    let much = vec![b'x'; 5 << 20];
    let command = git.command("x").stdin(&much);
    assert_eq!(command.stdout(&CancelToken::new()).unwrap(), much);
}

#[test]
fn stdout_over_the_limit_kills_git() {
    let scratch = Scratch::new();
    let git = git_that(&scratch, "exec yes");
    let command = git.command("x").stdout_max(1000);
    let output = command.run(&CancelToken::new()).unwrap();
    assert!(output.truncated);
    assert_eq!(output.stdout.len(), 1000);
}

#[test]
fn end_of_a_long_stderr_is_kept() {
    let scratch = Scratch::new();
    let git = git_that(
        &scratch,
        "i=0; while [ $i -lt 20000 ]; do echo \"complaint $i\" >&2; i=$((i+1)); done; exit 3",
    );
    match git.command("frobnicate now").stdout(&CancelToken::new()) {
        Err(GitError::Failed {
            command,
            status,
            stderr,
        }) => {
            assert_eq!(
                (command.as_str(), status.as_str()),
                ("frobnicate", "exit status: 3")
            );
            assert!(stderr.ends_with("complaint 19999"), "{stderr}");
            assert!(stderr.starts_with("complaint "), "cut between lines");
            assert!(stderr.len() <= STDERR_BYTES_MAX);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn timeout_kills_git_and_its_children() {
    let scratch = Scratch::new();
    let pid = scratch.home().join("pid");
    let git = git_that(
        &scratch,
        &format!(
            "trap '' TERM; sleep 1000 & echo $! >'{}'; wait; wait",
            pid.display()
        ),
    );
    // The timeout is long enough for the start of the program on a busy machine.
    let command = git.command("x").timeout(Some(Duration::from_secs(2)));
    let error = command.run(&CancelToken::new()).unwrap_err();
    assert_eq!(error.to_string(), "git x did not end within 2s");
    let pid = std::fs::read_to_string(pid).unwrap();
    await_until("the child to be gone", PATIENCE, || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
    });
}

#[test]
fn cancel_kills_git_at_once_and_prevents_later_runs() {
    let scratch = Scratch::new();
    let started = scratch.home().join("started");
    let git = git_that(
        &scratch,
        &format!("echo x >>'{}'; exec sleep 1000", started.display()),
    );
    let cancel = CancelToken::new();
    let caller = cancel.clone();
    let there = started.clone();
    let calling = std::thread::spawn(move || {
        await_until("git to run", PATIENCE, || {
            std::fs::read_to_string(&there).is_ok_and(|said| said == "x\n")
        });
        caller.cancel();
        clock::monotonic()
    });
    let error = git.command("x").timeout(None).run(&cancel).unwrap_err();
    assert!(calling.join().unwrap().elapsed() < Duration::from_secs(5));
    assert_eq!(error.to_string(), "git x was canceled");
    git.command("x").run(&cancel).unwrap_err();
    assert_eq!(std::fs::read_to_string(started).unwrap(), "x\n");
}

#[test]
fn process_that_does_not_read_stdin_and_succeeds_is_a_success() {
    let scratch = Scratch::new();
    let git = git_that(&scratch, "exit 0");
    let much = vec![b'x'; 5 << 20];
    git.command("x")
        .stdin(&much)
        .stdout(&CancelToken::new())
        .unwrap();
}

#[test]
fn child_that_keeps_the_pipes_open_is_not_waited_for() {
    let scratch = Scratch::new();
    let pid = scratch.home().join("pid");
    let git = git_that(
        &scratch,
        &format!("sleep 1000 & echo $! >'{}'; echo said", pid.display()),
    );
    let began = clock::monotonic();
    let output = git.command("x").stdout_line(&CancelToken::new()).unwrap();
    assert_eq!(output, "said");
    assert!(began.elapsed() < PATIENCE);
    let pid: i32 = std::fs::read_to_string(pid)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn git_environment_variables_are_removed() {
    let scratch = Scratch::new();
    let git = git_that(&scratch, "env").of_loop(LoopId::from_u128(7), Vec::new());
    let command = git.command("x").env("GIT_INDEX_FILE", "mine");
    let said = command.stdout_line(&CancelToken::new()).unwrap();
    let has = |line: &str| said.lines().any(|said| said == line);
    assert!(
        has("GIT_INDEX_FILE=mine"),
        "a variable of the command itself is kept"
    );
    assert!(has("GIT_TERMINAL_PROMPT=0") && has("GIT_OPTIONAL_LOCKS=0"));
    assert!(has(&format!("{MARKER}={}", LoopId::from_u128(7))));
}

#[test]
fn missing_git_program_is_named() {
    let scratch = Scratch::new();
    let git = Git {
        program: "/nonexistent/git".into(),
        dir: scratch.path(),
        marker: None,
        hidden: Vec::new(),
    };
    let error = git.command("x").run(&CancelToken::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "git cannot be started (/nonexistent/git)"
    );
}
