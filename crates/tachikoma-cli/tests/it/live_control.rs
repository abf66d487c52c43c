//! Requests to a live loop from other processes: from the operator, its own agent, other users, and many callers at once.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tachikoma_testkit::{Scratch, Tool, await_until};

use crate::live_support::{
    BIN, RUN, SOON, UNTIL_GO, UP, await_nobody, await_status, await_up, copy_binary, events, go,
    is_alive, kinds, obey, records, seconds, socket, status, stop, tool, tool_of_nobody,
    with_agent,
};

#[test]
fn every_command_reaches_the_loop_also_from_a_subdirectory() {
    let scratch = with_agent(&format!("{UP} {UNTIL_GO}"));
    scratch.write("deep/er/file", "");
    let here = tool(&scratch);
    let there = tool(&scratch).in_dir("deep/er");
    let live = here.spawn(RUN);
    await_up(&scratch, 1);
    let seen = status(&there);
    assert_eq!(
        (&seen["state"], &seen["iteration"], &seen["attempt"]),
        (&Value::from("running"), &Value::from(1), &Value::from(1))
    );
    assert_eq!(seen["runner"]["pid"], live.pid());

    assert_eq!(obey(&there, &["pause"]), "pauses after iteration 1\n");
    assert_eq!(status(&there)["pause_requested"], true);
    let shown = obey(&there, &["status"]);
    let pending = "\npause      requested: the loop pauses when the current iteration, reboot or check ends; \
                   `tachikoma resume` cancels this\n";
    assert!(shown.contains(pending), "{shown}");
    go(&scratch, 1);
    let paused = await_status(&there, "paused", |status| status["state"] == "paused");
    assert_eq!(paused["waiting"]["reason"], "operator");
    assert_eq!(paused["pause_requested"], false);
    assert_eq!(obey(&there, &["resume"]), "the loop continues\n");
    await_up(&scratch, 2);
    assert_eq!(obey(&there, &["skip"]), "skips iteration 2\n");
    await_up(&scratch, 3);
    obey(&there, &["reboot"]);
    await_up(&scratch, 4);
    let refused = there.run(["resume"]);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("not paused"), "{}", refused.stderr);
    obey(&there, &["stop"]);
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());

    let ended = status(&there);
    assert_eq!(ended["state"], "stopped");
    assert_eq!(ended["outcome"]["kind"], "operator");
    assert!(ended["runner"].is_null());
    let stats = &ended["stats"];
    let counted = [
        "successful",
        "skipped",
        "handed_over",
        "interrupted",
        "reboots",
    ];
    assert!(counted.iter().all(|name| stats[name] == 1), "{stats}");
    let nobody = there.run(["stop"]);
    assert_eq!(nobody.code(), Some(1));
    assert!(nobody.stderr.contains("no loop runs"), "{}", nobody.stderr);
}

#[test]
fn a_reboot_keeps_a_paused_loop_paused() {
    let scratch = with_agent(&format!("{UP} {UNTIL_GO}"));
    let tool = tool(&scratch);
    let live = tool.spawn(RUN);
    await_up(&scratch, 1);
    obey(&tool, &["pause", "--now"]);
    await_status(&tool, "paused at once", |status| {
        status["state"] == "paused"
    });
    assert_eq!(obey(&tool, &["reboot"]), "reboots and stays paused\n");
    let rebooted = await_status(&tool, "rebooted", |status| status["stats"]["reboots"] == 1);
    assert_eq!(rebooted["state"], "paused");
    assert_eq!(rebooted["session"]["number"], 2);
    assert_eq!(rebooted["stats"]["interrupted"], 1);
    obey(&tool, &["resume"]);
    await_up(&scratch, 2);
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn the_agent_can_read_the_status_but_not_command_the_loop() {
    let others = "pause resume skip reboot";
    let scratch = with_agent(&format!(
        "{BIN} stop >inner.out 2>&1; echo $? >inner.code\n\
         for word in {others}; do {BIN} $word >>others.out 2>&1 && touch obeyed; done\n\
         {BIN} events --follow >follow.out 2>&1; echo $? >follow.code\n\
         {BIN} status --json >status.out; echo $? >status.code\n\
         ( (setsid sh -c '{BIN} stop >outer.out 2>&1; echo $? >outer.code; touch \"$0\"' all-told </dev/null >/dev/null 2>&1 &) & )\n\
         exec sleep 1000"
    ));
    let tool = tool(&scratch);
    let mut live = tool.spawn(RUN);
    let told = scratch.path().join("all-told");
    await_until("all have been told", SOON, || told.exists());
    assert!(live.is_running());
    for name in ["inner", "outer", "follow"] {
        assert_eq!(scratch.read(format!("{name}.code")), "1\n", "{name}");
        let words = scratch.read(format!("{name}.out"));
        assert!(words.contains("only the operator may ask this"), "{words}");
    }
    assert!(!scratch.path().join("obeyed").exists());
    assert_eq!(scratch.read("status.code"), "0\n");
    let seen: Value = serde_json::from_str(&scratch.read("status.out")).unwrap();
    assert_eq!(seen["runner"]["pid"], live.pid());
    let seen = status(&tool);
    assert_eq!(
        (&seen["state"], &seen["iteration"]),
        (&Value::from("running"), &Value::from(1))
    );
    assert_eq!(stop(&tool, live), Some(5));
}

/// Environment variable that makes [`a_request_of_a_process_that_exits_at_once_is_refused`] send its request.
const VICTIM: &str = "LIVE_CONTROL_VICTIM";

/// An agent runs this test: it sends a stop request and exits before the runner can identify it.
#[test]
fn a_request_of_a_process_that_exits_at_once_is_refused() {
    if let Some(socket) = std::env::var_os(VICTIM) {
        let mut stream = UnixStream::connect(socket).unwrap();
        writeln!(stream, "{}", request("stop")).unwrap();
        // Another process has a copy of the connection, so it stays open after the caller exits.
        let kept = Stdio::from(OwnedFd::from(stream));
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 1000 &"]).stdout(kept);
        assert!(shell.status().unwrap().success());
    }
}

/// Returns a request in the format of the socket.
fn request(command: &str) -> Value {
    serde_json::json!({"kind": "command", "command": {command: "graceful"}})
}

#[test]
fn a_caller_that_exits_before_it_is_identified_is_refused() {
    let this = std::env::current_exe().unwrap();
    let scratch = with_agent(&format!(
        "touch up; while [ ! -e socket ]; do sleep 0.01; done\n\
         {VICTIM}=$(cat socket) {} --exact live_control::a_request_of_a_process_that_exits_at_once_is_refused >/dev/null\n\
         touch fired; exec sleep 1000",
        this.display()
    ));
    let tool = tool(&scratch);
    let mut live = tool.spawn(RUN);
    let exists = |name: &str| scratch.path().join(name).exists();
    await_until("the agent is up", SOON, || exists("up"));
    // While the runner is stopped, the caller connects, sends and exits.
    live.signal(Signal::STOP);
    scratch.write("socket.new", socket(&scratch).to_str().unwrap());
    fs::rename(
        scratch.path().join("socket.new"),
        scratch.path().join("socket"),
    )
    .unwrap();
    await_until("the caller is gone", SOON, || exists("fired"));
    live.signal(Signal::CONT);
    // Callers that connect later are still served.
    for _ in 0..3 {
        assert_eq!(status(&tool)["state"], "running");
    }
    assert!(!kinds(&events(&tool)).contains(&"stop_requested".to_owned()));
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn other_users_cannot_reach_the_loop() {
    let scratch = with_agent(&format!("{UP} exec sleep 1000"));
    let owner = tool(&scratch);
    let mut live = owner.spawn(RUN);
    await_up(&scratch, 1);
    let socket = socket(&scratch);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(socket.parent().unwrap()), 0o700);
    assert_eq!(mode(&scratch.path().join(".ralph")), 0o700);
    assert_eq!(mode(&scratch.path().join(".ralph/lock")), 0o600);
    if rustix::process::geteuid().is_root() {
        // The other user is refused even if directory permissions are too permissive.
        let copy = scratch.path().join("copy");
        copy_binary(&copy);
        let root = scratch.path().parent().unwrap().to_owned();
        let lock = scratch.path().join(".ralph/lock");
        for (path, mode) in [
            (root, 0o755),
            (scratch.path(), 0o755),
            (scratch.path().join(".ralph"), 0o755),
            (scratch.path().join(".ralph/loops"), 0o755),
            (lock, 0o644),
            (scratch.runtime_dir(), 0o755),
            (socket.parent().unwrap().to_owned(), 0o755),
            (socket.clone(), 0o666),
        ] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let stranger = Tool::new(copy, &scratch).unprivileged();
        let ran = stranger.run(["stop"]);
        assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
        let refused = ran.stderr.contains("only the operator may ask this");
        assert!(refused, "{}", ran.snapshot());
    }
    assert!(live.is_running());
    assert_eq!(status(&owner)["state"], "running");
    assert_eq!(stop(&owner, live), Some(5));
}

#[test]
fn a_loop_of_an_unprivileged_user_obeys_that_user() {
    let seconds = seconds();
    let scratch = with_agent(&format!("{UP} exec sleep {seconds}"));
    let tool = tool_of_nobody(&scratch);
    let live = tool.spawn(RUN);
    await_up(&scratch, 1);
    assert_eq!(stop(&tool, live), Some(5));
    await_nobody(&seconds);
}

/// Connects as a caller and reads the greeting of the runner.
fn connect(scratch: &Scratch) -> BufReader<UnixStream> {
    let stream = UnixStream::connect(socket(scratch)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut reader = BufReader::new(stream);
    let mut hello = String::new();
    reader.read_line(&mut hello).unwrap();
    assert!(hello.contains("\"protocol\":1"), "{hello}");
    reader
}

#[test]
fn silent_connections_do_not_block_other_callers() {
    let scratch = with_agent(&format!("{UP} exec sleep 1000"));
    let tool = tool(&scratch);
    let live = tool.spawn(RUN);
    await_up(&scratch, 1);
    let silent: Vec<_> = (0..40).map(|_| connect(&scratch)).collect();
    let callers: Vec<_> = (0..40).map(|_| tool.spawn(["status", "--json"])).collect();
    for caller in callers {
        let ran = caller.wait(SOON);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        assert_eq!(
            ran.json()["runner"]["pid"],
            live.pid(),
            "answered by the runner"
        );
    }
    assert_eq!(stop(&tool, live), Some(5));
    drop(silent);
}

#[test]
fn followers_do_not_use_the_connections_of_the_operator() {
    let scratch = with_agent(&format!("{UP} exec sleep 1000"));
    let tool = tool(&scratch);
    let live = tool.spawn(RUN);
    await_up(&scratch, 1);
    let mut followers: Vec<_> = (0..200)
        .map(|_| UnixStream::connect(socket(&scratch)).unwrap())
        .collect();
    for stream in &mut followers {
        writeln!(stream, "{{\"kind\":\"follow\",\"after\":0}}").unwrap();
    }
    assert_eq!(stop(&tool, live), Some(5));
    let mut followed = 0;
    for stream in followers {
        stream.set_read_timeout(Some(SOON)).unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let words: Vec<String> = lines.collect();
        followed += usize::from(words.iter().any(|word| word.contains("\"following\"")));
    }
    assert_eq!(followed, 32, "32 followers keep their connections");
}

#[test]
fn connections_of_closed_followers_are_reused() {
    let scratch = with_agent(&format!("{UP} exec sleep 1000"));
    let tool = tool(&scratch);
    let live = tool.spawn(RUN);
    await_up(&scratch, 1);
    let follow = || {
        let mut reader = connect(&scratch);
        writeln!(reader.get_mut(), "{{\"kind\":\"follow\",\"after\":0}}").unwrap();
        let mut answer = String::new();
        reader.read_line(&mut answer).unwrap();
        (answer.contains("\"following\""), reader)
    };
    let seated: Vec<_> = (0..32).map(|_| follow()).collect();
    assert!(seated.iter().all(|(following, _)| *following));
    assert!(!follow().0, "all connections for followers are in use");
    drop(seated);
    // The loop writes no records meanwhile, so the runner cannot notice closed connections by a failed write.
    await_until("a seat is free", SOON, || follow().0);
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn invalid_requests_are_answered_with_an_error() {
    let scratch = with_agent(&format!("{UP} exec sleep 1000"));
    let tool = tool(&scratch);
    let live = tool.spawn(RUN);
    await_up(&scratch, 1);
    for nonsense in ["", "{}", "\u{0}\u{1b}", "{\"kind\":\"dance\"}", "[[[[[[[["] {
        let mut reader = connect(&scratch);
        writeln!(reader.get_mut(), "{nonsense}").unwrap();
        let mut answer = String::new();
        reader.read_line(&mut answer).unwrap();
        assert!(answer.contains("not understood"), "{nonsense:?}: {answer}");
    }
    assert_eq!(status(&tool)["state"], "running");
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn a_follower_without_a_reader_ends() {
    let scratch = with_agent(&format!("{UP} exec sleep 1000"));
    let tool = tool(&scratch);
    let live = tool.spawn(RUN);
    await_up(&scratch, 1);
    for words in [
        ["events", "--follow", "--json"].as_slice(),
        &["events", "-f"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut follower = tool.command(words).stdout(writer).spawn().unwrap();
        await_until("it ends", SOON, || follower.try_wait().unwrap().is_some());
        assert_eq!(follower.wait().unwrap().code(), Some(0), "{words:?}");
    }
    assert_eq!(stop(&tool, live), Some(5));
}

/// Time limit for hundreds of iterations.
const PATIENT: Duration = Duration::from_secs(120);

#[test]
fn a_slow_follower_gets_every_record() {
    let busy = 450;
    let scratch = with_agent(&format!(
        "[ $TACHIKOMA_ITERATION -le {busy} ] || {{ {UP} exec sleep 1000; }}"
    ));
    let tool = tool(&scratch).env("TACHIKOMA_MAX_ITERATIONS", "0");
    let live = tool.spawn(RUN);
    await_until("there is a loop", SOON, || {
        !status(&tool)["loop_id"].is_null()
    });
    // The pipe of the follower fills up long before the test reads it, so the runner drops the connection.
    let mut follower = tool
        .command(["events", "--follow", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let last = scratch.path().join(format!("up{}", busy + 1));
    await_until("all iterations are over", PATIENT, || last.exists());
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut text = String::new();
    let mut read = |until: &str| {
        for line in lines.by_ref().map(Result::unwrap) {
            text.push_str(&line);
            text.push('\n');
            if line.contains(until) {
                return;
            }
        }
        panic!("it ended without {until}");
    };
    read(&format!(
        "\"type\":\"iteration_started\",\"iteration\":{}",
        busy + 1
    ));
    assert_eq!(stop(&tool, live), Some(5));
    read("\"type\":\"stopped\"");
    assert!(lines.next().is_none(), "the follower ends with the loop");
    assert!(follower.wait().unwrap().success());
    let followed = records(&text);
    let seqs: Vec<u64> = followed
        .iter()
        .map(|record| record["seq"].as_u64().unwrap())
        .collect();
    let expected: Vec<u64> = (1..=seqs.len() as u64).collect();
    assert_eq!(seqs, expected, "the records are complete and in order");
    assert_eq!(
        followed,
        events(&tool),
        "the follower printed what the journal has"
    );
}

#[test]
fn a_follower_gets_records_from_before_its_connection() {
    let scratch = with_agent(&format!("{UP} exec sleep 1000"));
    let tool = tool(&scratch);
    let live = tool.spawn(RUN);
    await_up(&scratch, 1);
    obey(&tool, &["pause", "--now"]);
    await_status(&tool, "paused", |status| status["state"] == "paused");
    // The loop writes no more records, so a record that was skipped would never be shown.
    let mut follower = tool.spawn(["events", "--follow"]);
    await_until("the last record", SOON, || {
        follower.stdout().contains("paused;")
    });
    assert!(follower.is_running());
    let runner = live.pid();
    assert_eq!(stop(&tool, live), Some(5));
    let ran = follower.wait(SOON);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains("stopped by the operator"),
        "{}",
        ran.stdout
    );
    assert!(!is_alive(runner));
}
