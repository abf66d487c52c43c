//! Control commands and their socket: without a runner, with a runner of another version, and with unknown requests.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use insta::assert_snapshot;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tachikoma_testkit::{Scratch, await_until, mask};

use crate::support::{
    SOON, journals, kill, loops, run, shown, start_busy, status, tachikoma, with_history,
};

#[test]
fn commands_without_a_loop_are_refused() {
    let scratch = Scratch::new();
    for command in ["pause", "resume", "stop", "skip", "reboot"] {
        let ran = tachikoma(&scratch).run([command]);
        assert_eq!(ran.code(), Some(1), "{command}");
        assert_eq!(
            ran.stderr,
            tachikoma(&scratch).run(["stop"]).stderr,
            "{command}"
        );
    }
    assert_snapshot!(shown(&tachikoma(&scratch).run(["stop"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: no loop runs in [DIR]
    hint: `tachikoma run` starts one, or continues the last one
    ");
}

#[test]
fn commands_after_the_end_of_a_loop_are_refused() {
    let scratch = with_history();
    let before = journals(&scratch);
    for command in ["pause", "resume", "stop", "skip", "reboot"] {
        let ran = tachikoma(&scratch).run([command]);
        assert_eq!(ran.code(), Some(1), "{command}");
    }
    assert_snapshot!(shown(&tachikoma(&scratch).run(["resume"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: no loop runs in [DIR]
    hint: `tachikoma run` starts one, or continues the last one
    ");
    assert_eq!(journals(&scratch), before);
}

#[test]
fn reading_commands_without_a_loop_fail_with_a_hint() {
    let scratch = Scratch::new();
    assert_snapshot!(shown(&tachikoma(&scratch).run(["events"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: no loop in [DIR]
    hint: `tachikoma run` starts one
    ");
    assert_snapshot!(shown(&tachikoma(&scratch).run(["logs"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: no loop in [DIR]
    hint: `tachikoma run` starts one
    ");
}

#[test]
fn resume_is_refused_if_the_loop_is_not_paused() {
    let scratch = Scratch::new();
    let _live = start_busy(&scratch, &[]);
    assert_snapshot!(shown(&tachikoma(&scratch).run(["resume"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: the loop is not paused (the loop is running)
    ");
}

fn socket(scratch: &Scratch) -> PathBuf {
    let mut found = fs::read_dir(scratch.runtime_dir().join("tachikoma"))
        .expect("the runtime directory was created");
    let entry = found
        .next()
        .expect("the runtime directory contains a socket");
    entry.expect("the runtime directory is readable").path()
}

/// Sends one line to the runner. Returns the greeting and the answer of the runner.
fn say(scratch: &Scratch, line: &str) -> (Value, Value) {
    let mut stream = UnixStream::connect(socket(scratch)).expect("the runner listens");
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut next = || {
        let mut text = String::new();
        reader.read_line(&mut text).expect("the runner speaks");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
    };
    let hello = next();
    stream
        .write_all(line.as_bytes())
        .expect("the runner listens");
    (hello, next())
}

#[test]
fn unknown_requests_are_answered_with_an_error() {
    let scratch = Scratch::new();
    let _live = start_busy(&scratch, &[]);
    let (hello, answer) = say(&scratch, "{\"kind\":\"dance\"}\n");
    assert_snapshot!(mask(&hello.to_string()), @r#"{"loop_id":"[LOOP]","protocol":1,"version":"0.1.0"}"#);
    assert_snapshot!(answer, @r#"{"kind":"refused","reason":"the request is not understood: unknown variant `dance`, expected one of `status`, `command`, `note`, `done`, `set`, `answer`, `attend`, `tell`, `reload`, `follow` at line 1 column 15"}"#);
    let (_, answer) = say(&scratch, "{\"kind\":\"command\",\"command\":\"explode\"}\n");
    assert_snapshot!(answer, @r#"{"kind":"refused","reason":"the request is not understood: unknown variant `explode`, expected one of `pause`, `resume`, `stop`, `force_reboot`, `skip_iteration`"}"#);
    let (_, answer) = say(&scratch, "stop\n");
    assert_snapshot!(answer, @r#"{"kind":"refused","reason":"the request is not understood: expected value at line 1 column 1"}"#);
    assert_eq!(
        status(&scratch)["state"],
        "running",
        "the requests do not affect the loop"
    );
}

/// Simulates a runner of another version: takes the lock and greets callers with another protocol version.
fn other_version(scratch: &Scratch) -> fs::File {
    let path = scratch.runtime_dir().join("other.sock");
    let listener = UnixListener::bind(&path).expect("the directory is ours");
    let loop_id = loops(scratch)[0].file_name().expect("a name").to_owned();
    let loop_id = loop_id.to_str().expect("it is ASCII").to_owned();
    let hello = json!({"protocol": 99, "version": "7.0.0", "loop_id": loop_id});
    thread::spawn(move || {
        // The thread runs until the test process ends.
        for stream in listener.incoming() {
            let mut stream = stream.expect("a caller");
            let _ = writeln!(stream, "{hello}");
        }
    });
    let holder = json!({
        "pid": std::process::id(),
        "since": "2026-01-01T00:00:00.000Z",
        "loop_id": loop_id,
        "socket": path,
    });
    let mut lock = OpenOptions::new()
        .write(true)
        .open(scratch.path().join(".ralph/lock"))
        .expect("the lock file exists");
    // A child that another test has just forked still has copies of the open files, including the lock.
    await_until("nobody has it", SOON, || {
        flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
    lock.set_len(0).expect("the test owns this file");
    write!(lock, "{holder}").expect("it is ours");
    lock
}

#[test]
fn a_runner_of_another_version_is_reported() {
    let scratch = Scratch::new();
    kill(&scratch, start_busy(&scratch, &[]));
    let before = journals(&scratch);
    let _lock = other_version(&scratch);
    assert_snapshot!(shown(&tachikoma(&scratch).run(["stop"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: the runner is of version 7.0.0 and speaks protocol 99; this is protocol 1
    hint: use the version that started it, or stop it with a signal
    ");
    let ran = tachikoma(&scratch).run(["events", "--follow"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    let ran = tachikoma(&scratch).run(["status"]);
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    loop       [LOOP]
    state      running
    iteration  1 (attempt 1)
    session    1 (0 iterations)
    context    not known
    stops      it ran [DURATION] of [DURATION]
    stops      1 of 100 iterations
    so far     0 iterations, [DURATION] of work
    runner     pid [PID] since [TIME], containment [HELD]
    --- stderr
    note: the runner is of version 7.0.0 and speaks protocol 99; this is protocol 1
    note: the following is from the journal
    ");
    assert_eq!(journals(&scratch), before);
}

#[test]
fn an_unusable_runtime_directory_is_reported() {
    let scratch = with_history();
    let before = journals(&scratch);
    let tool = tachikoma(&scratch).env("XDG_RUNTIME_DIR", "/proc/nowhere");
    let ran = tool.run(["run", "--max-iterations", "2"]);
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    --- stderr
    error: create directory /proc/nowhere/tachikoma: No such file or directory (os error 2)
    hint: set XDG_RUNTIME_DIR to a short path that only you can write to
    ");
    assert_eq!(journals(&scratch), before);
}

#[test]
fn runtime_directory_that_others_can_write_to_is_refused() {
    let scratch = with_history();
    let before = journals(&scratch);
    let runtime = scratch.runtime_dir();
    let allow =
        |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let tool = tachikoma(&scratch);
    let resume = || tool.run(["run", "--max-iterations", "2"]);

    allow(&runtime, 0o777);
    assert_snapshot!(shown(&resume()).replace(runtime.to_str().unwrap(), "[RUNTIME]"), @"
    exit: 1
    --- stdout
    --- stderr
    error: use directory [RUNTIME]: other users can write to it (mode 0777); `chmod go-w [RUNTIME]` closes it
    hint: set XDG_RUNTIME_DIR to a short path that only you can write to
    ");
    let own = runtime.join("tachikoma");
    for (mode, own_mode) in [(0o775, 0o700), (0o700, 0o777), (0o1777, 0o720)] {
        allow(&runtime, mode);
        allow(&own, own_mode);
        let ran = resume();
        assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
        assert!(ran.stderr.contains("other users can write to it"));
    }
    assert_eq!(journals(&scratch), before);

    // In a sticky directory like `/tmp`, other users cannot replace our files.
    allow(&runtime, 0o1777);
    allow(&own, 0o700);
    let ran = resume();
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}

#[test]
fn a_socket_path_that_is_too_long_is_reported() {
    let scratch = with_history();
    let before = journals(&scratch);
    let long = scratch.home().join("x".repeat(120));
    let tool = tachikoma(&scratch).env("XDG_RUNTIME_DIR", &long);
    let ran = tool.run(["run", "--max-iterations", "2"]);
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    --- stderr
    error: the path of the control socket is longer than 107 bytes: [HOME]/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/tachikoma/[LOOP].sock
    hint: set XDG_RUNTIME_DIR to a short path that only you can write to
    ");
    let ran = tool.run(run(&["--new"], "true"));
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert_eq!(
        journals(&scratch),
        before,
        "no loop is started if its socket cannot be created"
    );
    let ran = tachikoma(&scratch).run(["run", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}
